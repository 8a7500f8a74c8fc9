"""What an aggregation rule is: settings, and a function from the clients' vectors to one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

Vector = NDArray[np.float64]
Weighting = Literal["equal", "examples"]  # what a client's weight c_i is in proportion to
Part = Sequence[NDArray[np.floating[Any]]]  # the same entries of each client's vector


class Parts(Iterable[Part]):
    """Clients' vectors, too long to be held side by side, a part after the other; they can be gone through again.

    Args:
        make: begins anew.
    """

    def __init__(self, make: Callable[[], Iterator[Part]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Part]:
        return self._make()


@dataclass
class Past:
    """What a rule may know besides a round's vectors.

    Args:
        seed: the run's, which with the round decides what a rule draws.
        round: the round's number.
        outcome: what the last round with an outcome came to, part by part, if the rule remembers it; None: nothing.
        next: the same of this round, once the rule has combined it.
    """

    seed: int = 0
    round: int = 0
    outcome: Sequence[NDArray[np.floating[Any]]] | None = None
    next: list[NDArray[np.float32]] = field(default_factory=list)


class AggregationRule(BaseModel, ABC):
    """Settings of one rule. Subclasses stand in a file each, and their names in a recipe's `[aggregation]`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    about: ClassVar[str]  # one line for `fedseed list aggregation`
    compares: ClassVar[bool] = True  # whether it compares clients' entries: they must mean the same then
    linear: ClassVar[bool] = False  # whether it is sum_i c_i v_i: whoever knows that sum alone can follow it
    remembers: ClassVar[bool] = False  # whether it goes on from the last round's outcome (`Past`)

    @property
    def least(self) -> int:
        """How many clients must answer, so that the rule can do what it promises."""
        return 1

    def shortage(self, answers: int) -> str | None:
        """Why so many answers are too few; None: they are enough."""
        if answers >= self.least:
            return None
        said = "".join(f", {key} = {value}" for key, value in self.model_dump(exclude_defaults=True).items())
        return f'aggregation.name = "{self.name}"{said} needs {self.least} answers, and there are {answers}'

    @property
    def geometric(self) -> bool:
        """Whether it looks at lengths and distances of whole vectors: of weights, then, how far they have moved."""
        return False

    @property
    def needs_past(self) -> str | None:
        """The setting that needs entries to mean the same in every round; None: there is none."""
        return None

    @abstractmethod
    def combine(self, vectors: Sequence[NDArray[np.float64]], weights: Sequence[float]) -> Vector:
        """One vector from the clients'.

        Args:
            vectors: one of each client, 1-D and equally long, in ascending order of clients; at least one.
            weights: c_i of each client; they add up to 1.

        Raises:
            ValueError: there is no vector, or they do not fit together.
        """

    def combine_parts(self, parts: Iterable[Part], weights: Sequence[float], past: Past) -> Iterator[Vector]:
        """The same of long vectors, part by part; here each part is combined on its own.

        Args:
            parts: the same entries of each client's vector; gone through as often as need be.
            weights: c_i of each client.
            past: what else is known, and where a rule that remembers leaves its outcome.
        """
        for part in parts:
            yield self.combine([np.asarray(vector, dtype=np.float64) for vector in part], weights)


def spread(
    length: int, indices: Sequence[NDArray[np.integer[Any]]], values: Sequence[NDArray[np.floating[Any]]]
) -> list[Vector]:
    """Sparse vectors as dense ones; an index that comes twice counts twice.

    Args:
        length: of the vectors.
        indices: of each client, where its entries are.
        values: of each client, its entries, as many.
    """
    dense = []
    for where, what in zip(indices, values, strict=True):
        vector = np.zeros(length)
        np.add.at(vector, where, what.astype(np.float64))
        dense.append(vector)
    return dense


def check_vectors(vectors: Part, weights: Sequence[float]) -> None:
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


def client_weights(
    weighting: Literal["equal", "examples", "terms"], examples: Sequence[int], terms: Sequence[int]
) -> list[float]:
    """The weights of those that answered; they add up to 1. Where all claims are 0 they are equal.

    Args:
        weighting: "equal", or in proportion to "examples" or to the "terms" of the loss.
        examples: how many training examples each client says it has.
        terms: how many terms (response tokens, or examples) the loss of each client's update is a mean of; only looked
            at for "terms".
    """
    return shares(claims(weighting, examples, terms))


def shares(counts: Sequence[int]) -> list[float]:
    """What each has of the sum of all; the same where all are 0."""
    total = sum(counts)
    return [count / total if total else 1 / len(counts) for count in counts]


def claims(
    weighting: Literal["equal", "examples", "terms"], examples: Sequence[int], terms: Sequence[int]
) -> Sequence[int]:
    """What clients say that their weights are in proportion to; 1 each where they weigh the same."""
    return {"equal": [1] * len(examples), "examples": examples, "terms": terms}[weighting]
