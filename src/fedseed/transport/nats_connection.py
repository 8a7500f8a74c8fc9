"""A connection to a NATS server: encryption and keys, and errors in one line."""

import asyncio
import logging
import re
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import nats.errors
import nats.protocol.parser
from nats.aio.client import Client

from fedseed.errors import FedseedError, NetworkError, RecipeError
from fedseed.transport.base import QUIET, Access, Events, Interrupted, end_task
from fedseed.transport.signatures import seed_of
from fedseed.transport.subjects import Subjects

T = TypeVar("T")
CONNECT_SECONDS = 5
REQUEST_SECONDS = 5.0
RETRY_SECONDS = 0.2
# bytes of a subject and a reply subject: a server ends connections with longer lines
MOST_SUBJECTS = (4 << 10) - 32
# bytes of a message's headers: a signature, a place and the server's own take a few hundred
MOST_HEADERS = 4 << 10

# The server separates the parts of a line by spaces, and a subject may hold any other byte. The
# library takes all for a separator that Python calls space: with a vertical tab in a subject or
# reply subject, whoever may publish at all would end others' connections, or have what they read
# taken for an answer to something else.
nats.protocol.parser.MSG_RE = re.compile(rb"\AMSG +([^ \r\n]+) +(\d+) +(([^ \r\n]+) +)?(\d+)\r\n")
nats.protocol.parser.HMSG_RE = re.compile(
    rb"\AHMSG +([^ \r\n]+) +(\d+) +(([^ \r\n]+) +)?(\d+) +(\d+)\r\n"
)
_NO_SUBJECT = re.compile(r"[\x00-\x20\x7f]")


class Guarded(Client):
    """Says nothing, credentials least of all, to a server without encryption when there must be
    some; reads all bytes.

    The library encrypts when the server asks for it. Somebody in between could leave that out. And
    it stops reading for good at a subject or a header that is no text, which others choose.
    """

    def __init__(self, encrypted: bool) -> None:
        super().__init__()
        self._encrypted = encrypted
        # done when the next interruption is over
        self._interrupted: asyncio.Future[None] | None = None
        # of what message, because too many wait
        self.dropped: Callable[[str], None] = lambda subject: None

    def restarted(self) -> None:
        """Ends an interruption: what was asked before it may never be answered."""
        if self._interrupted is not None:
            self._interrupted.set_result(None)
            self._interrupted = None

    async def unless_interrupted(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns what some work returns that asks the server.

        Raises Interrupted if the connection was interrupted.
        """
        if self._interrupted is None:
            self._interrupted = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(work)
        either: set[asyncio.Future[Any]] = {task, self._interrupted}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Interrupted("the connection was interrupted")
            return task.result()
        finally:
            await end_task(task)
            del task, either  # its error holds this frame, which would hold it

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if self._encrypted and initial_connection and not info.get("tls_required"):
            raise nats.errors.SecureConnWantedError
        await super()._process_info(info, initial_connection)

    def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> Coroutine[Any, Any, None]:
        return super()._process_msg(sid, _as_text(subject), _as_text(reply), data, headers)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        # they would take ten times that, not counted as waiting
        if not headers or len(headers) > MOST_HEADERS:
            return None
        try:
            return await super()._process_headers(headers)
        except (ValueError, IndexError):
            return None

    async def headers_in(self, data: bytes) -> dict[str, str] | None:
        """Returns the headers that a server gives as bytes.

        None: there are none, or none that can be read.
        """
        return await self._process_headers(data)

    def _send_publish(
        self,
        subject: str,
        reply: str,
        payload: bytes,
        payload_size: int,
        headers: dict[str, Any] | None,
    ) -> Coroutine[Any, Any, None]:
        """Refuses subjects that would be no line of the protocol: others' names may be in them."""
        both = subject + reply
        if len(both.encode()) > MOST_SUBJECTS or _NO_SUBJECT.search(both):
            raise nats.errors.BadSubjectError
        return super()._send_publish(subject, reply, payload, payload_size, headers)

    async def _process_pong(self) -> None:
        # who asked has given up; the library would end the connection
        if self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
            self._pings_outstanding = 0
            return
        await super()._process_pong()


def _as_text(data: bytes) -> bytes:
    """Returns the same in UTF-8, whatever it is: what is not is replaced, and so it is nobody's
    name.
    """
    return data if data.isascii() else data.decode(errors="replace").encode()


async def connect(access: Access, subjects: Subjects, name: str, events: Events = QUIET) -> Guarded:
    """Connect, and stay connected: later interruptions are bridged.

    Args:
        access: the URL, such as "nats://host:4222" ("tls://": encrypted or not at all), the key,
            and certificates to trust, which make encryption compulsory.
        subjects: the run's.
        name: who connects; replies come to an inbox of this name.
        events: told when the server refuses a publication or subscription, and when an interruption
            is over.

    Raises:
        RecipeError: the URL or a file is wrong.
        NetworkError: not reachable, another certificate, or the key is refused; one line.
    """
    url, key, ca = access.url, access.key, access.ca
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
    client = Guarded(encrypted=context is not None)
    place = f"{parts.hostname}:{port}"
    seen: list[Exception] = []

    async def failed(error: Exception) -> None:
        if isinstance(error, nats.errors.SlowConsumerError):
            client.dropped(error.subject)
            return
        seen[:] = [error]
        if "permissions violation" in str(error).lower():
            events.refused(str(error).removeprefix("nats: "))

    async def reconnected() -> None:
        client.restarted()
        events.again()

    options: dict[str, Any] = {
        "allow_reconnect": False,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.2,
    }
    seed = None if key is None else seed_of(key)
    connecting = asyncio.create_task(
        client.connect(
            f"{'nats' if context is None else 'tls'}://{place}",
            name=f"fedseed {name}",
            tls=context,
            nkeys_seed_str=seed,
            error_cb=failed,
            reconnected_cb=reconnected,
            connect_timeout=CONNECT_SECONDS,
            inbox_prefix=subjects.inbox(name),
            ping_interval=20,
            **options,
        )
    )
    # the library may wait for ever while it gives up
    await asyncio.wait({connecting}, timeout=1.4 * CONNECT_SECONDS)
    try:
        if not connecting.done():
            connecting.cancel()
            raise seen[0] if seen else TimeoutError
        connecting.result()
    except Exception as error:
        # may wait for ever where encryption did not come about
        closing = asyncio.create_task(client.close())
        await asyncio.wait({closing}, timeout=0.3)
        closing.cancel()
        raise _explained(error, place, key, ca) from error
    client.options["allow_reconnect"] = True
    return client


def _explained(error: Exception, place: str, key: Path | None, ca: Path | None) -> FedseedError:
    """Returns what a failed attempt to connect means."""
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
                hint = (
                    f"this machine's clock says {time.strftime('%Y-%m-%d %H:%M')} UTC: is it right?"
                )
            return NetworkError(
                f"{place}: the server's certificate is not accepted: {reason}; {hint}"
            )
        if isinstance(cause, ssl.SSLError):
            return NetworkError(f"{place}: no encrypted connection: {cause.reason or cause}")
        if isinstance(cause, socket.gaierror):
            return NetworkError(f"{place}: there is no host of this name")
        if isinstance(cause, nats.errors.AuthorizationError) or "authorization violation" in text:
            what = (
                "a key is needed (--key FILE)"
                if key is None
                else f"it does not know the key in {key}"
            )
            return NetworkError(f"{place}: the server lets nobody in without permission: {what}")
        if "no ssl context" in text or isinstance(cause, nats.errors.SecureConnRequiredError):
            return NetworkError(
                f"{place}: the server wants encryption: give its certificate authority with --ca "
                "FILE"
            )
        if isinstance(cause, nats.errors.SecureConnWantedError):
            return NetworkError(f"{place}: encryption was asked for, but this server has none")
        if isinstance(cause, ConnectionRefusedError):
            return NetworkError(
                f"{place}: can't be reached: nothing listens there; is nats-server running?"
            )
        if isinstance(cause, OSError) and not isinstance(cause, TimeoutError):
            return NetworkError(f"{place}: can't be reached: {cause.strerror or cause}")
    if isinstance(error, TimeoutError):
        return NetworkError(f"{place}: can't be reached: no answer within {CONNECT_SECONDS} s")
    return NetworkError(f"{place}: can't connect: {error or type(error).__name__}")
