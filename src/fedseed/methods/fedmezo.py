"""FedMeZO: MeZO's steps at each client, averaged as FedAvg does; with learning rates of the clients' own.

Ling, Chen, Yao, Li, Shen: "On the Convergence of Zeroth-Order Federated Tuning for Large Language Models", KDD 2024
(LoRA); FedKSeed's and Ferret's papers compare with it on all parameters.

    rho_t = [l(w_i + mu z_t; x) - l(w_i - mu z_t; x)] / 2 mu,  w_i <- w_i - eta_i rho_t z_t    H times, from w
    w     <- sum_i c_i w_i                                                  c_i = 1/N in Eq. 1, the default
    eta_i  = eta_0 (1 + alpha Phi_i)                                        Eq. 15 (`fedseed.methods.traces`)

The round can travel as tensors (the weights w_i, as published; FedAvg's average takes it from there) or as pairs: the
direction's seed, which the run's seed, the round and the client's number decide, and the scalar eta_i rho_t, which is
sent (`fedseed.methods.traces`).
"""

from dataclasses import replace
from statistics import fmean
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import PositiveFloat, PositiveInt, model_validator

from fedseed.methods.base import Answers, EveryStep, NewestStep
from fedseed.methods.client import Client
from fedseed.methods.dense import Weights
from fedseed.methods.traces import Branches, PersonalRates, Tensored, Trace
from fedseed.methods.zeroth import Population
from fedseed.weights.change import Add, Change, Term


class FedMeZO(PersonalRates, Population):
    """FedMeZO's settings.

    Args (besides those of `Population`, `PersonalRates` and `Averaged`):
        steps: H, local steps a round.
        travel: "pairs" (4 bytes a local step and direction) or "tensors" (as published).
        combine: with pairs, "sum" (one pass, one rounding) or "exact" (the bits of the tensors' average; every client's
            steps are taken again one by one, with two more copies of the weights in memory).
        seeds: with pairs, "own": each client steps along directions of its own; "shared": a round's clients along the
            same ones, so that the step is one client's length, and rules can combine the pairs.
    """

    name: Literal["fedmezo"] = "fedmezo"
    code: ClassVar[int] = 8
    about: ClassVar[str] = "MeZO's steps at each client, averaged; as tensors or pairs; rates per client (KDD 2024)"

    steps: PositiveInt = 30
    scale: PositiveFloat = 1e-3
    batch: PositiveInt = 1
    weighting: Literal["equal", "examples"] = "equal"
    small_steps: Literal["nearest", "stochastic"] = "nearest"
    travel: Literal["pairs", "tensors"] = "pairs"
    combine: Literal["sum", "exact"] = "sum"
    seeds: Literal["own", "shared"] = "own"

    @model_validator(mode="after")
    def _pairs_are_averaged(self) -> "FedMeZO":
        if self.travel == "pairs" and (self.server != "average" or self.global_rate != 1.0):
            raise ValueError('server and global_rate need travel = "tensors": with pairs nobody holds the average')
        if self.travel == "pairs" and self.small_steps == "stochastic":
            raise ValueError(
                'small_steps = "stochastic" needs travel = "tensors"; combine = "sum" loses no small steps either'
            )
        if self.seeds == "shared" and (self.travel, self.combine) != ("pairs", "sum"):
            raise ValueError('seeds = "shared" needs travel = "pairs" and combine = "sum": the step is a sum of pairs')
        if self.seeds == "shared" and self.personal not in ("constant", "random"):
            raise ValueError(f'personal = "{self.personal}" needs seeds = "own": a sum tells of no single client')
        return self

    def train(self, state: Any, plan: Any, client: Client) -> Tensored | Trace:
        """H steps along directions of the client's own seed; a step without a usable loss is left out."""
        seed = self.seed_of(state, client.round, client.number)
        basis = self.directions(seed)
        rate = self.own_rate(plan, client.round)
        losses: list[float] = []
        n, scalars = self.population, np.zeros((self.steps, self.population), dtype=np.float32)
        draws = [range(t * n, (t + 1) * n) for t in range(self.steps)]
        for along, found in self.local_steps(client, draws, lambda k, items: client.estimates(self, basis, k, items)):
            losses += [one.loss for one in found if one.usable]
            t = along.start // n
            scalars[t] = [rate * one.rho / n for one in found]
            if scalars[t].any():
                client.apply(Add([Term(basis, scalars[t], along.start)], -1.0, self.rounding(seed, t)))
        mean = float(np.float32(fmean(losses))) if self.losses_travel else None
        if self.travel == "tensors":
            return Tensored(mean, client.weights())
        return Trace(mean, scalars.reshape(-1))

    def seed_of(self, state: Any, number: int, client: int) -> int:
        """Names the directions of a client in a round."""
        if self.seeds == "shared":
            return state.round_seed(number)
        return state.client_seed(number, client)

    # -- as pairs; as tensors: FedAvg's average ------------------------------------------------------------------------

    def aggregate(self, state: Any, answers: Answers) -> Any:
        """The pairs side by side, or their mean if clients share directions; or the average of the weights."""
        if self.travel == "tensors":
            return super().aggregate(state, answers)
        return Branches.of(answers, self.seeds == "shared")

    def change(self, state: Any, step: Any) -> Change:
        """The clients' steps taken again; or the weights' average."""
        if self.travel == "tensors":
            return super().change(state, step)
        bases = [self.directions(self.seed_of(state, state.done + 1, branch.client)) for branch in step.branches]
        return step.again(bases, self.population, self.combine == "exact")

    def advance(self, state: Any, step: Any) -> Any:
        if self.travel == "tensors":
            state = super().advance(state, step)
        else:
            losses = {b.client: b.trace.loss for b in step.branches} if self.losses_travel else {}
            far = step.distances(self.directions(0), state.layout.size) if self.personal == "update" else {}
            state = state.after(losses, far)
        return replace(state, done=state.done + 1)

    # -- what it declares ------------------------------------------------------------------------------------------

    @property
    def catch_up(self) -> NewestStep | EveryStep:
        return NewestStep() if self.travel == "tensors" else EveryStep()

    @property
    def incomparable(self) -> str | None:
        if self.travel == "tensors" or self.seeds == "shared":
            return None
        return 'seeds = "own" with travel = "pairs": each client steps along directions of its own'

    @property
    def update_type(self) -> type[Tensored | Trace]:  # type: ignore[override]
        return Trace if self.travel == "pairs" else Tensored

    @property
    def step_type(self) -> type[Any]:  # type: ignore[override]
        return Branches if self.travel == "pairs" else Weights
