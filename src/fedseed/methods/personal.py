"""Learning rates of the clients' own, as FedMeZO has them (Section 5 and Eq. 15 of its paper).

    eta_i = eta_0 (1 + alpha Phi_i)

Phi_i in [-1, 1] is a signal of client i minus the mean, over the largest absolute difference from it (all equal: 0).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat

from fedseed.errors import MessageError
from fedseed.methods.base import Answers, Round
from fedseed.methods.dense import DenseState
from fedseed.methods.fedavg import Averaged
from fedseed.methods.payload import About, Nothing, Payload, Scalar
from fedseed.methods.zeroth import ZerothOrder
from fedseed.randomness import Domain, derive
from fedseed.weights.layout import Layout

LOSSES = 5  # rounds that the mean training loss goes back
Personal = Literal["constant", "random", "loss", "loss-5", "update"]


def phi(signals: Mapping[int, float], client: int) -> float:
    """Phi_i: a client's signal minus the mean, over the largest absolute difference from the mean.

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


@dataclass(frozen=True)
class Signals:
    """What is known of clients from the rounds they took part in.

    Args:
        losses: mean training losses of the last rounds, at most LOSSES, the newest last.
        distances: |Delta_i - mean Delta| of the last round.
    """

    losses: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    distances: Mapping[int, float] = field(default_factory=dict)

    def after(self, losses: Mapping[int, float], distances: Mapping[int, float]) -> "Signals":
        """With what a round has shown."""
        longer = {c: (*self.losses.get(c, ()), loss)[-LOSSES:] for c, loss in losses.items()}
        return Signals({**self.losses, **longer}, {**self.distances, **distances})

    def of(self, kind: Personal, clients: Sequence[int]) -> dict[int, float]:
        """The signal of one kind of those of the clients that have it."""
        if kind == "update":
            return {c: self.distances[c] for c in clients if c in self.distances}
        known = {c: self.losses[c] for c in clients if c in self.losses}
        return {c: losses[-1] if kind == "loss" else fmean(losses) for c, losses in known.items()}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """As arrays by name; none for what is not known."""
        losses, distances = self.losses, self.distances
        arrays = {
            "loss_clients": np.array([c for c, past in losses.items() for _ in past], dtype=np.int64),
            "losses": np.array([loss for past in losses.values() for loss in past], dtype=np.float64),
            "distance_clients": np.array(list(distances), dtype=np.int64),
            "distances": np.array(list(distances.values()), dtype=np.float64),
        }
        return {name: array for name, array in arrays.items() if len(array)}

    @classmethod
    def from_state_dict(cls, arrays: Mapping[str, NDArray[Any]]) -> "Signals":
        """The inverse of `state_dict`. Raises LookupError or ValueError if arrays do not fit."""
        losses: dict[int, tuple[float, ...]] = {}
        if "losses" in arrays:
            for client, loss in zip(arrays["loss_clients"].tolist(), arrays["losses"].tolist(), strict=True):
                losses[client] = (*losses.get(client, ()), loss)
        distances: dict[int, float] = {}
        if "distances" in arrays:
            distances = dict(zip(arrays["distance_clients"].tolist(), arrays["distances"].tolist(), strict=True))
        return cls(losses, distances)


def distances_of_norms(weights: Sequence[float], squares: Sequence[float]) -> list[float]:
    """|Delta_i - sum_j c_j Delta_j| of changes that are orthogonal to each other, as random directions nearly are.

        |Delta_i - sum_j c_j Delta_j|^2 = (1 - c_i)^2 |Delta_i|^2 + sum_{j != i} c_j^2 |Delta_j|^2

    Args:
        weights: c_i of each client.
        squares: |Delta_i|^2 of each client.
    """
    total = sum(c**2 * square for c, square in zip(weights, squares, strict=True))
    return [max(0.0, total + ((1 - c) ** 2 - c**2) * square) ** 0.5 for c, square in zip(weights, squares, strict=True)]


def distances_of_tensors(
    means: Iterable[NDArray[np.floating[Any]]], own: Iterable[Sequence[NDArray[np.floating[Any]]]]
) -> list[float]:
    """|Delta_i - mean Delta| = |w_i - mean w|, of each client.

    Args:
        means: of each tensor.
        own: the same tensors of each client.
    """
    squares = [[float(np.square(part - mean).sum()) for part in parts] for mean, parts in zip(means, own, strict=True)]
    return [sum(one) ** 0.5 for one in zip(*squares, strict=True)]


@dataclass(frozen=True)
class PersonalState(DenseState):
    """How many rounds are done, and the signals. Where weights travel only the coordinator has these."""

    done: int = 0
    signals: Signals = field(default_factory=Signals)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {**super().state_dict(), **self.signals.state_dict()}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> Self:
        return replace(super().load_state_dict(arrays), signals=Signals.from_state_dict(arrays))

    def after(self, losses: Mapping[int, float], distances: Mapping[int, float]) -> Self:
        """The state with what a round has shown of its clients."""
        return replace(self, signals=self.signals.after(losses, distances))


@dataclass(frozen=True)
class Rate(Payload):
    """A plan: the client's learning rate."""

    rate: Annotated[float, Scalar("f4")]

    def check(self, about: About) -> None:
        eta, alpha = about.lookup("learning_rate"), about.lookup("alpha")
        low, high = eta * (1 - alpha), eta * (1 + alpha)
        if not low * (1 - 1e-6) <= self.rate <= high * (1 + 1e-6):
            raise MessageError(f"a rate of {self.rate:.3g}: from {low:.3g} to {high:.3g} is possible")


class PersonalRates(Averaged, ZerothOrder):
    """Settings of clients' own rates.

    Args (besides those of `ZerothOrder` and `Averaged`):
        learning_rate: eta_0, the rate of the local steps; each client's own lies around it.
        personal: whether clients have rates of their own, and which signal decides them: "loss" (last round's training
            loss), "loss-5" (its mean over five rounds), "update" (how far the client's last change was from the mean
            change), "random" (uniform, each round anew), "constant".
        alpha: how far rates go from eta_0: from 1 - alpha to 1 + alpha times.
    """

    learning_rate: PositiveFloat = 1e-5
    personal: Personal = "constant"
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.5

    def start(self, layout: Layout, seed: int) -> PersonalState:
        return PersonalState(layout, seed)

    def plan(self, state: PersonalState, round: Round) -> Payload:
        """The client's rate, rounded to single precision as it is sent (Eq. 15); nothing where all have the same."""
        if self.personal == "constant":
            return Nothing()
        if self.personal == "random":
            drawn = derive(state.seed, Domain.RATE, round.number, round.client)
            at = ((drawn >> 11) + 0.5) * 2.0**-52 - 1.0
        else:
            at = phi(state.signals.of(self.personal, round.clients), round.client)
        return Rate(float(np.float32(self.learning_rate * (1 + self.alpha * at))))

    def own_rate(self, plan: Nothing | Rate, number: int) -> float:
        """eta_i in a round."""
        return (plan.rate if isinstance(plan, Rate) else self.learning_rate) * self.factor(number)

    def remember(self, state: PersonalState, answers: Answers) -> PersonalState:
        state = super().remember(state, answers)
        if not self.catch_up.replaces or self.personal in ("constant", "random"):
            return state
        losses = {c.client: c.update.loss for c in answers} if self.losses_travel else {}
        far: dict[int, float] = {}
        if self.personal == "update" and answers:
            own = zip(*(state.tensors(update.data) for update in answers.updates), strict=True)
            distances = distances_of_tensors(self.average(state, answers), own)
            far = dict(zip((answer.client for answer in answers), distances, strict=True))
        return state.after(losses, far)

    @property
    def personal_plans(self) -> bool:
        return self.personal != "constant"

    @property
    def losses_travel(self) -> bool:
        """Whether updates say the mean training loss."""
        return self.personal in ("loss", "loss-5")

    @property
    def plan_type(self) -> type[Payload]:  # type: ignore[override]
        return Rate if self.personal_plans else Nothing
