"""NATS with JetStream: core messages, a stream for the log, an object store for each owner's blobs."""

import asyncio
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import ClassVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import api
from nats.js.errors import NotFoundError

from fedseed.errors import MessageError, NetworkError
from fedseed.transport.base import Access, ClientEnd, CoordinatorEnd, End, Receive, Rejected, Take, Transport
from fedseed.transport.nats_connection import connect
from fedseed.transport.nats_log import PENDING_BYTES, REQUEST_SECONDS, NatsFollowing, NatsLogWriter
from fedseed.transport.server_log import ServerLog, key_names
from fedseed.transport.subjects import Subjects, name_of

BLOB_SECONDS = 30.0
OVER = "the run is over"


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """The library's errors as one of ours."""
    try:
        yield
    except (TimeoutError, nats.errors.Error, OSError) as error:
        raise NetworkError(f"{what}: {error or type(error).__name__}") from error


class NatsTransport(Transport):
    """A run on a NATS server.

    Args:
        access: how to reach the server.
        run: the run's name.
    """

    schemes: ClassVar[Sequence[str]] = ("nats", "tls")

    def __init__(self, access: Access, run: str) -> None:
        self._access = access
        self._subjects = Subjects(run)

    async def coordinator(self, refused: Callable[[str], None]) -> "NatsCoordinator":
        """The coordinator's end. Raises FedseedError also if the server's log can't be read."""
        at = self._access
        names = key_names(at.key.parent) if at.key is not None else {}
        log = None if at.server_log is None else ServerLog(at.server_log, names)
        return NatsCoordinator(await self._connect("coordinator", refused), self._subjects, log)

    async def client(self, name: str, refused: Callable[[str], None], again: Callable[[], None]) -> "NatsClient":
        """A client's end."""
        end: list[NatsClient] = []

        def reconnected() -> None:
            for one in end:
                one.restart()
            again()

        end.append(NatsClient(await self._connect(name, refused, reconnected), self._subjects, name))
        return end[0]

    async def watcher(self) -> "NatsEnd":
        """A watcher's end."""
        return NatsEnd(await self._connect("watcher"), self._subjects, None)

    async def _connect(
        self, name: str, refused: Callable[[str], None] | None = None, again: Callable[[], None] | None = None
    ) -> Client:
        return await connect(self._access.url, self._subjects, name, self._access.key, self._access.ca, refused, again)


class NatsEnd(End):
    """What the ends have in common.

    Args:
        connection: to the server.
        subjects: the run's names there.
        owner: whose blobs are put here; None: the coordinator's.
    """

    largest = 256 * 1024  # a server takes 1 MiB by default

    def __init__(self, connection: Client, subjects: Subjects, owner: str | None) -> None:
        self.connection = connection
        self.subjects = subjects
        self._owner = owner
        self._blobs = connection.jetstream(timeout=BLOB_SECONDS)
        self._followers: list[NatsFollowing] = []

    async def status(self, seconds: float) -> bytes | None:
        """What the coordinator answers."""
        try:
            return (await self.connection.request(self.subjects.status, b"{}", timeout=seconds)).data
        except (TimeoutError, nats.errors.Error):
            return None

    async def log_end(self) -> int | None:
        """The stream's last sequence number. Raises NetworkError if JetStream is missing, or this key may not ask."""
        info = await self._stream()
        return None if info is None else int(info.state.last_seq)

    async def log_over(self) -> bool:
        """Whether the stream's description says that it was ended. Raises as `log_end` does."""
        info = await self._stream()
        return info is not None and info.config.description == OVER

    async def _stream(self) -> api.StreamInfo | None:
        try:
            return await self.connection.jetstream(timeout=REQUEST_SECONDS).stream_info(self.subjects.stream)
        except NotFoundError:
            return None
        except (TimeoutError, nats.errors.Error) as error:
            raise NetworkError(
                f"the server does not answer about run {self.subjects.run}: has it JetStream, and may this key ask? "
                f"({error})"
            ) from error

    async def follow(self, after: int, take: Take) -> "NatsFollowing":
        """Follow the stream."""
        following = NatsFollowing(self.connection, self.subjects, take, after, self._followers.remove)
        self._followers.append(following)
        return following

    def restart(self) -> None:
        """The connection was interrupted: whatever consumers there were may be gone."""
        for following in self._followers:
            following.restart()

    async def put(self, name: str, data: bytes) -> None:
        """Store an object."""
        with _explained(f"{len(data):,} bytes can't be stored on the server as {name}"):
            await (await self._blobs.object_store(self.subjects.bucket(self._owner))).put(name, data)

    async def get(self, owner: str | None, name: str, size: int) -> bytes:
        """Fetch an object."""
        data = io.BytesIO()
        try:
            store = await self._blobs.object_store(self.subjects.bucket(owner))
            info = await store.get_info(name)
            if info.size != size:
                raise MessageError(f"an object of {info.size} bytes, {size:,} were announced")
            await asyncio.wait_for(store.get(name, writeinto=data), 60 + size / 1e6)
        except (NotFoundError, KeyError, ValueError) as error:
            raise MessageError(f"the object {name} can't be had: {type(error).__name__}") from error
        except TimeoutError as error:
            raise MessageError(f"the object {name} can't be had: it does not come") from error
        except nats.errors.Error as error:
            raise MessageError(f"the object {name} can't be had: {error}") from error
        return data.getvalue()

    async def drop(self, owner: str | None, name: str) -> None:
        """Delete an object."""
        with suppress(nats.errors.Error, TimeoutError):
            await (await self._blobs.object_store(self.subjects.bucket(owner))).delete(name)

    async def close(self) -> None:
        """End the connection."""
        for following in list(self._followers):
            await following.stop()
        with suppress(nats.errors.Error, TimeoutError):
            await self.connection.close()

    async def _publish(self, subject: str, data: bytes) -> None:
        try:
            await self.connection.publish(subject, data)
        except nats.errors.OutboundBufferLimitError:
            pass  # an interruption that lasts: what is not kept is lost
        except nats.errors.Error as error:
            raise NetworkError(f"nothing can be sent to run {self.subjects.run}: {error}") from error


class NatsClient(NatsEnd, ClientEnd):
    """A client's end."""

    async def listen(self, take: Callable[[bytes], None]) -> None:
        """Subscribe to what goes to everybody."""

        async def deliver(message: Msg) -> None:
            if message.data and not message.reply.startswith("$JS"):  # not delivered from a stream
                take(message.data)

        await self.connection.subscribe(self.subjects.down, cb=deliver)
        await self.flush()  # what is broadcast from here on comes

    async def send(self, client: str, what: str, data: bytes) -> None:
        """Publish under the client's name."""
        await self._publish(self.subjects.up(client, what), data)

    async def ask(self, client: str, what: str, data: bytes, seconds: float) -> bytes | None:
        """A request under the client's name."""
        try:
            return (await self.connection.request(self.subjects.up(client, what), data, timeout=seconds)).data
        except (nats.errors.Error, TimeoutError, OSError):
            return None

    async def flush(self) -> None:
        """A round trip to the server."""
        with _explained("the server does not answer"):
            await self.connection.flush()


class NatsCoordinator(NatsEnd, CoordinatorEnd):
    """The coordinator's end.

    Args:
        connection: to the server.
        subjects: the run's names there.
        log: what the server itself refuses is read from here.
    """

    def __init__(self, connection: Client, subjects: Subjects, log: ServerLog | None = None) -> None:
        super().__init__(connection, subjects, None)
        self._log = log
        self._rejected: Rejected | None = None

    async def listen(self, receive: Receive, status: Callable[[], bytes], rejected: Rejected) -> None:
        """Subscribe to what clients publish, and to questions."""
        self._rejected = rejected
        root = [*self.subjects.root.split("."), "up"]

        async def answer(message: Msg) -> None:
            if message.reply:
                await self._publish(message.reply, status())

        async def deliver(message: Msg) -> None:
            parts = message.subject.split(".")
            if message.reply.startswith("$JS") or parts[:-2] != root:
                rejected("a consumer", "not sent by a client: delivered from a stream")
                return
            sender = name_of(parts[-2])
            if sender is None:
                rejected(parts[-2], "not a name")
                return
            reply = await receive(sender, parts[-1], message.data)
            if reply is not None and message.reply:
                await self._publish(message.reply, reply)

        await self.connection.subscribe(self.subjects.status, cb=answer)
        up = f"{self.subjects.root}.up.*.*"
        await self.connection.subscribe(up, cb=deliver, pending_bytes_limit=PENDING_BYTES)
        with _explained("the server does not answer"):
            await self.connection.flush()

    def poll(self) -> None:
        """Read on in the server's log."""
        if self._log is not None and self._rejected is not None:
            for who, reason in self._log.new():
                self._rejected(who, reason)

    async def broadcast(self, data: bytes) -> None:
        """Publish to everybody."""
        await self._publish(self.subjects.down, data)

    async def create_log(self, copies: int) -> None:
        """Make the stream."""
        settings = api.StreamConfig(
            name=self.subjects.stream,
            subjects=[self.subjects.log],
            storage=api.StorageType.FILE,
            num_replicas=copies,
            allow_direct=False,
            deny_delete=True,
            deny_purge=True,
        )
        with _explained(f"the log of run {self.subjects.run} can't be made"):
            await self.connection.jetstream(timeout=REQUEST_SECONDS).add_stream(settings)

    def writer(self, last: int) -> "NatsLogWriter":
        """What publishes to the stream."""
        return NatsLogWriter(self.connection, self.subjects, last)

    async def allow(self, owner: str | None, most: int | None) -> None:
        """Make a bucket, if there is none."""
        bucket = self.subjects.bucket(owner)
        with _explained(f"the object store {bucket} can't be made"):
            try:
                await self._blobs.object_store(bucket)
            except NotFoundError:
                settings = api.ObjectStoreConfig(bucket=bucket, max_bytes=-1 if most is None else most)
                await self._blobs.create_object_store(bucket, settings)

    async def mark_over(self) -> None:
        """Describe the stream so; a run is no less over if that fails."""
        with suppress(nats.errors.Error, TimeoutError, NetworkError):
            info = await self._stream()
            if info is not None:
                settings = info.config.evolve(description=OVER)
                await self.connection.jetstream(timeout=REQUEST_SECONDS).update_stream(settings)

    async def delete(self) -> None:
        """Delete the stream and the buckets."""
        stream = self.connection.jetstream(timeout=REQUEST_SECONDS)
        buckets = f"OBJ_{self.subjects.stream}--"
        with _explained(f"run {self.subjects.run} can't be deleted"):
            found: list[str] = []
            while page := await stream.streams_info(offset=len(found)):
                found += [str(info.config.name) for info in page]
            for name in found:
                if name == self.subjects.stream or name.startswith(buckets):
                    await stream.delete_stream(name)
