"""What messages hold, counted from the fields that payloads declare: bytes, and numbers of each kind.

Papers count "parameters exchanged": numbers between a client and the server, whatever bytes each takes (Ferret,
Appendix C.2). Those are the scalars here; seeds and votes are counted beside them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedseed.methods.coefficients import RaggedBits
from fedseed.methods.packing import EntriesCodec, Packed
from fedseed.methods.payload import Bits, Codec, Many, Nested, Payload, Ragged, Tensors, codecs
from fedseed.methods.sign import SignCodec


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
    size = scalars = integers = bits = 0
    for part in parts:
        size += part.bytes
        scalars += part.scalars
        integers += part.integers
        bits += part.bits
    return Content(size, scalars, integers, bits)


def content(payload: Payload, data: bytes, size: int) -> Content:
    """What a payload holds.

    Args:
        payload: a plan, an update or a step.
        data: the same, encoded.
        size: d, the number of parameters, which is what a payload of whole tensors holds.
    """
    held = _fields(payload, size)
    return Content(len(data), held.scalars, held.integers, held.bits)


def _fields(payload: Payload, size: int) -> Content:
    wired = codecs(type(payload))
    if len(wired) == 1:
        ((name, codec),) = wired
        return _field(codec, getattr(payload, name), size)
    return total([_field(codec, getattr(payload, name), size) for name, codec in wired])


def _field(codec: Codec, value: Any, size: int) -> Content:
    if value is None:
        return Content()
    if isinstance(codec, Bits):  # first: a step of votes is over in a millisecond
        return Content(bits=len(value))
    if isinstance(codec, Nested):
        return _fields(value, size)
    if isinstance(codec, Many):
        return total([_fields(part, size) for part in value])
    if isinstance(codec, Tensors):
        return Content(scalars=size if value else 0)
    if isinstance(codec, RaggedBits):
        return Content(scalars=len(value), bits=sum(map(len, value)))
    if isinstance(codec, Ragged):
        return Content(scalars=sum(map(len, value)))
    if isinstance(codec, Packed):
        return Content(**{codec.kind: len(value.numbers)})
    if isinstance(codec, EntriesCodec):
        return Content(scalars=len(value.values), integers=len(value.places))
    if isinstance(codec, SignCodec):
        return Content(scalars=len(value.scales), integers=1, bits=value.entries)
    numbers = np.asarray(value)
    return Content(scalars=numbers.size) if numbers.dtype.kind == "f" else Content(integers=numbers.size)
