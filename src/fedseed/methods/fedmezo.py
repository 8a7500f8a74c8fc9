"""FedMeZO: MeZO's steps at each client, averaged as FedAvg does; with learning rates of the clients' own.

Ling, Chen, Yao, Li, Shen: "On the Convergence of Zeroth-Order Federated Tuning for Large Language Models", KDD 2024
(LoRA); FedKSeed's and Ferret's papers compare with it on all parameters.

    rho_t = [l(w_i + mu z_t; x) - l(w_i - mu z_t; x)] / 2 mu,  w_i <- w_i - eta_i rho_t z_t    H times, from w
    w     <- sum_i c_i w_i                                                  c_i = 1/N in Eq. 1, the default
    eta_i  = eta_0 (1 + alpha Phi_i)                                        Eq. 15 (`fedseed.methods.personal`)

The round can travel as tensors (the weights w_i, as published; FedAvg's average takes it from there) or as pairs: the
direction's seed, which the run's seed, the round and the client's number decide, and the scalar eta_i rho_t, which is
sent (`fedseed.methods.traces`).
"""

from dataclasses import replace
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fedseed.methods.base import Answers, Round
from fedseed.methods.catch_up import CatchUp, EveryStep, NewestStep
from fedseed.methods.client import Client
from fedseed.methods.fedavg import Averaged
from fedseed.methods.payload import Nothing, Payload
from fedseed.methods.personal import FedMeZOState, Personal, distances_of_tensors, phi
from fedseed.methods.population import Population, is_usable
from fedseed.methods.traces import Branches, Rate, Trace, Tuned, branches, distances, steps_again, unfit_pairs
from fedseed.randomness import Domain, derive
from fedseed.weights.change import Add, Change, Term
from fedseed.weights.layout import Layout


class FedMeZO(Averaged, Population):
    """FedMeZO's settings.

    Args (besides those of `Population` and `Averaged`):
        steps: H, local steps a round.
        learning_rate: eta_0, the rate of the local steps; each client's own lies around it.
        travel: "pairs" (4 bytes a local step and direction) or "tensors" (as published).
        combine: with pairs, "sum" (one pass, one rounding) or "exact" (the bits of the tensors' average; every client's
            steps are taken again one by one, with two more copies of the weights in memory).
        personal: whether clients have rates of their own, and which signal decides them: "loss" (last round's training
            loss), "loss-5" (its mean over five rounds), "update" (how far the client's last change was from the mean
            change), "random" (uniform, each round anew), "constant".
        alpha: how far rates go from eta_0: from 1 - alpha to 1 + alpha times.
        seeds: with pairs, "own": each client steps along directions of its own; "shared": a round's clients along the
            same ones, so that the step is one client's length, and rules can combine the pairs.
    """

    name: Literal["fedmezo"] = "fedmezo"
    code: ClassVar[int] = 8
    about: ClassVar[str] = "MeZO's steps at each client, averaged; as tensors or pairs; rates per client (KDD 2024)"

    steps: PositiveInt = 30
    learning_rate: PositiveFloat = 1e-5
    scale: PositiveFloat = 1e-3
    batch: PositiveInt = 1
    weighting: Literal["equal", "examples"] = "equal"
    small_steps: Literal["nearest", "stochastic"] = "nearest"
    travel: Literal["pairs", "tensors"] = "pairs"
    combine: Literal["sum", "exact"] = "sum"
    personal: Personal = "constant"
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.5
    seeds: Literal["own", "shared"] = "own"

    @model_validator(mode="after")
    def _pairs_are_averaged(self) -> "FedMeZO":
        if problem := unfit_pairs(self):
            raise ValueError(problem)
        return self

    def start(self, layout: Layout, seed: int) -> FedMeZOState:
        """The state before the first round."""
        return FedMeZOState(layout, seed)

    def plan(self, state: FedMeZOState, round: Round) -> Payload:
        """The client's rate, rounded to single precision as it is sent (Eq. 15); nothing where all have the same."""
        if self.personal == "constant":
            return Nothing()
        if self.personal == "random":
            drawn = derive(state.seed, Domain.RATE, round.number, round.client)
            at = ((drawn >> 11) + 0.5) * 2.0**-52 - 1.0
        else:
            at = phi(state.signals.of(self.personal, round.clients), round.client)
        return Rate(float(np.float32(self.learning_rate * (1 + self.alpha * at))))

    def train(self, state: FedMeZOState, plan: Nothing | Rate, client: Client) -> Tuned | Trace:
        """H steps along directions of the client's own seed; a step without a usable loss is left out."""
        seed = self.seed_of(state, client.round, client.number)
        basis = self.directions(seed)
        rate = (plan.rate if isinstance(plan, Rate) else self.learning_rate) * self.factor(client.round)
        losses: list[float] = []
        n, scalars = self.population, np.zeros((self.steps, self.population), dtype=np.float32)
        draws = [range(t * n, (t + 1) * n) for t in range(self.steps)]
        for along, found in self.local_steps(client, draws, lambda k, items: client.estimates(self, basis, k, items)):
            losses += [one.loss for one in found if is_usable(one)]
            t = along.start // n
            scalars[t] = [rate * one.rho / n for one in found]
            if scalars[t].any():
                client.apply(Add([Term(basis, scalars[t], along.start)], -1.0, self.rounding(seed, t)))
        mean = float(np.float32(fmean(losses))) if self.losses_travel else None
        if self.travel == "tensors":
            return Tuned(mean, client.weights())
        return Trace(mean, scalars.reshape(-1))

    def seed_of(self, state: FedMeZOState, number: int, client: int) -> int:
        """Names the directions of a client in a round."""
        if self.seeds == "shared":
            return derive(state.seed, Domain.ROUND_SEED, number)
        return derive(state.seed, Domain.CLIENT_SEED, number, client)

    # -- as pairs; as tensors: FedAvg's average ------------------------------------------------------------------------

    def aggregate(self, state: FedMeZOState, answers: Answers) -> Any:
        """The pairs side by side, or their mean if clients share directions; or the average of the weights."""
        if self.travel == "tensors":
            return super().aggregate(state, answers)
        return branches(answers, self.seeds == "shared")

    def change(self, state: FedMeZOState, step: Any) -> Change:
        """The clients' steps taken again; or the weights' average."""
        return super().change(state, step) if self.travel == "tensors" else steps_again(self, state, step)

    def advance(self, state: FedMeZOState, step: Any) -> FedMeZOState:
        """Count the round; with pairs remember the signals, with tensors the weights."""
        if self.travel == "pairs":
            losses = {b.client: b.trace.loss for b in step.branches} if self.losses_travel else {}
            far = distances(self, state, step) if self.personal == "update" else {}
            state = replace(state, signals=state.signals.after(losses, far))
        else:
            state = super().advance(state, step)
        return replace(state, done=state.done + 1)

    def remember(self, state: FedMeZOState, answers: Answers) -> FedMeZOState:
        """With tensors: the signals, which the step does not carry."""
        state = super().remember(state, answers)
        if self.travel == "pairs" or self.personal in ("constant", "random"):
            return state
        losses = {c.client: c.update.loss for c in answers} if self.losses_travel else {}
        far = self._distances(state, answers) if self.personal == "update" and answers else {}
        return replace(state, signals=state.signals.after(losses, far))

    def _distances(self, state: FedMeZOState, answers: Answers) -> dict[int, float]:
        """|Delta_i - mean Delta| = |w_i - mean w|."""
        own = zip(*(state.tensors(update.data) for update in answers.updates), strict=True)
        far = distances_of_tensors(self.average(state, answers), own)
        return dict(zip((answer.client for answer in answers), far, strict=True))

    # -- what it declares ------------------------------------------------------------------------------------------

    @property
    def catch_up(self) -> CatchUp:
        """With pairs by every step."""
        return NewestStep() if self.travel == "tensors" else EveryStep()

    @property
    def personal_plans(self) -> bool:
        """Where clients have rates of their own."""
        return self.personal != "constant"

    @property
    def losses_travel(self) -> bool:
        """Whether updates say the mean training loss."""
        return self.personal in ("loss", "loss-5")

    @property
    def incomparable(self) -> str | None:
        """Pairs on different directions."""
        if self.travel == "tensors" or self.seeds == "shared":
            return None
        return 'seeds = "own" with travel = "pairs": each client steps along directions of its own'

    @property
    def plan_type(self) -> type[Payload]:  # type: ignore[override]
        """A rate, or nothing."""
        return Rate if self.personal_plans else Nothing

    @property
    def update_type(self) -> type[Payload]:  # type: ignore[override]
        """Pairs or tensors."""
        return Trace if self.travel == "pairs" else Tuned

    @property
    def step_type(self) -> type[Payload]:  # type: ignore[override]
        """Pairs side by side, or whole weights."""
        return Branches if self.travel == "pairs" else Averaged.step_type
