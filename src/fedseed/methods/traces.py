"""FedMeZO's round as pairs: what travels, and taking the clients' steps again.

combine = "exact"  as the clients did, one after the other, to the bits of the tensors' average
combine = "sum"    all at once, rounded once: the same up to the rounding of the 2 m H steps it leaves out

w <- w - sum_i c_i sum_t eta_i rho_{i,t} z_{i,t}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import MessageError
from fedseed.methods.base import Answers
from fedseed.methods.dense import flat, unflat
from fedseed.methods.payload import About, Array, Floats, Many, Nested, Payload, Scalar, Tensors
from fedseed.methods.personal import FedMeZOState, distances_of_norms
from fedseed.methods.sizes import distance, largest
from fedseed.methods.summands import Summand, Vector
from fedseed.methods.zeroth import check_scalars
from fedseed.weights.change import NOTHING, Add, Average, Change, Term

ALL = 0xFFFFFFFF  # in place of a client: the one branch of clients that share directions


Loss = Annotated[float | None, Scalar("f4", when="losses_travel")]


@dataclass(frozen=True)
class Rate(Payload):
    """A plan: the client's learning rate."""

    rate: Annotated[float, Scalar("f4")]

    def check(self, about: About) -> None:
        """Within alpha of eta_0."""
        eta, alpha = about.lookup("learning_rate"), about.lookup("alpha")
        low, high = eta * (1 - alpha), eta * (1 + alpha)
        if not low * (1 - 1e-6) <= self.rate <= high * (1 + 1e-6):
            raise MessageError(f"a rate of {self.rate:.3g}: from {low:.3g} to {high:.3g} is possible")


@dataclass(frozen=True)
class Tuned(Payload):
    """An update as tensors: the client's mean training loss, if the rates follow the losses, and its weights."""

    loss: Loss
    data: Annotated[bytes, Tensors()]

    def size(self, about: About) -> float:
        """How far the weights are from those before."""
        held = about.lookup("weights")
        return distance(about.state.layout, self.data, None if held is None else held.data)

    def vector(self, about: About) -> Floats:
        """How far they are from those before, entry by entry."""
        return flat(about.state.layout, self.data, about.lookup("weights"))

    def with_vector(self, vector: NDArray[Any], about: About) -> Payload:
        """Weights so far from those before."""
        return Tuned(self.loss, unflat(about.state.layout, vector, about.lookup("weights")))


@dataclass(frozen=True)
class Trace(Summand):
    """An update as pairs: the same loss, and eta_i rho_t of each local step (0: skipped), float32, shape (H,).

    The directions follow from round and client. With a population of n: eta_i rho_{t,j} / n, shape (H n,).
    """

    projections: ClassVar[bool] = True

    loss: Loss
    scalars: Annotated[Floats, Array("f4", "steps", each="population")]

    def check(self, about: About) -> None:
        """Whether losses can have given them."""
        largest_rate = about.lookup("learning_rate") * (1 + about.lookup("alpha"))
        check_scalars(self.scalars / np.float64(largest_rate / about.lookup("population")))

    def size(self, about: About) -> float:
        """That of the largest projection."""
        return largest(self.scalars / np.float64(about.lookup("learning_rate") / about.lookup("population")))

    @classmethod
    def unit(cls, about: About) -> float:
        """The round's rate over n."""
        return float(about.lookup("rate")(about.round) / about.lookup("population"))

    @classmethod
    def of(cls, vector: Vector, about: About) -> "Trace":
        """Without a loss."""
        return cls(None, vector)  # type: ignore[arg-type]  # in full precision


@dataclass(frozen=True)
class Branch(Payload):
    """One client's part of a step: its number, which names its directions, c_i, and what it sent."""

    client: Annotated[int, Scalar("u4")]
    weight: Annotated[float, Scalar("f8")]
    trace: Annotated[Trace, Nested(Trace)]

    def check(self, about: About) -> None:
        """A weight from 0 to 1."""
        if not 0 <= self.weight <= 1:
            raise MessageError(f"client {self.client} has a weight of {self.weight}: from 0 to 1")


@dataclass(frozen=True)
class Branches(Payload):
    """A step: the clients' traces side by side, in ascending order of clients; none: nobody answered."""

    branches: Annotated[tuple[Branch, ...], Many(Branch)]

    def check(self, about: About) -> None:
        """Each client once, in order."""
        numbers = [branch.client for branch in self.branches]
        for before, client in pairwise(numbers):
            if client <= before:
                raise MessageError(f"client {client} stands after client {before}")

    def size(self, about: About) -> float:
        """The mean of its branches'."""
        return sum(branch.weight * branch.trace.size(about) for branch in self.branches)


def steps_again(method: Any, state: FedMeZOState, step: Branches) -> Change:
    """The change of a step as pairs."""
    if not step.branches:
        return NOTHING
    bases = [method.directions(method.seed_of(state, state.done + 1, b.client)) for b in step.branches]
    both = list(zip(step.branches, bases, strict=True))
    if method.combine == "exact":
        n = method.population
        steps = [(b, [b.trace.scalars[at : at + n] for at in range(0, n * method.steps, n)]) for b, _ in both]
        return Average(
            [
                (b.weight, [Add([Term(basis, c, t * n)], -1.0) for t, c in enumerate(taken) if c.any()])
                for (b, taken), (_, basis) in zip(steps, both, strict=True)
            ]
        )
    weighted = [(basis, (b.weight * b.trace.scalars.astype(np.float64)).astype(np.float32)) for b, basis in both]
    return Add([Term(basis, scalars) for basis, scalars in weighted], scale=-1.0)


def unfit_pairs(method: Any) -> str | None:
    """What of the settings does not go with how its rounds travel; None: all does."""
    if method.travel == "pairs":
        if method.server != "average" or method.global_rate != 1.0:
            return 'server and global_rate need travel = "tensors": with pairs nobody holds the average'
        if method.small_steps == "stochastic":
            return 'small_steps = "stochastic" needs travel = "tensors"; combine = "sum" loses no small steps either'
    if method.seeds == "shared" and (method.travel, method.combine) != ("pairs", "sum"):
        return 'seeds = "shared" needs travel = "pairs" and combine = "sum": the step is a sum of pairs'
    if method.seeds == "shared" and method.personal not in ("constant", "random"):
        return f'personal = "{method.personal}" needs seeds = "own": a sum tells of no single client'
    return None


def branches(answers: Answers, shared: bool) -> Branches:
    """The pairs side by side, or their mean if clients share directions."""
    if shared and answers:
        mean = answers.combine([update.scalars for update in answers.updates]).astype(np.float32)
        return Branches((Branch(ALL, 1.0, Trace(None, mean)),))
    return Branches(tuple(Branch(client, weight, update) for client, weight, update in answers))


def distances(method: Any, state: FedMeZOState, step: Branches) -> Mapping[int, float]:
    """|Delta_i - mean Delta| from the pairs alone, where no weights are: |Delta_i|^2 = |eta_i rho_i|^2 |z|^2."""
    size = state.layout.size * method.directions(0).variance(state.layout.size)  # |z|^2
    squares = [size * float(np.square(b.trace.scalars.astype(np.float64)).sum()) for b in step.branches]
    found = distances_of_norms([b.weight for b in step.branches], squares)
    return {b.client: distance for b, distance in zip(step.branches, found, strict=True)}
