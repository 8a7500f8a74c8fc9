"""A connection to NATS with JetStream: errors in one line, the run's log, messages too large for one piece."""

import asyncio
import io
import logging
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import api
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from fedseed.errors import FedseedError, MessageError, NetworkError, RecipeError
from fedseed.federation.messages import FRAME_BYTES
from fedseed.federation.protocol import INLINE_BYTES, STORED, Stored, Subjects

CONNECT_SECONDS = 5
REQUEST_SECONDS = 5.0
HEARTBEAT_SECONDS = 2.0  # of the log's reader
PENDING_BYTES = 32 * 1024 * 1024  # of messages that wait to be looked at; what a flood brings beyond is dropped
WRONG_LAST_SEQUENCE = 10071


@dataclass(frozen=True)
class Access:
    """How to reach the server.

    Args:
        url: of nats-server.
        key: file with this side's NKEY seed.
        ca: file with the certificates to trust.
    """

    url: str
    key: Path | None = None
    ca: Path | None = None


class _Guarded(Client):
    """Says nothing, credentials least of all, to a server without encryption when there must be some.

    The library encrypts when the server asks for it. Somebody in between could leave that out.
    """

    def __init__(self, encrypted: bool) -> None:
        super().__init__()
        self._encrypted = encrypted

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if self._encrypted and initial_connection and not info.get("tls_required"):
            raise nats.errors.SecureConnWantedError
        await super()._process_info(info, initial_connection)


async def connect(
    url: str,
    subjects: Subjects,
    name: str,
    key: Path | None = None,
    ca: Path | None = None,
    on_refusal: Callable[[str], None] | None = None,
    on_reconnect: Callable[[], None] | None = None,
) -> Client:
    """Connect, and stay connected: later interruptions are bridged.

    Args:
        url: such as "nats://host:4222"; "tls://": encrypted or not at all.
        subjects: the run's.
        name: who connects; replies come to an inbox of this name.
        key: file with the NKEY seed.
        ca: file with the certificates to trust; makes encryption compulsory.
        on_refusal: told when the server refuses a publication or subscription.
        on_reconnect: told when an interruption is over.

    Raises:
        RecipeError: the URL or a file is wrong.
        NetworkError: not reachable, another certificate, or the key is refused; one line.
    """
    parts = urlsplit(url)
    try:
        port = parts.port or 4222
    except ValueError as error:
        raise RecipeError(f"{url}: {error}") from error
    if parts.scheme not in ("nats", "tls") or not parts.hostname:
        raise RecipeError(f"{url}: write nats://HOST:PORT or tls://HOST:PORT")
    for path in (key, ca):
        if path is not None and not path.is_file():
            raise RecipeError(f"{path}: there is no such file")
    context = None
    if ca is not None or parts.scheme == "tls":
        try:
            context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        except (ssl.SSLError, OSError) as error:
            raise RecipeError(f"{ca}: not a file with certificates: {error}") from error
    logging.getLogger("asyncio").addFilter(lambda record: "eof_received" not in record.getMessage())
    client = _Guarded(encrypted=context is not None)
    place = f"{parts.hostname}:{port}"

    seen: list[Exception] = []

    async def failed(error: Exception) -> None:
        seen[:] = [error]
        if on_refusal is not None and "permissions violation" in str(error).lower():
            on_refusal(str(error).removeprefix("nats: "))

    async def reconnected() -> None:
        if on_reconnect is not None:
            on_reconnect()

    options: dict[str, Any] = {"allow_reconnect": False, "max_reconnect_attempts": -1, "reconnect_time_wait": 0.2}
    if context is not None:
        options["tls"] = context
    if key is not None:
        options["nkeys_seed"] = str(key)
    scheme = "tls" if context is not None else "nats"
    connecting = asyncio.create_task(
        client.connect(
            f"{scheme}://{place}",
            name=f"fedseed {name}",
            error_cb=failed,
            reconnected_cb=reconnected,
            connect_timeout=CONNECT_SECONDS,
            inbox_prefix=subjects.inbox(name),
            ping_interval=20,
            **options,
        )
    )
    await asyncio.wait({connecting}, timeout=CONNECT_SECONDS + 2)  # the library may wait for ever while it gives up
    try:
        if not connecting.done():
            connecting.cancel()
            raise seen[0] if seen else TimeoutError
        connecting.result()
    except Exception as error:
        closing = asyncio.create_task(client.close())  # may wait for ever where encryption did not come about
        await asyncio.wait({closing}, timeout=0.3)
        closing.cancel()
        raise _explained(error, place, key, ca) from error
    client.options["allow_reconnect"] = True
    return client


def _explained(error: Exception, place: str, key: Path | None, ca: Path | None) -> FedseedError:
    """What a failed attempt to connect means."""
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ or chain[-1].__context__:
        chain.append(chain[-1].__cause__ or chain[-1].__context__)  # type: ignore[arg-type]
    for cause in chain:
        text = str(cause).lower()
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = cause.verify_message
            hint = "is it the right --ca file, and the right server?"
            if ca is None:
                hint = "the server wants encryption: give its certificate authority with --ca FILE"
            if "not yet valid" in reason or "expired" in reason:
                hint = f"this machine's clock says {time.strftime('%Y-%m-%d %H:%M')} UTC: is it right?"
            return NetworkError(f"{place}: the server's certificate is not accepted: {reason}; {hint}")
        if isinstance(cause, ssl.SSLError):
            return NetworkError(f"{place}: no encrypted connection: {cause.reason or cause}")
        if isinstance(cause, socket.gaierror):
            return NetworkError(f"{place}: there is no host of this name")
        if isinstance(cause, nats.errors.AuthorizationError) or "authorization violation" in text:
            what = "a key is needed (--key FILE)" if key is None else f"it does not know the key in {key}"
            return NetworkError(f"{place}: the server lets nobody in without permission: {what}")
        if "no ssl context" in text or isinstance(cause, nats.errors.SecureConnRequiredError):
            return NetworkError(f"{place}: the server wants encryption: give its certificate authority with --ca FILE")
        if isinstance(cause, nats.errors.SecureConnWantedError):
            return NetworkError(f"{place}: encryption was asked for, but this server has none")
        if isinstance(cause, ConnectionRefusedError):
            return NetworkError(f"{place}: can't be reached: nothing listens there; is nats-server running?")
        if isinstance(cause, OSError) and not isinstance(cause, TimeoutError):
            return NetworkError(f"{place}: can't be reached: {cause.strerror or cause}")
    if isinstance(error, (asyncio.TimeoutError, TimeoutError, nats.errors.TimeoutError)):
        return NetworkError(f"{place}: can't be reached: no answer within {CONNECT_SECONDS} s")
    return NetworkError(f"{place}: can't connect: {error or type(error).__name__}")


async def end(task: "asyncio.Task[None]") -> None:
    """Cancel a task until it is over: before Python 3.12 `wait_for` swallows a cancellation now and then."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.1)


class Objects:
    """Messages that are too large for one piece, in the object store.

    Args:
        connection: to NATS.
        bucket: where this side's own go.
    """

    inline = INLINE_BYTES

    def __init__(self, connection: Client, bucket: str) -> None:
        self._js = connection.jetstream(timeout=30)
        self._bucket = bucket

    async def carry(self, message: bytes, name: str) -> bytes:
        """The message itself, or, if it is large, a reference to it in the object store."""
        if len(message) <= self.inline:
            return message
        store = await self._js.object_store(self._bucket)
        await store.put(name, message)
        return Stored(name, len(message), message[:FRAME_BYTES]).encode()

    async def fetch(self, carried: bytes, bucket: str, most: int | None = None) -> bytes:
        """The message, wherever it is.

        Args:
            carried: the message or a reference.
            bucket: where the sender's are.
            most: largest size that is accepted.

        Raises:
            MessageError: not there, too large, or not what the reference says.
        """
        if carried[: len(STORED)] != STORED:
            return carried
        reference = Stored.decode(carried)
        if most is not None and reference.size > most:
            raise MessageError(f"a message of {reference.size:,} bytes: at most {most:,} are accepted")
        data = io.BytesIO()
        try:
            store = await self._js.object_store(bucket)
            info = await store.get_info(reference.name)
            if info.size != reference.size:
                raise MessageError(f"an object of {info.size} bytes, {reference.size:,} were announced")
            await asyncio.wait_for(store.get(reference.name, writeinto=data), 60 + reference.size / 1e6)
        except (NotFoundError, KeyError, ValueError) as error:
            raise MessageError(f"the object {reference.name} can't be had: {type(error).__name__}") from error
        except TimeoutError as error:
            raise MessageError(f"the object {reference.name} can't be had: it does not come") from error
        except nats.errors.Error as error:
            raise MessageError(f"the object {reference.name} can't be had: {error}") from error
        message = data.getvalue()
        if len(message) != reference.size or message[:FRAME_BYTES] != reference.frame:
            raise MessageError(f"the object {reference.name} is not what was announced")
        return message

    async def create(self, bucket: str, most: int) -> None:
        """Make a bucket that holds at most so many bytes, if there is none."""
        try:
            await self._js.object_store(bucket)
        except NotFoundError:
            await self._js.create_object_store(bucket, api.ObjectStoreConfig(bucket=bucket, max_bytes=most))

    async def drop(self, bucket: str, name: str) -> None:
        """Delete an object that nobody needs any more."""
        with suppress(nats.errors.Error):
            await (await self._js.object_store(bucket)).delete(name)


class LogReader:
    """Follows a run's log: every entry once, in order, through interruptions.

    An ephemeral consumer pushes entries to an inbox. A gap, or silence where heartbeats should be, makes a new one that
    begins with the next entry.

    Args:
        connection: to NATS.
        subjects: the run's.
        take: called with each entry's sequence number and bytes.
        after: the last entry that is known already.
    """

    def __init__(self, connection: Client, subjects: Subjects, take: Callable[[int, bytes], None], after: int) -> None:
        self._connection = connection
        self._js = connection.jetstream(timeout=REQUEST_SECONDS)
        self._subjects = subjects
        self._take = take
        self.last = after
        self._generation = 0
        self._heard = 0.0
        self._watch: asyncio.Task[None] | None = None
        self._subscription: Any = None
        self._again = asyncio.Event()

    async def start(self) -> None:
        """Begin."""
        self._watch = asyncio.create_task(self._keep_going())

    def restart(self) -> None:
        """The connection was interrupted: whatever consumer there was may be gone."""
        self._again.set()

    async def stop(self) -> None:
        """End."""
        if self._watch is not None:
            await end(self._watch)
        await self._drop()

    async def _keep_going(self) -> None:
        while True:
            self._again.clear()
            try:
                await self._begin()
            except (TimeoutError, nats.errors.Error, APIError, NoStreamResponseError):
                await asyncio.sleep(0.2)
                continue
            while not self._again.is_set() and time.monotonic() < self._heard + 3 * HEARTBEAT_SECONDS:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._again.wait(), HEARTBEAT_SECONDS)

    async def _begin(self) -> None:
        await self._drop()
        self._generation += 1
        generation, expected = self._generation, 1

        async def deliver(message: Msg) -> None:
            nonlocal expected
            if generation != self._generation:
                return
            self._heard = time.monotonic()
            if message.headers and message.headers.get("Status"):  # a heartbeat, or a question whether we keep up
                reply = message.reply or message.headers.get("Nats-Consumer-Stalled")
                if reply:
                    await self._connection.publish(reply)
                delivered = message.headers.get("Nats-Last-Consumer")
                if delivered is not None and int(delivered) >= expected:
                    self._again.set()
                return
            fields = message.reply.split(".")
            sequence, number = int(fields[-4]), int(fields[-3])
            if number != expected:
                self._again.set()
                return
            expected += 1
            self.last = sequence
            self._take(sequence, message.data)

        inbox = self._connection.new_inbox()
        self._subscription = await self._connection.subscribe(inbox, cb=deliver, pending_bytes_limit=PENDING_BYTES)
        self._heard = time.monotonic()
        await self._js.add_consumer(
            self._subjects.stream,
            api.ConsumerConfig(
                deliver_subject=inbox,
                deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self.last + 1,
                ack_policy=api.AckPolicy.NONE,
                max_deliver=1,
                mem_storage=True,
                num_replicas=1,
                flow_control=True,
                idle_heartbeat=HEARTBEAT_SECONDS,
            ),
        )
        self._heard = time.monotonic()

    async def _drop(self) -> None:
        if self._subscription is not None:
            with suppress(nats.errors.Error):
                await self._subscription.unsubscribe()
            self._subscription = None


class LogWriter:
    """Appends to a run's log, fenced: only if nobody else has.

    Args:
        connection: to NATS.
        subjects: the run's.
        last: the sequence number of the last entry.
    """

    def __init__(self, connection: Client, subjects: Subjects, last: int) -> None:
        self._js = connection.jetstream(timeout=REQUEST_SECONDS)
        self._subjects = subjects
        self.last = last

    async def append(self, entry: bytes, patience: float = 3600) -> None:
        """Append an entry; it is stored when this returns, once, whatever happened to the connection.

        Args:
            entry: its bytes.
            patience: seconds to go on trying.

        Raises:
            NetworkError: another coordinator has written, or the stream is gone.
        """
        give_up = time.monotonic() + patience
        while True:
            try:
                ack = await self._js.publish(
                    self._subjects.log, entry, headers={"Nats-Expected-Last-Sequence": str(self.last)}
                )
                self.last = ack.seq
                return
            except APIError as error:
                if error.err_code != WRONG_LAST_SEQUENCE:
                    raise NetworkError(f"the log of run {self._subjects.run} can't be written: {error}") from error
                if await self._is_ours(entry):  # it arrived, its receipt did not
                    self.last += 1
                    return
                raise NetworkError(
                    f"another coordinator has written to run {self._subjects.run} since: this one stops"
                ) from error
            except (TimeoutError, nats.errors.Error) as error:
                if time.monotonic() > give_up:
                    raise NetworkError(f"the log of run {self._subjects.run} can't be written: {error}") from error
                await asyncio.sleep(0.1)

    async def _is_ours(self, entry: bytes) -> bool:
        while True:
            try:
                there = await self._js.get_msg(self._subjects.stream, self.last + 1)
                return there.data == entry
            except NotFoundError:
                return False
            except (TimeoutError, nats.errors.Error):
                await asyncio.sleep(0.1)


async def log_end(connection: Client, subjects: Subjects) -> int | None:
    """The sequence number of the log's last entry, None if there is no log.

    Raises:
        NetworkError: the server has no JetStream, or this key may not ask.
    """
    try:
        info = await connection.jetstream(timeout=REQUEST_SECONDS).stream_info(subjects.stream)
    except NotFoundError:
        return None
    except (TimeoutError, nats.errors.Error) as error:
        raise NetworkError(
            f"the server does not answer about run {subjects.run}: has it JetStream, and may this key ask? ({error})"
        ) from error
    return int(info.state.last_seq)
