"""FedMeZO's messages, taking the clients' steps again, and learning rates of the clients' own.

A round as pairs, w <- w - sum_i c_i sum_t eta_i rho_{i,t} z_{i,t}:

    combine = "exact"  as the clients did, one after the other, to the bits of the tensors' average
    combine = "sum"    all at once, rounded once: the same up to the rounding of the 2 m H steps it leaves out

Rates (Section 5 and Eq. 15 of its paper), eta_i = eta_0 (1 + alpha Phi_i): Phi_i in [-1, 1] is a signal of client i
minus the mean, over the largest absolute difference from it (all equal: 0).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat

from fedseed.errors import MessageError
from fedseed.methods.base import ALL, Answers, Round
from fedseed.methods.dense import DenseState, WholeWeights, pieces
from fedseed.methods.fedavg import Averaged
from fedseed.methods.payload import About, Array, Floats, Many, Nested, Nothing, Payload, Scalar, Tensors
from fedseed.methods.summands import Scalars, Vector
from fedseed.methods.zeroth import ZerothOrder
from fedseed.randomness import Basis, Domain, derive
from fedseed.weights.change import NOTHING, Add, Average, Change, Term
from fedseed.weights.layout import Layout

LOSSES = 5  # rounds that the mean training loss goes back
Loss = Annotated[float | None, Scalar("f4", when="losses_travel")]
Personal = Literal["constant", "random", "loss", "loss-5", "update"]


@dataclass(frozen=True)
class Tensored(WholeWeights):
    """An update as tensors: the client's mean training loss, if the rates follow the losses, and its weights."""

    loss: Loss
    data: Annotated[bytes, Tensors()]


@dataclass(frozen=True)
class Trace(Scalars):
    """An update as pairs: the same loss, and eta_i rho_t of each local step (0: skipped), float32, shape (H,).

    The directions follow from round and client. With a population of n: eta_i rho_{t,j} / n, shape (H n,).
    """

    loss: Loss
    scalars: Annotated[Floats, Array("f4", "steps", each="population")]

    @classmethod
    def factors(cls, about: About) -> tuple[float, float]:
        rate, n = about.lookup("learning_rate"), about.lookup("population")
        return rate / n, rate * (1 + about.lookup("alpha")) / n

    @classmethod
    def unit(cls, about: About) -> float:
        return float(about.lookup("rate")(about.round) / about.lookup("population"))

    @classmethod
    def of(cls, vector: Vector, about: About) -> "Trace":
        return cls(None, vector)  # type: ignore[arg-type]  # in full precision


@dataclass(frozen=True)
class Branch(Payload):
    """One client's part of a step: its number, which names its directions, c_i, and what it sent."""

    client: Annotated[int, Scalar("u4")]
    weight: Annotated[float, Scalar("f8")]
    trace: Annotated[Trace, Nested(Trace)]

    def check(self, about: About) -> None:
        if not 0 <= self.weight <= 1:
            raise MessageError(f"client {self.client} has a weight of {self.weight}: from 0 to 1")


@dataclass(frozen=True)
class Branches(Payload):
    """A step: the clients' traces side by side, in ascending order of clients; none: nobody answered."""

    branches: Annotated[tuple[Branch, ...], Many(Branch)]

    def check(self, about: About) -> None:
        numbers = [branch.client for branch in self.branches]
        for before, client in pairwise(numbers):
            if client <= before:
                raise MessageError(f"client {client} stands after client {before}")

    def size(self, about: About) -> float:
        return sum(branch.weight * branch.trace.size(about) for branch in self.branches)

    @classmethod
    def of(cls, answers: Answers, shared: bool) -> "Branches":
        """The pairs side by side, or their mean if clients share directions."""
        if shared and answers:
            mean = answers.combine([update.scalars for update in answers.updates]).astype(np.float32)
            return cls((Branch(ALL, 1.0, Trace(None, mean)),))
        return cls(tuple(Branch(client, weight, update) for client, weight, update in answers))

    def again(self, bases: Sequence[Basis], n: int, exact: bool) -> Change:
        """The clients' steps taken again.

        Args:
            bases: of each branch, where its directions come from.
            n: directions of a local step.
            exact: one step after the other; else all at once.
        """
        if not self.branches:
            return NOTHING
        both = list(zip(self.branches, bases, strict=True))
        if not exact:
            terms = [Term(z, (b.weight * b.trace.scalars.astype(np.float64)).astype(np.float32)) for b, z in both]
            return Add(terms, scale=-1.0)
        steps = [(b.weight, z, enumerate(b.trace.scalars.reshape(-1, n))) for b, z in both]
        return Average([(c, [Add([Term(z, s, t * n)], -1.0) for t, s in some if s.any()]) for c, z, some in steps])

    def distances(self, basis: Basis, size: int) -> Mapping[int, float]:
        """|Delta_i - sum_j c_j Delta_j| by client, from the pairs alone: random directions are nearly orthogonal.

            |Delta_i - sum_j c_j Delta_j|^2 = (1 - c_i)^2 |Delta_i|^2 + sum_{j != i} c_j^2 |Delta_j|^2
            |Delta_i|^2 = |eta_i rho_i|^2 |z|^2

        Args:
            basis: of a kind with the directions z.
            size: their length.
        """
        each = size * basis.variance(size)  # |z|^2
        squares = [
            (b.client, b.weight, each * float(np.square(b.trace.scalars.astype(np.float64)).sum()))
            for b in self.branches
        ]
        total = sum(c**2 * square for _, c, square in squares)
        return {i: max(0.0, total + ((1 - c) ** 2 - c**2) * square) ** 0.5 for i, c, square in squares}


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
class PersonalState(DenseState):
    """How many rounds are done, and what they have shown of clients. Where weights travel only the coordinator knows.

    Args:
        done: rounds.
        losses: mean training losses of the last rounds of each client, at most LOSSES, the newest last.
        distances: |Delta_i - mean Delta| of each client's last round.
    """

    done: int = 0
    losses: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    distances: Mapping[int, float] = field(default_factory=dict)

    def after(self, losses: Mapping[int, float], distances: Mapping[int, float]) -> Self:
        """The state with what a round has shown of its clients."""
        longer = {c: (*self.losses.get(c, ()), loss)[-LOSSES:] for c, loss in losses.items()}
        return replace(self, losses={**self.losses, **longer}, distances={**self.distances, **distances})

    def signals(self, kind: Personal, clients: Sequence[int]) -> dict[int, float]:
        """The signal of one kind of those of the clients that have it."""
        if kind == "update":
            return {c: self.distances[c] for c in clients if c in self.distances}
        known = {c: self.losses[c] for c in clients if c in self.losses}
        return {c: losses[-1] if kind == "loss" else fmean(losses) for c, losses in known.items()}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        losses, distances = self.losses, self.distances
        arrays = {
            "loss_clients": np.array([c for c, past in losses.items() for _ in past], dtype=np.int64),
            "losses": np.array([loss for past in losses.values() for loss in past], dtype=np.float64),
            "distance_clients": np.array(list(distances), dtype=np.int64),
            "distances": np.array(list(distances.values()), dtype=np.float64),
        }
        return {**super().state_dict(), **{name: array for name, array in arrays.items() if len(array)}}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> Self:
        losses: dict[int, tuple[float, ...]] = {}
        if "losses" in arrays:
            for client, loss in zip(arrays["loss_clients"].tolist(), arrays["losses"].tolist(), strict=True):
                losses[client] = (*losses.get(client, ()), loss)
        distances: dict[int, float] = {}
        if "distances" in arrays:
            distances = dict(zip(arrays["distance_clients"].tolist(), arrays["distances"].tolist(), strict=True))
        return replace(super().load_state_dict(arrays), losses=losses, distances=distances)


def distances_of_tensors(
    means: Iterable[NDArray[np.floating[Any]]], own: Iterable[Sequence[NDArray[np.floating[Any]]]]
) -> list[float]:
    """|Delta_i - mean Delta| = |w_i - mean w| of each client, from the same pieces of the means and of its weights."""
    squares = [[float(np.square(part - mean).sum()) for part in parts] for mean, parts in zip(means, own, strict=True)]
    return [sum(one) ** 0.5 for one in zip(*squares, strict=True)]


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
            at = phi(state.signals(self.personal, round.clients), round.client)
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
            own = zip(*(pieces(state.layout, update.data) for update in answers.updates), strict=True)
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
