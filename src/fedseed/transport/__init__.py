"""What carries bytes between the coordinator and its clients, and knows nothing of rounds.

A transport goes by the scheme of its URLs. A new one is a file here with a class that says its `schemes`, and a line in
the contract's test; another package adds one by an entry point `fedseed.transports`, or with
`fedseed.register_transport("flower", lambda access, run: MyTransport(access, run))`.
"""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from fedseed.errors import RecipeError
from fedseed.registry import Registry, classes_in
from fedseed.transport.base import Access, Transport

Factory = Callable[[Access, str], Transport]  # (how to reach it, the run's name) -> a transport, not connected yet


def _own() -> Iterator[tuple[str, Factory]]:
    for kind in classes_in(__name__, Transport):
        for scheme in kind.schemes:
            yield scheme, kind


def _check(thing: Any) -> None:
    if not callable(thing):
        raise TypeError(f"{thing!r} is no function that makes a transport")


# looked for when an address is there: only then is nats imported
REGISTRY: Registry[Factory] = Registry("transport", "fedseed.transports", _own, _check)


def transport(access: Access, run: str) -> Transport:
    """Returns the transport that an address asks for; nothing is connected yet.

    Args:
        access: how to reach it.
        run: the run's name.

    Raises:
        RecipeError: there is no transport for such an address.
    """
    make = REGISTRY.find(urlsplit(access.url).scheme)
    if make is None:
        others = "".join(f" or {scheme}://..." for scheme in REGISTRY.names() if scheme not in ("nats", "tls"))
        raise RecipeError(f"{access.url}: write nats://HOST:PORT or tls://HOST:PORT{others}")
    return make(access, run)
