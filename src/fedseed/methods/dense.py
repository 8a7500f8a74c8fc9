"""The common part of methods whose steps are whole weights: FedAvg, FedSGD and dense zeroth-order
methods.

The answers of a round give a wanted change D of the weights (FedAvg: sum_i c_i w_i - w; FedSGD:
-sum_i c_i g_i). The server's optimiser (`fedseed.methods.server`) turns it into a step: w <- w +
eta_g D, or a step with momentum or Adam.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from math import sqrt
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedseed.aggregation.base import Parts
from fedseed.methods.base import EVERY_STEP, NEWEST_STEP, Answers, CatchUp
from fedseed.methods.payload import (
    SMALLEST_MOVE,
    DecodeContext,
    Payload,
    Scalar,
    State,
    Tensors,
    from_floats,
    to_floats,
)
from fedseed.methods.server import ServerOptimization
from fedseed.optimizers.rules import Moments
from fedseed.randomness import Domain, derive, kernels
from fedseed.weights.change import NOTHING, Change, Floats, Replace, Rounding
from fedseed.weights.layout import ITEM_BYTES, Layout

# used in place of a client's number in the random numbers that round an average
COORDINATOR = 0xFFFFFFFF
# how many entries of a tensor are processed at a time: few enough that their doubles stay in the
# processor's cache
PIECE = 1 << 17


class Piece(NamedTuple):
    """A range of entries of one tensor: `start` to `stop` in the parameter vector, `span` in the
    tensors' bytes.
    """

    dtype: str
    start: int
    stop: int
    span: slice


def split_into_pieces(layout: Layout) -> Iterator[Piece]:
    """Divide all tensors into pieces."""
    start = position = 0
    for entry in layout.tensors:
        end, width = start + entry.size, ITEM_BYTES[entry.dtype]
        for lo in range(start, end, PIECE):
            hi = min(end, lo + PIECE)
            next_position = position + (hi - lo) * width
            yield Piece(entry.dtype, lo, hi, slice(position, next_position))
            position = next_position
        start = end


def read_pieces(
    layout: Layout, data: bytes | memoryview, subtrahend: bytes | None = None
) -> Iterator[NDArray[np.float64]]:
    """Yield tensors' values from their bytes, piece by piece, in double precision.

    Args:
        layout: the tensors.
        data: their bytes.
        subtrahend: the bytes of tensors to subtract; None: subtract nothing.
    """
    new_bytes, old_bytes = memoryview(data), memoryview(subtrahend or b"")
    for piece in split_into_pieces(layout):
        values = to_floats(new_bytes[piece.span], piece.dtype).astype(np.float64)
        if subtrahend is not None:
            values -= to_floats(old_bytes[piece.span], piece.dtype)
        yield values


class WholeTensors(Payload):
    """A payload with whole tensors in `data`."""

    data: Any

    @classmethod
    def reference_weights(cls, context: DecodeContext) -> bytes | None:
        """Return the coordinator's weights, which are subtracted to get a vector; None if it has
        none.
        """
        weights = context.lookup("weights")
        if weights is None:
            return None
        return weights.data

    def root_mean_square(self, context: DecodeContext) -> float:
        """Return the root mean square of the vector's entries."""
        parts = read_pieces(context.state.layout, self.data, self.reference_weights(context))
        squares = (float(np.square(part, out=part).sum()) for part in parts)
        return sqrt(sum(squares) / context.state.layout.size)

    def vector(self, context: DecodeContext) -> Floats:
        return np.concatenate(
            list(read_pieces(context.state.layout, self.data, self.reference_weights(context)))
        ).astype(np.float32)

    def with_vector(self, vector: NDArray[Any], context: DecodeContext) -> Self:
        """Return the payload with the tensors of a vector, each rounded to its dtype."""
        layout, reference = context.state.layout, self.reference_weights(context)
        parts = (
            vector[piece.start : piece.stop].astype(np.float64)
            for piece in split_into_pieces(layout)
        )
        tensors = parts if reference is None else map(np.add, parts, read_pieces(layout, reference))
        return replace(self, data=round_weights(layout, tensors).data)  # type: ignore[type-var]


@dataclass(frozen=True)
class Weights(WholeTensors):
    """All trainable tensors in order, in their own dtypes."""

    # the client's mean training loss, in updates of methods whose later plans depend on it
    loss: Annotated[
        float | None, Scalar("f4", condition="losses_travel", payload_kind="update")
    ] = field(default=None, kw_only=True)
    # the tensors' bytes; empty: unchanged, because nobody answered
    data: Annotated[bytes, Tensors()]

    def size(self, context: DecodeContext) -> float:
        """Return the distance that the weights have moved; 0 if their start is not known."""
        if self.data and self.reference_weights(context) is not None:
            return max(SMALLEST_MOVE, self.root_mean_square(context))
        return 0.0


@dataclass(frozen=True)
class DenseState(State):
    """The coordinator's state: a copy of the weights and the server optimiser's averages."""

    remembered: ClassVar[tuple[str, ...]] = ("first", "second")

    # the weights; None before the first step, when only clients know them
    weights: Weights | None = None
    # the average change, length d, and for Adam also the average squared change; empty before the
    # first step
    first: Floats = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    second: Floats = field(default_factory=lambda: np.zeros(0, dtype=np.float32))

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> Self:
        state = super().load_state_dict(arrays)
        if any(len(array) not in (0, self.layout.size) for array in (state.first, state.second)):
            raise ValueError("the server optimiser's averages do not fit the model")
        return state

    def combine(self, answers: Answers, of_moves: bool = False) -> Iterator[NDArray[np.float64]]:
        """Yield the rule's result for the clients' tensors, piece by piece.

        Args:
            answers: the round's answers.
            of_moves: whether the tensors are weights. If so, and if the weights before the round
                are known, rules that use lengths compare how far the clients have moved.
        """
        payloads = [memoryview(update.data) for update in answers.updates]
        if self.weights is None or not (of_moves and answers.rule.geometric):

            def parts() -> Iterator[list[Floats]]:
                for piece in split_into_pieces(self.layout):
                    yield [to_floats(data[piece.span], piece.dtype) for data in payloads]

            return answers.combine_parts(Parts(parts))
        old_weights = self.weights.data
        moves = Parts(
            lambda: zip(
                *(read_pieces(self.layout, data, old_weights) for data in payloads), strict=True
            )
        )
        return map(np.add, answers.combine_parts(moves), read_pieces(self.layout, old_weights))


class Dense(ServerOptimization):
    """Methods whose steps are whole weights. The settings are those of `ServerOptimization`."""

    step_type = Weights
    state_type = DenseState

    blocks: Literal["one"] = "one"
    weighting: Literal["equal", "examples"] = "examples"
    server: Literal["average", "momentum", "adam"] = "average"

    @abstractmethod
    def server_rate(self, number: int) -> float:
        """Return the rate eta_g of a round."""

    @abstractmethod
    def compute_change(self, state: Any, answers: Answers) -> Iterator[NDArray[np.float64]]:
        """Yield D, piece by piece, in double precision."""

    @property
    def catch_up(self) -> CatchUp:  # type: ignore[override]
        if self.step_type is Weights:
            return NEWEST_STEP
        return EVERY_STEP

    def remember(self, state: Any, answers: Answers) -> Any:
        if self.server == "average" or not answers:
            return state
        moments = self._moments(state)
        for piece, part in zip(
            split_into_pieces(state.layout), self.compute_change(state, answers), strict=True
        ):
            moments.take(part, piece.start)
        return replace(state, first=moments.first, second=moments.second)

    def _moments(self, state: Any) -> Moments:
        """Return the optimiser with copies of its averages.

        Its rate is -1, because a wanted change has the opposite sign of a gradient.
        """
        rule, size = self.server_rule(-1.0), state.layout.size
        first = state.first.copy() if len(state.first) else np.zeros(size, dtype=np.float32)
        if len(state.second):
            second = state.second.copy()
        else:
            second = np.zeros(size * (rule.averages - 1), dtype=np.float32)
        return Moments(rule, first, second)

    def aggregate(self, state: Any, answers: Answers) -> Weights:
        """Return the weights after the server optimiser's step along D.

        They are rounded only once, to each tensor's dtype.
        """
        if not answers:
            return Weights(b"")
        changes, rate = self.compute_change(state, answers), self.server_rate(answers.round)
        if self.server != "average":
            moments, double = self._moments(state), np.dtype(np.float64)
            changes = (
                moments.descent(slice(piece.start, piece.stop), double)
                for piece in split_into_pieces(state.layout)
            )
        new_weights = (
            w + rate * change for w, change in zip(read_weights(state), changes, strict=True)
        )
        return round_weights(state.layout, new_weights, self.rounding_numbers(state, answers))

    def rounding_numbers(self, state: Any, answers: Answers) -> Rounding | None:
        """Return the random numbers that round new weights to 16 bits, which depend on (seed,
        round); None for rounding to nearest.
        """
        if not self.keeps_small_steps:
            return None
        return derive(state.seed, Domain.ROUNDING, answers.round, COORDINATOR), 0

    def change(self, state: Any, step: Any) -> Change:
        if step.data:
            return Replace(step.data)
        return NOTHING

    def advance(self, state: Any, step: Any) -> Any:
        if step.data:
            return replace(state, weights=step)
        return state


def read_weights(state: DenseState) -> Iterator[NDArray[np.float64]]:
    """Return the coordinator's copy of the weights, piece by piece, in double precision."""
    if state.weights is None:
        raise ValueError(
            "a server optimiser, or a rate other than 1, needs the base's weights, but the "
            "coordinator does not have them"
        )
    return read_pieces(state.layout, state.weights.data)


def round_weights(
    layout: Layout, parts: Iterable[NDArray[np.float64]], rounding: Rounding | None = None
) -> Weights:
    """Return tensors as bytes of a message: rounded to single precision, then to each tensor's
    dtype.

    Args:
        layout: the tensors.
        parts: their values, piece by piece.
        rounding: numbers of the shared stream for stochastic rounding to 16-bit dtypes; None: round
            to nearest.
    """
    data = BytesIO()  # not a list of pieces, because joining it would need memory for two models
    for piece, part in zip(split_into_pieces(layout), parts, strict=True):
        values = part.astype(np.float32)
        if piece.dtype == "float32":
            # a writable array that is passed on as it is, because converting it to bytes would make
            # another copy
            data.write(values.astype("<f4", copy=False).data)
        elif rounding is None:
            data.write(from_floats(values, piece.dtype))
        else:
            bits = np.empty(len(values), dtype=np.uint16)
            kernels.load("cpu").draw(bits, values, piece.dtype, rounding, piece.start)
            data.write(bits.astype("<u2").tobytes())
    return Weights(data.getvalue())
