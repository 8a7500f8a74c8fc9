"""Ferret: first-order local training, the update sent as coefficients on random directions, block by block.

Shu, Hu, Ng, Low, Yu: "Ferret: Federated Full-Parameter Tuning at Scale for Large Language Models", ICML 2025.

    Delta   = w_start - w_end                          after T local optimiser steps (Algorithm 1, line 11)
    gamma_l = (rho_l K_l)^-1 V_l^T Delta_l             Eqs. 6 and 8
    w      <- w - eta_g sum_i c_i sum_l V_l gamma_l    Eq. 7 and Algorithm 1, line 6

The paper prints K for K_l in the first half of Eq. 8; Eq. 7 and Theorem 1 (an unbiased reconstruction) need K_l.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from fedseed.errors import NonFiniteError
from fedseed.methods.allocation import Allocation, allocate
from fedseed.methods.base import Answers, Round
from fedseed.methods.blockwise import BlockState, Blockwise, least_squares
from fedseed.methods.client import Client
from fedseed.methods.coefficients import Coefficients, CoefficientStep
from fedseed.methods.payload import Payload, Scalar
from fedseed.training.settings import LocalTraining
from fedseed.weights.change import Change
from fedseed.weights.layout import BlockRule, Layout

Gammas = list[NDArray[np.float32]]  # of each block


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
        allocation: K_l per block (`fedseed.methods.allocation`); "norm" is published.
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

    def scaled(self, state: FerretState, basis: Any, products: Gammas) -> Gammas:
        """gamma_l from V_l^T Delta_l: Eqs. 6 and 8 with K_l, or Eq. 5 if `exact`."""
        if self.exact:
            return least_squares(state.layout, basis, products)
        pairs = zip(products, state.layout.block_sizes, strict=True)
        return [(p.astype(np.float64) / (basis.variance(size) * len(p))).astype(np.float32) for p, size in pairs]

    def allocate(self, state: FerretState, norms: NDArray[np.floating] | None = None) -> NDArray[np.int64]:
        """K_l for each block; `norms`: |Delta_l| of the client's update."""
        sizes, basis = state.layout.block_sizes, self.directions_of(0)
        rho = np.array([basis.variance(size) for size in sizes])
        last = None if state.previous is None else [part.gammas for part in state.previous.parts]
        return allocate(self.allocation, self.directions, sizes, rho, norms, last)

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
