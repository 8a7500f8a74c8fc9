"""The codec of all messages. A payload is a dataclass whose fields' types say how they travel.

    @dataclass(frozen=True)
    class Pairs(Payload):
        indices: Annotated[NDArray[np.uint32], Array("u4", "n")]
        scalars: Annotated[Floats, Array("f4", "n")]

Fields travel in their order, little-endian, without padding. Reading never goes past the end, and
never yields a number that is not finite. A length is one of

    a number
    a name        of an attribute of the method or the state ("candidates"; see
                  `DecodeContext.lookup`)
    a function    of the `Reader`, which has the context and the fields before
    another name  that is no attribute: the fields of that length share the remaining bytes

A payload has a size, to be compared with others (`size`):

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
# the largest number of float16
LARGEST_HALF = 65_504.0
# smaller moves of the weights count as this one
SMALLEST_MOVE = 1e-6


@dataclass(frozen=True)
class State:
    """The values that a run's next round depends on besides the weights."""

    layout: Layout  # the parameter space
    seed: int  # the run's seed

    def round_seed(self, number: int = 0) -> int:
        """Return the seed that all clients of a round may share.

        Round 0 stands for the whole run.
        """
        return derive(self.seed, Domain.ROUND_SEED, number)

    def client_seed(self, number: int, client: int) -> int:
        """Return the seed of one client in a round."""
        return derive(self.seed, Domain.CLIENT_SEED, number, client)

    # arrays that the coordinator keeps and no step carries
    remembered: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the remembered values that are not empty (`Method.remember`), by name."""
        arrays = {name: getattr(self, name) for name in self.remembered}
        return {name: array for name, array in arrays.items() if len(array)}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the state with the arrays that `state_dict` returned.

        Raises:
            ValueError: they do not fit.
        """
        values: dict[str, Any] = {name: arrays[name] for name in self.remembered if name in arrays}
        return replace(self, **values)


@dataclass(frozen=True)
class DecodeContext:
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
        """Return the number in an update that stands for an estimate or coefficient of 1."""
        return float(self.method.unit(self.state))


class Content(NamedTuple):
    """The size of a message: bytes, and the numbers that papers count (Ferret, Appendix C.2).

    A number counts as one, however many bytes it takes.
    """

    bytes: int = 0  # of the payload
    # coefficients, projections, losses, weights, whatever their precision
    scalars: int = 0
    # seeds, indices and counts. Lengths, which only serve to read the rest, are not counted
    integers: int = 0
    bits: int = 0  # votes


NUMBERS = ("scalars", "integers", "bits")


def sum_contents(parts: Iterable[Content]) -> Content:
    """Return the sum of several contents."""
    return Content(*map(sum, zip(*parts, strict=True)))


class Payload:
    """The content of a plan, an update or a step: a frozen dataclass of annotated fields."""

    # whether an update holds nothing but estimates along directions
    projections: ClassVar[bool] = False
    # the field that says how many terms of a loss an update is a mean of
    weight_terms: ClassVar[str | None] = None

    def encode(self) -> bytes:
        """Return the exact payload bytes."""
        values = ((codec, getattr(self, name)) for name, codec in field_codecs(type(self)))
        return b"".join(codec.write_value(value) for codec, value in values if value is not None)

    def content(self, size: int, data: bytes = b"") -> Content:
        """Return the payload's content, counted by its fields.

        Args:
            size: d, how many numbers whole tensors hold.
            data: the payload's bytes.
        """
        values = ((codec, getattr(self, name)) for name, codec in field_codecs(type(self)))
        counts = sum_contents(
            codec.count_content(value, size) for codec, value in values if value is not None
        )
        return Content(len(data), *counts[1:])

    @classmethod
    def decode(cls, data: bytes, context: DecodeContext) -> Self:
        """Return the payload that `encode` wrote.

        Raises:
            MessageError: the data is too short or too long, or a value is not finite or impossible.
        """
        reader = Reader(data, context)
        payload = cls.read_value(reader)
        reader.end()
        return payload

    @classmethod
    def read_value(cls, reader: "Reader") -> Self:
        """Read one payload and check it; more may follow."""
        named_codecs, values = field_codecs(cls), dict[str, Any]()
        for index, (name, codec) in enumerate(named_codecs):
            reader.fields_read, reader.remaining_codecs = (
                values,
                [later for _, later in named_codecs[index:]],
            )
            values[name] = None if codec.absent(reader.context) else codec.read_value(reader)
        payload = cls(**values)
        payload.check(reader.context)
        return payload

    def check(self, context: DecodeContext) -> None:
        """Check what the fields' types leave open. Raises MessageError."""

    def size(self, context: DecodeContext) -> float:
        """Return the size of an update or a step, to compare with others of its kind.

        0: its size is not known.
        """
        return 0.0

    def numbers(self, context: DecodeContext) -> NDArray[Any]:
        """Return the values that a client is free to choose: signs (int8) or numbers of any size.

        By default they are the vector.
        """
        return self.vector(context)

    def with_numbers(self, numbers: NDArray[Any], context: DecodeContext) -> Self:
        """Return the update with other numbers."""
        return self.with_vector(numbers, context)

    def vector(self, context: DecodeContext) -> NDArray[np.floating[Any]]:
        """Return an update as a vector, as long for all clients of a round.

        Raises ValueError if the update is not a vector.
        """
        raise ValueError(
            f"updates of {context.method.name} can't be combined as vectors of one space"
        )

    def with_vector(self, vector: NDArray[np.floating[Any]], context: DecodeContext) -> Self:
        """Return the update that is nearest to a vector, as the protocol allows.

        It is the inverse of `vector` where there is one.
        """
        raise ValueError(
            f"updates of {context.method.name} can't be combined as vectors of one space"
        )


@dataclass(frozen=True)
class Nothing(Payload):
    """A plan without content: the round's number is in the frame."""


# -- updates that add up
# -------------------------------------------------------------------------------------------


class Measured(Payload):
    """A payload that holds estimates along directions, in `scalars`."""

    projections: ClassVar[bool] = True
    scalars: Any

    def check(self, context: DecodeContext) -> None:
        """Check that losses can give these estimates, so that no client can destroy the model.

        Raises:
            MessageError: an estimate is too large.
        """
        if context.kind == "update" and len(self.scalars):
            rho = self.scalars / np.float64(context.unit)
            index = int(np.abs(rho).argmax())
            if abs(rho[index]) > LARGEST:
                raise MessageError(
                    f"scalar {index} is {rho[index]:.3g}: at most {LARGEST:.0e} is accepted"
                )

    def size(self, context: DecodeContext) -> float:
        return projection_size(self.scalars / np.float64(context.unit))


class Summand(Payload):
    """An update that a step adds up over the clients as vectors of one length, whose sum can stand
    for all of them.

    The vector is the last field, unless a subclass says otherwise. `counted` says that it holds
    whole numbers that add up as they are, without weights: votes.
    """

    counted: ClassVar[bool] = False

    @classmethod
    def words(cls, context: DecodeContext) -> int:
        """Return the vector's length, which is the same for every client of a round, whatever its
        data is.
        """
        codec: Any = field_codecs(cls)[-1][1]
        return int(codec.named_length(context) or 1) * codec.times(context)

    def vector(self, context: DecodeContext) -> Vector:
        values = np.asarray(self.numbers(context), dtype=np.float64)
        return np.pad(values, (0, self.words(context) - len(values)))

    def numbers(self, context: DecodeContext) -> NDArray[Any]:
        return np.asarray(getattr(self, field_codecs(type(self))[-1][0]))

    def with_numbers(self, numbers: NDArray[Any], context: DecodeContext) -> Self:
        """Return the update with these numbers in the last field.

        A field of signs takes the numbers' signs, and keeps its own where a number is 0.
        """
        current = self.numbers(context)
        if current.dtype == np.int8:
            numbers = np.where(numbers == 0, current, np.sign(numbers))
        changes = {field_codecs(type(self))[-1][0]: numbers.astype(current.dtype)}
        return replace(self, **changes)  # type: ignore[type-var]

    def with_vector(self, vector: NDArray[Any], context: DecodeContext) -> Self:
        return self.with_numbers(vector, context)

    @classmethod
    def from_vector(cls, vector: Vector, context: DecodeContext) -> Self:
        """Return the update that stands for all clients in `aggregate`, with a weight of 1.

        Args:
            vector: sum_i c_i v_i with the weights c_i; of votes sum_i v_i.
            context: the context of the round.
        """
        return cls(**{field_codecs(cls)[-1][0]: vector})


class Scalars(Measured, Summand):
    """Estimates that a step adds up over the clients."""


def projection_size(scalars: NDArray[Any]) -> float:
    """Return the size of projections: the largest magnitude, at least 1; 0 if there is none."""
    if len(scalars):
        return max(1.0, float(np.abs(scalars).max()))
    return 0.0


def move_size(layout: Layout, square: float) -> float:
    """Return the size of a step along a vector with this sum of squares: the root of its mean
    square.
    """
    return max(SMALLEST_MOVE, sqrt(square / layout.size))


# -- how fields travel
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Codec(ABC):
    """The encoding of one field."""

    # the field is there only if the method's setting of this name is true; otherwise it is None
    condition: str | None = field(default=None, kw_only=True)
    # the kind of payload that has it; None: all
    payload_kind: Literal["plan", "update", "step"] | None = field(default=None, kw_only=True)

    @abstractmethod
    def write_value(self, value: Any) -> bytes:
        """Return the bytes of a value."""

    @abstractmethod
    def read_value(self, reader: "Reader") -> Any:
        """Return the value that comes next. Raises MessageError."""

    def count_content(self, value: Any, size: int) -> Content:
        """Return the content that a value counts as, in a model with this number of parameters."""
        numbers = np.asarray(value)
        if numbers.dtype.kind == "f":
            return Content(scalars=numbers.size)
        return Content(integers=numbers.size)

    def absent(self, context: DecodeContext) -> bool:
        """Return whether the field is left out of the message."""
        return self.payload_kind not in (None, context.kind) or (
            self.condition is not None and not context.lookup(self.condition)
        )


@dataclass(frozen=True)
class Array(Codec):
    """A 1-D array.

    "f2" are numbers of float32 that travel as float16, rounded to nearest; magnitudes above 65,504,
    the largest float16, are clipped to it.
    """

    dtype: str  # of its elements, as they travel
    length: int | str | Callable[["Reader"], int]  # how many there are, as this module says
    # whether a step may have no elements, because no client answered
    optional: bool = False
    # the name of the number of elements for each unit of `length`; None: one
    multiplier: str | None = None

    def write_value(self, value: Any) -> bytes:
        if self.dtype == "f2":
            value = np.clip(np.asarray(value, dtype=np.float64), -LARGEST_HALF, LARGEST_HALF)
        return np.asarray(value).astype(f"<{self.dtype}").tobytes()

    def read_value(self, reader: "Reader") -> Any:
        return self.decode_elements(reader.array(self.dtype, self.count(reader)))

    def count(self, reader: "Reader") -> int:
        """Return the number of elements. Raises MessageError."""
        context = reader.context
        if self.optional and context.kind == "step" and not reader.remaining:
            return 0
        count = self.length(reader) if callable(self.length) else self.named_length(context)
        # shared with the fields of the same length that follow
        if count is None:
            alike = (
                c
                for c in reader.remaining_codecs
                if isinstance(c, Array) and c.length == self.length
            )
            share = sum(
                np.dtype(c.dtype).itemsize * c.times(context)
                for c in alike
                if not c.absent(context)
            )
            if reader.remaining % share:
                raise MessageError(
                    f"{reader.remaining} bytes, {share} for each of a number of entries"
                )
            count = reader.remaining // share
        return int(count) * self.times(context)

    def named_length(self, context: DecodeContext) -> Any:
        """Return the length if it is a number or the name of one; else None."""
        if isinstance(self.length, str):
            return context.lookup(self.length)
        return self.length

    def times(self, context: DecodeContext) -> int:
        """Return the number of elements for each one of the length."""
        if self.multiplier is None:
            return 1
        return int(context.lookup(self.multiplier))

    def decode_elements(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values that the elements stand for."""
        return values.astype(np.float32) if self.dtype == "f2" else values


@dataclass(frozen=True)
class Scalar(Array):
    """One number: "u4", "u8", "f4" or "f8", as NumPy names them."""

    length: int = 1

    def read_value(self, reader: "Reader") -> Any:
        return super().read_value(reader)[0].item()


@dataclass(frozen=True)
class Halves(Array):
    """Numbers in bfloat16, which has float32's range: 2 bytes each, within 1/256 of what they
    were.
    """

    dtype: str = field(default="u2", init=False)

    def write_value(self, value: Any) -> bytes:
        return from_floats(np.asarray(value, dtype=np.float32), "bfloat16")

    def decode_elements(self, values: NDArray[Any]) -> NDArray[Any]:
        return check_finite(to_floats(values.astype("<u2").tobytes(), "bfloat16"))


@dataclass(frozen=True)
class Bits(Array):
    """Signs, +1 or -1, in a bit each: 1 for +1, lowest bit first, zeros up to whole bytes.

    A step may have none.
    """

    dtype: str = field(default="u1", init=False)
    optional: bool = True

    def count_content(self, value: Any, size: int) -> Content:
        return Content(bits=len(value))

    def write_value(self, value: Any) -> bytes:
        return pack_numbers(value > 0, 1)

    def read_value(self, reader: "Reader") -> Any:
        return _SIGNS[unpack_numbers(reader, 1, self.count(reader))]


@dataclass(frozen=True)
class Ragged(Codec):
    """A tuple of float32 arrays, one for each block: all their lengths (u32), then all their
    elements.
    """

    # the name of the attribute that holds the largest allowed length
    limit_name: str

    def count_content(self, value: Any, size: int) -> Content:
        return Content(scalars=sum(map(len, value)))

    def write_value(self, value: Any) -> bytes:
        lengths = np.array([len(part) for part in value])
        return lengths.astype("<u4").tobytes() + np.concatenate(value).astype("<f4").tobytes()

    def read_value(self, reader: "Reader") -> Any:
        return tuple(reader.array("f4", length) for length in self.lengths(reader))

    def lengths(self, reader: "Reader") -> list[int]:
        """Return the lengths of the arrays. Raises MessageError if one is too large."""
        limit = reader.context.lookup(self.limit_name)
        lengths: list[int] = reader.array(
            "u4", len(reader.context.state.layout.block_sizes)
        ).tolist()
        if max(lengths) > limit:
            index = int(np.argmax(lengths))
            raise MessageError(
                f"block {index} has {max(lengths)} coefficients, {limit} are allowed"
            )
        return lengths


def magnitude(gamma: Floats) -> np.float32:
    """Return s of a block's coefficients, shape (K_l,); 0 if they are all 0.

    The magnitude of q is s again, bit for bit.
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
    signs are no random rotation: the mean over them of the reconstructions is the change itself
    only where that has many entries. For a change with three it is off by 0.5 to 0.7 |Delta|.

    The bytes are all lengths (u32), all magnitudes (f32), then a bit for each element: 1 for
    positive, lowest first, without a gap between blocks, zeros behind the last.
    """

    def count_content(self, value: Any, size: int) -> Content:
        return Content(scalars=len(value), bits=sum(map(len, value)))

    def write_value(self, value: Any) -> bytes:
        lengths = np.array([len(part) for part in value]).astype("<u4")
        scales = np.array([magnitude(part) for part in value]).astype("<f4")
        return lengths.tobytes() + scales.tobytes() + pack_numbers(np.concatenate(value) >= 0, 1)

    def read_value(self, reader: "Reader") -> tuple[Floats, ...]:
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
    # how the numbers are counted in the content of messages
    kind: Literal["integers", "scalars"] = "integers"

    def count_content(self, value: Small, size: int) -> Content:
        return Content(**{self.kind: len(value.numbers)})

    def write_value(self, value: Small) -> bytes:
        return pack_numbers(value.numbers, value.width)

    def read_value(self, reader: "Reader") -> Small:
        if isinstance(self.width, int):
            width = self.width
        else:
            width = int(reader.context.lookup(self.width))
        return Small(
            unpack_numbers(reader, width, self.count(reader)).astype(np.uint16, copy=False), width
        )


class Counts(Array):
    """The number of entries of each chunk, which only serves to read other numbers."""

    def count_content(self, value: Any, size: int) -> Content:
        return Content()


@dataclass(frozen=True)
class Tensors(Codec):
    """All trainable tensors in order, in their own dtypes: the right length and finite.

    A step may have none.
    """

    def count_content(self, value: Any, size: int) -> Content:
        return Content(scalars=size if value else 0)

    def write_value(self, value: Any) -> bytes:
        return bytes(value)

    def read_value(self, reader: "Reader") -> Any:
        data, layout = reader.take(reader.remaining), reader.context.state.layout
        if not data and reader.context.kind == "step":
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

    part_type: type[Payload]

    def count_content(self, value: Any, size: int) -> Content:
        return sum_contents(part.content(size) for part in value)

    def write_value(self, value: Any) -> bytes:
        return b"".join(part.encode() for part in value)

    def read_value(self, reader: "Reader") -> Any:
        parts = []
        while reader.remaining:
            parts.append(self.part_type.read_value(reader))
        return tuple(parts)


_KNOWN: dict[type, tuple[tuple[str, Codec], ...]] = {}


def field_codecs(payload: Any) -> tuple[tuple[str, Codec], ...]:
    """Return the names of a payload type's fields and their codecs.

    Raises:
        TypeError: a field has no codec.
    """
    if payload in _KNOWN:
        return _KNOWN[payload]
    hints = get_type_hints(payload, include_extras=True)
    pairs = []
    for name in (item.name for item in fields(payload)):
        codec = next(
            (annotation for annotation in get_args(hints[name]) if isinstance(annotation, Codec)),
            None,
        )
        if codec is None:
            raise TypeError(
                f"{payload.__name__}.{name}: annotate how it travels, such as Scalar('u4')"
            )
        pairs.append((name, codec))
    return _KNOWN.setdefault(payload, tuple(pairs))


# -- many steps in a record of an orbit
# ----------------------------------------------------------------------------


def pack(method: Any, payloads: Sequence[bytes]) -> bytes:
    """Return the bytes of steps of equal, non-zero length; signs have no padding between them."""
    count_per_step = votes_of(method)
    if not count_per_step:
        return b"".join(payloads)
    return pack_numbers(
        np.concatenate(
            [unpack_numbers(Reader(payload), 1, count_per_step) for payload in payloads]
        ),
        1,
    )


def unpack(method: Any, data: bytes, count: int) -> list[bytes]:
    """Return the `count` steps that `pack` was given. `check_pack` must have accepted the data."""
    count_per_step = votes_of(method)
    if count_per_step:
        return [
            pack_numbers(part, 1)
            for part in unpack_numbers(Reader(data), 1, count * count_per_step).reshape(
                count, count_per_step
            )
        ]
    size = len(data) // count
    return [data[i * size : (i + 1) * size] for i in range(count)]


def check_pack(method: Any, data: bytes, count: int) -> None:
    """Check that `unpack` can read the data, without making the steps. Raises MessageError."""
    count_per_step = votes_of(method)
    if count_per_step:
        reader = Reader(data)
        take_packed(reader, 1, count * count_per_step)
        reader.end()
    elif count < 1 or len(data) % count:
        raise MessageError(f"{len(data)} bytes can't be {count} steps of equal length")


def votes_of(method: Any) -> int:
    """Return the number of signs in a step that holds nothing else; 0 for other steps."""
    (_, first), *others = field_codecs(method.step_type)
    if others or not isinstance(first, Bits):
        return 0
    return int(getattr(method, str(first.length)))


# -- bytes
# ------------------------------------------------------------------------------------------------


class Reader:
    """Read typed values from a payload's bytes, never past their end.

    Plain numbers need no context.
    """

    def __init__(self, data: bytes, context: Any = None) -> None:
        self._data = data
        self._position = 0
        self.context = context
        self.fields_read: Mapping[str, Any] = {}  # the fields before the one that is read
        self.remaining_codecs: Sequence[Codec] = ()  # the codecs from that field on

    @property
    def remaining(self) -> int:
        """Return the number of bytes that are not read yet."""
        return len(self._data) - self._position

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes. Raises MessageError."""
        if count > self.remaining:
            raise MessageError(
                f"payload too short: {count} bytes wanted at byte {self._position}, "
                f"{self.remaining} left"
            )
        self._position += count
        return self._data[self._position - count : self._position]

    def array(self, dtype: str, count: int) -> NDArray[Any]:
        """Return the next `count` numbers. Raises MessageError, also if one is not finite."""
        size = np.dtype(dtype).itemsize
        return check_finite(np.frombuffer(self.take(size * count), dtype=f"<{dtype}").astype(dtype))

    def end(self) -> None:
        """Check that all bytes are read. Raises MessageError."""
        if self.remaining:
            raise MessageError(f"payload too long: {self.remaining} bytes left over")


def pack_numbers(numbers: NDArray[Any], width: int) -> bytes:
    """Return the bytes of numbers of `width` bits each (1 to 16), lowest bit first, with zeros up
    to whole bytes.
    """
    if width > 1:
        numbers = numbers.astype("<u2").view(np.uint8).reshape(-1, 2)
        numbers = np.unpackbits(numbers, axis=1, count=width, bitorder="little")
    return np.packbits(numbers, bitorder="little").tobytes()


def unpack_numbers(reader: Reader, width: int, count: int) -> NDArray[Any]:
    """Return the numbers that `pack_numbers` wrote.

    Raises:
        MessageError: there are too few bytes, or a padding bit is set.
    """
    bits = np.unpackbits(take_packed(reader, width, count), count=count * width, bitorder="little")
    if width == 1:
        return bits
    wide = np.zeros((count, 16), dtype=np.uint8)
    wide[:, :width] = bits.reshape(count, width)
    return np.packbits(wide, axis=1, bitorder="little").view("<u2").reshape(-1)


def take_packed(reader: Reader, width: int, count: int) -> NDArray[np.uint8]:
    """Take the bytes of `count` numbers of `width` bits each.

    Raises:
        MessageError: there are too few bytes, or a padding bit is set.
    """
    data = np.frombuffer(reader.take(-(-count * width // 8)), dtype=np.uint8)
    if count * width % 8 and data[-1] >> count * width % 8:
        raise MessageError(f"more than {count} numbers of {width} bits: a padding bit is set")
    return data


def check_finite(values: NDArray[Any]) -> NDArray[Any]:
    """Return the values. Raises MessageError if one is NaN or infinite."""
    if not np.isfinite(values).all():
        index = int(np.flatnonzero(~np.isfinite(values))[0])
        raise MessageError(
            f"value {index} of {len(values)} is {values[index]}: only finite numbers are accepted"
        )
    return values


def to_floats(data: bytes | memoryview, dtype: str) -> Floats:
    """Return the values of a float32, bfloat16 or float16 tensor's bytes as float32."""
    return reference.to_float(
        np.frombuffer(data, dtype="<f4" if dtype == "float32" else "<u2"), dtype
    )


def from_floats(values: Floats, dtype: str) -> bytes:
    """Return the bytes of finite float32 values, rounded to nearest (ties to even) in a tensor's
    dtype.
    """
    return (
        reference.from_float(values, dtype)
        .astype("<f4" if dtype == "float32" else "<u2", copy=False)
        .tobytes()
    )
