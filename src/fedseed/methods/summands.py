"""Updates that a step adds up over the clients as vectors of one length, whose sum can stand for all of them.

This module also measures how large updates and steps are, to compare them with others (`Payload.size`). NumPy only.

    projections         the largest |rho|; below 1 they all count as 1, as chance can make them as small as any number
    coefficients        the root of the mean square that the weights are moved by, in expectation
    whole weights       the same, from the weights that the coordinator holds
    entries             the root of the mean square that the weights are moved by
    gradients           the root of the mean square of their entries; a norm below 1 counts as 1

Floors keep what is almost zero, such as the rest of a change after 16-bit rounding, from making others look large.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from math import sqrt
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import MessageError
from fedseed.methods.payload import LARGEST, About, Array, Bits, Payload, codecs
from fedseed.randomness import Basis
from fedseed.weights.layout import Layout

SMALLEST_MOVE = 1e-6  # smaller moves count as this one


def largest(scalars: NDArray[Any]) -> float:
    """Returns the size of projections: the largest magnitude, at least 1; 0 if there is none."""
    return max(1.0, float(np.abs(scalars).max())) if len(scalars) else 0.0


def moved(basis: Basis, layout: Layout, parts: Sequence[Sequence[NDArray[np.float32]]]) -> float:
    """Returns the size of coefficients: sqrt(E |V gamma|^2 / d), as directions are nearly orthogonal; 0 without any.

    Args:
        basis: the directions' basis.
        layout: the parameter space.
        parts: gamma_l of each block, for each seed.
    """
    if not parts:
        return 0.0
    square = 0.0
    rho = [basis.variance(size) * size for size in layout.block_sizes]
    for gammas in parts:
        doubles = (gamma.astype(np.float64) for gamma in gammas)
        square += sum(weight * float(np.dot(gamma, gamma)) for weight, gamma in zip(rho, doubles, strict=True))
    return max(SMALLEST_MOVE, sqrt(square / layout.size))


def of_entries(layout: Layout, values: NDArray[np.floating[Any]]) -> float:
    """Returns the size of values for single entries: sqrt(|v|^2 / d); 0 if there are none."""
    if not len(values):
        return 0.0
    return max(SMALLEST_MOVE, sqrt(float(np.square(values, dtype=np.float64).sum()) / layout.size))


Vector = NDArray[np.float64]


class Measured(Payload):
    """A payload that holds estimates along directions, in `scalars`."""

    projections: ClassVar[bool] = True
    scalars: Any

    @classmethod
    def factors(cls, about: About) -> tuple[float, float]:
        """Returns what an estimate is multiplied by before it is sent: usually, and at most."""
        return 1.0, 1.0

    def check(self, about: About) -> None:
        """Raises MessageError if no loss can have given these estimates, so that no client can destroy the model."""
        if about.kind == "update" and len(self.scalars):
            rho = self.scalars / np.float64(self.factors(about)[1])
            at = int(np.abs(rho).argmax())
            if abs(rho[at]) > LARGEST:
                raise MessageError(f"scalar {at} is {rho[at]:.3g}: at most {LARGEST:.0e} is accepted")

    def size(self, about: About) -> float:
        return largest(self.scalars / np.float64(self.factors(about)[0]))


class Summand(Payload):
    """An update whose last field is the vector, unless it says otherwise.

    `counted` says that it holds whole numbers that add up as they are, without weights: votes.
    """

    counted: ClassVar[bool] = False

    @classmethod
    def words(cls, about: About) -> int:
        """Returns the vector's length, which is the same for every client of a round, whatever its data is."""
        codec = codecs(cls)[-1][1]
        if isinstance(codec, Bits):
            return int(about.lookup(codec.length))
        assert isinstance(codec, Array)
        each = codec.length if isinstance(codec.length, int) else about.lookup(codec.length) or 1
        return int(each) * codec.times(about)

    def vector(self, about: About) -> Vector:
        values = np.asarray(getattr(self, fields(self)[-1].name), dtype=np.float64)  # type: ignore[arg-type]
        return filled(values, self.words(about))

    def numbers(self, about: About) -> NDArray[Any]:
        return np.asarray(getattr(self, fields(self)[-1].name))  # type: ignore[arg-type]

    def with_numbers(self, numbers: NDArray[Any], about: About) -> Self:
        """Returns it with these numbers in the last field; where it has signs, with theirs, but its own for 0."""
        name, own = fields(self)[-1].name, self.numbers(about)  # type: ignore[arg-type]
        if own.dtype == np.int8:
            numbers = np.where(numbers == 0, own, np.sign(numbers))
        return replace(self, **{name: numbers.astype(own.dtype)})  # type: ignore[type-var]

    def with_vector(self, vector: NDArray[Any], about: About) -> Self:
        return self.with_numbers(vector, about)

    @classmethod
    def of(cls, vector: Vector, about: About) -> Self:
        """Returns the update that stands for all clients in `aggregate`, alone and with a weight of 1.

        Args:
            vector: sum_i c_i v_i with the weights c_i; of votes sum_i v_i.
            about: the round.
        """
        values: dict[str, Any] = {fields(cls)[-1].name: vector}  # type: ignore[arg-type]
        return cls(**values)


class Scalars(Measured, Summand):
    """Estimates that a step adds up over the clients."""


def filled(values: Vector, count: int) -> Vector:
    """Returns the values, followed by zeros up to `count` numbers."""
    return np.concatenate([values, np.zeros(count - len(values))])
