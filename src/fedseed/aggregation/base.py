"""What an aggregation rule is: settings, and a function from the clients' vectors to one."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

Vector = NDArray[np.float64]


class AggregationRule(BaseModel, ABC):
    """Settings of one rule. Subclasses stand in a file each, and their names in a recipe's `[aggregation]`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    about: ClassVar[str]  # one line for `fedseed list aggregation`
    compares: ClassVar[bool] = True  # whether it compares clients' entries: they must mean the same then
    linear: ClassVar[bool] = False  # whether it is sum_i c_i v_i: whoever knows that sum alone can follow it

    @abstractmethod
    def combine(self, vectors: Sequence[NDArray[np.float64]], weights: Sequence[float]) -> Vector:
        """One vector from the clients'.

        Args:
            vectors: one of each client, 1-D and equally long, in ascending order of clients; at least one.
            weights: c_i of each client; they add up to 1.

        Raises:
            ValueError: there is no vector, or they do not fit together.
        """

    def accumulate(
        self,
        total: NDArray[np.floating[Any]],
        indices: Sequence[NDArray[np.integer[Any]]],
        values: Sequence[NDArray[np.floating[Any]]],
        weights: Sequence[float],
    ) -> Vector:
        """`total` and what `combine` makes of sparse vectors, which are zero but for some entries.

        Args:
            total: what is added to, 1-D; it is not changed.
            indices: of each client, where its entries are; an index that comes twice counts twice.
            values: of each client, its entries, as many.
            weights: c_i of each client.
        """
        if not values:
            return total.astype(np.float64)
        dense = []
        for where, what in zip(indices, values, strict=True):
            vector = np.zeros(len(total))
            np.add.at(vector, where, what.astype(np.float64))
            dense.append(vector)
        return total.astype(np.float64) + self.combine(dense, weights)


def check_vectors(vectors: Sequence[NDArray[np.float64]], weights: Sequence[float]) -> None:
    """Check what every rule needs.

    Raises:
        ValueError: no vector, vectors of different lengths, or not a weight for each.
    """
    if not vectors:
        raise ValueError("there is no vector to combine: nobody has answered")
    lengths = sorted({len(vector) for vector in vectors})
    if len(lengths) > 1:
        raise ValueError(f"vectors of different lengths can't be combined: {', '.join(map(str, lengths))}")
    if len(weights) != len(vectors):
        raise ValueError(f"{len(weights)} weights for {len(vectors)} vectors")
