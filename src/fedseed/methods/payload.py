"""The one codec of all messages: a payload is a dataclass, and its fields' types say how they
travel.

    @dataclass(frozen=True)
    class Pairs(Payload):
        indices: Annotated[NDArray[np.uint32], Array("u4", "n")]
        scalars: Annotated[Floats, Array("f4", "n")]

Fields travel in their order, little-endian, without padding. Reading never goes past the end, and
never yields a number that is not finite. A length is one of

    a number
    a name        of something that the method or the state has ("candidates"; `About.lookup` finds
    it)
    a function    of the `Reader`, which knows `About` and the fields before
    another name  that nothing has: the fields of that length share what is left

A payload also says how large it is beside others (`size`):

    projections         the largest |rho|; below 1 they all count as 1, as chance can make them as
    small as any number
    coefficients        the root of the mean square that the weights are moved by, in expectation
    whole weights       the same, from the weights that the coordinator holds
    entries             the root of the mean square that the weights are moved by
    gradients           the root of the mean square of their entries; a norm below 1 counts as 1

Floors keep what is almost zero, such as the rest of a change after 16-bit rounding, from making
others look large.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import sqrt
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import MessageError
from fedseed.randomness import Domain, derive
from fedseed.randomness.kernels import reference
from fedseed.weights.layout import ITEM_BYTES, Layout

Floats = NDArray[np.float32]
Vector = NDArray[np.float64]
_SIGNS = np.array([-1, 1], dtype=np.int8)  # of a bit
# no honest projection, gradient or move of the weights is larger
LARGEST = 1e6
# smaller moves of the weights count as this one
SMALLEST_MOVE = 1e-6


@dataclass(frozen=True)
class State:
    """The values that a run's next round depends on besides the weights."""

    layout: Layout  # the parameter space
    seed: int  # the run's seed

    def round_seed(self, number: int = 0) -> int:
        """Returns the seed that all clients of a round may share.

        Of round 0 one for the whole run.
        """
        return derive(self.seed, Domain.ROUND_SEED, number)

    def client_seed(self, number: int, client: int) -> int:
        """Returns the seed of one client in a round."""
        return derive(self.seed, Domain.CLIENT_SEED, number, client)

    # arrays that the coordinator keeps and no step carries
    remembered: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the remembered values that are not empty (`Method.remember`), by name."""
        return {name: array for name in self.remembered if len(array := getattr(self, name))}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Returns the state with what `state_dict` returned.

        Raises ValueError if it does not fit.
        """
        kept: dict[str, Any] = {name: arrays[name] for name in self.remembered if name in arrays}
        return replace(self, **kept)


@dataclass(frozen=True)
class About:
    """The context in which a payload is read."""

    # the `Method`; its settings give lengths by name
    method: Any
    state: State  # the state before the round
    # what is read. A step may be empty: nobody answered
    kind: Literal["plan", "update", "step"]
    round: int = 0  # the round, of updates

    def lookup(self, name: str) -> Any:
        """Return the value that the method or the state has under this name.

        None if there is no such thing.
        """
        return getattr(self.method, name, getattr(self.state, name, None))

    @property
    def unit(self) -> float:
        """Return the value that stands for an estimate or coefficient of 1 among an update's
        numbers.
        """
        return float(self.method.unit(self.state))


class Content(NamedTuple):
    """The amount that travels: bytes, and the numbers that papers count (Ferret, Appendix C.2).

    A number counts as one, whatever bytes it takes.
    """

    bytes: int = 0  # of the payload
    # coefficients, projections, losses, weights, whatever their precision
    scalars: int = 0
    # seeds, indices, and what is counted. Lengths, which only say how to read the rest, are not
    integers: int = 0
    bits: int = 0  # votes


NUMBERS = ("scalars", "integers", "bits")


def total(parts: Iterable[Content]) -> Content:
    """Returns the sum of several contents."""
    return Content(*map(sum, zip(*parts, strict=True)))


class Payload:
    """The content of a plan, an update or a step: a frozen dataclass of annotated fields."""

    # whether an update holds nothing but estimates along directions
    projections: ClassVar[bool] = False
    # the field that says how many terms of a loss an update is a mean of
    weight_terms: ClassVar[str | None] = None

    def encode(self) -> bytes:
        """Returns the exact payload bytes."""
        values = ((codec, getattr(self, name)) for name, codec in codecs(type(self)))
        return b"".join(codec.write(value) for codec, value in values if value is not None)

    def content(self, size: int, data: bytes = b"") -> Content:
        """Return its content, counted by its fields.

        `data` are its bytes; whole tensors hold `size` numbers (d).
        """
        values = ((codec, getattr(self, name)) for name, codec in codecs(type(self)))
        held = total(codec.held(value, size) for codec, value in values if value is not None)
        return Content(len(data), *held[1:])

    @classmethod
    def decode(cls, data: bytes, about: About) -> Self:
        """Reads what `encode` wrote.

        Raises MessageError: too short, too long, not finite, or a value that can't be.
        """
        reader = Reader(data, about)
        payload = cls.read(reader)
        reader.end()
        return payload

    @classmethod
    def read(cls, reader: "Reader") -> Self:
        """Reads one payload and checks it; more may follow."""
        wired, values = codecs(cls), dict[str, Any]()
        for at, (name, codec) in enumerate(wired):
            reader.got, reader.rest = values, [later for _, later in wired[at:]]
            values[name] = None if codec.absent(reader.about) else codec.read(reader)
        payload = cls(**values)
        payload.check(reader.about)
        return payload

    def check(self, about: About) -> None:
        """Checks what the types do not say. Raises MessageError."""

    def size(self, about: About) -> float:
        """Return the size of an update or a step, to compare with others of its kind.

        0: it says nothing.
        """
        return 0.0

    def numbers(self, about: About) -> NDArray[Any]:
        """Return the values that a client is free to choose: signs (int8), or numbers of any size.

        By default the vector.
        """
        return self.vector(about)

    def with_numbers(self, numbers: NDArray[Any], about: About) -> Self:
        """Returns the update with other numbers."""
        return self.with_vector(numbers, about)

    def vector(self, about: About) -> NDArray[np.floating[Any]]:
        """Returns an update as a vector, as long for all clients of a round.

        Raises ValueError if the update is not a vector.
        """
        raise ValueError(f"updates of {about.method.name} are no vectors of one space")

    def with_vector(self, vector: NDArray[np.floating[Any]], about: About) -> Self:
        """Returns an update as near to a vector as the protocol allows.

        The inverse of `vector` where it can be.
        """
        raise ValueError(f"updates of {about.method.name} are no vectors of one space")


@dataclass(frozen=True)
class Nothing(Payload):
    """A plan without content: the round's number is in the frame."""


# -- updates that add up
# -------------------------------------------------------------------------------------------


class Measured(Payload):
    """A payload that holds estimates along directions, in `scalars`."""

    projections: ClassVar[bool] = True
    scalars: Any

    def check(self, about: About) -> None:
        """Raises MessageError if no loss can have given these estimates, so that no client can
        destroy the model.
        """
        if about.kind == "update" and len(self.scalars):
            rho = self.scalars / np.float64(about.unit)
            at = int(np.abs(rho).argmax())
            if abs(rho[at]) > LARGEST:
                raise MessageError(
                    f"scalar {at} is {rho[at]:.3g}: at most {LARGEST:.0e} is accepted"
                )

    def size(self, about: About) -> float:
        return largest(self.scalars / np.float64(about.unit))


class Summand(Payload):
    """An update that a step adds up over the clients as vectors of one length, whose sum can stand
    for all of them.

    The vector is the last field, unless a subclass says otherwise. `counted` says that it holds
    whole numbers that add up as they are, without weights: votes.
    """

    counted: ClassVar[bool] = False

    @classmethod
    def words(cls, about: About) -> int:
        """Returns the vector's length, which is the same for every client of a round, whatever its
        data is.
        """
        codec: Any = codecs(cls)[-1][1]
        return int(codec.named(about) or 1) * codec.times(about)

    def vector(self, about: About) -> Vector:
        values = np.asarray(self.numbers(about), dtype=np.float64)
        return np.pad(values, (0, self.words(about) - len(values)))

    def numbers(self, about: About) -> NDArray[Any]:
        return np.asarray(getattr(self, codecs(type(self))[-1][0]))

    def with_numbers(self, numbers: NDArray[Any], about: About) -> Self:
        """Returns it with these numbers in the last field.

        Where it has signs, with theirs, but its own for 0.
        """
        own = self.numbers(about)
        if own.dtype == np.int8:
            numbers = np.where(numbers == 0, own, np.sign(numbers))
        return replace(self, **{codecs(type(self))[-1][0]: numbers.astype(own.dtype)})  # type: ignore[type-var]

    def with_vector(self, vector: NDArray[Any], about: About) -> Self:
        return self.with_numbers(vector, about)

    @classmethod
    def of(cls, vector: Vector, about: About) -> Self:
        """Returns the update that stands for all clients in `aggregate`, alone and with a weight of
        1.

        `vector` is sum_i c_i v_i with the weights c_i; of votes sum_i v_i.
        """
        return cls(**{codecs(cls)[-1][0]: vector})


class Scalars(Measured, Summand):
    """Estimates that a step adds up over the clients."""


def largest(scalars: NDArray[Any]) -> float:
    """Returns the size of projections: the largest magnitude, at least 1; 0 if there is none."""
    return max(1.0, float(np.abs(scalars).max())) if len(scalars) else 0.0


def moved(layout: Layout, square: float) -> float:
    """Return the size of a step along a vector with this sum of squares: its root of
    the mean square.
    """
    return max(SMALLEST_MOVE, sqrt(square / layout.size))


# -- how fields travel
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Codec(ABC):
    """The encoding of one field."""

    # the field is there only if the method's setting of this name is true; otherwise it is None
    when: str | None = field(default=None, kw_only=True)
    # the kind of payload that has it; None: all
    only: Literal["plan", "update", "step"] | None = field(default=None, kw_only=True)

    @abstractmethod
    def write(self, value: Any) -> bytes:
        """Returns the bytes of a value."""

    @abstractmethod
    def read(self, reader: "Reader") -> Any:
        """Returns the value that comes next. Raises MessageError."""

    def held(self, value: Any, size: int) -> Content:
        """Return the content that a value counts as, in a model with this number of parameters."""
        numbers = np.asarray(value)
        return (
            Content(scalars=numbers.size)
            if numbers.dtype.kind == "f"
            else Content(integers=numbers.size)
        )

    def absent(self, about: About) -> bool:
        """Return whether the field is left out of the message."""
        return self.only not in (None, about.kind) or (
            self.when is not None and not about.lookup(self.when)
        )


@dataclass(frozen=True)
class Array(Codec):
    """A 1-D array."""

    dtype: str  # of its elements, as they travel
    length: int | str | Callable[["Reader"], int]  # how many there are, as this module says
    # in a step no elements at all are possible, too: nobody answered
    optional: bool = False
    # the name of how many elements there are for each one of the length; None: one
    each: str | None = None

    def write(self, value: Any) -> bytes:
        return np.asarray(value).astype(f"<{self.dtype}").tobytes()

    def read(self, reader: "Reader") -> Any:
        return self.decoded(reader.array(self.dtype, self.count(reader)))

    def count(self, reader: "Reader") -> int:
        """Return the number of elements. Raises MessageError."""
        about = reader.about
        if self.optional and about.kind == "step" and not reader.left:
            return 0
        count = self.length(reader) if callable(self.length) else self.named(about)
        # shared with the fields of the same length that follow
        if count is None:
            alike = (c for c in reader.rest if isinstance(c, Array) and c.length == self.length)
            share = sum(
                np.dtype(c.dtype).itemsize * c.times(about) for c in alike if not c.absent(about)
            )
            if reader.left % share:
                raise MessageError(f"{reader.left} bytes, {share} for each of a number of entries")
            count = reader.left // share
        return int(count) * self.times(about)

    def named(self, about: About) -> Any:
        """Returns the length, where it is a number or the name of one; else None."""
        return about.lookup(self.length) if isinstance(self.length, str) else self.length

    def times(self, about: About) -> int:
        """Return the number of elements for each one of the length."""
        return 1 if self.each is None else int(about.lookup(self.each))

    def decoded(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values that the elements stand for."""
        return values


@dataclass(frozen=True)
class HalfArray(Array):
    """A 1-D array of float32 whose elements travel as float16, rounded to nearest.

    Larger magnitudes than float16 has travel as its largest, 65,504.
    """

    def write(self, value: Any) -> bytes:
        most = float(np.finfo(np.float16).max)
        return super().write(np.clip(np.asarray(value, dtype=np.float64), -most, most))

    def decoded(self, values: NDArray[Any]) -> NDArray[Any]:
        return values.astype(np.float32)


@dataclass(frozen=True)
class Scalar(Array):
    """One number: "u4", "u8", "f4" or "f8", as NumPy names them."""

    length: int = 1

    def read(self, reader: "Reader") -> Any:
        return super().read(reader)[0].item()


@dataclass(frozen=True)
class Halves(Array):
    """Numbers in bfloat16, which has float32's range: 2 bytes each, within 1/256 of what they
    were.
    """

    dtype: str = field(default="u2", init=False)

    def write(self, value: Any) -> bytes:
        return from_floats(np.asarray(value, dtype=np.float32), "bfloat16")

    def decoded(self, values: NDArray[Any]) -> NDArray[Any]:
        return check_finite(to_floats(values.astype("<u2").tobytes(), "bfloat16"))


@dataclass(frozen=True)
class Bits(Array):
    """Signs, +1 or -1, in a bit each: 1 for +1, lowest bit first, zeros up to whole bytes.

    A step may have none.
    """

    dtype: str = field(default="u1", init=False)
    optional: bool = True

    def held(self, value: Any, size: int) -> Content:
        return Content(bits=len(value))

    def write(self, value: Any) -> bytes:
        return pack_numbers(value > 0, 1)

    def read(self, reader: "Reader") -> Any:
        return _SIGNS[unpack_numbers(reader, 1, self.count(reader))]


@dataclass(frozen=True)
class Ragged(Codec):
    """A tuple of float32 arrays, one for each block: all their lengths (u32), then all their
    elements.
    """

    # the name of the largest length that is possible
    most: str

    def held(self, value: Any, size: int) -> Content:
        return Content(scalars=sum(map(len, value)))

    def write(self, value: Any) -> bytes:
        lengths = np.array([len(part) for part in value])
        return lengths.astype("<u4").tobytes() + np.concatenate(value).astype("<f4").tobytes()

    def read(self, reader: "Reader") -> Any:
        return tuple(reader.array("f4", length) for length in self.lengths(reader))

    def lengths(self, reader: "Reader") -> list[int]:
        """Returns the lengths of the arrays. Raises MessageError: one is larger than can be."""
        most = reader.about.lookup(self.most)
        lengths: list[int] = reader.array("u4", len(reader.about.state.layout.block_sizes)).tolist()
        if max(lengths) > most:
            at = int(np.argmax(lengths))
            raise MessageError(f"block {at} has {max(lengths)} coefficients, {most} are allowed")
        return lengths


def magnitude(gamma: Floats) -> np.float32:
    """Returns s of a block's coefficients, shape (K_l,); 0 if they all are.

    That of q is s again, bit for bit.
    """
    doubles = np.abs(gamma.astype(np.float64))
    largest = doubles.max(initial=0.0)
    if largest == 0:
        return np.float32(0)
    doubles /= largest
    return np.float32(largest * (np.square(doubles).sum() / doubles.sum()))


class RaggedBits(Ragged):
    """A tuple of arrays in a bit an element: signs, and one magnitude for all of an array, a
    block's coefficients.

    Vargaftik et al., "DRIVE: One-bit Distributed Mean Estimation", NeurIPS 2021, its Eq. for an
    unbiased scale: random rotations make entries alike, so that little is lost with their
    magnitudes.

        q = s sign(gamma),  s = |gamma|^2 / |gamma|_1        0 counts as positive

    <q, gamma> = |gamma|^2, so q keeps all of gamma along itself, and |q|^2 is pi/2 |gamma|^2 for
    normal coefficients: what is lost is noise of 0.57 |gamma|^2. A bit in place of 32 allows for 32
    times the directions, and the noise of a projection is in proportion to d / K. Directions of
    signs are no random rotation: the mean over them of what comes back is the change itself only
    where it has many entries. Of one with three it is off by 0.5 to 0.7 |Delta|.

    What travels is all lengths (u32), all magnitudes (f32), then a bit for each element, the
    blocks' bits following one another without a gap: 1 for positive, lowest first, zeros behind the
    last.
    """

    def held(self, value: Any, size: int) -> Content:
        return Content(scalars=len(value), bits=sum(map(len, value)))

    def write(self, value: Any) -> bytes:
        lengths = np.array([len(part) for part in value]).astype("<u4")
        scales = np.array([magnitude(part) for part in value]).astype("<f4")
        return lengths.tobytes() + scales.tobytes() + pack_numbers(np.concatenate(value) >= 0, 1)

    def read(self, reader: "Reader") -> tuple[Floats, ...]:
        lengths = self.lengths(reader)
        scales = reader.array("f4", len(lengths))
        if (scales < 0).any():
            raise MessageError(f"the magnitude of block {int(np.argmax(scales < 0))} is negative")
        blocks = np.split(unpack_numbers(reader, 1, sum(lengths)), np.cumsum(lengths)[:-1])
        return tuple(np.where(block, s, -s) for block, s in zip(blocks, scales, strict=True))


class Small(NamedTuple):
    """Whole numbers below 2^width (uint16), and how many bits each travels in."""

    numbers: NDArray[np.uint16]
    width: int


@dataclass(frozen=True)
class Packed(Array):
    """`Small` numbers, without a gap between them."""

    dtype: str = field(default="u2", init=False)
    width: int | str = 16  # bits of each, or the name of that
    # what they are when the content of messages is counted
    kind: Literal["integers", "scalars"] = "integers"

    def held(self, value: Small, size: int) -> Content:
        return Content(**{self.kind: len(value.numbers)})

    def write(self, value: Small) -> bytes:
        return pack_numbers(value.numbers, value.width)

    def read(self, reader: "Reader") -> Small:
        width = self.width if isinstance(self.width, int) else int(reader.about.lookup(self.width))
        return Small(
            unpack_numbers(reader, width, self.count(reader)).astype(np.uint16, copy=False), width
        )


class Counts(Array):
    """The number of entries of each chunk, which only serves to read other numbers."""

    def held(self, value: Any, size: int) -> Content:
        return Content()


@dataclass(frozen=True)
class Tensors(Codec):
    """All trainable tensors in order, in their own dtypes: the right length and finite.

    In a step possibly nothing.
    """

    def held(self, value: Any, size: int) -> Content:
        return Content(scalars=size if value else 0)

    def write(self, value: Any) -> bytes:
        return bytes(value)

    def read(self, reader: "Reader") -> Any:
        data, layout = reader.take(reader.left), reader.about.state.layout
        if not data and reader.about.kind == "step":
            return data
        if len(data) != layout.dense_bytes:
            raise MessageError(f"{len(data)} bytes of weights, the model has {layout.dense_bytes}")
        view, end = memoryview(data), 0
        for entry in layout.tensors:
            start, end = end, end + entry.size * ITEM_BYTES[entry.dtype]
            if not np.isfinite(to_floats(view[start:end], entry.dtype)).all():
                raise MessageError(f"tensor {entry.name} has a value that is NaN or infinite")
        return data


@dataclass(frozen=True)
class Many(Codec):
    """A tuple of payloads, one after the other to the end."""

    of: type[Payload]

    def held(self, value: Any, size: int) -> Content:
        return total(part.content(size) for part in value)

    def write(self, value: Any) -> bytes:
        return b"".join(part.encode() for part in value)

    def read(self, reader: "Reader") -> Any:
        parts = []
        while reader.left:
            parts.append(self.of.read(reader))
        return tuple(parts)


_KNOWN: dict[type, tuple[tuple[str, Codec], ...]] = {}


def codecs(payload: Any) -> tuple[tuple[str, Codec], ...]:
    """Returns a payload type's fields and how each travels.

    Raises TypeError if a field does not say.
    """
    if payload in _KNOWN:
        return _KNOWN[payload]
    hints = get_type_hints(payload, include_extras=True)
    found = []
    for name in (one.name for one in fields(payload)):
        codec = next((said for said in get_args(hints[name]) if isinstance(said, Codec)), None)
        if codec is None:
            raise TypeError(
                f"{payload.__name__}.{name}: annotate how it travels, such as Scalar('u4')"
            )
        found.append((name, codec))
    return _KNOWN.setdefault(payload, tuple(found))


# -- many steps in a record of an orbit
# ----------------------------------------------------------------------------


def pack(method: Any, payloads: Sequence[bytes]) -> bytes:
    """Returns steps of equal, non-zero length in as few bytes as can be: signs without the padding
    between them.
    """
    if not (each := votes_of(method)):
        return b"".join(payloads)
    return pack_numbers(
        np.concatenate([unpack_numbers(Reader(payload), 1, each) for payload in payloads]), 1
    )


def unpack(method: Any, data: bytes, count: int) -> list[bytes]:
    """Returns the `count` steps that `pack` was given, where `check_pack` has nothing against
    them.
    """
    if each := votes_of(method):
        return [
            pack_numbers(part, 1)
            for part in unpack_numbers(Reader(data), 1, count * each).reshape(count, each)
        ]
    size = len(data) // count
    return [data[i * size : (i + 1) * size] for i in range(count)]


def check_pack(method: Any, data: bytes, count: int) -> None:
    """Checks that `unpack` can read it, without making the steps. Raises MessageError."""
    if each := votes_of(method):
        reader = Reader(data)
        take_packed(reader, 1, count * each)
        reader.end()
    elif count < 1 or len(data) % count:
        raise MessageError(f"{len(data)} bytes can't be {count} steps of equal length")


def votes_of(method: Any) -> int:
    """Return the number of signs in a step that holds nothing else; 0 for other steps."""
    (_, first), *others = codecs(method.step_type)
    return 0 if others or not isinstance(first, Bits) else int(getattr(method, str(first.length)))


# -- bytes
# ------------------------------------------------------------------------------------------------


class Reader:
    """Reads typed values from a payload's bytes, never past their end.

    Plain numbers need no `about`.
    """

    def __init__(self, data: bytes, about: Any = None) -> None:
        self._data = data
        self._position = 0
        self.about = about
        self.got: Mapping[str, Any] = {}  # the fields before the one that is read
        self.rest: Sequence[Codec] = ()  # the codecs from that field on

    @property
    def left(self) -> int:
        """Return the number of bytes that are not read yet."""
        return len(self._data) - self._position

    def take(self, count: int) -> bytes:
        """Returns the next `count` bytes. Raises MessageError."""
        if count > self.left:
            raise MessageError(
                f"payload too short: {count} bytes wanted at byte {self._position}, {self.left} "
                "left"
            )
        self._position += count
        return self._data[self._position - count : self._position]

    def array(self, dtype: str, count: int) -> NDArray[Any]:
        """Returns the next `count` numbers. Raises MessageError, also if one is not finite."""
        size = np.dtype(dtype).itemsize
        return check_finite(np.frombuffer(self.take(size * count), dtype=f"<{dtype}").astype(dtype))

    def end(self) -> None:
        """Raises MessageError if anything is left."""
        if self.left:
            raise MessageError(f"payload too long: {self.left} bytes left over")


def pack_numbers(numbers: NDArray[Any], width: int) -> bytes:
    """Returns the bytes of numbers of `width` bits each (1 to 16), lowest bit first, with zeros up
    to whole bytes.
    """
    if width > 1:
        numbers = numbers.astype("<u2").view(np.uint8).reshape(-1, 2)
        numbers = np.unpackbits(numbers, axis=1, count=width, bitorder="little")
    return np.packbits(numbers, bitorder="little").tobytes()


def unpack_numbers(reader: Reader, width: int, count: int) -> NDArray[Any]:
    """Reads what `pack_numbers` wrote.

    Raises MessageError: too few bytes, or a padding bit is set.
    """
    bits = np.unpackbits(take_packed(reader, width, count), count=count * width, bitorder="little")
    if width == 1:
        return bits
    wide = np.zeros((count, 16), dtype=np.uint8)
    wide[:, :width] = bits.reshape(count, width)
    return np.packbits(wide, axis=1, bitorder="little").view("<u2").reshape(-1)


def take_packed(reader: Reader, width: int, count: int) -> NDArray[np.uint8]:
    """Take the bytes of `count` numbers.

    Raises MessageError: too few bytes, or a padding bit is set.
    """
    data = np.frombuffer(reader.take(-(-count * width // 8)), dtype=np.uint8)
    if count * width % 8 and data[-1] >> count * width % 8:
        raise MessageError(f"more than {count} numbers of {width} bits: a padding bit is set")
    return data


def check_finite(values: NDArray[Any]) -> NDArray[Any]:
    """Returns the values. Raises MessageError if one is NaN or infinite."""
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise MessageError(
            f"value {at} of {len(values)} is {values[at]}: only finite numbers are accepted"
        )
    return values


def to_floats(data: bytes | memoryview, dtype: str) -> Floats:
    """Returns the values of a float32, bfloat16 or float16 tensor's bytes as float32."""
    return reference.to_float(
        np.frombuffer(data, dtype="<f4" if dtype == "float32" else "<u2"), dtype
    )


def from_floats(values: Floats, dtype: str) -> bytes:
    """Returns the bytes of finite float32 values, rounded to nearest (ties to even) in a tensor's
    dtype.
    """
    return (
        reference.from_float(values, dtype)
        .astype("<f4" if dtype == "float32" else "<u2", copy=False)
        .tobytes()
    )
