"""FedMeZO's messages: local steps as pairs, and learning rates; and what is remembered of clients.

Pairs travel without their directions: the seed of those follows from the run's seed, the round and the client's number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import MessageError
from fedseed.methods.base import ALL, Answers
from fedseed.methods.dense import DenseState, pieces
from fedseed.methods.payload import About, Array, Floats, Many, Payload, Scalar, Scalars, State
from fedseed.randomness import Basis, Domain, derive
from fedseed.weights.change import NOTHING, Add, Average, Change, Term

ROUNDS = 5  # that the mean training loss goes back


@dataclass(frozen=True)
class Rate(Payload):
    """A plan: the client's learning rate."""

    rate: Annotated[float, Scalar("f4")]

    def check(self, about: About) -> None:
        eta, alpha = about.lookup("learning_rate"), about.lookup("alpha")
        low, high = eta * (1 - alpha), eta * (1 + alpha)
        if not low * (1 - 1e-6) <= self.rate <= high * (1 + 1e-6):
            raise MessageError(f"a rate of {self.rate:.3g}: from {low:.3g} to {high:.3g} is possible")


@dataclass(frozen=True)
class Trace(Scalars):
    """The local steps of a client: an update as pairs, or one client's part of a step.

    Args:
        client: whose directions they are; an update does not say it.
        weight: c_i; an update does not say it.
        loss: the client's mean training loss, if the rates follow the losses.
        scalars: eta_i rho_t of each local step (0: skipped), float32, shape (H,); with a population of n
            eta_i rho_{t,j} / n, shape (H n,). The directions follow from round and client.
    """

    client: Annotated[int, Scalar("u4", only="step")] = field(default=None, kw_only=True)  # type: ignore[assignment]
    weight: Annotated[float, Scalar("f8", only="step")] = field(default=None, kw_only=True)  # type: ignore[assignment]
    loss: Annotated[float | None, Scalar("f4", when="losses_travel")]
    scalars: Annotated[Floats, Array("f4", "steps", each="population")]

    @classmethod
    def factors(cls, about: About) -> tuple[float, float]:
        rate, n = about.lookup("learning_rate"), about.lookup("population")
        return rate / n, rate * (1 + about.lookup("alpha")) / n

    @classmethod
    def unit(cls, about: About) -> float:
        return float(about.lookup("rate")(about.round) / about.lookup("population"))

    @classmethod
    def of(cls, vector: NDArray[Any], about: About) -> "Trace":
        return cls(None, vector)  # in full precision

    def check(self, about: About) -> None:
        super().check(about)
        if about.kind == "step" and not 0 <= self.weight <= 1:
            raise MessageError(f"client {self.client} has a weight of {self.weight}: from 0 to 1")


@dataclass(frozen=True)
class Traces(Payload):
    """A step: the clients' traces side by side, in ascending order of clients; none: nobody answered."""

    parts: Annotated[tuple[Trace, ...], Many(Trace)]

    def check(self, about: About) -> None:
        for before, client in pairwise(part.client for part in self.parts):
            if client <= before:
                raise MessageError(f"client {client} stands after client {before}")

    def size(self, about: About) -> float:
        return sum(part.weight * part.size(about) for part in self.parts)

    @classmethod
    def of(cls, answers: Answers, shared: bool) -> Self:
        """Returns the clients' pairs side by side, or their mean if clients share directions."""
        if shared and answers:
            mean = answers.combine([update.scalars for update in answers.updates]).astype(np.float32)
            return cls((Trace(None, mean, client=ALL, weight=1.0),))
        return cls(tuple(replace(update, client=client, weight=weight) for client, weight, update in answers))

    def again(self, bases: Sequence[Basis], n: int, exact: bool) -> Change:
        """Returns the clients' steps taken again.

        Args:
            bases: of each part, where its directions come from.
            n: directions of a local step.
            exact: one step after the other, as the clients did; else all at once.
        """
        both = list(zip(self.parts, bases, strict=True))
        if not both:
            return NOTHING
        if not exact:
            terms = [Term(z, (p.weight * p.scalars.astype(np.float64)).astype(np.float32)) for p, z in both]
            return Add(terms, scale=-1.0)
        steps = [(p.weight, z, enumerate(p.scalars.reshape(-1, n))) for p, z in both]
        return Average([(c, [Add([Term(z, s, t * n)], -1.0) for t, s in some if s.any()]) for c, z, some in steps])

    def distances(self, basis: Basis, state: State) -> Mapping[int, float]:
        """Returns |Delta_i - sum_j c_j Delta_j| by client, from the pairs alone: directions are nearly orthogonal.

            |Delta_i - sum_j c_j Delta_j|^2 = (1 - c_i)^2 |Delta_i|^2 + sum_{j != i} c_j^2 |Delta_j|^2
            |Delta_i|^2 = |eta_i rho_i|^2 |z|^2

        Args:
            basis: of a kind with the directions z.
            state: the state before the step.
        """
        each = state.layout.size * basis.variance(state.layout.size)  # |z|^2
        doubles = [(p.client, p.weight, p.scalars.astype(np.float64)) for p in self.parts]
        squares = [(client, c, each * float(np.square(scalars).sum())) for client, c, scalars in doubles]
        total = sum(c**2 * square for _, c, square in squares)
        return {i: max(0.0, total + ((1 - c) ** 2 - c**2) * square) ** 0.5 for i, c, square in squares}


@dataclass(frozen=True)
class FedMeZOState(DenseState):
    """How many rounds are done, and what they have shown of clients. Where weights travel only the coordinator knows.

    Args:
        done: rounds.
        signals: of each client those of its last rounds, at most ROUNDS, the newest last.
    """

    done: int = 0
    signals: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    def after(self, signals: Mapping[int, float]) -> Self:
        """Returns the state with what a round has shown of its clients."""
        longer = {c: (*self.signals.get(c, ()), signal)[-ROUNDS:] for c, signal in signals.items()}
        return replace(self, signals={**self.signals, **longer})

    def state_dict(self) -> dict[str, NDArray[Any]]:
        pairs = [(client, signal) for client, past in self.signals.items() for signal in past]
        return {**super().state_dict(), **({"signals": np.array(pairs)} if pairs else {})}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> Self:
        state = replace(super().load_state_dict(arrays), signals={})
        for client, signal in arrays.get("signals", np.zeros((0, 2))).tolist():
            state = state.after({int(client): signal})
        return state

    def drawn(self, number: int, client: int) -> float:
        """Returns a client's number of a round, uniform between -1 and 1."""
        return ((derive(self.seed, Domain.RATE, number, client) >> 11) + 0.5) * 2.0**-52 - 1.0

    def distances(self, answers: Answers) -> Mapping[int, float]:
        """Returns |Delta_i - mean Delta| = |w_i - mean w| of each client that has sent weights."""
        if not answers:
            return {}
        means = self.combine(answers, lambda update: update.data, of_moves=True)
        own = zip(*(pieces(self.layout, update.data) for update in answers.updates), strict=True)
        squares = [[float(np.square(w - m).sum()) for w in each] for m, each in zip(means, own, strict=True)]
        far = [sum(one) ** 0.5 for one in zip(*squares, strict=True)]
        return dict(zip((answer.client for answer in answers), far, strict=True))
