"""What the ends of a run on NATS have in common, and a client's end."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, suppress

import nats.errors
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError

from fedseed.errors import NetworkError
from fedseed.transport.base import ClientEnd, End, Events, Interrupted, Log, LogLostError, Stop, Take
from fedseed.transport.nats_connection import Guarded
from fedseed.transport.nats_log import LOST_SECONDS, OVER, REQUEST_SECONDS, RETRY_SECONDS, LogFollower, stored
from fedseed.transport.nats_objects import Objects
from fedseed.transport.signatures import Chain, Signatures
from fedseed.transport.subjects import Subjects

AGAIN_SECONDS = 1.0  # after which a question is asked once more: it may have been one of too many
NOBODY_LISTENS = "503"  # the server's own answer
SILENCES = 2  # such answers, a second apart, after which there is no coordinator: one may be about to come back
MORE = "docs/federation.md says what that means"


@contextmanager
def explained(what: str) -> Iterator[None]:
    """The library's errors as one of ours."""
    try:
        yield
    except (TimeoutError, nats.errors.Error, OSError) as error:
        raise NetworkError(f"{what}: {error or type(error).__name__}") from error


class NatsEnd(End):
    """What the ends have in common.

    Args:
        connection: to the server.
        subjects: the run's names there.
        owner: whose blobs are put here; None: the coordinator's.
        signatures: sign what is sent, and check what comes.
        events: told what happens.
    """

    largest = 256 * 1024  # a server takes 1 MiB by default

    def __init__(
        self, connection: Guarded, subjects: Subjects, owner: str | None, signatures: Signatures, events: Events
    ) -> None:
        self.connection, self.subjects, self.signatures = connection, subjects, signatures
        self.objects = Objects(connection, subjects, signatures)
        self._owner = owner
        self._followers: list[LogFollower] = []
        self._head: tuple[int, bytes] | None = None  # of the log's chain, at the last entry that was read
        self._events = events
        self._told: set[str] = set()
        if signatures.coordinator is None:
            why = "the key file does not name the coordinator's key" if signatures.own is not None else "no key"
            self.unproven = f"{why}: it is not proven that what comes is the coordinator's ({MORE})"

    async def status(self, seconds: float) -> bytes | None:
        return await self._request(self.subjects.status, b"{}", seconds)

    async def _request(self, subject: str, data: bytes, seconds: float) -> bytes | None:
        """Ask the coordinator; None: it has not answered."""
        headers = self.signatures.headers(subject, data)
        try:
            answer = await self.connection.request(subject, data, timeout=seconds, headers=headers)
        except (nats.errors.Error, TimeoutError, OSError):
            return None
        return answer.data if self.signatures.of_coordinator(answer.subject, answer.data, answer.headers) else None

    async def log(self) -> Log | None:
        """The stream's last sequence number, and whether its description says that it was ended.

        Raises:
            NetworkError: JetStream is missing, or this key may not ask.
        """
        try:
            info = await self.connection.jetstream(timeout=REQUEST_SECONDS).stream_info(self.subjects.stream)
            return Log(int(info.state.last_seq), info.config.description == OVER)
        except NotFoundError:
            return None
        except (TimeoutError, nats.errors.Error) as error:
            raise NetworkError(
                f"the server does not answer about run {self.subjects.run}: has it JetStream, and may this key ask? "
                f"({error})"
            ) from error

    async def follow(self, after: int, take: Take) -> Stop:
        chain = Chain(self.signatures, self.subjects.log)
        follower = LogFollower(self.connection, self.subjects, chain, after, take, self._foreign, self._log_lost)
        self._followers.append(follower)
        return follower.stop

    async def entries(self, last: int | None = None) -> list[bytes]:
        while True:
            try:
                return await self.connection.unless_interrupted(self._entries(last))
            except Interrupted:
                await asyncio.sleep(RETRY_SECONDS)
            except NotFoundError as error:
                raise LogLostError(self.subjects.run) from error

    async def _entries(self, last: int | None) -> list[bytes]:
        found, chain = list[bytes](), Chain(self.signatures, self.subjects.log)
        async with aclosing(stored(self.connection, self.subjects.stream)) as messages:
            async for message in messages:
                if last is not None and message.sequence > last:
                    break
                if chain.take(message.data, message.headers):
                    found.append(message.data)
                else:
                    self._foreign()
        self._head = last or 0, chain.head
        return found

    def _foreign(self) -> None:
        self._note("the log holds messages that are not the coordinator's: they are passed over")

    def _log_lost(self, for_good: bool) -> None:
        lost = LogLostError(self.subjects.run)
        if for_good:
            self._events.failed(
                NetworkError(f"{lost}, and nobody has put it there again: start `fedseed serve`, then this again")
            )
        else:
            self._events.noted(
                f"{lost}: waiting until it is put there again by `fedseed serve`, at most {LOST_SECONDS:.0f} s"
            )

    def _note(self, text: str) -> None:
        """Say something once."""
        if text not in self._told:
            self._told.add(text)
            self._events.noted(text)

    async def put(self, name: str, data: bytes) -> None:
        with explained(f"{len(data):,} bytes can't be stored on the server as {name}"):
            await self.objects.put(self._owner, name, data)

    async def get(self, owner: str | None, name: str, size: int) -> bytes:
        return await self.objects.get(owner, name, size)

    async def drop(self, owner: str | None, name: str) -> None:
        await self.objects.drop(owner, name)

    async def close(self) -> None:
        for follower in self._followers:
            await follower.stop()
        with suppress(nats.errors.Error, TimeoutError):
            await self.connection.close()

    async def _publish(self, subject: str, data: bytes, connection: Guarded | None = None) -> None:
        try:
            await (connection or self.connection).publish(subject, data, headers=self.signatures.headers(subject, data))
        except nats.errors.OutboundBufferLimitError:
            pass  # an interruption that lasts: what is not kept is lost
        except nats.errors.Error as error:
            raise NetworkError(f"nothing can be sent to run {self.subjects.run}: {error}") from error


async def settled(connection: Guarded) -> None:
    """Returns when the server has what was subscribed to and said before.

    nats-py writes the ping of a flush ahead of what still waits to be written; a second flush is behind all of it.
    """
    for _ in range(2):
        await connection.flush()


class NatsClient(NatsEnd, ClientEnd):
    """A client's end."""

    async def listen(self, take: Callable[[bytes], None]) -> None:

        async def deliver(message: Msg) -> None:
            if self.signatures.of_coordinator(message.subject, message.data, message.headers):
                take(message.data)
            else:
                self._note("somebody else than the coordinator writes to everybody: that is passed over")

        await self.connection.subscribe(self.subjects.down, cb=deliver)
        with explained("the server does not answer"):
            await settled(self.connection)  # what is broadcast from here on comes

    async def send(self, client: str, what: str, data: bytes) -> None:
        await self._publish(self.subjects.up(client, what), data)

    async def ask(self, client: str, what: str, data: bytes, seconds: float) -> bytes | None:
        return await self._request(self.subjects.up(client, what), data, seconds)


class NatsWatcher(NatsEnd):
    """The end of somebody who only asks."""

    async def status(self, seconds: float) -> bytes | None:
        found: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        silences = 0

        async def take(message: Msg) -> None:
            nonlocal silences
            if not found.done():
                if (message.headers or {}).get("Status") == NOBODY_LISTENS and message.subject == inbox:
                    silences += 1
                    if silences == SILENCES:
                        found.set_result(None)
                elif self.signatures.of_coordinator(message.subject, message.data, message.headers):
                    found.set_result(message.data)

        inbox, question = self.connection.new_inbox(), b"{}"
        listening = []
        try:
            async with asyncio.timeout(seconds):
                for subject in (inbox, self.subjects.statuses):
                    listening.append(await self.connection.subscribe(subject, cb=take))
                headers = self.signatures.headers(self.subjects.status, question)
                while not found.done():
                    await self.connection.publish(self.subjects.status, question, reply=inbox, headers=headers)
                    await asyncio.wait({found}, timeout=AGAIN_SECONDS)
                return await found
        except (nats.errors.Error, TimeoutError, OSError):
            return None
        finally:
            with suppress(nats.errors.Error):
                for subscription in listening:
                    await subscription.unsubscribe()
