"""A client's account in a file: a turn is on disk before its answer leaves the client.

The file has lines of JSON, and each line's checksum covers all lines before it:

    {"kind": "account", "format": 1, "client": ..., "sum": ...}
    {"kind": "data", "place": ..., "sum": ...}     a place of the client's data, once for each
    {"kind": "turn", "turn": {...}, "sum": ...}    a `Turn`

An incomplete last line is from a killed process that did not send its answer, so the line is cut
off. A file with any other damage is refused, because turns may have been removed from it. A file
that was set back to an earlier state as a whole can't be recognised, unless a running process has
seen the later state.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from fedseed.durable import (
    NO_LINK,
    NO_WAIT,
    Appender,
    finished_files,
    locked,
    make_folder,
    write_whole,
)
from fedseed.errors import PrivacyError, StorageError
from fedseed.privacy.account import Account, Limits, Turn
from fedseed.text import first_problem

FORMAT = 1
SUFFIX = ".jsonl"
LOCK = ".lock"
LOCK_SECONDS = 60.0  # how long to wait while another process counts a turn
_SUM_BYTES = 8
_REMEDY = (
    "restore the file from a backup that has all its turns; only if you accept that turns are "
    "forgotten, move the file away, and a new account begins"
)


class _About(BaseModel):
    """The first line."""

    kind: Literal["account"] = "account"
    format: int = FORMAT
    client: str


class _Data(BaseModel):
    """A place of the client's data."""

    kind: Literal["data"] = "data"
    place: str


class _Counted(BaseModel):
    """A turn."""

    kind: Literal["turn"] = "turn"
    turn: Turn


_Line = _About | _Data | _Counted
_LINE: TypeAdapter[_Line] = TypeAdapter(Annotated[_Line, Field(discriminator="kind")])


def _encode_line(previous: str, line: "_Line") -> bytes:
    """Return a line of the file; `previous` is the checksum of the line before."""
    body = line.model_dump_json().encode().removesuffix(b"}")
    return body + _end(_checksum(previous, body))


def _end(checksum: str) -> bytes:
    return f',"sum":"{checksum}"}}\n'.encode()


def _checksum(previous: str, body: bytes) -> str:
    return blake2b(previous.encode() + body, digest_size=_SUM_BYTES).hexdigest()


class AccountFile:
    """The contents of an account's file, as far as it has been read.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.turns: dict[str, Turn] = {}  # by question
        self.places: set[str] = set()
        self.size = 0  # bytes read
        self._lines = 0
        self._last_line = b""
        self._checksum = ""

    def create(self, client: str) -> None:
        """Make the file, for a client without one."""
        write_whole(self.path, _encode_line("", _About(client=client)))

    def has_changed(self) -> bool:
        """Return whether the file's size differs from what was read, or the file is gone."""
        try:
            return self.path.stat().st_size != self.size
        except OSError:
            return True

    def read_on(self) -> list[Turn]:
        """Read new lines, and cut off an incomplete last one.

        No other process may write at the same time.

        Returns:
            The new turns.

        Raises:
            PrivacyError: the file is damaged, or has lost lines that were read before.
            StorageError: it can't be written.
        """
        whole, newline, torn = self._read_new().rpartition(b"\n")
        lines = (whole + newline).splitlines(keepends=True)
        if lines and b"\0" in lines[-1]:
            # zeros that a power cut left in place of a line
            torn = lines.pop() + torn
        turns = [self._take(line) for line in lines]
        if not self._lines:
            raise self._refusal("it has no line, or was never an account")
        if torn:
            appender = Appender(self.path)
            try:
                appender.cut(self.size)
            finally:
                appender.close()
        return [turn for turn in turns if turn is not None]

    def add_place(self, place: str) -> None:
        """Write a place of the client's data, as `add_turn` does."""
        self._add(_Data(place=place))

    def add_turn(self, turn: Turn) -> None:
        """Write a turn; it is on disk when this returns.

        The file must have been read to its end, and no other process may write at the same time.

        Raises:
            StorageError: it can't be written; the file is not changed.
        """
        self._add(_Counted(turn=turn))

    def _add(self, table: "_Line") -> None:
        line = _encode_line(self._checksum, table)
        appender = Appender(self.path)
        try:
            appender.append(line)
        finally:
            appender.close()
        self._take(line)

    def _read_new(self) -> bytes:
        """Return the bytes that were not read before."""
        flags = os.O_RDONLY | NO_LINK | NO_WAIT
        try:
            handle = os.open(self.path, flags)
        except FileNotFoundError as error:
            raise self._refusal("the file is gone, while this process works with it") from error
        except OSError as error:
            raise StorageError(f"{self.path}: can't be read: {error.strerror}") from error
        # check before `open`, which rejects a folder with an error that does not name the path
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise StorageError(f"{self.path}: not a regular file; --account must name a file")
        with open(handle, "rb") as file:
            file.seek(self.size - len(self._last_line))
            if file.read(len(self._last_line)) != self._last_line:
                raise self._refusal("it was set back or changed while this process worked with it")
            return file.read()

    def _take(self, line: bytes) -> Turn | None:
        """Take the next line; return its turn, if it has one."""
        number = self._lines + 1
        body = line[: -len(_end("0" * 2 * _SUM_BYTES))]
        checksum = _checksum(self._checksum, body)
        if line != body + _end(checksum):
            raise self._refusal(f"line {number} is damaged, or lines before it are missing")
        turn = self._read_line(number, body + b"}")
        self.size += len(line)
        self._lines, self._last_line, self._checksum = number, line, checksum
        if turn is not None:
            self.turns[turn.question] = turn
        return turn

    def _read_line(self, number: int, text: bytes) -> Turn | None:
        """Parse a line; return its turn, if it has one."""
        try:
            line = _LINE.validate_json(text)
        except ValidationError as error:
            raise self._refusal(f"line {number}: {first_problem(error)}") from error
        if isinstance(line, _About) != (number == 1):
            raise self._refusal(f"line {number} is out of place")
        if isinstance(line, _About) and line.format != FORMAT:
            raise PrivacyError(
                f"{self.path}: a privacy account of format {line.format}; this version of fedseed "
                f"reads format {FORMAT}"
            )
        if isinstance(line, _Data):
            self.places.add(line.place)
        return line.turn if isinstance(line, _Counted) else None

    def _refusal(self, problem: str) -> PrivacyError:
        return PrivacyError(
            f"{self.path}: this privacy account can't be trusted: {problem}. Until this is "
            f"corrected the client sends no answers: {_REMEDY}"
        )


class FileAccount(Account):
    """A client's account in a file, which several processes may share.

    An account is found by the client's name. Accounts with other names are found by all places
    where this client's data have ever been, so a client does not get a new account with a new name.
    All of these accounts count, and each turn is written to all of them.

    Args:
        path: the account's file; created if it is missing.
        client: the client's name.
        limits: what the account allows.
        data_place: the place of the client's data; "": only this file counts, not others in its
            folder.

    Raises:
        PrivacyError: a file is damaged, or was set back; another process holds the lock.
        StorageError: the account can't be written.
    """

    def __init__(self, path: Path, client: str, limits: Limits, data_place: str = "") -> None:
        super().__init__(client, limits)
        self._path = path
        make_folder(path.parent, 0o700)
        self._lock = path.parent.resolve() / LOCK
        self._counts_other_files = bool(data_place)
        with self._locked():
            own_file = self._open_own(data_place)
            self._files = [own_file]  # files that count for this client
            self._files_seen = {path: own_file}  # all files in the folder, by path
            for turn in own_file.turns.values():
                self._take(turn)
            self._read_on()

    @property
    def place(self) -> str:
        return ", ".join(str(file.path) for file in self._files)

    def find(self, question: str) -> Turn | None:
        """Return the turn in which a question was answered, and write it into all files."""
        with self._locked():
            self._read_on()
            earlier = super().find(question)
            if earlier is not None:
                self._write(earlier)
        return earlier

    def charge(self, turn: Turn) -> Turn:
        """Count a turn, on disk before this returns.

        If two processes have answered the same question, the first one's answer counts.
        """
        with self._locked():
            self._read_on()
            earlier = super().find(turn.question)
            if earlier is None:
                self.check(turn)
                earlier = turn
            self._write(earlier)
            self._take(earlier)
        return earlier

    def _write(self, turn: Turn) -> None:
        """Write a turn into each file that lacks it."""
        for file in self._files:
            if turn.question not in file.turns:
                file.add_turn(turn)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Prevent other processes from reading and writing accounts in this folder."""
        try:
            with locked(self._lock, LOCK_SECONDS):
                yield
        except TimeoutError as error:
            raise PrivacyError(
                f"{error}, for {LOCK_SECONDS:g} seconds: another process is counting a client's "
                "answer, or was suspended while doing so; end it or let it continue"
            ) from error

    def _open_own(self, data_place: str) -> AccountFile:
        """Open the client's own file, and add the place of the client's data."""
        own_file = AccountFile(self._path)
        if not self._path.exists():
            own_file.create(self.client)
        own_file.read_on()
        if data_place and data_place not in own_file.places:
            own_file.add_place(data_place)
        return own_file

    def _read_on(self) -> None:
        """Read the turns that other processes have added.

        New accounts count as well, because their process may have been killed after it wrote a turn
        into its own file and before it wrote the turn into this one.
        """
        if self._counts_other_files:
            self._find_files()
        for file in self._files:
            for turn in file.read_on():
                self._take(turn)

    def _find_files(self) -> None:
        """Find the other accounts in the folder that count for this client."""
        own_places = self._files[0].places
        for path in finished_files(self._path.parent, f"*{SUFFIX}"):
            file = self._files_seen.setdefault(path, AccountFile(path))
            if file in self._files:
                continue
            if file.has_changed():
                file.read_on()
            if file.places & own_places:
                self._files.append(file)
                for turn in file.turns.values():
                    self._take(turn)
