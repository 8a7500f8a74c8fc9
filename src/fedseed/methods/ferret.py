"""Ferret: first-order local training, the update sent as coefficients on random directions, block by block.

Shu, Hu, Ng, Low, Yu: "Ferret: Federated Full-Parameter Tuning at Scale for Large Language Models", ICML 2025.

    Delta   = w_start - w_end                          after T local optimiser steps (Algorithm 1, line 11)
    gamma_l = (rho_l K_l)^-1 V_l^T Delta_l             Eqs. 6 and 8
    w      <- w - eta_g sum_i c_i sum_l V_l gamma_l    Eq. 7 and Algorithm 1, line 6

The paper prints K for K_l in the first half of Eq. 8; Eq. 7 and Theorem 1 (an unbiased reconstruction) need K_l.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, model_validator

from fedseed.errors import MessageError, NonFiniteError
from fedseed.methods.base import Client, Contribution, Floats, Method, State, Weighting
from fedseed.methods.payload import Reader, f32_bytes, u32_bytes, u64_bytes
from fedseed.randomness import Basis, Domain, derive
from fedseed.randomness.basis import MAX_SIZE
from fedseed.training.settings import LocalTraining
from fedseed.weights.layout import BlockRule, Layout

if TYPE_CHECKING:
    from fedseed.weights.space import ParameterSpace

Counts = NDArray[np.int64]
EXACT_LIMIT = 512  # `exact` needs K_l^2 inner products of length d_l and K_l^2 numbers of memory
GRAM_PIECE = 1 << 17  # elements of each direction held at a time


@dataclass(frozen=True)
class Coefficients:
    """One seed, and for each block the coefficients on its directions 0, 1, ...

    As an update: a client's projected change. In bytes: 8 for the seed, 4 per block for the counts, 4 per coefficient.
    """

    seed: int
    gammas: tuple[Floats, ...]

    def encode(self) -> bytes:
        """Seed (u64), counts (u32 each), coefficients (f32 each)."""
        counts = np.array([len(g) for g in self.gammas])
        return u64_bytes(self.seed) + u32_bytes(counts) + f32_bytes(np.concatenate(self.gammas))

    @classmethod
    def read(cls, reader: Reader, blocks: int, most: int) -> "Coefficients":
        """Read one from a payload.

        Raises:
            MessageError: too short, a count above `most`, or a value that is not finite.
        """
        seed = reader.u64()
        counts = [int(c) for c in reader.u32s(blocks)]
        if max(counts) > most:
            raise MessageError(f"block {int(np.argmax(counts))} has {max(counts)} coefficients, {most} are allowed")
        return cls(seed, tuple(reader.f32s(c) for c in counts))


@dataclass(frozen=True)
class FerretPlan:
    """The seed all clients of the round use, or None where each takes its own."""

    seed: int | None

    def encode(self) -> bytes:
        """8 bytes, or none."""
        return b"" if self.seed is None else u64_bytes(self.seed)


@dataclass(frozen=True)
class FerretStep:
    """What a round adds: with shared seeds one sum, otherwise one entry per client, shares c_i multiplied in."""

    parts: tuple[Coefficients, ...]

    def encode(self) -> bytes:
        """The parts one after the other; no bytes at all if no client answered."""
        return b"".join(part.encode() for part in self.parts)


@dataclass(frozen=True)
class FerretState(State):
    """The last step that carried coefficients, which the "previous" allocation looks at."""

    previous: FerretStep | None = None


class Ferret(Method):
    """Ferret's settings; defaults as published but for the basis and eta_g, which the paper searches (10, 5, 1).

    Args (besides those of `Method`):
        directions: K. For allocation "norm" the count of the block with the largest update, otherwise the total.
        basis: where directions come from. "truncated_normal" is published; "hadamard" tunes as well and costs the same
            for any number of directions (benchmarks/README.md).
        blocks: "one", "tensor", "packed" (published) or a number.
        allocation: K_l per block. "norm": max(2, floor(K |Delta_l| / max |Delta|)), published; "sqrt": proportional
            to sqrt(|Delta_l| / rho_l), Prop. 2; "uniform"; "size": proportional to d_l; "previous": as "sqrt", with
            |Delta_l| estimated from the last step, which everybody knows, so that all clients agree ("size" at first).
        seeds: "per-client" (published; the step carries every client's seed and coefficients) or "shared".
        exact: coefficients by least squares (Eq. 5) instead of Eq. 6; at most 512 directions a block.
        streaming: project each gradient as backward produces it, then apply and free it: neither the gradients nor a
            copy of the start weights are kept in memory (the copy is in a temporary file meanwhile). For plain SGD
            with one micro-batch a step, and allocations that do not look at the change. In 16 bit, steps that the
            weights round away count all the same.
        global_rate: eta_g.
        training: local training.
    """

    name: Literal["ferret"] = "ferret"
    code: ClassVar[int] = 1
    about: ClassVar[str] = "first-order training, update projected on random directions, block-wise (ICML 2025)"

    directions: Annotated[int, Field(ge=1, le=MAX_SIZE)] = 200
    basis: Literal["normal", "truncated_normal", "rademacher", "hadamard"] = "hadamard"
    blocks: BlockRule = "packed"
    allocation: Literal["norm", "sqrt", "uniform", "size", "previous"] = "norm"
    seeds: Literal["per-client", "shared"] = "per-client"
    exact: bool = False
    streaming: bool = False
    global_rate: PositiveFloat = 1.0
    weighting: Weighting = "equal"
    training: LocalTraining = LocalTraining()

    @model_validator(mode="after")
    def _streaming_is_linear(self) -> "Ferret":
        wrong = []
        if self.streaming:
            training = self.training
            if training.optimizer != "sgd" or training.momentum:
                wrong.append('training.optimizer = "sgd" without momentum')
            if training.accumulation != 1:
                wrong.append("training.accumulation = 1 (use training.batch)")
            if training.clip is not None:
                wrong.append("no training.clip (it needs the norm of the whole gradient)")
            if self.allocation in ("norm", "sqrt"):
                wrong.append('allocation = "size", "uniform" or "previous"')
        if wrong:
            raise ValueError(f"streaming needs {'; '.join(wrong)}")
        return self

    @property
    def spills_start(self) -> bool:
        """With `streaming`."""
        return self.streaming

    def start(self, layout: Layout, seed: int) -> FerretState:
        """The state before the first round. Raises ValueError if there are more blocks than directions to share."""
        blocks = len(layout.block_sizes)
        if self.allocation != "norm" and self.directions < blocks:
            raise ValueError(
                f"method.directions = {self.directions}: the model has {blocks} blocks and each needs at least one "
                f'direction; take more directions, or fewer blocks than with blocks = "{self.blocks}"'
            )
        return FerretState(layout, seed)

    def advance(self, state: FerretState, step: FerretStep) -> FerretState:  # type: ignore[override]
        """Remember the step, unless it is empty."""
        return replace(state, previous=step) if step.parts else state

    def plan(self, state: FerretState, number: int) -> FerretPlan:
        """A fresh seed each round, or nothing."""
        return FerretPlan(derive(state.seed, Domain.ROUND_SEED, number) if self.seeds == "shared" else None)

    def train(self, state: FerretState, plan: FerretPlan, client: Client) -> Coefficients:
        """Train locally, then project the change (Algorithm 1, steps 2 and 3)."""
        seed = plan.seed
        if seed is None:
            seed = derive(state.seed, Domain.CLIENT_SEED, client.round, client.number)
        basis = self._basis(seed)
        if self.streaming:
            counts = self.allocate(state)
            products = client.project_gradients(self.training, basis, [int(c) for c in counts])
        else:
            client.first_order(self.training)
            with client.phase("projection"):
                norms = client.change_norms() if self.allocation in ("norm", "sqrt") else None
                if norms is not None and not np.isfinite(norms).all():
                    raise NonFiniteError("the local update is not finite: a weight overflowed")
                counts = self.allocate(state, norms)
                products = client.project_change(basis, [int(c) for c in counts])
        with client.phase("projection"):
            gammas = self._scaled(state, basis, products, counts, client.space)
        if not all(np.isfinite(g).all() for g in gammas):
            raise NonFiniteError("a coefficient is not finite: the local update overflowed")
        return Coefficients(seed, tuple(gammas))

    def coefficients(self, state: FerretState, basis: Basis, delta: Floats, space: "ParameterSpace") -> list[Floats]:
        """gamma_l for each block: Eqs. 6 and 8, or Eq. 5 if `exact`.

        Args:
            state: the run's state ("previous" allocation looks at it).
            basis: the directions.
            delta: the local change, a vector of length d.
            space: the parameter space delta belongs to.
        """
        bounds = state.layout.boundaries
        norms = np.array([np.linalg.norm(delta[a:b].astype(np.float64)) for a, b in pairwise(bounds)])
        counts = self.allocate(state, norms)
        products = list(space.project(delta, basis, [int(c) for c in counts]))
        return self._scaled(state, basis, products, counts, space)

    def _scaled(
        self, state: FerretState, basis: Basis, products: list[Floats], counts: Counts, space: "ParameterSpace"
    ) -> list[Floats]:
        """gamma_l from V_l^T Delta_l."""
        if self.exact:
            return [self._least_squares(basis, space, block, p) for block, p in enumerate(products)]
        rho = [basis.variance(size) for size in state.layout.block_sizes]
        return [
            (p.astype(np.float64) / (r * c)).astype(np.float32)  # Eqs. 6 and 8 with K_l
            for p, r, c in zip(products, rho, counts, strict=True)
        ]

    def allocate(self, state: FerretState, norms: NDArray[np.floating] | None = None) -> Counts:
        """K_l for each block.

        Args:
            state: the run's state.
            norms: |Delta_l| of the client's update; used by "norm" and "sqrt" only.
        """
        sizes = np.array(state.layout.block_sizes, dtype=np.float64)
        rho = np.array([self._basis(0).variance(int(s)) for s in sizes])
        if self.allocation == "norm" and norms is not None:
            largest = norms.max()
            relative = norms / largest if largest > 0 else np.zeros_like(norms)
            return np.maximum(2, np.floor(self.directions * relative)).astype(np.int64)
        if self.allocation == "sqrt" and norms is not None:
            return proportional(self.directions, np.sqrt(norms / rho))  # Prop. 2
        if self.allocation == "uniform":
            return proportional(self.directions, np.ones_like(sizes))
        if self.allocation == "previous" and state.previous is not None:
            # E |gamma_l|^2 = |Delta_l|^2 / (rho_l K_l) for each part, so the norm follows from the scalars
            squares = [
                [rho_l * len(g) * float(np.dot(g, g)) for rho_l, g in zip(rho, part.gammas, strict=True)]
                for part in state.previous.parts
            ]
            return proportional(self.directions, np.sqrt(np.sqrt(np.sum(squares, axis=0)) / rho))
        return proportional(self.directions, sizes)

    def aggregate(self, state: FerretState, number: int, contributions: Sequence[Contribution]) -> FerretStep:
        """Multiply in the shares c_i; with a shared seed add the coefficients up, missing ones counting as zero."""
        if not contributions:
            return FerretStep(())
        if self.seeds == "per-client":
            parts = [
                Coefficients(u.seed, tuple((share * g.astype(np.float64)).astype(np.float32) for g in u.gammas))
                for _, share, u in contributions
            ]
            return FerretStep(tuple(parts))
        sums = []
        for block in range(len(state.layout.block_sizes)):
            total = np.zeros(max(len(u.gammas[block]) for _, _, u in contributions))
            for _, share, update in contributions:
                total[: len(update.gammas[block])] += share * update.gammas[block].astype(np.float64)
            sums.append(total.astype(np.float32))
        return FerretStep((Coefficients(contributions[0].update.seed, tuple(sums)),))

    def apply(self, state: FerretState, step: FerretStep, space: "ParameterSpace") -> None:
        """w <- w - eta_g sum_i c_i sum_l V_l gamma_l, rounded once (Eq. 7; Algorithm 1, line 6)."""
        from fedseed.weights.space import Term  # the model's side: torch is there

        terms = [Term(self._basis(part.seed), part.gammas) for part in step.parts]
        if terms:
            space.add_terms(terms, scale=-self.global_rate)

    def step_norm(self, state: FerretState, step: FerretStep) -> float:
        """E |eta_g V gamma| = eta_g sqrt(sum_l rho_l d_l |gamma_l|^2) for K_l << d_l: almost all of it is noise."""
        square = sum(
            self._basis(0).variance(size) * size * float(np.dot(g.astype(np.float64), g))
            for part in step.parts
            for size, g in zip(state.layout.block_sizes, part.gammas, strict=True)
        )
        return self.global_rate * float(np.sqrt(square))

    # -- messages ------------------------------------------------------------------------------------------------

    def decode_plan(self, state: FerretState, data: bytes) -> FerretPlan:
        """A plan from its payload."""
        reader = Reader(data)
        seed = reader.u64() if self.seeds == "shared" else None
        reader.end()
        return FerretPlan(seed)

    def decode_update(self, state: FerretState, number: int, data: bytes) -> Coefficients:
        """An update from its payload; a shared seed must be the round's."""
        reader = Reader(data)
        update = Coefficients.read(reader, len(state.layout.block_sizes), self._most)
        reader.end()
        planned = self.plan(state, number).seed
        if planned is not None and update.seed != planned:
            raise MessageError(f"seed {update.seed}: the round's seed is {planned}")
        return update

    def decode_step(self, state: FerretState, data: bytes) -> FerretStep:
        """A step from its payload."""
        reader = Reader(data)
        parts = []
        while reader.left:
            parts.append(Coefficients.read(reader, len(state.layout.block_sizes), self._most))
        if self.seeds == "shared" and len(parts) > 1:
            raise MessageError(f"{len(parts)} parts in a step whose clients share a seed")
        return FerretStep(tuple(parts))

    # -- inside ----------------------------------------------------------------------------------------------------

    @property
    def _most(self) -> int:
        """The largest count a block can have."""
        return max(2, self.directions)

    def _basis(self, seed: int) -> Basis:
        return Basis(self.basis, seed, size=self._most)

    def _least_squares(self, basis: Basis, space: "ParameterSpace", block: int, products: Floats) -> Floats:
        """gamma = (V^T V)^-1 V^T Delta (Eq. 5), in double precision."""
        count = len(products)
        if count > EXACT_LIMIT:
            raise ValueError(f"exact: {count} directions in block {block}; at most {EXACT_LIMIT} are possible")
        bounds = space.layout.boundaries
        start, stop = bounds[block], bounds[block + 1]
        gram = np.zeros((count, count))
        for a in range(start, stop, GRAM_PIECE):
            b = min(a + GRAM_PIECE, stop)
            v = np.stack([basis.direction(k, a, b, stop - start) for k in range(count)]).astype(np.float64)
            gram += v @ v.T
        solution: NDArray[Any] = np.linalg.lstsq(gram, products.astype(np.float64), rcond=None)[0]
        return solution.astype(np.float32)


def proportional(total: int, shares: NDArray[np.floating]) -> Counts:
    """Whole numbers that add up to `total`, at least 1 each, otherwise in proportion to the shares.

    A block whose quota is below 1 gets 1, and the others divide the rest; what rounding down leaves goes to the
    largest remainders (ties: the first block).
    """
    blocks = len(shares)
    if total < blocks:
        raise ValueError(f"{total} directions for {blocks} blocks: at least one each is needed")
    if not (np.isfinite(shares).all() and shares.sum() > 0):
        shares = np.ones(blocks)
    quotas = np.ones(blocks)
    large = np.ones(blocks, dtype=bool)
    while large.any():
        left = total - (blocks - int(large.sum()))
        weight = shares[large].sum()
        quotas[large] = left * (shares[large] / weight)
        small = large & (quotas < 1)
        if not small.any():
            break
        quotas[small] = 1
        large &= ~small
    counts = np.floor(quotas).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(-(quotas - counts), kind="stable")[:missing]] += 1
    return counts
