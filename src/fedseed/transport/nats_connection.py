"""A connection to a NATS server: encryption, keys, and errors in one line."""

import asyncio
import logging
import re
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from typing import Any, TypeVar

import nats.errors
import nats.protocol.parser
from nats.aio.client import Client

from fedseed.errors import NetworkError, RecipeError, to_install
from fedseed.transport.base import QUIET, Access, Events, Interrupted, end_task
from fedseed.transport.nats_address import Address, read_address
from fedseed.transport.signatures import seed_of
from fedseed.transport.subjects import Subjects
from fedseed.transport.troubles import PATIENCE_SECONDS, Troubles

T = TypeVar("T")
CONNECT_SECONDS = 5
REQUEST_SECONDS = 5.0
RETRY_SECONDS = 0.2
CONNECTION = "connection"  # a kind of trouble (`Troubles`)
# bytes of a subject and a reply subject: a server closes connections with longer lines
MOST_SUBJECTS = (4 << 10) - 32
# most bytes of a message's headers: a signature, a place and the server's own headers take a few
# hundred
MOST_HEADERS = 4 << 10

# The server separates the parts of a line by spaces, and a subject may hold any other byte. The
# library separates by everything that Python calls a space. With a vertical tab in a subject or
# reply subject, anybody who may publish could close others' connections, or make their messages
# look like answers to other questions.
nats.protocol.parser.MSG_RE = re.compile(rb"\AMSG +([^ \r\n]+) +(\d+) +(([^ \r\n]+) +)?(\d+)\r\n")
nats.protocol.parser.HMSG_RE = re.compile(
    rb"\AHMSG +([^ \r\n]+) +(\d+) +(([^ \r\n]+) +)?(\d+) +(\d+)\r\n"
)
_NO_SUBJECT = re.compile(r"[\x00-\x20\x7f]")


class Guarded(Client):
    """A NATS client that sends nothing to a server without encryption where that is required.

    The library encrypts only if the server asks for it, and an attacker in between could remove
    this request. This client also accepts every subject and header: the library would stop reading
    at one that is not text, and others choose them.
    """

    def __init__(self, encrypted: bool, troubles: Troubles) -> None:
        super().__init__()
        self._encrypted = encrypted
        self.troubles = troubles  # shows the reasons for waiting
        # done when the next interruption is over
        self._interrupted: asyncio.Future[None] | None = None
        self.established = False  # whether it has been connected: only then it reconnects
        self.leaves = False  # whether this side has closed the connection
        # called with the subject of a message that was dropped, because too many wait
        self.dropped: Callable[[str], None] = lambda subject: None

    async def close(self) -> None:
        """Close the connection for good."""
        self.leaves = True
        await super().close()

    def restarted(self) -> None:
        """End an interruption: earlier requests may never be answered."""
        if self._interrupted is not None:
            self._interrupted.set_result(None)
            self._interrupted = None

    async def unless_interrupted(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of work that asks the server.

        Raises Interrupted: the connection was interrupted.
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
            # the task's error refers to this frame, which would keep the task alive
            del task, either

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if self._encrypted and initial_connection and not info.get("tls_required"):
            raise nats.errors.SecureConnWantedError
        await super()._process_info(info, initial_connection)

    def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> Coroutine[Any, Any, None]:
        return super()._process_msg(sid, _as_text(subject), _as_text(reply), data, headers)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        # parsed headers would take ten times the memory, not counted as pending
        if not headers or len(headers) > MOST_HEADERS:
            return None
        try:
            return await super()._process_headers(headers)
        except (ValueError, IndexError):
            return None

    async def headers_in(self, data: bytes) -> dict[str, str] | None:
        """Parse headers that a server gives as bytes; None: there are none, or not valid ones."""
        return await self._process_headers(data)

    def _send_publish(
        self,
        subject: str,
        reply: str,
        payload: bytes,
        payload_size: int,
        headers: dict[str, Any] | None,
    ) -> Coroutine[Any, Any, None]:
        """Refuse subjects that would break the protocol's line: others' names may be in them."""
        subjects = subject + reply
        if len(subjects.encode()) > MOST_SUBJECTS or _NO_SUBJECT.search(subjects):
            raise nats.errors.BadSubjectError
        return super()._send_publish(subject, reply, payload, payload_size, headers)

    async def _process_pong(self) -> None:
        # the task that asked was cancelled; the library would close the connection
        if self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
            self._pings_outstanding = 0
            return
        await super()._process_pong()


def _as_text(data: bytes) -> bytes:
    """Return UTF-8 text; invalid bytes are replaced, so that the result is not a valid name."""
    return data if data.isascii() else data.decode(errors="replace").encode()


def _context(access: Access, address: Address) -> ssl.SSLContext | None:
    """Return the encryption context; None: encrypt only if the server asks for it.

    Raises RecipeError: the file with certificates, or the address, is not valid.
    """
    if access.ca is None and not address.encrypted:
        return None
    if address.scheme == "ws":
        raise RecipeError(f"{access.url}: --ca needs an encrypted connection: write wss://")
    try:
        return ssl.create_default_context(cafile=None if access.ca is None else str(access.ca))
    except (ssl.SSLError, OSError) as error:
        raise RecipeError(f"{access.ca}: not a file with certificates: {error}") from error


def _check_files(access: Access, address: Address) -> None:
    """Raise RecipeError if a file is missing, or a library that the address needs."""
    for path in (access.key, access.ca):
        if path is not None and not path.is_file():
            raise RecipeError(f"{path}: there is no such file")
    if address.over_web_socket and find_spec("aiohttp") is None:
        raise RecipeError(
            f"{access.url}: {address.scheme}:// needs aiohttp: {to_install('websocket')}"
        )


async def connect(
    access: Access,
    subjects: Subjects,
    name: str,
    events: Events = QUIET,
    troubles: Troubles | None = None,
) -> Guarded:
    """Connect, and stay connected: later interruptions are bridged.

    Args:
        access: the URL, such as "nats://host:4222" ("tls://", "wss://": encryption is required),
            the key, and trusted certificates, which require encryption, too.
        subjects: the run's.
        name: the name of this side; replies come to its inbox.
        events: called when the server refuses a publication or subscription, when an interruption
            is over, and when the server has closed the connection for good.
        troubles: gets the reasons for long interruptions.

    Raises:
        RecipeError: the URL or a file is not valid.
        NetworkError: not reachable, a certificate that is not trusted, or the key is refused.
    """
    address = read_address(access.url)
    _check_files(access, address)
    context = _context(access, address)
    logging.getLogger("asyncio").addFilter(lambda record: "eof_received" not in record.getMessage())
    # a proxy may end the encryption of wss://, so that the server does not know of it
    troubles = troubles or Troubles(events.noted)
    client = Guarded(context is not None and not address.over_web_socket, troubles)
    errors: list[Exception] = []

    async def failed(error: Exception) -> None:
        if isinstance(error, nats.errors.SlowConsumerError):
            client.dropped(error.subject)
            return
        errors[:] = [error]
        if "permissions violation" in str(error).lower():
            events.refused(str(error).removeprefix("nats: "))
        elif client.established and not client.is_connected:
            problem, mendable = _explained(error, address.place, access)
            troubles.report(CONNECTION, str(problem), 0.0 if mendable else PATIENCE_SECONDS)

    async def reconnected() -> None:
        troubles.end(CONNECTION, f"{address.place}: the server is back")
        client.restarted()
        events.reconnected()

    async def closed() -> None:
        if client.established and not client.leaves:
            cause = client.last_error
            if cause is None:
                cause = errors[0] if errors else ConnectionError("no reason is given")
            problem, _ = _explained(cause, address.place, access)
            events.failed(
                NetworkError(
                    f"{problem}: the server has ended the connection: fix this, then start again"
                )
            )

    options: dict[str, Any] = {
        "allow_reconnect": False,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.2,
    }
    seed = None if access.key is None else seed_of(access.key)
    connecting = asyncio.create_task(
        client.connect(
            address.url(encrypted=context is not None),
            name=f"fedseed {name}",
            tls=context,
            nkeys_seed_str=seed,
            error_cb=failed,
            reconnected_cb=reconnected,
            closed_cb=closed,
            connect_timeout=CONNECT_SECONDS,
            inbox_prefix=subjects.inbox(name),
            ping_interval=20,
            **options,
        )
    )
    # the library may wait forever while it gives up
    await asyncio.wait({connecting}, timeout=1.4 * CONNECT_SECONDS)
    try:
        if not connecting.done():
            connecting.cancel()
            raise errors[0] if errors else TimeoutError
        connecting.result()
    except Exception as error:
        # closing may wait forever where encryption was not established
        closing = asyncio.create_task(client.close())
        await asyncio.wait({closing}, timeout=0.3)
        closing.cancel()
        problem, mendable = _explained(error, address.place, access)
        if mendable:
            problem = NetworkError(f"{problem}; fix this, then start again")
        raise problem from error
    client.options["allow_reconnect"] = True
    client.established = True
    return client


def _explained(error: Exception, place: str, access: Access) -> tuple[NetworkError, bool]:
    """Return the error for a failed connection, and whether a person has to act. False: the failure
    may be temporary, as with a server that is starting.
    """
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ or chain[-1].__context__:
        chain.append(chain[-1].__cause__ or chain[-1].__context__)  # type: ignore[arg-type]
    # an error that looks like an absent server may wrap a refusal: aiohttp wraps certificates'
    # errors
    for cause in chain:
        problem = _refusal(cause, access)
        if problem is not None:
            return NetworkError(f"{place}: {problem}"), True
    for cause in chain:
        problem = _absence(cause)
        if problem is not None:
            return NetworkError(f"{place}: {problem}"), False
    if isinstance(error, TimeoutError):
        return NetworkError(
            f"{place}: can't be reached: no answer within {CONNECT_SECONDS} s"
        ), False
    return NetworkError(f"{place}: can't connect: {error or type(error).__name__}"), False


def _refusal(cause: BaseException, access: Access) -> str | None:
    """Return the reason why the server refuses this side, or this side refuses the server; None:
    another error.
    """
    text = str(cause).lower()
    certificate = isinstance(cause, ssl.SSLCertVerificationError)
    if certificate and not hasattr(cause, "verify_message"):
        return None  # aiohttp's error, whose cause has the reason
    if isinstance(cause, ssl.SSLCertVerificationError):
        reason = cause.verify_message
        hint = "check that the --ca file and the server's address are right"
        if access.ca is None:
            hint = "the server requires encryption: give its certificate authority with --ca FILE"
        if "not yet valid" in reason or "expired" in reason:
            hint = (
                f"this machine's clock is at {time.strftime('%Y-%m-%d %H:%M')} UTC: check it; if "
                "it is right, the server needs a new certificate"
            )
        return f"the server's certificate is not accepted: {reason}; {hint}"
    if isinstance(cause, ssl.SSLError):
        return f"no encrypted connection: {cause.reason or cause}"
    if isinstance(cause, nats.errors.AuthorizationError) or any(
        words in text for words in ("authorization violation", "authentication", "user expired")
    ):
        remedy = "a key is needed (--key FILE)"
        if access.key is not None:
            remedy = f"the key in {access.key} is unknown to it"
        return f"the server requires permission: {remedy}"
    if "no ssl context" in text or isinstance(cause, nats.errors.SecureConnRequiredError):
        return "the server requires encryption: give its certificate authority with --ca FILE"
    if isinstance(cause, nats.errors.SecureConnWantedError):
        return "this side requires encryption, but the server has none"
    return None


def _absence(cause: BaseException) -> str | None:
    """Return the reason why nobody can be reached; None: another error."""
    if isinstance(cause, socket.gaierror):
        return "there is no host of this name"
    if isinstance(cause, ConnectionRefusedError):
        return "can't be reached: nothing listens there; check that nats-server is running"
    if isinstance(cause, OSError) and not isinstance(cause, TimeoutError):
        return f"can't be reached: {cause.strerror or str(cause) or type(cause).__name__}"
    return None
