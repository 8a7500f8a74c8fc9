"""What travels in Ferret: seeds, and coefficients on their directions, block by block; and what of it is remembered."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import MessageError
from fedseed.methods.payload import About, Floats, Many, Payload, Ragged, Scalar, State
from fedseed.methods.sizes import moved
from fedseed.methods.summands import Summand, Vector, filled
from fedseed.optimizers.squares import Squares


@dataclass(frozen=True)
class FerretPlan(Payload):
    """The seed all clients of the round use, or None where each takes its own."""

    seed: Annotated[int | None, Scalar("u8", when="shared")]


@dataclass(frozen=True)
class Coefficients(Summand):
    """One seed, and for each block the coefficients on its directions 0, 1, ...

    As an update: a client's projected change. In bytes: 8 for the seed, 4 per block for the counts, 4 per coefficient.
    """

    seed: Annotated[int, Scalar("u8")]
    gammas: Annotated[tuple[Floats, ...], Ragged("most")]

    def check(self, about: About) -> None:
        """A shared seed must be the round's."""
        if about.kind == "update" and about.lookup("shared"):
            planned = about.lookup("round_seed")(about.state, about.round)
            if self.seed != planned:
                raise MessageError(f"seed {self.seed}: the round's seed is {planned}")

    def size(self, about: About) -> float:
        """How far it moves the weights, at a global rate of 1."""
        return moved(about.method.directions_of(0), about.state.layout, [self.gammas])

    def times(self, weight: float) -> "Coefficients":
        """c gamma, in double precision and rounded once."""
        return replace(self, gammas=tuple((weight * g.astype(np.float64)).astype(np.float32) for g in self.gammas))

    @classmethod
    def words(cls, about: About) -> int:
        """All blocks' together."""
        return sum(summed_counts(about))

    def vector(self, about: About) -> Vector:
        """Block by block; each as long as any client's can be."""
        pairs = zip(self.gammas, summed_counts(about), strict=True)
        return np.concatenate([filled(gamma.astype(np.float64), count) for gamma, count in pairs])

    @classmethod
    def of(cls, vector: Vector, about: About) -> "Coefficients":
        """With the round's seed; blocks without the zeros at their ends where a change decides how long they are."""
        blocks = np.split(vector, np.cumsum(summed_counts(about))[:-1])
        if decided_by_change(about):
            blocks = [block[: np.flatnonzero(block).max(initial=0) + 1] for block in blocks]
        return cls(about.lookup("round_seed")(about.state, about.round), tuple(blocks))  # type: ignore[arg-type]  # doubles

    def with_vector(self, vector: NDArray[Any], about: About) -> "Coefficients":
        """As many coefficients a block as it has, or as reach to the last that is not zero."""
        blocks = np.split(vector.astype(np.float32), np.cumsum(summed_counts(about))[:-1])
        kept = [max(len(g), np.flatnonzero(b).max(initial=0) + 1) for g, b in zip(self.gammas, blocks, strict=True)]
        return replace(self, gammas=tuple(block[:k] for block, k in zip(blocks, kept, strict=True)))

    def numbers(self, about: About) -> NDArray[Any]:
        return self.vector(about)

    def with_numbers(self, numbers: NDArray[Any], about: About) -> "Coefficients":
        return self.with_vector(numbers, about)


def summed_counts(about: About) -> list[int]:
    """How many coefficients of each block are summed: what is allocated, or all there can be if a change decides."""
    if decided_by_change(about):
        return [about.lookup("most")] * about.state.blocks
    return [int(count) for count in about.lookup("allocate")(about.state)]


def decided_by_change(about: About) -> bool:
    """Whether a client's change decides how many coefficients a block gets."""
    return about.lookup("allocation") in ("norm", "sqrt")


@dataclass(frozen=True)
class FerretStep(Payload):
    """What a round adds: with shared seeds one sum, otherwise one part per client, weights c_i multiplied in."""

    parts: Annotated[tuple[Coefficients, ...], Many(Coefficients)]

    def check(self, about: About) -> None:
        """One part where clients share a seed."""
        if about.lookup("shared") and len(self.parts) > 1:
            raise MessageError(f"{len(self.parts)} parts in a step whose clients share a seed")

    def size(self, about: About) -> float:
        """How far all parts together move the weights."""
        return moved(about.method.directions_of(0), about.state.layout, [part.gammas for part in self.parts])


@dataclass(frozen=True)
class FerretState(State):
    """The last step that carried coefficients, how many did, and what is known of the squares of blocks' changes."""

    previous: FerretStep | None = None
    done: int = 0
    squares: Squares = field(default_factory=Squares)
