"""The codec of all messages. A payload is a dataclass whose field types define the encoding.

    @dataclass(frozen=True)
    class Pairs(Payload):
        indices: Annotated[NDArray[np.uint32], Array("u4", "n")]
        scalars: Annotated[Floats, Array("f4", "n")]

Fields are encoded in order, little-endian, without padding. Reading never goes past the end, and
never returns a number that is not finite. A length is one of

    a number
    a name        of an attribute of the method or the state ("candidates"; see
                  `DecodeContext.lookup`)
    a function    of the `Reader`, which has the context and the earlier fields
    another name  that is not an attribute: the fields of that length share the remaining bytes

A payload has a size, which is compared with others' (`size`):

    projections     the largest |rho|; values below 1 count as 1, because by chance they can be
                    arbitrarily small
    coefficients    the expected root mean square of the weights' change
    whole weights   the root mean square of the difference from the coordinator's weights
    entries         the root mean square of the weights' change
    gradients       the root mean square of their entries; a norm below 1 counts as 1

The lower limits prevent values that are almost zero, such as the rest of a change after 16-bit
rounding, from making other values look large.
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
_SIGNS = np.array([-1, 1], dtype=np.int8)  # the sign that a bit encodes
# honest projections, gradients and changes of the weights are never larger
LARGEST = 1e6
# the largest number of float16
LARGEST_HALF = 65_504.0
# smaller changes of the weights count as this large
SMALLEST_MOVE = 1e-6


@dataclass(frozen=True)
class State:
    """The values, besides the weights, that the next round of a run depends on."""

    layout: Layout  # the parameter space
    seed: int  # the run's seed

    def round_seed(self, number: int = 0) -> int:
        """Return the seed that all clients of a round may share.

        Round 0 means the whole run.
        """
        return derive(self.seed, Domain.ROUND_SEED, number)

    def client_seed(self, number: int, client: int) -> int:
        """Return the seed of one client in a round."""
        return derive(self.seed, Domain.CLIENT_SEED, number, client)

    # names of arrays that the coordinator keeps and that are not in steps
    remembered: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the non-empty remembered values (`Method.remember`), by name."""
        arrays = {name: getattr(self, name) for name in self.remembered}
        return {name: array for name, array in arrays.items() if len(array)}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the state with arrays that `state_dict` returned.

        Raises:
            ValueError: the arrays do not fit.
        """
        values: dict[str, Any] = {name: arrays[name] for name in self.remembered if name in arrays}
        return replace(self, **values)


@dataclass(frozen=True)
class DecodeContext:
    """The context in which a payload is read."""

    # the `Method`, whose settings define lengths by name
    method: Any
    state: State  # the state before the round
    # the kind of payload that is read; only a step may be empty, if nobody answered
    kind: Literal["plan", "update", "step"]
    round: int = 0  # the round of an update

    def lookup(self, name: str) -> Any:
        """Return the value of this name in the method or the state.

        None if neither has it.
        """
        return getattr(self.method, name, getattr(self.state, name, None))

    @property
    def unit(self) -> float:
        """Return the number that represents an estimate or coefficient of 1 in an update."""
        return float(self.method.unit(self.state))


class Content(NamedTuple):
    """The content of a message: its bytes, and the numbers that papers count (Ferret, Appendix
    C.2).

    A number counts as one, however many bytes it takes.
    """

    bytes: int = 0  # bytes of the payload
    # coefficients, projections, losses and weights, in any precision
    scalars: int = 0
    # seeds, indices and counts. Lengths that only serve to read other fields are not counted
    integers: int = 0
    bits: int = 0  # number of votes


NUMBERS = ("scalars", "integers", "bits")


def sum_contents(parts: Iterable[Content]) -> Content:
    """Return the sum of several contents."""
    return Content(*map(sum, zip(*parts, strict=True)))


class Payload:
    """The content of a plan, an update or a step: a frozen dataclass of annotated fields."""

    # whether an update holds only estimates along directions
    projections: ClassVar[bool] = False
    # the name of the field with the number of terms in an update's mean loss
    weight_terms: ClassVar[str | None] = None

    def encode(self) -> bytes:
        """Return the payload's bytes."""
        values = ((codec, getattr(self, name)) for name, codec in field_codecs(type(self)))
        return b"".join(codec.write_value(value) for codec, value in values if value is not None)

    def content(self, size: int, data: bytes | memoryview = b"") -> Content:
        """Return the payload's content, counted field by field.

        Args:
            size: d, the number of values in whole tensors.
            data: the payload's bytes.
        """
        values = ((codec, getattr(self, name)) for name, codec in field_codecs(type(self)))
        counts = sum_contents(
            codec.count_content(value, size) for codec, value in values if value is not None
        )
        return Content(len(data), *counts[1:])

    @classmethod
    def decode(cls, data: bytes | memoryview, context: DecodeContext) -> Self:
        """Return the payload that `encode` wrote.

        Raises:
            MessageError: the data is too short or too long, or a value is not finite or not
                allowed.
        """
        reader = Reader(data, context)
        payload = cls.read_value(reader)
        reader.end()
        return payload

    @classmethod
    def read_value(cls, reader: "Reader") -> Self:
        """Read and check one payload. Other data may follow it."""
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
        """Check what the field types do not check. Raises MessageError if a value is invalid."""

    def size(self, context: DecodeContext) -> float:
        """Return the size of an update or a step, to compare with others of its kind.

        0 if the size is not known.
        """
        return 0.0

    def numbers(self, context: DecodeContext) -> NDArray[Any]:
        """Return the values that a client can choose freely: signs (int8) or numbers of any size.

        The default is the vector.
        """
        return self.vector(context)

    def with_numbers(self, numbers: NDArray[Any], context: DecodeContext) -> Self:
        """Return the update with other numbers."""
        return self.with_vector(numbers, context)

    def vector(self, context: DecodeContext) -> NDArray[np.floating[Any]]:
        """Return an update as a vector, which has the same length for all clients of a round.

        Raises ValueError if the update is not a vector.
        """
        raise ValueError(
            f"updates of {context.method.name} can't be combined as vectors of one space"
        )

    def with_vector(self, vector: NDArray[np.floating[Any]], context: DecodeContext) -> Self:
        """Return the valid update that is nearest to a vector.

        It is the inverse of `vector`, if there is one.
        """
        raise ValueError(
            f"updates of {context.method.name} can't be combined as vectors of one space"
        )


@dataclass(frozen=True)
class Nothing(Payload):
    """A plan without content, because the frame has the round's number."""


# -- updates that add up
# -------------------------------------------------------------------------------------------


class Measured(Payload):
    """A payload with estimates along directions in `scalars`."""

    projections: ClassVar[bool] = True
    scalars: Any

    def check(self, context: DecodeContext) -> None:
        """Check that these estimates can come from losses, so that a client can't destroy the
        model.

        Raises:
            MessageError: an estimate is too large.
        """
        if context.kind == "update" and len(self.scalars):
            rho = self.scalars / np.float64(context.unit)
            index = int(np.abs(rho).argmax())
            if abs(rho[index]) > LARGEST:
                raise MessageError(
                    f"scalar {index} is {rho[index]:.3g}, but at most {LARGEST:.0e} is accepted"
                )

    def size(self, context: DecodeContext) -> float:
        return projection_size(self.scalars / np.float64(context.unit))


class Summand(Payload):
    """An update that is a vector of the same length for all clients. A step adds the vectors up, so
    that their sum can replace the single updates.

    The vector is the last field, unless a subclass overrides this. If `counted` is true, it has
    votes: whole numbers that are added up without weights.
    """

    counted: ClassVar[bool] = False

    @classmethod
    def words(cls, context: DecodeContext) -> int:
        """Return the vector's length, which is the same for every client of a round and does not
        depend on its data.
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

        A field of signs gets the numbers' signs, and keeps its own sign where a number is 0.
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
        """Return one update that replaces those of all clients in `aggregate`, with a weight of 1.

        Args:
            vector: sum_i c_i v_i with the weights c_i; for votes, sum_i v_i.
            context: the context of the round.
        """
        return cls(**{field_codecs(cls)[-1][0]: vector})


class Scalars(Measured, Summand):
    """Estimates that a step adds up over the clients."""


def projection_size(scalars: NDArray[Any]) -> float:
    """Return the size of projections: the largest magnitude, at least 1; 0 if there are none."""
    if len(scalars):
        return max(1.0, float(np.abs(scalars).max()))
    return 0.0


def move_size(layout: Layout, square: float) -> float:
    """Return the size of a change, its root mean square, from the sum of its squares."""
    return max(SMALLEST_MOVE, sqrt(square / layout.size))


# -- how fields travel
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Codec(ABC):
    """The encoding of one field."""

    # name of a setting: the field is present only if the method's setting is true, and otherwise
    # None
    condition: str | None = field(default=None, kw_only=True)
    # the kind of payload that has the field; None: all kinds
    payload_kind: Literal["plan", "update", "step"] | None = field(default=None, kw_only=True)

    @abstractmethod
    def write_value(self, value: Any) -> bytes:
        """Return the bytes of a value."""

    @abstractmethod
    def read_value(self, reader: "Reader") -> Any:
        """Read and return the next value. Raises MessageError if it is invalid."""

    def count_content(self, value: Any, size: int) -> Content:
        """Return how a value is counted in a message's content, for a model with this number of
        parameters.
        """
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

    "f2" means float32 numbers that are sent as float16, rounded to nearest. Magnitudes above
    65,504, the largest float16, are clipped to it.
    """

    dtype: str  # dtype of the encoded elements
    length: int | str | Callable[["Reader"], int]  # the number of elements, see the module's text
    # whether a step may have no elements, if no client answered
    optional: bool = False
    # the name of the number of elements for each unit of `length`; None: one element
    multiplier: str | None = None

    def write_value(self, value: Any) -> bytes:
        if self.dtype == "f2":
            value = np.clip(np.asarray(value, dtype=np.float64), -LARGEST_HALF, LARGEST_HALF)
        return np.asarray(value).astype(f"<{self.dtype}").tobytes()

    def read_value(self, reader: "Reader") -> Any:
        return self.decode_elements(reader.array(self.dtype, self.count(reader)))

    def count(self, reader: "Reader") -> int:
        """Return the number of elements. Raises MessageError if it does not fit the data."""
        context = reader.context
        if self.optional and context.kind == "step" and not reader.remaining:
            return 0
        count = self.length(reader) if callable(self.length) else self.named_length(context)
        # the remaining bytes are shared with the following fields of the same length
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
                    f"{reader.remaining} bytes are not a whole number of entries of {share} bytes"
                )
            count = reader.remaining // share
        return int(count) * self.times(context)

    def named_length(self, context: DecodeContext) -> Any:
        """Return the length if it is a number or the name of one; otherwise None."""
        if isinstance(self.length, str):
            return context.lookup(self.length)
        return self.length

    def times(self, context: DecodeContext) -> int:
        """Return the number of elements for each unit of the length."""
        if self.multiplier is None:
            return 1
        return int(context.lookup(self.multiplier))

    def decode_elements(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values that the elements encode."""
        return values.astype(np.float32) if self.dtype == "f2" else values


@dataclass(frozen=True)
class Scalar(Array):
    """One number: "u4", "u8", "f4" or "f8", as NumPy names them."""

    length: int = 1

    def read_value(self, reader: "Reader") -> Any:
        return super().read_value(reader)[0].item()


@dataclass(frozen=True)
class Halves(Array):
    """Numbers in bfloat16, which has the range of float32: 2 bytes each, with an error of at most
    1/256.
    """

    dtype: str = field(default="u2", init=False)

    def write_value(self, value: Any) -> bytes:
        return from_floats(np.asarray(value, dtype=np.float32), "bfloat16")

    def decode_elements(self, values: NDArray[Any]) -> NDArray[Any]:
        return check_finite(to_floats(values.astype("<u2").tobytes(), "bfloat16"))


@dataclass(frozen=True)
class Bits(Array):
    """Signs, +1 or -1, with one bit each: 1 for +1, lowest bit first, padded with zeros to whole
    bytes.

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
    """A tuple of float32 arrays, one for each block: first all lengths (u32), then all elements."""

    # the name of the attribute with the largest allowed length
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
                f"block {index} has {max(lengths)} coefficients, but only {limit} are allowed"
            )
        return lengths


def magnitude(gamma: Floats) -> np.float32:
    """Return the magnitude s of a block's coefficients, shape (K_l,); 0 if they are all 0.

    The magnitude of q is again s, bit for bit.
    """
    doubles = np.abs(gamma.astype(np.float64))
    largest = doubles.max(initial=0.0)
    if largest == 0:
        return np.float32(0)
    doubles /= largest
    return np.float32(largest * (np.square(doubles).sum() / doubles.sum()))


class RaggedBits(Ragged):
    """A tuple of arrays with one bit for each element, its sign, and one magnitude for each array.
    An array has a block's coefficients.

    Vargaftik et al., "DRIVE: One-bit Distributed Mean Estimation", NeurIPS 2021, with its unbiased
    scale: random rotations make entries similar in size, so that little is lost with their
    magnitudes.

        q = s sign(gamma),  s = |gamma|^2 / |gamma|_1        0 counts as positive

    <q, gamma> = |gamma|^2, so q keeps the whole component along gamma. |q|^2 is pi/2 |gamma|^2 for
    normal coefficients, so the error is noise of 0.57 |gamma|^2. One bit instead of 32 allows 32
    times as many directions, and the noise of a projection is proportional to d / K. Directions of
    signs are not a random rotation: the mean of the reconstructions over them equals the change
    only if the change has many entries. For a change with three entries it differs by 0.5 to 0.7
    |Delta|.

    The bytes are all lengths (u32), all magnitudes (f32), then one bit for each element: 1 for
    positive, lowest bit first, without gaps between blocks, and padded with zeros.
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
    """Whole numbers below 2^width (uint16), and the bits of each in a message."""

    numbers: NDArray[np.uint16]
    width: int


@dataclass(frozen=True)
class Packed(Array):
    """`Small` numbers without gaps between them."""

    dtype: str = field(default="u2", init=False)
    width: int | str = 16  # bits of each number, or the name of that value
    # how the numbers count in the content of messages
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
    """The number of entries in each chunk, needed only to read other numbers."""

    def count_content(self, value: Any, size: int) -> Content:
        return Content()


@dataclass(frozen=True)
class Tensors(Codec):
    """All trainable tensors in order, in their own dtypes. Checks that the length is right and all
    values are finite.

    A step may have no tensors.
    """

    def count_content(self, value: Any, size: int) -> Content:
        return Content(scalars=size if value else 0)

    def write_value(self, value: Any) -> bytes:
        return bytes(value)

    def read_value(self, reader: "Reader") -> Any:
        data, layout = reader.take_view(reader.remaining), reader.context.state.layout
        if not data and reader.context.kind == "step":
            return data
        if len(data) != layout.dense_bytes:
            raise MessageError(
                f"{len(data)} bytes of weights, but the model has {layout.dense_bytes}"
            )
        view, end = memoryview(data), 0
        for entry in layout.tensors:
            start, end = end, end + entry.size * ITEM_BYTES[entry.dtype]
            if not np.isfinite(to_floats(view[start:end], entry.dtype)).all():
                raise MessageError(f"tensor {entry.name} has a value that is NaN or infinite")
        return data


@dataclass(frozen=True)
class Many(Codec):
    """A tuple of payloads, one after another until the end."""

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
                f"{payload.__name__}.{name}: annotate it with its encoding, such as Scalar('u4')"
            )
        pairs.append((name, codec))
    return _KNOWN.setdefault(payload, tuple(pairs))


# -- many steps in a record of an orbit
# ----------------------------------------------------------------------------


def pack(method: Any, payloads: Sequence[bytes]) -> bytes:
    """Return the joined bytes of steps of equal, non-zero length. Signs have no padding between
    steps.
    """
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
    """Return the `count` steps that were given to `pack`. `check_pack` must have accepted the
    data.
    """
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
    """Check, without making the steps, that `unpack` can read the data. Raises MessageError if it
    can't.
    """
    count_per_step = votes_of(method)
    if count_per_step:
        reader = Reader(data)
        take_packed(reader, 1, count * count_per_step)
        reader.end()
    elif count < 1 or len(data) % count:
        raise MessageError(f"{len(data)} bytes can't be {count} steps of equal length")


def votes_of(method: Any) -> int:
    """Return the number of signs in a step that has only signs; 0 for other steps."""
    (_, first), *others = field_codecs(method.step_type)
    if others or not isinstance(first, Bits):
        return 0
    return int(getattr(method, str(first.length)))


# -- bytes
# ------------------------------------------------------------------------------------------------


class Reader:
    """Reads typed values from a payload's bytes, never past their end.

    Plain numbers need no context.
    """

    def __init__(self, data: bytes | memoryview, context: Any = None) -> None:
        self._data = data
        self._position = 0
        self.context = context
        self.fields_read: Mapping[str, Any] = {}  # the fields before the current one
        self.remaining_codecs: Sequence[Codec] = ()  # the codecs of the current and later fields

    @property
    def remaining(self) -> int:
        """Return the number of unread bytes."""
        return len(self._data) - self._position

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes. Raises MessageError if there are too few."""
        return bytes(self.take_view(count))

    def take_view(self, count: int) -> bytes | memoryview:
        """Return the next `count` bytes without a copy, if the payload is a view of a message.

        Raises MessageError if there are too few.
        """
        if count > self.remaining:
            raise MessageError(
                f"payload too short: {count} bytes needed at byte {self._position}, but only "
                f"{self.remaining} are left"
            )
        self._position += count
        return self._data[self._position - count : self._position]

    def array(self, dtype: str, count: int) -> NDArray[Any]:
        """Return the next `count` numbers. Raises MessageError if there are too few or one is not
        finite.
        """
        size = np.dtype(dtype).itemsize
        data = self.take_view(size * count)
        return check_finite(np.frombuffer(data, dtype=f"<{dtype}").astype(dtype))

    def end(self) -> None:
        """Check that all bytes have been read. Raises MessageError if not."""
        if self.remaining:
            raise MessageError(f"payload too long: {self.remaining} bytes left over")


def pack_numbers(numbers: NDArray[Any], width: int) -> bytes:
    """Return the bytes of numbers of `width` bits each (1 to 16), lowest bit first, padded with
    zeros to whole bytes.
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
    data = np.frombuffer(reader.take_view(-(-count * width // 8)), dtype=np.uint8)
    if count * width % 8 and data[-1] >> count * width % 8:
        raise MessageError(f"a padding bit is set after {count} numbers of {width} bits")
    return data


def check_finite(values: NDArray[Any]) -> NDArray[Any]:
    """Return the values unchanged. Raises MessageError if one is NaN or infinite."""
    if not np.isfinite(values).all():
        index = int(np.flatnonzero(~np.isfinite(values))[0])
        raise MessageError(
            f"value {index} of {len(values)} is {values[index]}, but numbers must be finite"
        )
    return values


def to_floats(data: bytes | memoryview, dtype: str) -> Floats:
    """Return the values in a float32, bfloat16 or float16 tensor's bytes, as float32."""
    return reference.to_float(
        np.frombuffer(data, dtype="<f4" if dtype == "float32" else "<u2"), dtype
    )


def from_floats(values: Floats, dtype: str) -> bytes:
    """Return finite float32 values as bytes of a dtype, rounded to nearest (ties to even)."""
    return (
        reference.from_float(values, dtype)
        .astype("<f4" if dtype == "float32" else "<u2", copy=False)
        .tobytes()
    )
