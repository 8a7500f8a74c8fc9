"""Whole weights down: what FedAvg, FedSGD and dense zeroth-order methods share, with the server's optimiser.

The round's answers ask for a change D of the weights (FedAvg: sum_i c_i w_i - w; FedSGD: -sum_i c_i g_i), and

    average    w <- w + eta_g D
    momentum   m <- beta1 m + D;                  w <- w + eta_g m
    adam       m <- beta1 m + (1 - beta1) D,
               v <- beta2 v + (1 - beta2) D^2;    w <- w + eta_g m / (sqrt(v) + tau)

momentum: Hsu, Qi, Brown, 2019 (FedAvgM). adam: Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
Algorithm 2 (FedAdam; its averages are not bias-corrected). `fedseed.optimizers` has both.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat

from fedseed.aggregation.base import Parts
from fedseed.methods.base import Answers, CatchUp, Method, NewestStep
from fedseed.methods.payload import About, Floats, Payload, State, Tensors, from_floats, to_floats
from fedseed.methods.summands import SMALLEST_MOVE
from fedseed.optimizers.rules import Moments, Rule
from fedseed.randomness import Domain, derive, kernels
from fedseed.weights.change import NOTHING, Change, Replace, Rounding
from fedseed.weights.layout import ITEM_BYTES, Layout
from fedseed.weights.rounding import stochastic

COORDINATOR = 0xFFFFFFFF  # no client's number: whose numbers an average is rounded by
PIECE = 1 << 20  # entries that are worked on at a time, however large a tensor is


class Piece(NamedTuple):
    """Some entries of one tensor: from `start` to `stop` in the parameter vector, `where` in the tensors' bytes."""

    dtype: str
    start: int
    stop: int
    where: slice


def cut(layout: Layout) -> Iterator[Piece]:
    """All tensors, piece by piece."""
    start = position = 0
    for entry in layout.tensors:
        end, width = start + entry.size, ITEM_BYTES[entry.dtype]
        for lo in range(start, end, PIECE):
            hi = min(end, lo + PIECE)
            yield Piece(entry.dtype, lo, hi, slice(position, position := position + (hi - lo) * width))
        start = end


def pieces(layout: Layout, data: bytes, before: "Weights | None" = None) -> Iterator[NDArray[np.float64]]:
    """Tensors from their bytes, piece by piece, in double precision, less others before."""
    for at in cut(layout):
        values = to_floats(data[at.where], at.dtype).astype(np.float64)
        yield values if before is None else values - to_floats(before.data[at.where], at.dtype)


def flat(layout: Layout, data: bytes, before: "Weights | None" = None) -> Floats:
    """Tensors as one vector, length d, less others before; None: they are not weights, or none are known."""
    return np.concatenate(list(pieces(layout, data, before))).astype(np.float32)


def unflat(layout: Layout, vector: NDArray[Any], before: "Weights | None" = None) -> bytes:
    """The inverse of `flat`, rounded to each tensor's dtype."""
    parts: Iterator[NDArray[np.float64]] = (vector[at.start : at.stop].astype(np.float64) for at in cut(layout))
    if before is not None:
        parts = map(np.add, parts, pieces(layout, before.data))
    return rounded(layout, parts).data


def root_mean_square(layout: Layout, data: bytes, before: "Weights | None", least: float) -> float:
    """That of all entries less those before; `least`: what the sum of squares is at least."""
    squares = sum(float(np.square(part).sum()) for part in pieces(layout, data, before))
    return sqrt(max(least, squares) / layout.size)


class WholeWeights(Payload):
    """What holds a client's weights, or the next ones, in `data`."""

    data: Any

    def size(self, about: About) -> float:
        before = about.lookup("weights")
        if not self.data or before is None:
            return 0.0
        return max(SMALLEST_MOVE, root_mean_square(about.state.layout, self.data, before, 0.0))

    def vector(self, about: About) -> Floats:
        return flat(about.state.layout, self.data, about.lookup("weights"))

    def with_vector(self, vector: NDArray[Any], about: About) -> Payload:
        return replace(self, data=unflat(about.state.layout, vector, about.lookup("weights")))  # type: ignore[type-var]


@dataclass(frozen=True)
class Weights(WholeWeights):
    """All trainable tensors in order, in their own dtypes; no bytes: unchanged (nobody answered)."""

    data: Annotated[bytes, Tensors()]


def _nothing() -> Floats:
    return np.zeros(0, dtype=np.float32)


@dataclass(frozen=True)
class DenseState(State):
    """What the coordinator keeps.

    Args:
        weights: its copy of the weights; None before the first step, when only the clients know them.
        first: the server optimiser's average change, float32, length d; empty before there is one.
        second: the average of its square, for Adam.
    """

    weights: Weights | None = None
    first: Floats = field(default_factory=_nothing)
    second: Floats = field(default_factory=_nothing)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {name: a for name, a in (("first", self.first), ("second", self.second)) if len(a)}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> Self:
        first, second = arrays.get("first", self.first), arrays.get("second", self.second)
        if any(len(array) not in (0, self.layout.size) for array in (first, second)):
            raise ValueError("the server optimiser's averages do not fit the model")
        return replace(self, first=first, second=second)

    def combine(
        self, answers: Answers, data: Callable[[Any], bytes], of_moves: bool = False
    ) -> Iterator[NDArray[np.float64]]:
        """What the rule makes of one vector from each client, piece by piece.

        Args:
            answers: the round's answers.
            data: the tensors' bytes in an update.
            of_moves: they are weights; rules that look at lengths see how far each client has moved from the weights
                before, where these are known.
        """
        sent = [data(update) for update in answers.updates]
        origin = self.weights if of_moves and answers.rule.geometric else None

        def parts() -> Iterator[list[NDArray[Any]]]:
            for at in cut(self.layout):
                part: list[NDArray[Any]] = [to_floats(one[at.where], at.dtype) for one in sent]
                if origin is not None:
                    before = to_floats(origin.data[at.where], at.dtype).astype(np.float64)
                    part = [one - before for one in part]
                yield part

        combined = answers.combine_parts(Parts(parts))
        return combined if origin is None else map(np.add, combined, pieces(self.layout, origin.data))


class Dense(Method):
    """Whole weights down.

    Args (besides those of `Method`):
        server: the server's optimiser.
        server_beta1: decay of the average change, for momentum and Adam.
        server_beta2: decay of the average squared change, for Adam.
        server_eps: Adam's tau: how adaptive it is.
    """

    step_type = Weights

    blocks: Literal["one"] = "one"
    weighting: Literal["equal", "examples"] = "examples"
    server: Literal["average", "momentum", "adam"] = "average"
    server_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    server_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    server_eps: PositiveFloat = 1e-3

    @abstractmethod
    def server_rate(self, number: int) -> float:
        """eta_g in a round."""

    @abstractmethod
    def wanted(self, state: Any, answers: Answers) -> Iterator[NDArray[np.float64]]:
        """D, piece by piece, in double precision."""

    @property
    def catch_up(self) -> CatchUp:
        return NewestStep()

    def start(self, layout: Layout, seed: int) -> DenseState:
        return DenseState(layout, seed)

    def remember(self, state: Any, answers: Answers) -> Any:
        if self.server == "average" or not answers:
            return state
        moments = self._moments(state)
        at = 0
        for part in self.wanted(state, answers):
            moments.take(part, at)
            at += len(part)
        return replace(state, first=moments.first, second=moments.second)

    def _moments(self, state: Any) -> Moments:
        """The optimiser with copies of the state's averages. Its rate is -1: a change that is wanted is no gradient."""
        kind: Literal["momentum", "adam"] = "momentum" if self.server == "momentum" else "adam"
        rule = Rule(kind, -1.0, self.server_beta1, self.server_beta2, self.server_eps, corrected=False)
        size = state.layout.size
        first = state.first.copy() if len(state.first) else np.zeros(size, dtype=np.float32)
        second = state.second.copy() if len(state.second) else np.zeros(size * (kind == "adam"), dtype=np.float32)
        return Moments(rule, first, second)

    def aggregate(self, state: Any, answers: Answers) -> Weights:
        """w + eta_g times what the server's optimiser makes of D; rounded once to each tensor's dtype."""
        if not answers:
            return Weights(b"")
        wanted, rate = self.wanted(state, answers), self.server_rate(answers.round)
        if self.server != "average":
            moments, double = self._moments(state), np.dtype(np.float64)
            wanted = (moments.descent(slice(at.start, at.stop), double) for at in cut(state.layout))
        after = (w + rate * change for w, change in zip(known(state), wanted, strict=True))
        return rounded(state.layout, after, self.rounding_of(state, answers))

    def rounding_of(self, state: Any, answers: Answers) -> Rounding | None:
        """How the new weights are rounded to 16 bits: by numbers of (seed, round), or None: to nearest."""
        if not self.keeps_small_steps:
            return None
        return derive(state.seed, Domain.ROUNDING, answers.round, COORDINATOR), 0

    def change(self, state: Any, step: Any) -> Change:
        return Replace(step.data) if step.data else NOTHING

    def advance(self, state: Any, step: Any) -> Any:
        return replace(state, weights=step) if step.data else state


def known(state: DenseState) -> Iterator[NDArray[np.float64]]:
    """The coordinator's copy of the weights, piece by piece, in double precision."""
    if state.weights is None:
        raise ValueError("a server optimiser, or a rate other than 1, needs the base's weights at the coordinator")
    return pieces(state.layout, state.weights.data)


def rounded(layout: Layout, parts: Iterable[NDArray[np.float64]], rounding: Rounding | None = None) -> Weights:
    """Tensors as they travel: rounded to single precision, then to each tensor's dtype.

    Args:
        layout: the tensors.
        parts: their values, piece by piece.
        rounding: round stochastically to 16-bit dtypes, by these numbers of the shared stream; None: to nearest.
    """
    data = []
    for at, part in zip(cut(layout), parts, strict=True):
        values = part.astype(np.float32)
        if rounding is not None and at.dtype != "float32":
            seed, step = rounding
            words = kernels.current().element_words(seed, Domain.ROUNDING, step, at.start, at.stop)
            values = stochastic(values, words, at.dtype)
        data.append(from_floats(values, at.dtype))
    return Weights(b"".join(data))
