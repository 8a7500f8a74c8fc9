"""Updates that a step adds up over the clients: as vectors of one length, whose sum can stand for all of them."""

from dataclasses import fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import MessageError
from fedseed.methods.payload import LARGEST, About, Array, Bits, Payload, codecs
from fedseed.methods.sizes import largest

Vector = NDArray[np.float64]


class Measured(Payload):
    """What holds estimates along directions, in `scalars`."""

    projections: ClassVar[bool] = True
    scalars: Any

    @classmethod
    def factors(cls, about: About) -> tuple[float, float]:
        """What an estimate is multiplied by before it is sent: usually, and at most."""
        return 1.0, 1.0

    def check(self, about: About) -> None:
        """Refuse estimates of a client that no loss can have given, so that one client can't destroy the model."""
        if about.kind == "update" and len(self.scalars):
            rho = self.scalars / np.float64(self.factors(about)[1])
            at = int(np.abs(rho).argmax())
            if abs(rho[at]) > LARGEST:
                raise MessageError(f"scalar {at} is {rho[at]:.3g}: at most {LARGEST:.0e} is accepted")

    def size(self, about: About) -> float:
        return largest(self.scalars / np.float64(self.factors(about)[0]))


class Summand(Payload):
    """An update whose last field is the vector, unless it says otherwise.

    `counted`: whole numbers that add up as they are, without weights: votes.
    """

    counted: ClassVar[bool] = False

    @classmethod
    def words(cls, about: About) -> int:
        """The length of the vector: the same for every client of a round, whatever its data is."""
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
        """Others in the last field; where it has signs, those of the numbers, and its own where one is 0."""
        name, own = fields(self)[-1].name, self.numbers(about)  # type: ignore[arg-type]
        if own.dtype == np.int8:
            numbers = np.where(numbers == 0, own, np.sign(numbers))
        return replace(self, **{name: numbers.astype(own.dtype)})  # type: ignore[type-var]

    def with_vector(self, vector: NDArray[Any], about: About) -> Self:
        return self.with_numbers(vector, about)

    @classmethod
    def of(cls, vector: Vector, about: About) -> Self:
        """What stands for all clients in `aggregate`, alone and with a weight of 1.

        Args:
            vector: sum_i c_i v_i with the weights c_i; of votes sum_i v_i.
            about: the round.
        """
        values: dict[str, Any] = {fields(cls)[-1].name: vector}  # type: ignore[arg-type]
        return cls(**values)


class Scalars(Measured, Summand):
    """Estimates that a step adds up over the clients."""


def filled(values: Vector, count: int) -> Vector:
    """The values and zeros behind them, so many together."""
    return np.concatenate([values, np.zeros(count - len(values))])
