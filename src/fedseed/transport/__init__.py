"""Transports carry bytes between the coordinator and its clients, and know nothing of rounds.

The scheme of a URL selects the transport. A new one is a file here with a class that has `schemes`,
and a line in the contract's test.
"""

from urllib.parse import urlsplit

from fedseed.errors import RecipeError
from fedseed.registry import Registry, classes_in
from fedseed.transport.base import Access, Transport
from fedseed.transport.nats_address import DEFAULT_PORTS, FORMS


def _check_kind(thing: object) -> None:
    """Raise TypeError or ValueError if a class is not a transport with schemes of its own."""
    if not isinstance(thing, type) or not issubclass(thing, Transport):
        raise TypeError(f"{thing!r} is no subclass of fedseed.transport.base.Transport")
    missing = sorted(getattr(thing, "__abstractmethods__", ()))
    if missing:
        raise TypeError(f"{thing.__qualname__} leaves out {', '.join(missing)}")
    schemes = getattr(thing, "schemes", ())
    if isinstance(schemes, str) or not schemes or not all(map(str.isidentifier, schemes)):
        raise ValueError(
            f'{thing.__qualname__} has no schemes: write schemes = ("my",) for my:// addresses'
        )
    own = {scheme for kind in classes_in(__name__, Transport) for scheme in kind.schemes}
    if taken := sorted(own.intersection(schemes)):
        raise ValueError(f"fedseed itself has {', '.join(f'{scheme}://' for scheme in taken)}")


# plug-ins' transports; fedseed's own are imported when needed, as they import much
REGISTRY: Registry[type[Transport]] = Registry(
    "transport",
    "fedseed.transports",
    (),
    _check_kind,
    lambda kind: {f"the scheme {scheme}:// of": scheme for scheme in kind.schemes},
)


def transport(access: Access, run: str) -> Transport:
    """Return the transport for an address; it is not connected yet.

    Args:
        access: how to reach it.
        run: the run's name.

    Raises:
        RecipeError: there is no transport for such an address.
    """
    # nats is imported only here
    kinds = [*classes_in(__name__, Transport), *(entry.thing for entry in REGISTRY.entries())]
    for kind in kinds:
        if urlsplit(access.url).scheme in kind.schemes:
            transport_of_scheme: Transport = kind(access, run)
            return transport_of_scheme
    schemes = [scheme for kind in kinds for scheme in kind.schemes]
    extra_forms = [f"{scheme}://..." for scheme in schemes if scheme not in DEFAULT_PORTS]
    raise RecipeError(f"{access.url}: {' or '.join([FORMS, *extra_forms])}")
