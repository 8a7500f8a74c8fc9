"""FedMeZO: MeZO's steps at each client, averaged as in FedAvg.

Clients may have their own learning rates.

Ling, Chen, Yao, Li, Shen: "On the Convergence of Zeroth-Order Federated Tuning for Large Language
Models", KDD 2024 (LoRA). FedKSeed's and Ferret's papers compare with it on all parameters.

    eta_i  = eta_0 (1 + alpha Phi_i)                               Eq. 15
    rho_t  = [l(w_i + mu z_t; x) - l(w_i - mu z_t; x)] / 2 mu
    w_i   <- w_i - eta_i rho_t z_t                                 H times, starting from w
    w     <- sum_i c_i w_i                                         c_i = 1/N in Eq. 1, the default

Phi_i in [-1, 1] is a signal of client i minus the clients' mean, divided by the largest absolute
difference from the mean (0 if all are equal). Signals are training losses, or the distance of a
client's change Delta_i from the mean change.

A round's result can be sent as tensors (the weights w_i, as published, which are averaged as in
FedAvg) or as pairs of a seed and a scalar. The direction's seed follows from the run's seed, the
round and the client's number; the scalar s_t = eta_i rho_t is sent. Then

    w <- w - sum_i c_i sum_t s_{i,t} z_{i,t}

    combine = "exact"  repeats the clients' steps one by one, with the same bits as the tensors'
                       average
    combine = "sum"    adds all at once, rounded once: the same except for the rounding of the
                       2 m H single steps

The distance of Delta_i follows from the pairs alone, because directions are nearly orthogonal:

    |Delta_i - sum_j c_j Delta_j|^2 = |z|^2 ((1 - c_i)^2 |s_i|^2 + sum_{j != i} c_j^2 |s_j|^2)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fedseed.methods.base import ALL, Answers, Round
from fedseed.methods.dense import DenseState, Weights
from fedseed.methods.fedavg import Averaged
from fedseed.methods.payload import Array, DecodeContext, Many, Payload, Scalar, Scalars
from fedseed.methods.zeroth import Population
from fedseed.randomness.stream import rate_number
from fedseed.training.protocol import Client
from fedseed.weights.change import Add, Average, Change, Term

ROUNDS = 5  # number of rounds in the mean of "loss-5"
# replaces a rate factor of 0: with it, even the largest estimate does not move a weight
NO_RATE = 1e-20


@dataclass(frozen=True)
class Rate(Payload):
    """A plan: the client's learning rate; None: all clients have the same rate."""

    rate: Annotated[float | None, Scalar("f4", condition="personal_plans")] = None


@dataclass(frozen=True)
class Trace(Scalars):
    """A client's local steps: an update as pairs, or one client's part of a step.

    Args:
        client: the client whose directions are used; None in an update.
        weight: c_i; None in an update.
        loss: the client's mean training loss, if rates depend on losses.
        scalars: eta_i rho_t of each local step (0: skipped), float32, shape (H,). With a population
            of n, eta_i rho_{t,j} / n, shape (H n,). The directions follow from round and client.
    """

    client: Annotated[int, Scalar("u4", payload_kind="step")] = field(
        default=None,  # type: ignore[assignment]
        kw_only=True,
    )
    weight: Annotated[float, Scalar("f8", payload_kind="step")] = field(
        default=None,  # type: ignore[assignment]
        kw_only=True,
    )
    loss: Annotated[float | None, Scalar("f4", condition="losses_travel")] = field(
        default=None, kw_only=True
    )
    scalars: Annotated[NDArray[np.float32], Array("f4", "steps", multiplier="population")]


@dataclass(frozen=True)
class Traces(Payload):
    """A step: the clients' traces; empty if nobody answered."""

    parts: Annotated[tuple[Trace, ...], Many(Trace)]

    def size(self, context: DecodeContext) -> float:
        return sum(part.weight * part.size(context) for part in self.parts)

    def distances(self) -> Mapping[int, float]:
        """Return |Delta_i - sum_j c_j Delta_j| by client number, in multiples of |z|."""
        squares = [float(np.square(part.scalars, dtype=np.float64).sum()) for part in self.parts]
        total = sum(
            part.weight**2 * square for part, square in zip(self.parts, squares, strict=True)
        )
        pairs = zip(self.parts, squares, strict=True)
        return {
            part.client: max(0.0, total + (1 - 2 * part.weight) * square) ** 0.5
            for part, square in pairs
        }


@dataclass(frozen=True)
class FedMeZOState(DenseState):
    """The state: the number of rounds, and the clients' signals from these rounds.

    If tensors are sent, only the coordinator knows the signals.
    """

    remembered: ClassVar[tuple[str, ...]] = (*DenseState.remembered, "signals")

    rounds_done: int = 0  # number of completed rounds
    # (client, signal), shape (k, 2): at most ROUNDS for each client, the newest last
    signals: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))

    @cached_property
    def _past(self) -> dict[int, list[float]]:
        signals_by_client: dict[int, list[float]] = {}
        for client, signal in self.signals.tolist():
            signals_by_client.setdefault(int(client), []).append(signal)
        return signals_by_client

    def signals_of(self, client: int) -> list[float]:
        """Return a client's signals, the newest last."""
        return self._past.get(client, [])

    def add_signals(self, new_signals: Mapping[int, float]) -> Self:
        """Return the state with a round's signals of its clients."""
        past = dict(self._past)
        for client, signal in new_signals.items():
            past[client] = [*self.signals_of(client), signal][-ROUNDS:]
        rows: list[tuple[int, float]] = []
        for client, signals in past.items():
            rows += [(client, signal) for signal in signals]
        return replace(self, signals=np.reshape(rows, (-1, 2)))


class FedMeZO(Averaged, Population):
    """FedMeZO's settings.

    Besides the arguments of `Population` and `Averaged`:

    Args:
        learning_rate: eta_0, the rate of the local steps. A client's own rate is near it.
        steps: H, the number of local steps in a round.
        personal: the signal for clients' own rates: "loss" (the last round's training loss),
            "loss-5" (its mean over five rounds), "update" (the distance of the client's last change
            from the mean change), "random" (drawn uniformly in each round), or "constant" (all
            clients have the same rate).
        alpha: range of the rates: from 1 - alpha to 1 + alpha times eta_0.
        travel: what is sent: "pairs" (4 bytes for each local step and direction) or "tensors" (as
            published).
        global_rate: eta_g; only with tensors.
        combine: how to combine pairs: "sum" (one pass, one rounding) or "exact" (the same bits as
            the tensors' average; each client's steps are repeated one by one, with two more copies
            of the weights in memory).
        seeds: directions of pairs. "own": each client has its own. "shared": all clients of a round
            have the same, so that a step is as long as one client's update, and rules can combine
            the pairs.
    """

    name: Literal["fedmezo"] = "fedmezo"
    code: ClassVar[int] = 8
    about: ClassVar[str] = (
        "MeZO's steps at each client, averaged; sent as tensors or pairs; clients' own rates "
        "(KDD 2024)"
    )
    state_type, plan_type = FedMeZOState, Rate

    learning_rate: PositiveFloat = 1e-5
    personal: Literal["constant", "random", "loss", "loss-5", "update"] = "constant"
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.5
    steps: PositiveInt = 30
    weighting: Literal["equal", "examples"] = "equal"
    small_steps: Literal["nearest", "stochastic"] = "nearest"
    server: Literal["average"] = "average"
    global_rate: PositiveFloat = 1.0
    travel: Literal["pairs", "tensors"] = "pairs"
    combine: Literal["sum", "exact"] = "sum"
    seeds: Literal["own", "shared"] = "own"

    @model_validator(mode="after")
    def _pairs_are_averaged(self) -> "FedMeZO":
        if self.travel == "pairs" and self.global_rate != 1.0:
            raise ValueError(
                'global_rate needs travel = "tensors": with pairs no party has the average'
            )
        if self.travel == "pairs" and self.small_steps == "stochastic":
            raise ValueError(
                'small_steps = "stochastic" needs travel = "tensors"; combine = "sum" keeps small '
                "steps as well"
            )
        if self.seeds == "shared" and (self.travel, self.combine) != ("pairs", "sum"):
            raise ValueError(
                'seeds = "shared" needs travel = "pairs" and combine = "sum": the step is a sum of '
                "pairs"
            )
        if self.seeds == "shared" and self.personal not in ("constant", "random"):
            raise ValueError(
                f'personal = "{self.personal}" needs seeds = "own": a sum hides single '
                "clients' signals"
            )
        return self

    def plan(self, state: FedMeZOState, round: Round) -> Rate:
        """Return the client's rate in single precision, as it is sent (Eq. 15)."""
        if self.personal == "constant":
            return Rate()
        if self.personal == "random":
            deviation = rate_number(state.seed, round.number, round.client)
        else:
            deviation = phi(self._signals(state, round.clients), round.client)
        return Rate(float(np.float32(self.learning_rate * (1 + self.alpha * deviation))))

    def _signals(self, state: FedMeZOState, clients: Sequence[int]) -> dict[int, float]:
        """Return the signals of the clients that have one, by number."""
        signals: dict[int, float] = {}
        for client in clients:
            past = state.signals_of(client)
            if past:
                signals[client] = fmean(past) if self.personal == "loss-5" else past[-1]
        return signals

    def train(self, state: FedMeZOState, plan: Rate, client: Client) -> Trace | Weights:
        """Take H steps along directions from the client's own seed.

        A step without usable losses is left out.
        """
        seed, n = self.seed_of(state, client.round, client.number), self.population
        basis = self.directions(seed)
        rate = (self.learning_rate if plan.rate is None else plan.rate) * self.factor(client.round)
        losses: list[float] = []
        scalars = np.zeros((self.steps, n), dtype=np.float32)
        for along, projections in self.local_steps(
            client, basis, [range(t * n, (t + 1) * n) for t in range(self.steps)]
        ):
            losses += [projection.loss for projection in projections if projection.usable]
            t = along[0] // n
            scalars[t] = [rate * projection.rho / n for projection in projections]
            if scalars[t].any():
                client.apply(Add([Term(basis, scalars[t], along[0])], -1.0, self.rounding(seed, t)))
        loss = float(np.float32(fmean(losses))) if self.losses_travel else None
        tensors = self.travel == "tensors"
        if tensors:
            return Weights(client.weights(), loss=loss)
        return Trace(scalars.reshape(-1), loss=loss)

    def seed_of(self, state: FedMeZOState, number: int, client: int) -> int:
        """Return the seed of a client's directions in a round."""
        if self.seeds == "shared":
            return state.round_seed(number)
        return state.client_seed(number, client)

    def aggregate(self, state: FedMeZOState, answers: Answers) -> Any:
        """Return all clients' pairs, the mean pairs if clients share directions, or the average of
        the weights.
        """
        if self.travel == "tensors":
            return super().aggregate(state, answers)
        if self.seeds == "shared" and answers:
            mean = answers.combine([update.scalars for _, _, update in answers]).astype(np.float32)
            return Traces((Trace(mean, client=ALL, weight=1.0),))
        return Traces(
            tuple(
                replace(update, client=client, weight=weight) for client, weight, update in answers
            )
        )

    def change(self, state: FedMeZOState, step: Any) -> Change:
        """Repeat the clients' steps, or take the average of their weights."""
        if self.travel == "tensors":
            return super().change(state, step)
        bases = [
            self.directions(self.seed_of(state, state.rounds_done + 1, part.client))
            for part in step.parts
        ]
        pairs = list(zip(step.parts, bases, strict=True))
        if self.combine == "sum":
            terms = [
                Term(z, (part.weight * part.scalars.astype(np.float64)).astype(np.float32))
                for part, z in pairs
            ]
            return Add(terms, -1.0)
        n, branches = self.population, []
        for part, z in pairs:
            steps = enumerate(part.scalars.reshape(-1, n))
            branches.append(
                (part.weight, [Add([Term(z, s, t * n)], -1.0) for t, s in steps if s.any()])
            )
        return Average(branches)

    def advance(self, state: FedMeZOState, step: Any) -> FedMeZOState:
        """Count the round, and store the clients' signals, which follow from the pairs."""
        if self.travel == "tensors":
            state = super().advance(state, step)
        elif self.losses_travel:
            state = state.add_signals({part.client: part.loss for part in step.parts})
        elif self.personal == "update":
            state = state.add_signals(step.distances())
        return replace(state, rounds_done=state.rounds_done + 1)

    def remember(self, state: FedMeZOState, answers: Answers) -> FedMeZOState:
        """Store the clients' signals. If tensors are sent, only the coordinator knows them."""
        if self.travel == "pairs" or not answers:
            return state
        if self.losses_travel:
            return state.add_signals({client: update.loss for client, _, update in answers})
        if self.personal != "update":
            return state
        moves = [update.vector(DecodeContext(self, state, "update")) for _, _, update in answers]
        mean = answers.combine(moves)
        far = [float(np.linalg.norm(move - mean)) for move in moves]
        return state.add_signals(dict(zip((client for client, _, _ in answers), far, strict=True)))

    def unit(self, state: FedMeZOState) -> float:
        """Return the round's rate divided by n. Estimates are multiplied by it before they are sent
        as pairs.
        """
        # to get estimates back, pairs are divided by this
        factor = self.factor(state.rounds_done + 1) or NO_RATE
        return self.learning_rate * factor / self.population

    @property
    def personal_plans(self) -> bool:  # type: ignore[override]
        return self.personal != "constant"

    @property
    def losses_travel(self) -> bool:
        """Return whether updates include the mean training loss."""
        return self.personal in ("loss", "loss-5")

    @property
    def incomparable(self) -> str | None:  # type: ignore[override]
        if self.travel == "tensors" or self.seeds == "shared":
            return None
        return 'seeds = "own" with travel = "pairs": each client steps along its own directions'

    @property
    def update_type(self) -> type[Trace | Weights]:  # type: ignore[override]
        if self.travel == "pairs":
            return Trace
        return Weights

    @property
    def step_type(self) -> type[Traces | Weights]:  # type: ignore[override]
        if self.travel == "pairs":
            return Traces
        return Weights


def phi(signals: Mapping[int, float], client: int) -> float:
    """Return Phi_i, from -1 to 1: a client's signal minus the mean, divided by the largest absolute
    difference from the mean.

    It is 0 for a client without a signal, and if all signals are equal.
    """
    if client not in signals:
        return 0.0
    mean = fmean(signals.values())
    largest = max(abs(value - mean) for value in signals.values())
    if largest > 0:
        return (signals[client] - mean) / largest
    return 0.0
