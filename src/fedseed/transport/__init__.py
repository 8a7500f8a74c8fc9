"""What carries bytes between a coordinator and its clients; it knows no rounds."""

from collections.abc import Callable
from typing import Any

from fedseed.registry import Registry

Factory = Callable[..., Any]  # what a transport of others is made by; see `transport.base`


def _check(thing: Any) -> None:
    if not callable(thing):
        raise TypeError(f"{thing!r} is no function that makes a transport")


REGISTRY: Registry[Factory] = Registry("transport", "fedseed.transports", (), _check)
