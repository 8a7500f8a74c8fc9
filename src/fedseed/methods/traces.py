"""FedMeZO's round as pairs: what travels, and taking the clients' steps again.

combine = "exact"  as the clients did, one after the other, to the bits of the tensors' average
combine = "sum"    all at once, rounded once: the same up to the rounding of the 2 m H steps it leaves out

w <- w - sum_i c_i sum_t eta_i rho_{i,t} z_{i,t}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np

from fedseed.errors import MessageError
from fedseed.methods.base import ALL, Answers
from fedseed.methods.dense import WholeWeights
from fedseed.methods.payload import About, Array, Floats, Many, Nested, Payload, Scalar, Tensors
from fedseed.methods.personal import distances_of_norms
from fedseed.methods.summands import Scalars, Vector
from fedseed.randomness import Basis
from fedseed.weights.change import NOTHING, Add, Average, Change, Term

Loss = Annotated[float | None, Scalar("f4", when="losses_travel")]


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
        steps = [(b, z, b.trace.scalars.reshape(-1, n)) for b, z in both]
        return Average(
            [
                (b.weight, [Add([Term(z, c, t * n)], -1.0) for t, c in enumerate(all_) if c.any()])
                for b, z, all_ in steps
            ]
        )

    def distances(self, basis: Basis, size: int) -> Mapping[int, float]:
        """|Delta_i - mean Delta| from the pairs alone, by client: |Delta_i|^2 = |eta_i rho_i|^2 |z|^2.

        Args:
            basis: of a kind with the directions z.
            size: their length.
        """
        square = size * basis.variance(size)  # |z|^2
        squares = [square * float(np.square(b.trace.scalars.astype(np.float64)).sum()) for b in self.branches]
        far = distances_of_norms([b.weight for b in self.branches], squares)
        return {b.client: distance for b, distance in zip(self.branches, far, strict=True)}
