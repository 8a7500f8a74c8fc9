"""The one codec of all messages: a payload is a dataclass, and its fields' types say how they travel.

    @dataclass(frozen=True)
    class Pairs(Payload):
        indices: Annotated[NDArray[np.uint32], Array("u4", "n")]
        scalars: Annotated[Floats, Array("f4", "n")]

Fields travel in their order, little-endian, without padding. A length is a number, the name of something that the
method or the state has ("candidates"; `About` looks it up), or a name that nothing has: then the fields of that length
share what is left. Reading never goes past the end, and never yields a number that is not finite.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import MessageError
from fedseed.randomness import Domain, derive
from fedseed.weights.layout import ITEM_BYTES, Layout

Floats = NDArray[np.float32]
_SIGNS = np.array([-1, 1], dtype=np.int8)  # of a bit
LARGEST = 1e6  # no honest projection, gradient or move of the weights is larger


@dataclass(frozen=True)
class State:
    """What a run's next round depends on besides the weights.

    Args:
        layout: the parameter space.
        seed: the run's seed.
    """

    layout: Layout
    seed: int

    @property
    def blocks(self) -> int:
        """L."""
        return len(self.layout.block_sizes)

    def round_seed(self, number: int = 0) -> int:
        """The seed that all clients of a round may share; of 0 one for the whole run."""
        return derive(self.seed, Domain.ROUND_SEED, number)

    def client_seed(self, number: int, client: int) -> int:
        """The seed of one client in a round."""
        return derive(self.seed, Domain.CLIENT_SEED, number, client)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """What the coordinator remembers and no step carries (`Method.remember`), as arrays by name."""
        return {}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The state with what `state_dict` returned. Raises LookupError or ValueError if it does not fit."""
        return self


@dataclass(frozen=True)
class About:
    """What a payload is read against.

    Args:
        method: the `Method`; its settings give lengths by name.
        state: the state before the round; `state.blocks` gives the number of blocks.
        kind: what is read. A step may be empty: nobody answered.
        round: the round, of updates.
    """

    method: Any
    state: State
    kind: Literal["plan", "update", "step"]
    round: int = 0

    def lookup(self, name: str) -> Any:
        """What the method or the state has under this name; None if there is no such thing."""
        return getattr(self.method, name, getattr(self.state, name, None))


class Content(NamedTuple):
    """How much travels: bytes, and the numbers that papers count (Ferret, Appendix C.2), whatever bytes each takes.

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


def total(parts: Iterable[Content]) -> Content:
    """All of them together."""
    return Content(*map(sum, zip(*parts, strict=True)))


class Payload:
    """The content of a plan, an update or a step: a frozen dataclass of annotated fields."""

    projections: ClassVar[bool] = False  # whether an update holds nothing but estimates along directions
    weight_terms: ClassVar[str | None] = None  # the field that says how many terms of a loss an update is a mean of

    def encode(self) -> bytes:
        """The exact payload bytes."""
        return b"".join(codec.write(getattr(self, name)) for name, codec in codecs(type(self)))

    def content(self, size: int, data: bytes = b"") -> Content:
        """Returns what it holds, counted by the fields that it declares.

        Args:
            size: d, the number of parameters, which is what a payload of whole tensors holds.
            data: the payload's bytes.
        """
        values = ((codec, getattr(self, name)) for name, codec in codecs(type(self)))
        held = total(codec.held(value, size) for codec, value in values if value is not None)
        return Content(len(data), *held[1:])

    @classmethod
    def decode(cls, data: bytes, about: About) -> Self:
        """The inverse of `encode`.

        Raises:
            MessageError: too short or too long, a value that is not finite, or one that can't be.
        """
        reader = Reader(data)
        payload = cls.read(reader, about)
        reader.end()
        return payload

    @classmethod
    def read(cls, reader: "Reader", about: About) -> Self:
        """Read one, and check it; more may follow."""
        wired = codecs(cls)
        values: dict[str, Any] = {}
        for at, (name, codec) in enumerate(wired):
            values[name] = codec.read(reader, about, [later for _, later in wired[at:]])
        payload = cls(**values)
        payload.check(about)
        return payload

    def check(self, about: About) -> None:
        """What the types do not say. Raises MessageError."""

    def size(self, about: About) -> float:
        """How large an update or a step is, to lay beside others (`fedseed.methods.summands`); 0: it says nothing."""
        return 0.0

    @classmethod
    def unit(cls, about: About) -> float:
        """What an estimate of 1, or a coefficient of 1, is among an update's numbers."""
        return 1.0

    def numbers(self, about: About) -> NDArray[Any]:
        """What a client is free to say in an update: signs (int8), or numbers of any size; by default its vector."""
        return self.vector(about)

    def with_numbers(self, numbers: NDArray[Any], about: About) -> "Payload":
        """The update with other numbers."""
        return self.with_vector(numbers, about)

    def vector(self, about: About) -> NDArray[np.floating[Any]]:
        """An update in the space in which a rule combines updates.

        Returns:
            As long for all clients of a round.

        Raises:
            ValueError: there is no such space.
        """
        raise ValueError(f"updates of {about.method.name} are no vectors of one space")

    def with_vector(self, vector: NDArray[np.floating[Any]], about: About) -> "Payload":
        """An update that comes as near to a vector as the protocol allows; the inverse of `vector` where it can be."""
        raise ValueError(f"updates of {about.method.name} are no vectors of one space")


@dataclass(frozen=True)
class Nothing(Payload):
    """A plan without content: the round's number is in the frame."""


# -- how fields travel ---------------------------------------------------------------------------------------------


class Codec(ABC):
    """How one field travels. `when`: only if the method's setting of this name is true; otherwise it is None."""

    when: str | None = None

    @abstractmethod
    def write(self, value: Any) -> bytes:
        """Its bytes."""

    @abstractmethod
    def read(self, reader: "Reader", about: About, rest: Sequence["Codec"]) -> Any:
        """The value; `rest` are the codecs from this field on. Raises MessageError."""

    def held(self, value: Any, size: int) -> Content:
        """What a value is, of a model with so many parameters."""
        numbers = np.asarray(value)
        return Content(scalars=numbers.size) if numbers.dtype.kind == "f" else Content(integers=numbers.size)

    def absent(self, about: About) -> bool:
        """Whether the field does not travel."""
        return self.when is not None and not about.lookup(self.when)


@dataclass(frozen=True)
class Scalar(Codec):
    """One number: "u4", "u8", "f4" or "f8", as NumPy names them."""

    dtype: str
    when: str | None = None

    def write(self, value: Any) -> bytes:
        return b"" if value is None else np.array(value, dtype=f"<{self.dtype}").tobytes()

    def read(self, reader: "Reader", about: About, rest: Sequence[Codec]) -> Any:
        return None if self.absent(about) else reader.array(self.dtype, 1)[0].item()


@dataclass(frozen=True)
class Array(Codec):
    """A 1-D array.

    Args:
        dtype: of its elements, as they travel.
        length: a number, or a name.
        when: as for every codec.
        optional: in a step no elements at all are possible, too: nobody answered.
        each: the name of how many elements there are for each one of the length; None: one.
    """

    dtype: str
    length: int | str
    when: str | None = None
    optional: bool = False
    each: str | None = None

    def write(self, value: Any) -> bytes:
        return b"" if value is None else np.asarray(value).astype(f"<{self.dtype}").tobytes()

    def read(self, reader: "Reader", about: About, rest: Sequence[Codec]) -> Any:
        if self.absent(about):
            return None
        count = self.length if isinstance(self.length, int) else about.lookup(self.length)
        if count is None:  # shared with the fields of the same length that follow
            share = sum(
                np.dtype(c.dtype).itemsize * c.times(about)
                for c in rest
                if isinstance(c, Array) and c.length == self.length and not c.absent(about)
            )
            if reader.left % share:
                raise MessageError(f"{reader.left} bytes, {share} for each of a number of entries")
            count = reader.left // share
        if self.optional and about.kind == "step" and not reader.left:
            count = 0
        return self.decoded(reader.array(self.dtype, int(count) * self.times(about)))

    def times(self, about: About) -> int:
        """Elements for each one of the length."""
        return 1 if self.each is None else int(about.lookup(self.each))

    def decoded(self, values: NDArray[Any]) -> NDArray[Any]:
        """What the elements stand for."""
        return values


@dataclass(frozen=True)
class Bits(Codec):
    """Signs, +1 or -1: a bit each, 1 for +1, lowest bit first, padded with zeros to whole bytes; none in a step: none.

    Args:
        length: the name of how many there are.
    """

    length: str

    def held(self, value: Any, size: int) -> Content:
        return Content(bits=len(value))

    def write(self, value: Any) -> bytes:
        return np.packbits(value > 0, bitorder="little").tobytes()

    def read(self, reader: "Reader", about: About, rest: Sequence[Codec]) -> Any:
        if about.kind == "step" and not reader.left:
            return np.zeros(0, dtype=np.int8)
        return self.unpacked(reader.take(reader.left), about.lookup(self.length))

    def unpacked(self, data: bytes, count: int) -> NDArray[np.int8]:
        """The inverse of `write`. Raises MessageError: not so many bytes, or a padding bit is set."""
        check_bits(data, count, "votes")
        return _SIGNS[np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=count, bitorder="little")]


@dataclass(frozen=True)
class Ragged(Codec):
    """A tuple of float32 arrays, one for each block: all their lengths (u32), then all their elements.

    Args:
        most: the name of the largest length that is possible.
    """

    most: str

    def held(self, value: Any, size: int) -> Content:
        return Content(scalars=sum(map(len, value)))

    def write(self, value: Any) -> bytes:
        lengths = np.array([len(part) for part in value])
        return lengths.astype("<u4").tobytes() + np.concatenate(value).astype("<f4").tobytes()

    def read(self, reader: "Reader", about: About, rest: Sequence[Codec]) -> Any:
        return tuple(reader.array("f4", length) for length in self.lengths(reader, about))

    def lengths(self, reader: "Reader", about: About) -> list[int]:
        """Those of the arrays. Raises MessageError: one is larger than can be."""
        most = about.lookup(self.most)
        lengths: list[int] = reader.array("u4", about.state.blocks).tolist()
        if max(lengths) > most:
            at = int(np.argmax(lengths))
            raise MessageError(f"block {at} has {max(lengths)} coefficients, {most} are allowed")
        return lengths


@dataclass(frozen=True)
class Tensors(Codec):
    """All trainable tensors in order, in their own dtypes: the right length and finite; in a step possibly nothing."""

    def held(self, value: Any, size: int) -> Content:
        return Content(scalars=size if value else 0)

    def write(self, value: Any) -> bytes:
        return bytes(value)

    def read(self, reader: "Reader", about: About, rest: Sequence[Codec]) -> Any:
        data, layout = reader.take(reader.left), about.state.layout
        if not data and about.kind == "step":
            return data
        if len(data) != layout.dense_bytes:
            raise MessageError(f"{len(data)} bytes of weights, the model has {layout.dense_bytes}")
        position = 0
        for entry in layout.tensors:
            size = entry.size * ITEM_BYTES[entry.dtype]
            if not np.isfinite(to_floats(data[position : position + size], entry.dtype)).all():
                raise MessageError(f"tensor {entry.name} has a value that is NaN or infinite")
            position += size
        return data


@dataclass(frozen=True)
class Nested(Codec):
    """A payload inside a payload."""

    of: type[Payload]

    def held(self, value: Any, size: int) -> Content:
        return total([value.content(size)])

    def write(self, value: Any) -> bytes:
        return bytes(value.encode())

    def read(self, reader: "Reader", about: About, rest: Sequence[Codec]) -> Any:
        return self.of.read(reader, about)


@dataclass(frozen=True)
class Many(Nested):
    """A tuple of payloads, one after the other to the end."""

    def held(self, value: Any, size: int) -> Content:
        return total(part.content(size) for part in value)

    def write(self, value: Any) -> bytes:
        return b"".join(part.encode() for part in value)

    def read(self, reader: "Reader", about: About, rest: Sequence[Codec]) -> Any:
        parts = []
        while reader.left:
            parts.append(self.of.read(reader, about))
        return tuple(parts)


_KNOWN: dict[type, tuple[tuple[str, Codec], ...]] = {}


def codecs(payload: type[Payload]) -> tuple[tuple[str, Codec], ...]:
    """The fields of a payload's type and how each travels. Raises TypeError if a field does not say."""
    if payload in _KNOWN:
        return _KNOWN[payload]
    hints = get_type_hints(payload, include_extras=True)
    found = []
    for field in fields(payload):  # type: ignore[arg-type]
        hint = hints[field.name]
        said = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        codec = next((c for c in said if isinstance(c, Codec)), None)
        if codec is None:
            raise TypeError(f"{payload.__name__}.{field.name}: annotate how it travels, such as Scalar('u4')")
        found.append((field.name, codec))
    return _KNOWN.setdefault(payload, tuple(found))


# -- many steps in a record of an orbit ----------------------------------------------------------------------------


def pack(method: Any, payloads: Sequence[bytes]) -> bytes:
    """Steps of equal, non-zero length in as few bytes as can be: signs without the padding between them."""
    bits = _bits(method.step_type)
    if bits is None:
        return b"".join(payloads)
    each = getattr(method, bits.length)
    return bits.write(np.concatenate([bits.unpacked(payload, each) for payload in payloads]))


def unpack(method: Any, data: bytes, count: int) -> list[bytes]:
    """The inverse of `pack` for `count` steps. Raises MessageError."""
    bits = _bits(method.step_type)
    if bits is not None:
        each = getattr(method, bits.length)
        return [bits.write(part) for part in bits.unpacked(data, count * each).reshape(count, each)]
    check_pack(method, data, count)
    size = len(data) // count
    return [data[i * size : (i + 1) * size] for i in range(count)]


def check_pack(method: Any, data: bytes, count: int) -> None:
    """Whether `unpack` can read it, without making the steps. Raises MessageError."""
    bits = _bits(method.step_type)
    if bits is not None:
        check_bits(data, count * getattr(method, bits.length), "votes")
    elif count < 1 or len(data) % count:
        raise MessageError(f"{len(data)} bytes can't be {count} steps of equal length")


def _bits(step: type[Payload]) -> Bits | None:
    (_, first), *others = codecs(step)
    return first if isinstance(first, Bits) and not others else None


# -- bytes ---------------------------------------------------------------------------------------------------------


class Reader:
    """Reads typed values from a payload, never past its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self._position

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if count > self.left:
            raise MessageError(f"payload too short: {count} bytes wanted at byte {self._position}, {self.left} left")
        self._position += count
        return self._data[self._position - count : self._position]

    def array(self, dtype: str, count: int) -> NDArray[Any]:
        """`count` numbers, finite ones."""
        size = np.dtype(dtype).itemsize
        return check_finite(np.frombuffer(self.take(size * count), dtype=f"<{dtype}").astype(dtype))

    def end(self) -> None:
        """Check that nothing is left."""
        if self.left:
            raise MessageError(f"payload too long: {self.left} bytes left over")


def check_bits(data: Any, count: int, what: str, width: int = 1) -> None:
    """Raises MessageError unless bytes are those of so many numbers, of `width` bits each, and padded with zeros."""
    if len(data) != -(-count * width // 8):
        raise MessageError(f"{len(data)} bytes of {what}: {count} {what} take {-(-count * width // 8)}")
    if count * width % 8 and data[-1] >> count * width % 8:
        raise MessageError(f"more than {count} {what}: a padding bit is set")


def check_finite(values: NDArray[Any]) -> NDArray[Any]:
    """The values. Raises MessageError if one is NaN or infinite."""
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise MessageError(f"value {at} of {len(values)} is {values[at]}: only finite numbers are accepted")
    return values


def to_floats(data: bytes, dtype: str) -> Floats:
    """Bytes of a float32, bfloat16 or float16 tensor as float32."""
    if dtype == "float32":
        return np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)
    if dtype == "float16":
        return np.frombuffer(data, dtype="<f2").astype(np.float32)
    return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)


def from_floats(values: Floats, dtype: str) -> bytes:
    """float32 rounded to nearest (ties to even) in float32, bfloat16 or float16, as bytes; finite values only."""
    if dtype == "float32":
        return values.astype("<f4").tobytes()
    if dtype == "float16":
        return values.astype("<f2").tobytes()
    bits: NDArray[np.uint32] = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype("<u2").tobytes()
