"""FedKSeed and FedKSeed-Pro: zeroth-order training on a pool of K directions.

Qin, Chen, Qian, Ding, Li, Deng: "Federated Full-Parameter Tuning of Billion-Sized Language Models
with Communication Cost under 18 Kilobytes", ICML 2024.

    w    = w0 - eta sum_j A_j z_j                       Eq. 4: the model from the accumulator A
    rho  = [l(w + eps z_j) - l(w - eps z_j)] / 2 eps    Eq. 5
    w   <- w - eta rho z_j, T times                     Eq. 6; Algorithm 1, 9-12
    A_j <- A_j + c_i rho_j                              Eq. 7
    p    = softmax(minmax(psi)), psi_j = mean |rho_j|   Eq. 13: Pro draws important seeds more often

With a population of n, a local step has n draws and is w <- w - (eta / n) sum_j rho_j z_j. All n
pairs are sent, and A_j <- A_j + c_i rho_j / n, so that Eq. 4 holds unchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt

from fedseed.errors import MessageError
from fedseed.methods.base import NEXT_PLAN, Answers, Round
from fedseed.methods.payload import Array, DecodeContext, Payload, Scalar, Scalars, State
from fedseed.methods.zeroth import BasisName, Population
from fedseed.randomness.basis import MAX_SIZE
from fedseed.randomness.stream import draws
from fedseed.training.protocol import Client
from fedseed.weights.change import Change, Rebuild, Term
from fedseed.weights.layout import Layout

Uses = NDArray[np.uint32]


@dataclass(frozen=True)
class Pool(Payload):
    """The plan: an integer that determines the candidate directions, the accumulator A, and for Pro
    the probabilities.
    """

    seed: Annotated[int, Scalar("u4")]
    accumulator: Annotated[NDArray[np.float32], Array("f4", "candidates")]
    probabilities: Annotated[
        NDArray[np.float32] | None, Array("f4", "candidates", condition="importance")
    ]


@dataclass(frozen=True)
class Pairs(Scalars):
    """An update: (candidate, rho) of each local step, 8 bytes each. With a population of n, a step
    has n pairs.
    """

    # bytes of a pair
    pair_bytes: ClassVar[int] = 8

    indices: Annotated[Uses, Array("u4", "n")]
    scalars: Annotated[NDArray[np.float32], Array("f4", "n")]

    def check(self, context: DecodeContext) -> None:
        """Check that there are at most T n pairs with candidates in the pool, and that the scalars
        can come from losses.
        """
        max_pairs, candidates = (
            context.lookup("steps") * context.lookup("population"),
            context.lookup("candidates"),
        )
        if not 1 <= len(self.indices) <= max_pairs:
            each = self.pair_bytes
            raise MessageError(
                f"{each * len(self.indices)} bytes of pairs, but expected {each} to "
                f"{each * max_pairs}, {each} for each pair"
            )
        if int(self.indices.max()) >= candidates:
            raise MessageError(
                f"candidate {int(self.indices.max())}, but the pool has only {candidates}"
            )
        super().check(context)

    @classmethod
    def round_scalar(cls, rho: float) -> float:
        """Return rho as the receiver will read it from the message."""
        return rho

    @classmethod
    def words(cls, context: DecodeContext) -> int:
        return int(context.lookup("candidates"))

    def vector(self, context: DecodeContext) -> NDArray[np.float64]:
        sums = np.zeros(self.words(context))
        np.add.at(sums, self.indices, self.scalars.astype(np.float64))
        return sums

    @classmethod
    def from_vector(cls, vector: NDArray[np.float64], context: DecodeContext) -> "Pairs":
        scalars: Any = vector  # the scalars, in full precision
        return cls(np.arange(len(vector), dtype=np.uint32), scalars)

    def with_vector(self, vector: NDArray[Any], context: DecodeContext) -> "Pairs":
        max_pairs = context.lookup("steps") * context.lookup("population")
        largest = np.sort(np.argsort(-np.abs(vector), kind="stable")[:max_pairs]).astype(np.uint32)
        return type(self)(largest, vector[largest].astype(np.float32))


@dataclass(frozen=True)
class HalfPairs(Pairs):
    """`Pairs` with rho in half precision, 6 bytes each."""

    pair_bytes: ClassVar[int] = 6

    scalars: Annotated[NDArray[np.float32], Array("f2", "n")]

    @classmethod
    def round_scalar(cls, rho: float) -> float:
        largest = np.finfo(np.float16).max
        return float(np.clip(rho, -largest, largest).astype(np.float16))


@dataclass(frozen=True)
class Accumulated(Payload):
    """A step: the accumulator after the round.

    For Pro it also has each candidate's sum of |rho|, and how often it was used.
    """

    accumulator: Annotated[NDArray[np.float32], Array("f4", "candidates")]
    sums: Annotated[
        NDArray[np.float32] | None, Array("f4", "candidates", condition="importance")
    ] = None
    uses: Annotated[Uses | None, Array("u4", "candidates", condition="importance")] = None

    def size(self, context: DecodeContext) -> float:
        """Return the size of the added part: the largest sum of projections, times the weights."""
        added = self.accumulator.astype(np.float64) - context.lookup("step").accumulator
        if added.any():
            return max(1.0, float(np.abs(added).max()))
        return 0.0


@dataclass(frozen=True)
class FedKSeedState(State):
    """The state: the last step."""

    step: Accumulated = field(default_factory=lambda: Accumulated(np.zeros(0, dtype=np.float32)))

    @property
    def pool(self) -> int:
        """Return the integer that determines the pool."""
        return self.round_seed() & 0xFFFFFFFF


class FedKSeed(Population):
    """FedKSeed's settings. The defaults are the published ones, except for the basis.

    Besides the arguments of `Population`:

    Args:
        candidates: K, the number of directions to choose from.
        importance: draw candidates by importance (FedKSeed-Pro).
        steps: T, the number of local steps in a round.
        scalars: rho is sent in 4 bytes ("float32", as published) or rounded to 2 ("float16",
            Appendix I). The accumulator, a sum over all rounds, always has 4.
        importance_clip: importance uses |rho| cut at this value.
        decay: the share by which each round shrinks the accumulator, so that the weights move back
            towards the base.
    """

    name: Literal["fedkseed"] = "fedkseed"
    code: ClassVar[int] = 3
    about: ClassVar[str] = (
        "forward passes only, a pool of K seeds; importance = true is FedKSeed-Pro (ICML 2024)"
    )
    plan_type, step_type = Pool, Accumulated
    catch_up, from_base = NEXT_PLAN, True
    lasting_entries: ClassVar[bool] = True

    candidates: Annotated[int, Field(ge=1, le=MAX_SIZE)] = 4096
    importance: bool = False
    steps: PositiveInt = 200
    scalars: Literal["float32", "float16"] = "float32"
    basis: BasisName = "hadamard"  # with it a whole pool costs as much as one direction
    learning_rate: PositiveFloat = 3e-7
    scale: PositiveFloat = 5e-4
    importance_clip: PositiveFloat = 1000.0
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weighting: Literal["equal", "examples"] = "examples"

    def start(self, layout: Layout, seed: int) -> FedKSeedState:
        zeros = np.zeros(self.candidates, dtype=np.float32)
        counted = (zeros, zeros.astype(np.uint32)) if self.importance else (None, None)
        return FedKSeedState(layout, seed, Accumulated(zeros, *counted))

    def plan(self, state: FedKSeedState, round: Round) -> Pool:
        """Return the plan. From the base and the plan a client can make the model, no matter which
        rounds it has missed.
        """
        return Pool(
            state.pool,
            state.step.accumulator,
            probabilities(state.step) if self.importance else None,
        )

    def train(self, state: FedKSeedState, plan: Pool, client: Client) -> Pairs:
        """Take T zeroth-order steps, starting from the plan's model (Algorithm 1, ClientTraining).

        Local steps use the scalars as they are sent, so that everybody with the update can repeat
        the same steps.
        """
        basis = self.directions(plan.seed)
        order = state.client_seed(client.round, client.number)
        accumulator = plan.accumulator.copy()
        pairs: list[tuple[int, float]] = []
        factor, n = self.factor(client.round), self.population
        draws = self.draw(plan, order).reshape(-1, n).tolist()
        for along, projections in self.local_steps(client, basis, draws):
            usable = [
                (j, self.update_type.round_scalar(projection.rho))
                for j, projection in zip(along, projections, strict=True)
                if projection.usable
            ]
            pairs += usable
            for j, rho in usable:
                accumulator[j] += np.float32(factor * rho / n)
            if self.small_steps == "from-base":
                client.apply(Rebuild([Term(basis, accumulator.copy())], scale=-self.learning_rate))
            else:
                terms = [Term(basis, [rho / n], j) for j, rho in usable]
                client.apply(self.local_step(terms, client.round, order, len(pairs)))
        indices, scalars = zip(*pairs, strict=True)
        return self.update_type(
            np.array(indices, dtype=np.uint32), np.array(scalars, dtype=np.float32)
        )

    def draw(self, plan: Pool, seed: int) -> NDArray[np.int64]:
        """Draw n candidates for each of T steps with `seed`, uniformly or by the plan's
        probabilities.
        """
        numbers = draws(seed, self.steps * self.population)
        if plan.probabilities is None:
            return (numbers % np.uint64(self.candidates)).astype(np.int64)
        edges = np.cumsum(plan.probabilities.astype(np.float64))
        uniform = (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53 * edges[-1]
        return np.minimum(np.searchsorted(edges, uniform, side="right"), self.candidates - 1)

    def aggregate(self, state: FedKSeedState, answers: Answers) -> Accumulated:
        """A_j += c_i rho_j / n in double precision, rounded once (Eq. 7).

        FedKSeed-Pro also counts the values for Eq. 13.
        """
        updates: Sequence[Pairs] = answers.updates
        # multiply by the schedule's factor, so that the accumulator has the steps that were taken
        factor = self.factor(answers.round)
        scaled = [u.scalars.astype(np.float64) * factor / self.population for u in updates]
        indices = [u.indices for u in updates]
        accumulator = state.step.accumulator
        if self.decay and answers:
            accumulator = accumulator * np.float32(1 - self.decay)
        total = answers.accumulate(accumulator, indices, scaled)
        if state.step.sums is None or state.step.uses is None:
            return Accumulated(total.astype(np.float32))
        sums, uses = state.step.sums.astype(np.float64), state.step.uses.copy()
        for update in updates:
            np.add.at(
                sums, update.indices, np.minimum(np.abs(update.scalars), self.importance_clip)
            )
            np.add.at(uses, update.indices, 1)
        return Accumulated(total.astype(np.float32), sums.astype(np.float32), uses)

    def change(self, state: FedKSeedState, step: Accumulated) -> Change:
        """w = w0 - eta sum_j A_j z_j, in one pass and with one rounding (Eq. 4)."""
        return Rebuild(
            [Term(self.directions(state.pool), step.accumulator)], scale=-self.learning_rate
        )

    def advance(self, state: FedKSeedState, step: Accumulated) -> FedKSeedState:
        return replace(state, step=step)

    @property
    def update_type(self) -> type[Pairs]:  # type: ignore[override]
        return HalfPairs if self.scalars == "float16" else Pairs

    @property
    def needs_each(self) -> str | None:
        if self.importance:
            return "importance = true needs every single pair, not only their sum"
        return super().needs_each


def probabilities(step: Accumulated) -> NDArray[np.float32]:
    """Return p = softmax(minmax(psi)), psi_j = mean |rho_j| (Eq. 13).

    A candidate that has not been used has no psi. It gets the mean psi of the others, not zero.
    """
    assert step.sums is not None and step.uses is not None
    has_uses = step.uses > 0
    normalised = np.zeros(len(has_uses))
    if has_uses.any():
        psi = step.sums[has_uses].astype(np.float64) / step.uses[has_uses]
        span = psi.max() - psi.min()
        inside = (psi - psi.min()) / span if span > 0 else np.zeros_like(psi)
        normalised[has_uses] = inside
        normalised[~has_uses] = inside.mean()
    weights = np.exp(normalised)
    return (weights / weights.sum()).astype(np.float32)
