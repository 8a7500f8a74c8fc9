"""Updates that a step adds up over the clients: as vectors of one length, whose sum can stand for all of them."""

from dataclasses import fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedseed.methods.payload import About, Array, Bits, Payload, codecs

Vector = NDArray[np.float64]


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
        """The vector of this update, shape (words,); what is missing of it is zero."""
        values = np.asarray(getattr(self, fields(self)[-1].name), dtype=np.float64)  # type: ignore[arg-type]
        return filled(values, self.words(about))

    def numbers(self, about: About) -> NDArray[Any]:
        """Those of the last field."""
        return np.asarray(getattr(self, fields(self)[-1].name))  # type: ignore[arg-type]

    def with_numbers(self, numbers: NDArray[Any], about: About) -> Self:
        """Others in the last field."""
        name = fields(self)[-1].name  # type: ignore[arg-type]
        return replace(self, **{name: numbers.astype(self.numbers(about).dtype)})  # type: ignore[type-var]

    def with_vector(self, vector: NDArray[Any], about: About) -> Self:
        """With another vector, in the numbers that travel."""
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


def filled(values: Vector, count: int) -> Vector:
    """The values and zeros behind them, so many together."""
    return np.concatenate([values, np.zeros(count - len(values))])
