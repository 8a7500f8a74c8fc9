"""A plug-in in one file: a transport over a folder that all parties can read and write.

    fedseed serve recipe.toml --plugin plugin_folder_transport.py --nats folder:///mnt/shared
    fedseed join recipe.toml --plugin plugin_folder_transport.py --nats folder:///mnt/shared ...

Everything is a file, written under another name and then renamed, so that nobody reads half of one.
Ends look for new files every POLL_SECONDS. Nothing proves who wrote a file: use it among parties
that trust each other.

    RUN/log/0000000001           the log's entries; the coordinators' alone
    RUN/over                     the log has ended
    RUN/blobs/OWNER/NAME         what is too large for a message
    RUN/limits/OWNER             how many bytes of blobs an owner may have; ends check it themselves
    RUN/up/...                   messages and questions to the coordinator
    RUN/answers/ID               answers to questions
    RUN/down/END/...             what is broadcast, for each client's end
"""

import asyncio
import json
import os
import shutil
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote, unquote, urlsplit

from pydantic import BaseModel

import fedseed
from fedseed.errors import MessageError, NetworkError
from fedseed.transport import base

POLL_SECONDS = 0.05
STATUS = "?status"  # the kind of a question for the status, which comes from no client


def write_file(path: Path, data: bytes) -> None:
    """Write a file at once, in place of an earlier one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{uuid.uuid4().hex}"
    temporary.write_bytes(data)
    temporary.rename(path)


def write_new_file(path: Path, data: bytes) -> None:
    """Write a file at once, and bring it to the disk.

    Raises:
        FileExistsError: it is there already.
        FileNotFoundError: its folder is not there.
    """
    temporary = path.parent / f".{uuid.uuid4().hex}"
    with temporary.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path)  # unlike a renaming, this replaces nothing
    finally:
        temporary.unlink()


def list_files(folder: Path) -> list[Path]:
    """Return a folder's whole files by name; none if there is no such folder."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return []


def take_file(path: Path) -> bytes | None:
    """Return a file's bytes and delete it; None: somebody else has taken it."""
    try:
        data = path.read_bytes()
        path.unlink()
    except FileNotFoundError:
        return None
    return data


def owner_name(owner: str | None) -> str:
    """Return an owner's name as that of a file; None: the coordinator."""
    return "coordinator" if owner is None else quote(f"client {owner}", safe="")


class Head(BaseModel):
    """The first line of a message to the coordinator, in JSON."""

    client: str
    kind: str
    answer: uuid.UUID | None = None  # the name of the file for the answer, of a question


class FolderEnd(base.End):
    """An end of a run.

    Args:
        folder: the run's folder.
        owner: the owner of the blobs that this end stores; None: the coordinator.
    """

    largest = 256 * 1024
    unproven = "a shared folder does not prove who wrote a file"

    def __init__(self, folder: Path, owner: str | None = None) -> None:
        self.folder = folder
        self.owner = owner
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._sent = 0

    def _check_open(self) -> None:
        if self._closed:
            raise NetworkError(f"the connection to {self.folder} is closed")

    def _poll(self, look: Callable[[], Awaitable[None]]) -> "asyncio.Task[None]":
        """Call a function again and again until the end is closed."""

        async def look_again() -> None:
            while True:
                await look()
                await asyncio.sleep(POLL_SECONDS)

        task = asyncio.create_task(look_again())
        self._tasks.append(task)
        return task

    def _next_name(self) -> str:
        """Return a name for a message: those of one end sort by the time of sending."""
        self._sent += 1
        return f"{time.time_ns():020d}-{self._sent:010d}-{uuid.uuid4().hex}"

    def _send_up(self, head: Head, data: bytes) -> None:
        self._check_open()
        head_line = head.model_dump_json().encode() + b"\n"
        write_file(self.folder / "up" / self._next_name(), head_line + data)

    async def _question(self, client: str, kind: str, data: bytes, seconds: float) -> bytes | None:
        """Send a question, and return its answer; None: there is none in time."""
        question = uuid.uuid4()
        answer = self.folder / "answers" / question.hex
        self._send_up(Head(client=client, kind=kind, answer=question), data)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._closed:
            if (result := take_file(answer)) is not None:
                return result
            await asyncio.sleep(POLL_SECONDS)
        return None

    async def status(self, seconds: float) -> bytes | None:
        return await self._question("", STATUS, b"", seconds)

    async def log(self) -> base.Log | None:
        self._check_open()
        if not (self.folder / "log").is_dir():
            return None
        return base.Log(len(list_files(self.folder / "log")), (self.folder / "over").exists())

    async def entries(self, last: int | None = None) -> list[bytes]:
        self._check_open()
        return [path.read_bytes() for path in list_files(self.folder / "log")[:last]]

    async def follow(self, last_number: int, take: base.Take) -> base.Stop:
        number = last_number

        async def hand_out() -> None:
            nonlocal number
            while (path := self.folder / "log" / f"{number + 1:010d}").exists():
                number += 1
                take(number, path.read_bytes())

        task = self._poll(hand_out)

        async def stop() -> None:
            await base.end_task(task)

        return stop

    def _blob(self, owner: str | None, name: str) -> Path:
        return self.folder / "blobs" / owner_name(owner) / quote(name, safe="")

    async def put(self, name: str, data: bytes) -> None:
        self._check_open()
        path = self._blob(self.owner, name)
        limit = self.folder / "limits" / owner_name(self.owner)
        if not limit.exists():
            raise NetworkError(f"{name} can't be stored: its owner may store nothing")
        byte_limit = json.loads(limit.read_bytes())
        others = sum(
            file.stat().st_size for file in list_files(path.parent) if file.name != path.name
        )
        if byte_limit is not None and others + len(data) > byte_limit:
            raise NetworkError(
                f"{name} of {len(data):,} bytes can't be stored: at most {byte_limit:,} are kept"
            )
        write_file(path, data)

    async def get(self, owner: str | None, name: str, size: int) -> bytes:
        self._check_open()
        try:
            data = self._blob(owner, name).read_bytes()
        except FileNotFoundError:
            raise MessageError(f"the object {name} can't be had: it is not there") from None
        if len(data) != size:
            raise MessageError(f"an object of {len(data):,} bytes, {size:,} were announced")
        return data

    async def drop(self, owner: str | None, name: str) -> None:
        self._check_open()
        self._blob(owner, name).unlink(missing_ok=True)

    async def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            await base.end_task(task)


class FolderClient(FolderEnd, base.ClientEnd):
    """The end of a process with clients."""

    _inbox: Path | None = None

    async def listen(self, take: Callable[[bytes], None]) -> None:
        inbox = self.folder / "down" / uuid.uuid4().hex
        inbox.mkdir(parents=True)
        self._inbox = inbox

        async def hand_out() -> None:
            for path in list_files(inbox):
                data = take_file(path)
                if data is not None:
                    take(data)

        self._poll(hand_out)

    async def send(self, client: str, kind: str, data: bytes) -> None:
        self._send_up(Head(client=client, kind=kind), data)

    async def ask(self, client: str, kind: str, data: bytes, seconds: float) -> bytes | None:
        return await self._question(client, kind, data, seconds)

    async def close(self) -> None:
        await super().close()
        if self._inbox is not None:
            shutil.rmtree(self._inbox, ignore_errors=True)


class FolderCoordinator(FolderEnd, base.CoordinatorEnd):
    """The coordinator's end."""

    async def listen(
        self, receive: base.Receive, status: Callable[[], bytes], rejected: base.Rejected
    ) -> None:
        async def hand_out() -> None:
            for path in list_files(self.folder / "up"):
                message = take_file(path)
                if message is not None:
                    await self._hand_over(message, receive, status, rejected)

        self._poll(hand_out)

    async def _hand_over(
        self,
        message: bytes,
        receive: base.Receive,
        status: Callable[[], bytes],
        rejected: base.Rejected,
    ) -> None:
        head_line, _, data = message.partition(b"\n")
        try:
            head = Head.model_validate_json(head_line)
        except ValueError:
            rejected("somebody", "a file in up/ that is no message")
            return
        if head.kind == STATUS:
            answer: bytes | None = status()
        else:
            answer = await receive(head.client, head.kind, data)
        if answer is not None and head.answer is not None:
            write_file(self.folder / "answers" / head.answer.hex, answer)

    async def broadcast(self, data: bytes, receivers: Collection[str] | None = None) -> None:
        self._check_open()
        for inbox in list_files(self.folder / "down"):
            with suppress(FileNotFoundError):  # the client has left
                write_new_file(inbox / self._next_name(), data)

    async def writer(self, last: int | None, copies: int = 1) -> base.LogWriter:
        self._check_open()
        if last is None:
            (self.folder / "log").mkdir(parents=True, exist_ok=True)
        return FolderLogWriter(self.folder, last or 0)

    async def allow(self, owner: str | None, byte_limit: int | None) -> None:
        limit = self.folder / "limits" / owner_name(owner)
        if not limit.exists():
            write_file(limit, json.dumps(byte_limit).encode())

    async def delete(self) -> None:
        for name in ("log", "blobs", "limits"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        (self.folder / "over").unlink(missing_ok=True)


class FolderLogWriter(base.LogWriter):
    """Writes an entry only if no other coordinator has written one of its number."""

    def __init__(self, folder: Path, last: int) -> None:
        super().__init__(unquote(folder.name), last)
        self._folder = folder

    async def _store(self, entry: bytes) -> None:
        path = self._folder / "log" / f"{self.last + 1:010d}"
        try:
            write_new_file(path, entry)
        except FileExistsError:
            raise base.Fenced(path.read_bytes()) from None
        except FileNotFoundError:
            raise NetworkError(f"the log of run {self.run} can't be written: it is gone") from None

    async def finish(self) -> None:
        write_file(self._folder / "over", b"")


@fedseed.register_transport
class FolderTransport(base.Transport):
    """A run in a folder of its own, inside the folder of the address.

    Args:
        access: the address; keys and certificates do not matter.
        run: the run's name.
    """

    schemes: ClassVar[Sequence[str]] = ("folder",)

    def __init__(self, access: base.Access, run: str) -> None:
        self._folder = Path(unquote(urlsplit(access.url).path)) / run

    async def coordinator(self, events: base.Events = base.QUIET) -> FolderCoordinator:
        return FolderCoordinator(self._folder)

    async def client(self, name: str, events: base.Events = base.QUIET) -> FolderClient:
        return FolderClient(self._folder, name)

    async def watcher(self) -> FolderEnd:
        return FolderEnd(self._folder)
