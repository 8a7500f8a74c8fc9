"""Ferret: first-order local training, the update sent as coefficients on random directions, block by block.

Shu, Hu, Ng, Low, Yu: "Ferret: Federated Full-Parameter Tuning at Scale for Large Language Models", ICML 2025.

    Delta   = w_start - w_end                          after T local optimiser steps (Algorithm 1, line 11)
    gamma_l = (rho_l K_l)^-1 V_l^T Delta_l             Eqs. 6 and 8
    w      <- w - eta_g sum_i c_i sum_l V_l gamma_l    Eq. 7 and Algorithm 1, line 6

K_l, how many directions each block gets (`allocation`):

    norm      K_l = max(2, floor(K |Delta_l| / max |Delta|))    as in the paper's experiments
    sqrt      K_l in proportion to sqrt(|Delta_l| / rho_l)      Prop. 2
    previous  as sqrt, with |Delta_l| estimated from the last step, which everybody knows, so that all clients agree
    uniform, size

The paper prints K for K_l in the first half of Eq. 8; Eq. 7 and Theorem 1 (an unbiased reconstruction) need K_l.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from fedseed.errors import NonFiniteError
from fedseed.methods.base import Answers, Round
from fedseed.methods.blockwise import BlockState, Blockwise, Coefficients, CoefficientStep
from fedseed.methods.client import Client
from fedseed.methods.payload import Payload, Scalar
from fedseed.randomness import Basis
from fedseed.training.settings import LocalTraining
from fedseed.weights.change import Change
from fedseed.weights.layout import BlockRule, Layout

Counts = NDArray[np.int64]
Gammas = Sequence[NDArray[np.float32]]  # of each block
Allocation = Literal["norm", "sqrt", "uniform", "size", "previous"]
EXACT_LIMIT = 512  # K_l^2 inner products of length d_l and K_l^2 numbers of memory are needed
GRAM_PIECE = 1 << 17  # elements of each direction held at a time


@dataclass(frozen=True)
class FerretPlan(Payload):
    """The seed all clients of the round use, or None where each takes its own."""

    seed: Annotated[int | None, Scalar("u8", when="shared")]


@dataclass(frozen=True)
class FerretState(BlockState):
    """The last step that carried coefficients, and how many did."""

    previous: CoefficientStep | None = None
    done: int = 0


class Ferret(Blockwise):
    """Ferret's settings; defaults as published but for the basis and eta_g, which the paper searches (10, 5, 1).

    Args (besides those of `Method` and `Blockwise`):
        blocks: "one", "tensor", "packed" (published) or a number.
        allocation: how many directions K_l each block gets (`fedseed.methods.ferret`); "norm" is published.
        seeds: "per-client" (published; the step carries every client's seed and coefficients), "shared" (one a round)
            or "fixed": one for all rounds, so that the weights move in the span of its directions only.
        exact: coefficients by least squares (Eq. 5) instead of Eq. 6; at most 512 directions a block.
        streaming: project each gradient as backward produces it, then apply and free it: neither the gradients nor a
            copy of the start weights are kept in memory (the copy is in a temporary file meanwhile). For plain SGD
            with one micro-batch a step, and allocations that do not look at the change. In 16 bit, steps that the
            weights round away count all the same; training.small_steps decides about the weights that later gradients
            are taken at ("master" keeps a float32 copy of them in memory, "stochastic" nothing).
        training: local training. Unless its small_steps is "nearest", 16-bit weights round the round's step
            stochastically, too.
    """

    name: Literal["ferret"] = "ferret"
    code: ClassVar[int] = 1
    about: ClassVar[str] = "first-order training, update projected on random directions, block-wise (ICML 2025)"
    plan_type = FerretPlan

    blocks: BlockRule = "packed"
    allocation: Allocation = "norm"
    seeds: Literal["per-client", "shared", "fixed"] = "per-client"
    exact: bool = False
    streaming: bool = False
    weighting: Literal["equal", "examples"] = "equal"
    training: LocalTraining = LocalTraining()

    @model_validator(mode="after")
    def _streaming_is_linear(self) -> "Ferret":
        wrong = list(self.training.not_plain_sgd()) if self.streaming else []
        if self.streaming and self.allocation in ("norm", "sqrt"):
            wrong.append('allocation = "size", "uniform" or "previous"')
        if wrong:
            raise ValueError(f"streaming needs {'; '.join(wrong)}")
        return self

    def start(self, layout: Layout, seed: int) -> FerretState:
        """The state before the first round. Raises ValueError if there are more blocks than directions to share."""
        blocks = len(layout.block_sizes)
        if self.allocation != "norm" and self.directions < blocks:
            raise ValueError(
                f"method.directions = {self.directions}: the model has {blocks} blocks and each needs at least one "
                f'direction; take more directions, or fewer blocks than with blocks = "{self.blocks}"'
            )
        return FerretState(layout, seed)

    def plan(self, state: FerretState, round: Round) -> FerretPlan:
        return FerretPlan(self.round_seed(state, round.number) if self.shared else None)

    def train(self, state: FerretState, plan: FerretPlan, client: Client) -> Coefficients:
        """Train locally (Algorithm 1, step 2), then project the change (step 3)."""
        seed = state.client_seed(client.round, client.number) if plan.seed is None else plan.seed
        basis, training = self.directions_of(seed), self.training.at(client.round)
        if self.streaming:
            products = client.project_gradients(training, basis, self.allocate(state).tolist())
        else:
            client.first_order(training)
            with client.phase("projection"):
                norms = client.change_norms() if self.allocation in ("norm", "sqrt") else None
                if norms is not None and not np.isfinite(norms).all():
                    raise NonFiniteError("the local update is not finite: a weight overflowed")
                products = client.project_change(basis, self.allocate(state, norms).tolist())
        with client.phase("projection"):
            gammas = self.scaled(state, basis, products)
        if not all(np.isfinite(g).all() for g in gammas):
            raise NonFiniteError("a coefficient is not finite: the local update overflowed")
        return self.sent(seed, gammas)

    def scaled(self, state: FerretState, basis: Basis, products: Gammas) -> Gammas:
        """gamma_l from V_l^T Delta_l: Eqs. 6 and 8 with K_l, or Eq. 5 if `exact`."""
        if self.exact:
            return least_squares(state.layout, basis, products)
        pairs = zip(products, state.layout.block_sizes, strict=True)
        return [(p.astype(np.float64) / (basis.variance(size) * len(p))).astype(np.float32) for p, size in pairs]

    def allocate(self, state: FerretState, norms: NDArray[np.floating] | None = None) -> Counts:
        """K_l for each block, in proportion to the sizes where what the rule looks at is not known.

        Args:
            state: the one before the round.
            norms: |Delta_l| of the client's update, for "norm" and "sqrt".
        """
        sizes, basis, total = state.layout.block_sizes, self.directions_of(0), self.directions
        rho = np.array([basis.variance(size) for size in sizes])
        if self.allocation == "norm" and norms is not None:  # K is the count of the block with the largest update
            largest = norms.max()
            relative = norms / largest if largest > 0 else np.zeros_like(norms)
            return np.maximum(2, np.floor(total * relative)).astype(np.int64)
        if self.allocation == "previous":
            last = state.previous
            norms = None if last is None else estimated_norms([part.gammas for part in last.parts], rho)
        if self.allocation in ("sqrt", "previous") and norms is not None:
            return proportional(total, np.sqrt(norms / rho))  # Prop. 2
        return proportional(total, np.ones(len(sizes)) if self.allocation == "uniform" else np.array(sizes, float))

    def aggregate(self, state: FerretState, answers: Answers) -> CoefficientStep:
        """Multiply in the weights c_i; with a shared seed combine the coefficients, missing ones counting as zero."""
        if not answers:
            return self.step_type(())
        if self.shared:
            blocks = list(zip(*(u.gammas for u in answers.updates), strict=True))
            sums = [total.astype(np.float32) for total in answers.combine_parts(blocks)]
            return self.step_type((self.sent(answers.updates[0].seed, sums),))
        return self.step_type(tuple(update.times(weight) for _, weight, update in answers))

    def change(self, state: FerretState, step: CoefficientStep) -> Change:
        """w <- w - eta_g sum_i c_i sum_l V_l gamma_l, rounded once (Eq. 7; Algorithm 1, line 6)."""
        numbers = (step.parts[0].seed, state.done if self.seeds == "fixed" else 0) if step.parts else None
        return self.moved(state, step, numbers if self.keeps_small_steps else None)

    def advance(self, state: FerretState, step: CoefficientStep) -> FerretState:
        if not step.parts:
            return state
        return replace(state, previous=step, done=state.done + 1, squares=self.squares_after(state, step))

    def check(self, layout: Layout) -> None:
        self.training.check(layout)

    # -- what it declares ------------------------------------------------------------------------------------------

    @property
    def keeps_small_steps(self) -> bool:
        return self.training.small_steps != "nearest"

    @property
    def shared(self) -> bool:
        """Whether a round's clients share a seed."""
        return self.seeds != "per-client"

    def round_seed(self, state: FerretState, number: int) -> int:
        """The seed that the clients of a round share."""
        return state.round_seed(0 if self.seeds == "fixed" else number)

    @property
    def incomparable(self) -> str | None:
        return None if self.shared else 'seeds = "per-client": each client projects on directions of its own'

    @property
    def lasting_entries(self) -> bool:
        return self.seeds == "fixed"


def estimated_norms(parts: Sequence[Gammas], rho: NDArray[np.floating]) -> NDArray[np.floating]:
    """|Delta_l| of a step from the coefficients of its parts: E |gamma_l|^2 = |Delta_l|^2 / (rho_l K_l) for each."""
    squares = [[rho_l * len(g) * float(np.dot(g, g)) for rho_l, g in zip(rho, gammas, strict=True)] for gammas in parts]
    return np.sqrt(np.sum(squares, axis=0))


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


def least_squares(layout: Layout, basis: Basis, products: Gammas) -> list[NDArray[np.float32]]:
    """(V^T V)^-1 V^T Delta of each block, in double precision (Eq. 5), from V^T Delta.

    Raises:
        ValueError: more than EXACT_LIMIT directions.
    """
    found = []
    for block, (product, (start, stop)) in enumerate(zip(products, pairwise(layout.boundaries), strict=True)):
        count = len(product)
        if count > EXACT_LIMIT:
            raise ValueError(f"exact: {count} directions in block {block}; at most {EXACT_LIMIT} are possible")
        gram = np.zeros((count, count))
        for a in range(start, stop, GRAM_PIECE):
            b = min(a + GRAM_PIECE, stop)
            v = np.stack([basis.direction(k, a, b, stop - start, layout.matrices) for k in range(count)])
            gram += v.astype(np.float64) @ v.astype(np.float64).T
        found.append(np.linalg.lstsq(gram, product.astype(np.float64), rcond=None)[0].astype(np.float32))
    return found
