"""A client's account in a file: a turn is on disk before its answer leaves the client.

The file has a line of JSON for each thing, and each line's checksum covers all lines before it:

    {"kind": "account", "format": 1, "client": ..., "sum": ...}
    {"kind": "data", "place": ..., "sum": ...}     where the data lay, once for each place
    {"kind": "turn", "turn": {...}, "sum": ...}    a `Turn`

A line that a killed process has not written to its end was never answered, and is cut off. Anything
else that does not fit is refused: whoever has changed the file may have taken turns away. A file
that was set back to an earlier state as a whole can't be told from one that was never written on,
unless a process is at work that has seen it before.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from fedseed.durable import NO_LINK, NO_WAIT, Appender, locked, make_folder, write_whole
from fedseed.errors import PrivacyError, StorageError
from fedseed.privacy.account import Account, Limits, Turn
from fedseed.text import first_problem

FORMAT = 1
SUFFIX = ".jsonl"
LOCK = ".lock"
LOCK_SECONDS = 60.0  # that another process may take to count a turn
_SUM_BYTES = 8
_REMEDY = (
    "bring the file back from a backup that has all its turns; only if you accept that turns "
    "are forgotten, move it away, and a new account begins"
)


class _About(BaseModel):
    """The first line."""

    kind: Literal["account"] = "account"
    format: int = FORMAT
    client: str


class _Data(BaseModel):
    """Where the client's data lay."""

    kind: Literal["data"] = "data"
    place: str


class _Counted(BaseModel):
    """A turn."""

    kind: Literal["turn"] = "turn"
    turn: Turn


_Line = _About | _Data | _Counted
_LINE: TypeAdapter[_Line] = TypeAdapter(Annotated[_Line, Field(discriminator="kind")])


def _written(previous: str, line: "_Line") -> bytes:
    """Return a line as the file has it, `previous`: the checksum of the line before."""
    body = line.model_dump_json().encode().removesuffix(b"}")
    return body + _end(_checksum(previous, body))


def _end(checksum: str) -> bytes:
    return f',"sum":"{checksum}"}}\n'.encode()


def _checksum(previous: str, body: bytes) -> str:
    return blake2b(previous.encode() + body, digest_size=_SUM_BYTES).hexdigest()


class AccountFile:
    """What an account's file says, as far as it has been read.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.turns: dict[str, Turn] = {}  # by question
        self.places: set[str] = set()
        self._size = 0  # bytes that were read
        self._lines = 0
        self._last_line = b""
        self._checksum = ""

    def create(self, client: str) -> None:
        """Make the file, for a client that has none."""
        write_whole(self.path, _written("", _About(client=client)))

    def read_on(self) -> list[Turn]:
        """Read what has been added, and cut off what was not written to its end.

        Nobody else may write meanwhile.

        Returns:
            The turns that were added.

        Raises:
            PrivacyError: the file is damaged, or has lost what was read before.
            StorageError: it can't be written.
        """
        whole, newline, torn = self._read_new().rpartition(b"\n")
        lines = (whole + newline).splitlines(keepends=True)
        if lines and b"\0" in lines[-1]:
            # zeros that a power cut left where a line was to be
            torn = lines.pop() + torn
        added = [turn for line in lines if (turn := self._take(line)) is not None]
        if not self._lines:
            raise self._refusal("it has no line, or was never an account")
        if torn:
            appender = Appender(self.path)
            try:
                appender.cut(self._size)
            finally:
                appender.close()
        return added

    def add_place(self, place: str) -> None:
        """Note where the client's data lies, as `add_turn` does."""
        self._add(_Data(place=place))

    def add_turn(self, turn: Turn) -> None:
        """Write a turn, on disk before this returns.

        The file must have been read to its end, and nobody else may write meanwhile.

        Raises:
            StorageError: it can't be written; the file is as before.
        """
        self._add(_Counted(turn=turn))

    def _add(self, table: "_Line") -> None:
        line = _written(self._checksum, table)
        appender = Appender(self.path)
        try:
            appender.append(line)
        finally:
            appender.close()
        self._take(line)

    def _read_new(self) -> bytes:
        """Return what stands behind what was read before."""
        flags = os.O_RDONLY | NO_LINK | NO_WAIT
        try:
            handle = os.open(self.path, flags)
        except FileNotFoundError as error:
            raise self._refusal("the file is gone, while this process works with it") from error
        except OSError as error:
            raise StorageError(f"{self.path}: can't be read: {error.strerror}") from error
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise StorageError(f"{self.path}: no regular file")
            file.seek(self._size - len(self._last_line))
            if file.read(len(self._last_line)) != self._last_line:
                raise self._refusal("it was set back or changed while this process worked with it")
            return file.read()

    def _take(self, line: bytes) -> Turn | None:
        """Take the next line; return the turn that it says, if it is one."""
        number = self._lines + 1
        body = line[: -len(_end("0" * 2 * _SUM_BYTES))]
        checksum = _checksum(self._checksum, body)
        if line != body + _end(checksum):
            raise self._refusal(f"line {number} is damaged, or lines before it are missing")
        turn = self._read_line(number, body + b"}")
        self._size += len(line)
        self._lines, self._last_line, self._checksum = number, line, checksum
        if turn is not None:
            self.turns[turn.question] = turn
        return turn

    def _read_line(self, number: int, text: bytes) -> Turn | None:
        """Take what a line says; return the turn, if it is one."""
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
            f"{self.path}: this privacy account can't be trusted: {problem}. Until it is right "
            f"the client answers nothing: {_REMEDY}"
        )


class FileAccount(Account):
    """A client's account in a file, which several processes may share.

    A client's account is found by its name, and those of other names by all places where the data
    of this name has ever lain: a client that was given another name does not begin anew. All that
    are found count, and each gets every turn.

    Args:
        path: the account's file; made if it is missing.
        client: the client's name.
        limits: what it allows.
        data_place: where the client's data lies; "": the file counts alone, whatever others there
            are in its folder.

    Raises:
        PrivacyError: a file is damaged, or was set back; another process holds the lock.
        StorageError: the account can't be written.
    """

    def __init__(self, path: Path, client: str, limits: Limits, data_place: str = "") -> None:
        super().__init__(client, limits)
        self._path = path
        make_folder(path.parent, 0o700)
        self._lock = path.parent.resolve() / LOCK
        with self._locked():
            self._files = self._open(data_place)
        for file in self._files:
            for turn in file.turns.values():
                self._take(turn)

    @property
    def place(self) -> str:
        return ", ".join(str(file.path) for file in self._files)

    def find(self, question: str) -> Turn | None:
        """Return the turn in which a question was answered; all files have it then."""
        with self._locked():
            self._read_on()
            earlier = super().find(question)
            if earlier is not None:
                self._write(earlier)
        return earlier

    def charge(self, turn: Turn) -> Turn:
        """Count a turn, on disk before this returns.

        Of two processes that have answered the same question the first one's answer counts.
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
        """Keep other processes from reading and writing accounts here."""
        try:
            with locked(self._lock, LOCK_SECONDS):
                yield
        except TimeoutError as error:
            raise PrivacyError(
                f"{error}, for {LOCK_SECONDS:g} seconds: it counts an answer of a client, or is "
                "suspended in the middle of that; end it, or let it go on"
            ) from error

    def _open(self, data_place: str) -> list[AccountFile]:
        """Return the files that count for this client, its own first."""
        own = AccountFile(self._path)
        if not self._path.exists():
            own.create(self.client)
        own.read_on()
        if data_place and data_place not in own.places:
            own.add_place(data_place)
        files = [own]
        if data_place:
            others = sorted(self._path.parent.glob(f"*{SUFFIX}"))
            for other in [AccountFile(path) for path in others if path != self._path]:
                other.read_on()
                if other.places & own.places:
                    files.append(other)
        return files

    def _read_on(self) -> None:
        """Take the turns that other processes have added."""
        for file in self._files:
            for turn in file.read_on():
                self._take(turn)
