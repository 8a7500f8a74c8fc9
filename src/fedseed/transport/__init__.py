"""What carries bytes between the coordinator and its clients, and knows nothing of rounds.

`TRANSPORTS` has them by the scheme of their URLs. Another package adds one with

    TRANSPORTS["flower"] = lambda access, run: MyTransport(access, run)
"""

from collections.abc import Callable
from urllib.parse import urlsplit

from fedseed.errors import RecipeError
from fedseed.transport.base import Access, Transport


def _nats(access: Access, run: str) -> Transport:
    from fedseed.transport.nats import NatsTransport  # so that nats is imported where it is used

    return NatsTransport(access, run)


TRANSPORTS: dict[str, Callable[[Access, str], Transport]] = {"nats": _nats, "tls": _nats}


def transport(access: Access, run: str) -> Transport:
    """The transport that an address asks for; nothing is connected yet.

    Args:
        access: how to reach it.
        run: the run's name.

    Raises:
        RecipeError: there is no transport for such an address.
    """
    make = TRANSPORTS.get(urlsplit(access.url).scheme)
    if make is None:
        others = "".join(f" or {scheme}://..." for scheme in TRANSPORTS if scheme not in ("nats", "tls"))
        raise RecipeError(f"{access.url}: write nats://HOST:PORT or tls://HOST:PORT{others}")
    return make(access, run)
