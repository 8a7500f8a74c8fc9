"""FedKSeed and FedKSeed-Pro: zeroth-order training on a pool of K directions.

Qin, Chen, Qian, Ding, Li, Deng: "Federated Full-Parameter Tuning of Billion-Sized Language Models with Communication
Cost under 18 Kilobytes", ICML 2024.

    w    = w0 - eta sum_j A_j z_j                      Eq. 4: anybody rebuilds the model from the accumulator
    rho  = [l(w + eps z_j) - l(w - eps z_j)] / 2 eps   Eq. 3; then w <- w - eta rho z_j, T times (Algorithm 1, 9-12)
    A_j <- A_j + c_i rho_j                             Algorithm 1, line 4
    p    = softmax(minmax(psi)), psi_j = mean |rho_j|  Eq. 13 (Pro): seeds that mattered are drawn more often
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt

from fedseed.errors import MessageError, NonFiniteError
from fedseed.methods.base import Attack, Client, Contribution, Floats, State, Weighting
from fedseed.methods.payload import Reader, f32_bytes, u32_bytes
from fedseed.methods.zeroth import ZerothOrder, check_scalars, corrupt_scalars
from fedseed.randomness import Domain, derive
from fedseed.randomness.basis import MAX_SIZE
from fedseed.randomness.stream import uniform_integers
from fedseed.weights.layout import Layout

if TYPE_CHECKING:
    from fedseed.weights.space import ParameterSpace


@dataclass(frozen=True)
class Pool:
    """The plan: one integer that names the candidate directions, the accumulator A, and for Pro the probabilities."""

    seed: int
    accumulator: Floats
    probabilities: Floats | None

    def encode(self) -> bytes:
        """4 bytes, 4 K, and for Pro another 4 K."""
        tail = b"" if self.probabilities is None else f32_bytes(self.probabilities)
        return u32_bytes(np.array([self.seed])) + f32_bytes(self.accumulator) + tail


@dataclass(frozen=True)
class Pairs:
    """An update: (candidate, rho) of each local step. 8 bytes a step."""

    indices: NDArray[np.uint32]
    scalars: Floats

    def encode(self) -> bytes:
        """Indices (u32 each), then scalars (f32 each)."""
        return u32_bytes(self.indices) + f32_bytes(self.scalars)


@dataclass(frozen=True)
class Accumulated:
    """A step: the accumulator after the round; for Pro also each candidate's sum of |rho| and how often it was used."""

    accumulator: Floats
    sums: Floats | None = None
    uses: NDArray[np.uint32] | None = None

    def encode(self) -> bytes:
        """4 K bytes, or 12 K for Pro (clients are sent the plan, not this)."""
        data = f32_bytes(self.accumulator)
        if self.sums is not None and self.uses is not None:
            data += f32_bytes(self.sums) + u32_bytes(self.uses)
        return data


@dataclass(frozen=True)
class FedKSeedState(State):
    """The last step, and the integer that names the pool."""

    pool: int = 0
    step: Accumulated = field(default_factory=lambda: Accumulated(np.zeros(0, dtype=np.float32)))


class FedKSeed(ZerothOrder):
    """FedKSeed's settings; defaults as published but for the basis.

    Args (besides those of `ZerothOrder`):
        candidates: K.
        importance: Pro: candidates are drawn by importance.
        steps: T, local steps a round.
        importance_clip: |rho| counts for importance up to this.
    """

    name: Literal["fedkseed"] = "fedkseed"
    code: ClassVar[int] = 3
    about: ClassVar[str] = "forward passes only, a pool of K seeds; importance = true is FedKSeed-Pro (ICML 2024)"
    plan_carries_model: ClassVar[bool] = True
    trains_in_place: ClassVar[bool] = True

    candidates: Annotated[int, Field(ge=1, le=MAX_SIZE)] = 4096
    importance: bool = False
    steps: PositiveInt = 200
    basis: Literal["normal", "truncated_normal", "rademacher", "hadamard"] = "hadamard"  # the pool costs as much as one
    rate: PositiveFloat = 3e-7
    scale: PositiveFloat = 5e-4
    importance_clip: PositiveFloat = 1000.0
    weighting: Weighting = "examples"

    @property
    def from_base(self) -> bool:
        """The model is the base plus the accumulator."""
        return True

    def start(self, layout: Layout, seed: int) -> FedKSeedState:
        """An empty accumulator."""
        zeros = np.zeros(self.candidates, dtype=np.float32)
        counted = (zeros, zeros.astype(np.uint32)) if self.importance else (None, None)
        pool = derive(seed, Domain.ROUND_SEED) & 0xFFFFFFFF
        return FedKSeedState(layout, seed, pool, Accumulated(zeros, *counted))

    def advance(self, state: FedKSeedState, step: Accumulated) -> FedKSeedState:  # type: ignore[override]
        """Remember the accumulator."""
        return FedKSeedState(state.layout, state.seed, state.pool, step)

    def plan(self, state: FedKSeedState, number: int) -> Pool:
        """Everything a client needs: with the base it knows the model, whatever it missed."""
        return Pool(state.pool, state.step.accumulator, self.probabilities(state.step) if self.importance else None)

    def probabilities(self, step: Accumulated) -> Floats:
        """p = softmax(minmax(psi)) (Eq. 13).

        A candidate that nobody has used yet has no psi: it counts as the mean of the others, not as zero.
        """
        assert step.sums is not None and step.uses is not None
        used = step.uses > 0
        normalised = np.zeros(self.candidates)
        if used.any():
            psi = step.sums[used].astype(np.float64) / step.uses[used]
            span = psi.max() - psi.min()
            inside = (psi - psi.min()) / span if span > 0 else np.zeros_like(psi)
            normalised[used] = inside
            normalised[~used] = inside.mean()
        weights = np.exp(normalised)
        return (weights / weights.sum()).astype(np.float32)

    def train(self, state: FedKSeedState, plan: Pool, client: Client) -> Pairs:
        """T zeroth-order steps from the plan's model (Algorithm 1, ClientTraining)."""
        from fedseed.weights.space import Term

        basis = self.directions(plan.seed)
        order = derive(state.seed, Domain.CLIENT_SEED, client.round, client.number)
        chosen = self.draw(plan, order)
        own = plan.accumulator.copy()
        indices, scalars = [], []
        reason = ""
        for j, items in zip(chosen, client.batches(self.batch), strict=False):
            try:
                rho = self.two_point(client, basis, int(j), items)
            except NonFiniteError as error:  # the loss guard: this step is skipped
                reason = str(error)
                client.skip(reason)
                continue
            indices.append(int(j))
            scalars.append(rho)
            own[j] += np.float32(rho)
            if self.small_steps == "from-base":
                client.space.rebuild([Term(basis, own)], scale=-self.rate)
            else:
                rounding = (order, len(scalars)) if self.small_steps == "stochastic" else None
                client.space.add_terms([Term(basis, [rho], int(j))], scale=-self.rate, rounding=rounding)
        if not scalars:
            raise NonFiniteError(f"no local step was usable: {reason}")
        return Pairs(np.array(indices, dtype=np.uint32), np.array(scalars, dtype=np.float32))

    def draw(self, plan: Pool, seed: int) -> NDArray[np.int64]:
        """T candidates, uniformly or by the plan's probabilities, decided by `seed`."""
        numbers = uniform_integers(seed, Domain.SAMPLING, self.steps)
        if plan.probabilities is None:
            return (numbers % np.uint64(self.candidates)).astype(np.int64)
        edges = np.cumsum(plan.probabilities.astype(np.float64))
        uniform = (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53 * edges[-1]
        return np.minimum(np.searchsorted(edges, uniform, side="right"), self.candidates - 1)

    def aggregate(self, state: FedKSeedState, number: int, contributions: Sequence[Contribution]) -> Accumulated:
        """A_j += c_i rho_j in double precision, rounded once (Algorithm 1, line 4)."""
        total = state.step.accumulator.astype(np.float64)
        for _, share, update in contributions:
            np.add.at(total, update.indices, share * update.scalars.astype(np.float64))
        if not self.importance:
            return Accumulated(total.astype(np.float32))
        assert state.step.sums is not None and state.step.uses is not None
        sums, uses = state.step.sums.astype(np.float64), state.step.uses.copy()
        for _, _, update in contributions:
            np.add.at(sums, update.indices, np.minimum(np.abs(update.scalars), self.importance_clip))
            np.add.at(uses, update.indices, 1)
        return Accumulated(total.astype(np.float32), sums.astype(np.float32), uses)

    def apply(self, state: FedKSeedState, step: Accumulated, space: "ParameterSpace") -> None:
        """w = w0 - eta sum_j A_j z_j, in one pass and one rounding (Eq. 4)."""
        from fedseed.weights.space import Term

        space.rebuild([Term(self.directions(state.pool), step.accumulator)], scale=-self.rate)

    def put_back(self, state: FedKSeedState, space: "ParameterSpace") -> None:
        """The model of the last step; before the first one the base itself."""
        if state.step.accumulator.any():
            self.apply(state, state.step, space)
        else:
            space.restore_base()

    def corrupt(self, state: FedKSeedState, update: Pairs, kind: Attack, drawn: NDArray[np.uint32]) -> Pairs:
        """Other projections on the same candidates."""
        return Pairs(update.indices, corrupt_scalars(update.scalars, kind, drawn))

    def figures(self, state: FedKSeedState) -> dict[str, NDArray[Any]]:
        """Pro's probabilities."""
        return {"probabilities": self.probabilities(state.step)} if self.importance else {}

    # -- messages ------------------------------------------------------------------------------------------------

    def decode_plan(self, state: FedKSeedState, data: bytes) -> Pool:
        """A plan from its payload."""
        reader = Reader(data)
        seed = int(reader.u32s(1)[0])
        accumulator = reader.f32s(self.candidates)
        probabilities = reader.f32s(self.candidates) if self.importance else None
        reader.end()
        return Pool(seed, accumulator, probabilities)

    def decode_update(self, state: FedKSeedState, number: int, data: bytes) -> Pairs:
        """Pairs from their payload: at most T, candidates of the pool, finite and possible scalars."""
        if len(data) % 8 or not 8 <= len(data) <= 8 * self.steps:
            raise MessageError(f"{len(data)} bytes of pairs: from 8 to {8 * self.steps}, 8 for each step")
        reader = Reader(data)
        indices = reader.u32s(len(data) // 8)
        if int(indices.max()) >= self.candidates:
            raise MessageError(f"candidate {int(indices.max())}: the pool has {self.candidates}")
        scalars = reader.f32s(len(data) // 8)
        check_scalars(scalars)
        return Pairs(indices, scalars)

    def decode_step(self, state: FedKSeedState, data: bytes) -> Accumulated:
        """A step from its payload."""
        reader = Reader(data)
        accumulator = reader.f32s(self.candidates)
        counted: tuple[Any, Any] = (None, None)
        if self.importance:
            counted = (reader.f32s(self.candidates), reader.u32s(self.candidates))
        reader.end()
        return Accumulated(accumulator, *counted)
