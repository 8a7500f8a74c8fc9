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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat

from fedseed.aggregation.base import Parts
from fedseed.methods.base import Answers, CatchUp, Method, NewestStep
from fedseed.methods.payload import About, Floats, Payload, State, Tensors, from_floats, to_floats
from fedseed.methods.summands import distance
from fedseed.optimizers.rules import Moments, Rule
from fedseed.randomness import Domain, derive, kernels
from fedseed.weights.change import NOTHING, Change, Replace, Rounding
from fedseed.weights.layout import ITEM_BYTES, Layout
from fedseed.weights.rounding import stochastic

COORDINATOR = 0xFFFFFFFF  # no client's number: whose numbers an average is rounded by
_PIECE = 1 << 20


class WholeWeights(Payload):
    """What holds a client's weights, or the next ones, in `data`."""

    data: Any

    def size(self, about: About) -> float:
        held = about.lookup("weights")
        return distance(about.state.layout, self.data, None if held is None else held.data)

    def vector(self, about: About) -> Floats:
        return flat(about.state.layout, self.data, about.lookup("weights"))

    def with_vector(self, vector: NDArray[Any], about: About) -> Payload:
        return replace(self, data=unflat(about.state.layout, vector, about.lookup("weights")))  # type: ignore[type-var]


@dataclass(frozen=True)
class Weights(WholeWeights):
    """All trainable tensors in order, in their own dtypes; no bytes: unchanged (nobody answered)."""

    data: Annotated[bytes, Tensors()]


def tensors(layout: Layout, data: bytes) -> Iterator[NDArray[np.float64]]:
    """Tensors from their bytes, one by one, flat, in double precision."""
    position = 0
    for entry in layout.tensors:
        size = entry.size * ITEM_BYTES[entry.dtype]
        yield to_floats(data[position : position + size], entry.dtype).astype(np.float64)
        position += size


def flat(layout: Layout, data: bytes, before: Weights | None = None) -> Floats:
    """Tensors as one vector, length d, less others before; None: they are not weights, or none are known."""
    parts = list(tensors(layout, data))
    if before is not None:
        parts = [part - other for part, other in zip(parts, tensors(layout, before.data), strict=True)]
    return np.concatenate(parts).astype(np.float32)


def unflat(layout: Layout, vector: NDArray[Any], before: Weights | None = None) -> bytes:
    """The inverse of `flat`, rounded to each tensor's dtype."""
    ends = np.cumsum([entry.size for entry in layout.tensors])[:-1]
    parts = [part.astype(np.float64) for part in np.split(vector, ends)]
    if before is not None:
        parts = [part + other for part, other in zip(parts, tensors(layout, before.data), strict=True)]
    values = zip(parts, layout.tensors, strict=True)
    return b"".join(from_floats(part.astype(np.float32), entry.dtype) for part, entry in values)


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

    def tensors(self, data: bytes) -> Iterator[NDArray[np.float64]]:
        """Tensors from their bytes, one by one, flat, in double precision."""
        return tensors(self.layout, data)

    def combine(
        self, answers: Answers, data: Callable[[Any], bytes], of_moves: bool = False
    ) -> Iterator[NDArray[np.float64]]:
        """What the rule makes of one vector from each client, tensor by tensor.

        Args:
            answers: the round's answers.
            data: the tensors' bytes in an update.
            of_moves: they are weights; rules that look at lengths see how far each client has moved from the weights
                before, where these are known.
        """
        origin = self.weights.data if of_moves and answers.rule.geometric and self.weights is not None else None
        parts = Parts(lambda: self._pieces([data(update) for update in answers.updates], origin))
        combined = answers.combine_parts(parts)
        starts: Iterator[NDArray[Any] | None] = repeat(None)
        if origin is not None:
            starts = (before for (before,) in self._pieces([origin], None))
        for entry in self.layout.tensors:
            pieces = []
            for _ in _cuts(entry.size):
                piece, before = next(combined), next(starts)
                pieces.append(piece if before is None else piece + before)
            yield pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _pieces(self, data: Sequence[bytes], origin: bytes | None) -> Iterator[list[NDArray[Any]]]:
        """The same entries of several vectors' tensors, less the origin's, a piece of a tensor at a time."""
        position = 0
        for entry in self.layout.tensors:
            width = ITEM_BYTES[entry.dtype]
            for lo, hi in _cuts(entry.size):
                where = slice(position + lo * width, position + hi * width)
                piece: list[NDArray[Any]] = [to_floats(one[where], entry.dtype) for one in data]
                if origin is not None:
                    before = to_floats(origin[where], entry.dtype).astype(np.float64)
                    piece = [one - before for one in piece]
                yield piece
            position += entry.size * width


def _cuts(size: int) -> Iterator[tuple[int, int]]:
    """From where to where the pieces of a tensor go; one that has no entries has an empty one."""
    for lo in range(0, max(size, 1), _PIECE):
        yield lo, min(lo + _PIECE, size)


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
        """D, tensor by tensor, flat, in double precision."""

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
        wanted = self.wanted(state, answers) if self.server == "average" else self._optimized(state)
        rate = self.server_rate(answers.round)
        after = (w + rate * change for w, change in zip(known(state), wanted, strict=True))
        return rounded(state.layout, after, self.rounding_of(state, answers))

    def rounding_of(self, state: Any, answers: Answers) -> Rounding | None:
        """How the new weights are rounded to 16 bits: by numbers of (seed, round), or None: to nearest."""
        if not self.keeps_small_steps:
            return None
        return derive(state.seed, Domain.ROUNDING, answers.round, COORDINATOR), 0

    def _optimized(self, state: Any) -> Iterator[NDArray[np.float64]]:
        moments, at = self._moments(state), 0
        for entry in state.layout.tensors:
            yield moments.descent(slice(at, at := at + entry.size), np.dtype(np.float64))

    def change(self, state: Any, step: Any) -> Change:
        return Replace(step.data) if step.data else NOTHING

    def advance(self, state: Any, step: Any) -> Any:
        return replace(state, weights=step) if step.data else state


def known(state: DenseState) -> Iterator[NDArray[np.float64]]:
    """The coordinator's copy of the weights, tensor by tensor, in double precision."""
    if state.weights is None:
        raise ValueError("a server optimiser, or a rate other than 1, needs the base's weights at the coordinator")
    return state.tensors(state.weights.data)


def rounded(layout: Layout, tensors: Iterator[NDArray[np.float64]], rounding: Rounding | None = None) -> Weights:
    """Tensors as they travel: rounded to single precision, then to each tensor's dtype.

    Args:
        layout: the tensors.
        tensors: their values, flat.
        rounding: round stochastically to 16-bit dtypes, by these numbers of the shared stream; None: to nearest.
    """
    parts, start = [], 0
    for entry, tensor in zip(layout.tensors, tensors, strict=True):
        values = tensor.astype(np.float32)
        if rounding is not None and entry.dtype != "float32":
            _round_stochastically(values, entry.dtype, rounding, start)
        parts.append(from_floats(values, entry.dtype))
        start += entry.size
    return Weights(b"".join(parts))


def _round_stochastically(values: Floats, dtype: str, rounding: Rounding, start: int) -> None:
    """In place, a piece at a time; `start` is the first element's index in the parameter vector."""
    words_of, (seed, step) = kernels.current().element_words, rounding
    for lo in range(0, len(values), _PIECE):
        piece = values[lo : lo + _PIECE]
        words = words_of(seed, Domain.ROUNDING, step, start + lo, start + lo + len(piece))
        piece[:] = stochastic(piece, words, dtype)
