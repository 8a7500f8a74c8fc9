"""Defines what an aggregation rule is: settings, and a function that makes one vector of the
clients'.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fedseed.hinting import Hinting

Vector = NDArray[np.float64]
# what a client's weight c_i is in proportion to
Weighting = Literal["equal", "examples"]
Part = Sequence[NDArray[np.floating[Any]]]  # the same entries of each client's vector


@dataclass(frozen=True)
class Parts(Iterable[Part]):
    """Long vectors of clients in parts. They can be iterated over repeatedly."""

    # returns an iterator over the parts, from the first on
    make: Callable[[], Iterator[Part]]

    def __iter__(self) -> Iterator[Part]:
        return self.make()


def pad_vectors(part: Part) -> Part:
    """Return vectors filled up with zeros to the length of the longest."""
    longest = max(map(len, part))
    return [np.pad(v, (0, longest - len(v))) if len(v) < longest else v for v in part]


@dataclass(frozen=True)
class Noise:
    """Rounding that is added to a round's sums on purpose.

    A verification adds it to compute results that another processor may have got.

    Args:
        offset: how far each entry of the outcome is moved, as a share of the magnitudes of the
            terms that it is a sum of; the sign says which way.
        seed: draws the rounding of the products of two vectors; None: they stay as they are.
    """

    offset: float
    seed: int | None = None


@dataclass
class Past:
    """Facts about a round that a rule may use besides its vectors."""

    # the run's seed, which with the round's number decides what a rule draws
    seed: int = 0
    round: int = 0
    # the outcome of the last round that had one, part by part, if the rule remembers it; else None
    outcome: Sequence[NDArray[np.floating[Any]]] | None = None
    # this round's outcome, which the rule leaves here if it remembers it
    next: list[NDArray[np.float32]] = field(default_factory=list)
    noise: Noise | None = None  # None: the outcome as this processor makes it


class AggregationRule(BaseModel, ABC, metaclass=Hinting):
    """The settings of a rule, named in `[aggregation]` of a recipe; subclasses combine vectors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    about: ClassVar[str]  # one line for `fedseed list aggregation`
    # whether it compares clients' entries, so that an entry must mean the same for all clients
    compares: ClassVar[bool] = True
    # whether it is sum_i c_i v_i, so that this sum alone is enough for it
    linear: ClassVar[bool] = False
    # whether it goes on from the last round's outcome (`Past`)
    remembers: ClassVar[bool] = False

    @property
    def least(self) -> int:
        """Return the number of answers that the rule needs to keep its promise."""
        return 1

    def shortage(self, answers: int) -> str | None:
        """Return the reason why a number of answers is too small; None if it is enough."""
        if answers >= self.least:
            return None
        settings = "".join(
            f", {key} = {value}" for key, value in self.model_dump(exclude_defaults=True).items()
        )
        return (
            f'aggregation.name = "{self.name}"{settings} needs {self.least} answers, and there are '
            f"{answers}"
        )

    @property
    def geometric(self) -> bool:
        """Return whether the rule uses vectors' lengths and distances.

        Whole weights then count by their moves.
        """
        return False

    @property
    def needs_past(self) -> str | None:
        """Return the setting that needs entries to mean the same in every round.

        None: there is none.
        """
        return None

    @abstractmethod
    def combine(self, vectors: Sequence[NDArray[np.float64]], weights: Sequence[float]) -> Vector:
        """Return one vector made of the clients'.

        Args:
            vectors: one of each client, 1-D and equally long, in ascending order of clients; at
                least one.
            weights: c_i of each client; they add up to 1.

        Raises:
            ValueError: there is no vector, or they do not fit together.
        """

    def combine_parts(
        self, parts: Iterable[Part], weights: Sequence[float], past: Past
    ) -> Iterator[Vector]:
        """Yield the result of `combine` part by part, for long vectors.

        By default each part is combined by itself.

        Args:
            parts: the same entries of each client's vector; gone through as often as the rule
                needs.
            weights: c_i of each client.
            past: further facts; a rule that remembers leaves its outcome there.
        """
        for part in parts:
            vectors = [np.asarray(vector, dtype=np.float64) for vector in part]
            outcome = self.combine(vectors, weights)
            if past.noise is not None:
                # it is not known which terms a third party's rule adds up
                outcome = outcome + past.noise.offset * np.mean(np.abs(vectors), axis=0)
            yield outcome


def check_vectors(vectors: Part, weights: Sequence[float]) -> None:
    """Check vectors and weights before they are combined.

    Raises:
        ValueError: there is no vector, lengths differ, or vectors and weights differ in number.
    """
    if not vectors:
        raise ValueError("there is no vector to combine: nobody has answered")
    lengths = sorted({len(vector) for vector in vectors})
    if len(lengths) > 1:
        raise ValueError(
            f"vectors of different lengths can't be combined: {', '.join(map(str, lengths))}"
        )
    if len(weights) != len(vectors):
        raise ValueError(f"{len(weights)} weights for {len(vectors)} vectors")


def shares(counts: Sequence[int]) -> list[float]:
    """Return weights in proportion to the clients' claims; they add up to 1.

    They are equal where all claims are 0.
    """
    total = sum(counts)
    return [count / total if total else 1 / len(counts) for count in counts]


def claims(
    weighting: Literal["equal", "examples", "terms"], examples: Sequence[int], terms: Sequence[int]
) -> Sequence[int]:
    """Return the numbers that clients' weights are in proportion to; 1 for equal weights.

    Args:
        weighting: "equal", or in proportion to "examples" or to the "terms" of the loss.
        examples: how many training examples each client says it has.
        terms: how many terms (response tokens, or examples) the loss of each client's update is a
            mean of.
    """
    return {"equal": [1] * len(examples), "examples": examples, "terms": terms}[weighting]
