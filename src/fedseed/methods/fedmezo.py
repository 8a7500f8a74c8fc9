"""FedMeZO: MeZO's steps at each client, averaged as FedAvg does; with learning rates of the clients' own.

Ling, Chen, Yao, Li, Shen: "On the Convergence of Zeroth-Order Federated Tuning for Large Language Models", KDD 2024
(LoRA); FedKSeed's and Ferret's papers compare with it on all parameters.

    eta_i  = eta_0 (1 + alpha Phi_i)                                        Eq. 15
    rho_t  = [l(w_i + mu z_t; x) - l(w_i - mu z_t; x)] / 2 mu,  w_i <- w_i - eta_i rho_t z_t   H times, from w
    w     <- sum_i c_i w_i                                                  c_i = 1/N in Eq. 1, the default

Phi_i in [-1, 1] is a signal of client i minus the mean, over the largest absolute difference from it (all equal: 0).

The round can travel as tensors (the weights w_i, as published; FedAvg's average takes it from there) or as pairs: the
direction's seed, which the run's seed, the round and the client's number decide, and the scalar eta_i rho_t, which is
sent. Then w <- w - sum_i c_i sum_t eta_i rho_{i,t} z_{i,t}:

    combine = "exact"  as the clients did, one after the other, to the bits of the tensors' average
    combine = "sum"    all at once, rounded once: the same up to the rounding of the 2 m H steps it leaves out
"""

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fedseed.methods.base import Answers, Round
from fedseed.methods.client import Client
from fedseed.methods.dense import Weights
from fedseed.methods.fedavg import Averaged
from fedseed.methods.payload import Nothing
from fedseed.methods.traces import FedMeZOState, Rate, Trace, Traces
from fedseed.methods.zeroth import Population
from fedseed.weights.change import Add, Change, Term


class FedMeZO(Averaged, Population):
    """FedMeZO's settings.

    Args (besides those of `Population` and `Averaged`):
        learning_rate: eta_0, the rate of the local steps; each client's own is near it.
        steps: H, local steps a round.
        personal: whether clients have rates of their own, and which signal decides them: "loss" (last round's training
            loss), "loss-5" (its mean over five rounds), "update" (how far the client's last change was from the mean
            change), "random" (uniform, each round anew), "constant".
        alpha: how far rates go from eta_0: from 1 - alpha to 1 + alpha times.
        travel: "pairs" (4 bytes a local step and direction) or "tensors" (as published).
        combine: with pairs, "sum" (one pass, one rounding) or "exact" (the bits of the tensors' average; every client's
            steps are taken again one by one, with two more copies of the weights in memory).
        seeds: with pairs, "own": each client steps along directions of its own; "shared": a round's clients along the
            same ones, so that the step is one client's length, and rules can combine the pairs.
    """

    name: Literal["fedmezo"] = "fedmezo"
    code: ClassVar[int] = 8
    about: ClassVar[str] = "MeZO's steps at each client, averaged; as tensors or pairs; rates per client (KDD 2024)"
    state_type = FedMeZOState

    learning_rate: PositiveFloat = 1e-5
    personal: Literal["constant", "random", "loss", "loss-5", "update"] = "constant"
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.5
    steps: PositiveInt = 30
    weighting: Literal["equal", "examples"] = "equal"
    small_steps: Literal["nearest", "stochastic"] = "nearest"
    travel: Literal["pairs", "tensors"] = "pairs"
    combine: Literal["sum", "exact"] = "sum"
    seeds: Literal["own", "shared"] = "own"

    @model_validator(mode="after")
    def _pairs_are_averaged(self) -> "FedMeZO":
        plain = {"server": "average", "global_rate": 1.0}
        if self.travel == "pairs" and any(getattr(self, key) != value for key, value in plain.items()):
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

    def plan(self, state: FedMeZOState, round: Round) -> Nothing | Rate:
        """Returns the client's rate, in single precision as it is sent (Eq. 15); nothing where all have the same."""
        if self.personal == "constant":
            return Nothing()
        known = {c: state.signals[c] for c in round.clients if c in state.signals}
        signals = {c: fmean(past) if self.personal == "loss-5" else past[-1] for c, past in known.items()}
        random = self.personal == "random"
        at = state.drawn(round.number, round.client) if random else phi(signals, round.client)
        return Rate(float(np.float32(self.learning_rate * (1 + self.alpha * at))))

    def train(self, state: FedMeZOState, plan: Nothing | Rate, client: Client) -> Trace | Weights:
        """Takes H steps along directions of the client's own seed; a step without a usable loss is left out."""
        seed, n = self.seed_of(state, client.round, client.number), self.population
        basis = self.directions(seed)
        rate = (plan.rate if isinstance(plan, Rate) else self.learning_rate) * self.factor(client.round)
        losses: list[float] = []
        scalars = np.zeros((self.steps, n), dtype=np.float32)
        for along, found in self.local_steps(client, basis, [range(t * n, (t + 1) * n) for t in range(self.steps)]):
            losses += [one.loss for one in found if one.usable]
            t = along[0] // n
            scalars[t] = [rate * one.rho / n for one in found]
            if scalars[t].any():
                client.apply(Add([Term(basis, scalars[t], along[0])], -1.0, self.rounding(seed, t)))
        loss = float(np.float32(fmean(losses))) if self.losses_travel else None
        return Weights(client.weights(), loss=loss) if self.travel == "tensors" else Trace(loss, scalars.reshape(-1))

    def seed_of(self, state: FedMeZOState, number: int, client: int) -> int:
        """Returns what names the directions of a client in a round."""
        return state.round_seed(number) if self.seeds == "shared" else state.client_seed(number, client)

    def aggregate(self, state: FedMeZOState, answers: Answers) -> Any:
        """Returns the pairs side by side, or their mean if clients share directions; or the average of the weights."""
        if self.travel == "tensors":
            return super().aggregate(state, answers)
        return Traces.of(answers, self.seeds == "shared")

    def change(self, state: FedMeZOState, step: Any) -> Change:
        """Takes the clients' steps again; or takes the weights' average."""
        if self.travel == "tensors":
            return super().change(state, step)
        bases = [self.directions(self.seed_of(state, state.done + 1, part.client)) for part in step.parts]
        return step.again(bases, self.population, self.combine == "exact")

    def advance(self, state: FedMeZOState, step: Any) -> FedMeZOState:
        """Count the round, and note the clients' signals, which pairs tell everybody."""
        if self.travel == "tensors":
            state = super().advance(state, step)
        elif self.losses_travel:
            state = state.after({part.client: part.loss for part in step.parts})
        elif self.personal == "update":
            state = state.after(step.distances(self.directions(0), state))
        return replace(state, done=state.done + 1)

    def remember(self, state: FedMeZOState, answers: Answers) -> FedMeZOState:
        """Note the signals that tensors tell the coordinator alone."""
        state = super().remember(state, answers)
        if self.travel == "tensors" and self.losses_travel:
            return state.after({client: update.loss for client, _, update in answers})
        if self.travel == "tensors" and self.personal == "update":
            return state.after(state.distances(answers))
        return state

    # -- what it declares ------------------------------------------------------------------------------------------

    @property
    def personal_plans(self) -> bool:  # type: ignore[override]
        return self.personal != "constant"

    @property
    def losses_travel(self) -> bool:
        """Returns whether updates say the mean training loss."""
        return self.personal in ("loss", "loss-5")

    @property
    def incomparable(self) -> str | None:  # type: ignore[override]
        if self.travel == "tensors" or self.seeds == "shared":
            return None
        return 'seeds = "own" with travel = "pairs": each client steps along directions of its own'

    @property
    def plan_type(self) -> type[Nothing | Rate]:  # type: ignore[override]
        return Rate if self.personal_plans else Nothing

    @property
    def update_type(self) -> type[Trace | Weights]:  # type: ignore[override]
        return Trace if self.travel == "pairs" else Weights

    @property
    def step_type(self) -> type[Traces | Weights]:  # type: ignore[override]
        return Traces if self.travel == "pairs" else Weights


def phi(signals: Mapping[int, float], client: int) -> float:
    """Returns Phi_i: a client's signal minus the mean, over the largest absolute difference from the mean.

    Args:
        signals: what is known of the round's clients.
        client: whose; one without a signal has 0.

    Returns:
        A number from -1 to 1; 0 where all are equal.
    """
    if client not in signals:
        return 0.0
    mean = fmean(signals.values())
    largest = max(abs(value - mean) for value in signals.values())
    return (signals[client] - mean) / largest if largest > 0 else 0.0
