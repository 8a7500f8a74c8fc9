"""Transports: they carry bytes between the coordinator and its clients, and know no rounds.

The scheme of a URL selects the transport. A new one is a file here with a class that has `schemes`,
and a line in the contract's test.
"""

from urllib.parse import urlsplit

from fedseed.errors import RecipeError
from fedseed.registry import classes_in
from fedseed.transport.base import Access, Transport
from fedseed.transport.nats_address import DEFAULT_PORTS, FORMS


def transport(access: Access, run: str) -> Transport:
    """Return the transport for an address; it is not connected yet.

    Args:
        access: how to reach it.
        run: the run's name.

    Raises:
        RecipeError: there is no transport for such an address.
    """
    kinds = classes_in(__name__, Transport)  # imports nats, which the module itself does not
    for kind in kinds:
        if urlsplit(access.url).scheme in kind.schemes:
            transport_of_scheme: Transport = kind(access, run)
            return transport_of_scheme
    schemes = [scheme for kind in kinds for scheme in kind.schemes]
    extra_forms = [f"{scheme}://..." for scheme in schemes if scheme not in DEFAULT_PORTS]
    raise RecipeError(f"{access.url}: {' or '.join([FORMS, *extra_forms])}")
