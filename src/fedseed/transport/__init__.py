"""What carries bytes between the coordinator and its clients, and knows nothing of rounds.

A transport goes by the scheme of its URLs. A new one is a file here with a class that says its
`schemes`, and a line in the contract's test.
"""

from urllib.parse import urlsplit

from fedseed.errors import RecipeError
from fedseed.registry import classes_in
from fedseed.transport.base import Access, Transport
from fedseed.transport.nats_address import DEFAULT_PORTS, FORMS


def transport(access: Access, run: str) -> Transport:
    """Return the transport that an address asks for; nothing is connected yet.

    Args:
        access: how to reach it.
        run: the run's name.

    Raises:
        RecipeError: there is no transport for such an address.
    """
    kinds = classes_in(__name__, Transport)  # only here is nats imported
    for kind in kinds:
        if urlsplit(access.url).scheme in kind.schemes:
            made: Transport = kind(access, run)
            return made
    known = (
        f"{scheme}://..."
        for kind in kinds
        for scheme in kind.schemes
        if scheme not in DEFAULT_PORTS
    )
    raise RecipeError(f"{access.url}: {' or '.join([FORMS, *known])}")
