"""A transport over a folder that all sides can write to, without a server: `fedseed serve --nats folder:///srv/runs`.

    FOLDER/RUN/log/00000001         the entries; whoever links a number second is fenced off
    FOLDER/RUN/over                 the log was ended
    FOLDER/RUN/blobs/OWNER/NAME     what is too large for a message
    FOLDER/RUN/limits/OWNER         how many bytes an owner may store
    FOLDER/RUN/inboxes/ROLE-ID/     one of each end that is connected: a file a message, sorted by time

Everything is written aside and then renamed or linked, so that nobody reads half a file. Whoever can write to the
folder can claim to be anybody: for one machine, or for people who trust each other.
"""

import asyncio
import itertools
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from fedseed.durable import write_whole
from fedseed.errors import MessageError, NetworkError
from fedseed.transport.base import (
    QUIET,
    Access,
    ClientEnd,
    CoordinatorEnd,
    End,
    Events,
    Fenced,
    Log,
    LogWriter,
    Receive,
    Rejected,
    Stop,
    Take,
    Transport,
    check_run,
    end_task,
)

POLL_SECONDS = 0.01


class FolderTransport(Transport):
    """A run in a folder.

    Args:
        access: the address.
        run: the run's name.
    """

    schemes: ClassVar[Sequence[str]] = ("folder",)

    def __init__(self, access: Access, run: str) -> None:
        self._run = run
        self._root = Path(urlsplit(access.url).path) / check_run(run)

    async def coordinator(self, events: Events = QUIET) -> "FolderCoordinator":
        """The coordinator's end; nobody refuses anything."""
        return FolderCoordinator(self._run, self._root, "coordinator", None)

    async def client(self, name: str, events: Events = QUIET) -> "FolderClient":
        """A client's end; it is never interrupted."""
        return FolderClient(self._run, self._root, "client", name)

    async def watcher(self) -> "FolderEnd":
        """A watcher's end."""
        return FolderEnd(self._run, self._root, "watcher", None)


class FolderEnd(End):
    """What the ends have in common.

    Args:
        run: the run's name.
        root: its folder.
        role: "coordinator", "client" or "watcher".
        owner: whose blobs are put here; None: the coordinator's.
    """

    largest = 256 * 1024

    def __init__(self, run: str, root: Path, role: str, owner: str | None) -> None:
        self._run = run
        self._root = root
        self._owner = owner
        self._inbox = root / "inboxes" / f"{role}-{uuid.uuid4().hex}"
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._questions = itertools.count()
        self._following: list[asyncio.Task[None]] = []
        self._closed = False
        self._last = 0  # the time in the last message's name
        for folder in (self._inbox, root / "parts"):
            folder.mkdir(parents=True, exist_ok=True)
        self._reading = asyncio.create_task(self._read_inbox())

    # -- messages ----------------------------------------------------------------------------------------------------

    def _tell(self, role: str, sender: str, what: str, data: bytes, question: int | None = None) -> None:
        """Put a message into every inbox of a role, or into one if a whole name is given."""
        if self._closed:
            raise NetworkError(f"the connection to run {self._run} is closed")
        self._last = max(self._last + 1, time.time_ns())
        name = f"{self._last:020d}-{self._inbox.name}"
        head = json.dumps([sender, what, self._inbox.name, question]).encode()
        for inbox in (self._root / "inboxes").glob(f"{role}*"):
            part = self._root / "parts" / f"{name}-{inbox.name}"
            part.write_bytes(head + b"\n" + data)
            try:
                part.rename(inbox / name)
            except OSError:  # that end is closed meanwhile
                part.unlink(missing_ok=True)

    async def _read_inbox(self) -> None:
        while True:
            for path in sorted(self._inbox.iterdir()):
                head, _, data = path.read_bytes().partition(b"\n")
                path.unlink()
                sender, what, origin, question = json.loads(head)
                if what == "answer":
                    answer = self._answers.get(question)
                    if answer is not None and not answer.done():
                        answer.set_result(data)
                else:
                    reply = await self._receive(sender, what, data)
                    if reply is not None and question is not None:
                        self._tell(origin, "", "answer", reply, question)
            await asyncio.sleep(POLL_SECONDS)

    async def _receive(self, sender: str, what: str, data: bytes) -> bytes | None:
        """Something has come; the answer, if it was a question."""
        return None

    async def _ask(self, sender: str, what: str, data: bytes, seconds: float) -> bytes | None:
        question = next(self._questions)
        answer = self._answers[question] = asyncio.get_running_loop().create_future()
        try:
            self._tell("coordinator", sender, what, data, question)
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            return None
        finally:
            del self._answers[question]

    # -- End ---------------------------------------------------------------------------------------------------------

    async def status(self, seconds: float) -> bytes | None:
        """Ask the coordinators; the first answer counts."""
        return await self._ask("", "status", b"", seconds)

    async def log(self) -> Log | None:
        """How many entries there are, and whether the last was the end."""
        log = self._root / "log"
        return Log(len(list(log.iterdir())), (self._root / "over").exists()) if log.is_dir() else None

    async def follow(self, after: int, take: Take) -> Stop:
        """Look for the next entry again and again."""
        task = asyncio.create_task(self._follow(after + 1, take))
        self._following.append(task)
        return lambda: end_task(task)

    async def _follow(self, number: int, take: Take) -> None:
        while True:
            with suppress(FileNotFoundError):
                take(number, _entry(self._root, number).read_bytes())
                number += 1
                await asyncio.sleep(0)
                continue
            await asyncio.sleep(POLL_SECONDS)

    async def entries(self, last: int | None = None) -> list[bytes]:
        """The first entries, or all."""
        most = len(list((self._root / "log").iterdir())) if last is None else last
        return [_entry(self._root, number).read_bytes() for number in range(1, most + 1)]

    async def put(self, name: str, data: bytes) -> None:
        """Store a blob, within the owner's limit."""
        limit, path = self._root / "limits" / _safe(self._owner), self._blob(self._owner, name)
        if not limit.is_file():
            raise NetworkError(f"{len(data):,} bytes can't be stored as {name}: {self._owner} may store nothing")
        path.parent.mkdir(parents=True, exist_ok=True)
        most, others = limit.read_text(), sum(p.stat().st_size for p in path.parent.iterdir() if p != path)
        if most and others + len(data) > int(most):
            raise NetworkError(f"{len(data):,} bytes can't be stored as {name}: at most {most} bytes are kept")
        write_whole(path, data)

    async def get(self, owner: str | None, name: str, size: int) -> bytes:
        """A blob of the right size."""
        try:
            there = self._blob(owner, name).stat().st_size
            if there != size:
                raise MessageError(f"an object of {there} bytes, {size:,} were announced")
            return self._blob(owner, name).read_bytes()
        except OSError as error:
            raise MessageError(f"the object {name} can't be had: {error.strerror}") from error

    async def drop(self, owner: str | None, name: str) -> None:
        """Delete a blob."""
        self._blob(owner, name).unlink(missing_ok=True)

    def _blob(self, owner: str | None, name: str) -> Path:
        return self._root / "blobs" / _safe(owner) / _safe(name)

    async def close(self) -> None:
        """Stop, and take the inbox away; again is fine."""
        self._closed = True
        for task in (self._reading, *self._following):
            await end_task(task)
        shutil.rmtree(self._inbox, ignore_errors=True)


class FolderClient(FolderEnd, ClientEnd):
    """A client's end."""

    _take: Callable[[bytes], None] | None = None

    async def listen(self, take: Callable[[bytes], None]) -> None:
        """Take what the coordinator broadcasts."""
        self._take = take

    async def _receive(self, sender: str, what: str, data: bytes) -> None:
        if self._take is not None:
            self._take(data)

    async def send(self, client: str, what: str, data: bytes) -> None:
        """Tell the coordinators."""
        self._tell("coordinator", client, what, data)

    async def ask(self, client: str, what: str, data: bytes, seconds: float) -> bytes | None:
        """Tell the coordinators, and wait."""
        return await self._ask(client, what, data, seconds)


class FolderCoordinator(FolderEnd, CoordinatorEnd):
    """The coordinator's end."""

    _listener: tuple[Receive, Callable[[], bytes]] | None = None

    async def listen(self, receive: Receive, status: Callable[[], bytes], rejected: Rejected) -> None:
        """Take what clients send, one after the other."""
        self._listener = receive, status

    async def _receive(self, sender: str, what: str, data: bytes) -> bytes | None:
        if self._listener is None:
            return None
        receive, status = self._listener
        return status() if what == "status" and not sender else await receive(sender, what, data)

    async def broadcast(self, data: bytes, to: Collection[str] | None = None) -> None:
        """Tell the clients that are there."""
        self._tell("client", "", "broadcast", data)

    async def writer(self, last: int | None, copies: int = 1) -> "FolderLogWriter":
        """What appends to the log, which is made if need be; a folder has no copies."""
        if last is None:
            (self._root / "log").mkdir(exist_ok=True)
        return FolderLogWriter(self._run, self._root, last or 0)

    async def allow(self, owner: str | None, most: int | None) -> None:
        """Note the owner's limit, once."""
        path = self._root / "limits" / _safe(owner)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            write_whole(path, b"" if most is None else b"%d" % most)

    async def delete(self) -> None:
        """Delete log, blobs and limits."""
        for name in ("log", "blobs", "limits"):
            shutil.rmtree(self._root / name, ignore_errors=True)
        (self._root / "over").unlink(missing_ok=True)


class FolderLogWriter(LogWriter):
    """Links entries to their numbers: of two writers, the second finds the number taken."""

    def __init__(self, run: str, root: Path, last: int) -> None:
        super().__init__(run, last)
        self._root = root

    async def _store(self, entry: bytes) -> None:
        part, path = self._root / "parts" / uuid.uuid4().hex, _entry(self._root, self.last + 1)
        write_whole(part, entry)
        try:
            os.link(part, path)
        except FileExistsError:
            raise Fenced(path.read_bytes()) from None
        except OSError as error:
            raise NetworkError(f"the log of run {self.run} can't be written: {error.strerror}") from error
        finally:
            part.unlink()

    async def finish(self) -> None:
        """Leave a mark beside the log."""
        (self._root / "over").touch()


def _entry(root: Path, number: int) -> Path:
    return root / "log" / f"{number:08d}"


def _safe(name: str | None) -> str:
    """A file's name for a client's or blob's, whatever characters it has; a folder of its own for the coordinator."""
    return "coordinator" if name is None else "_" + name.encode().hex()
