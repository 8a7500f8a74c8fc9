"""What messages hold, counted from the fields that payloads declare: bytes, and numbers of each kind.

Papers count "parameters exchanged": numbers between a client and the server, whatever bytes each takes (Ferret,
Appendix C.2). Those are the scalars here; seeds and votes are counted beside them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fedseed.methods.payload import Payload


@dataclass(frozen=True, slots=True)
class Content:
    """How much travels.

    Args:
        bytes: of the payload.
        scalars: coefficients, projections, losses, weights, whatever their precision.
        integers: seeds, indices, and what is counted. Lengths, which only say how to read the rest, are not.
        bits: votes.
    """

    bytes: int = 0
    scalars: int = 0
    integers: int = 0
    bits: int = 0


NUMBERS = ("scalars", "integers", "bits")


def total(parts: Sequence[Content]) -> Content:
    """All of them together."""
    sums = [sum(getattr(part, kind) for part in parts) for kind in ("bytes", *NUMBERS)]
    return Content(*sums)


def content(payload: Payload, data: bytes, size: int) -> Content:
    """What a payload holds.

    Args:
        payload: a plan, an update or a step.
        data: the same, encoded.
        size: d, the number of parameters, which is what a payload of whole tensors holds.
    """
    return Content(len(data), *payload.held(size))
