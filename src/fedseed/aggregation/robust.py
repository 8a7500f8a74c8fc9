"""The common part of robust rules: the number of possible liars, the steps before the rule, and
vectors of any length.

All of them count every client the same, since nobody can check how many examples a client has.

    G = X X^T                    where the clients' vectors are the rows of X; lengths and distances
    follow from it
    M                            the matrix of the steps before the rule (`before`), which sees M
    X and M G M^T
    outcome = f(M X)             entry by entry ("entrywise" rules), or
    outcome = a^T M X            with coefficients a that follow from M G M^T

As G is n x n, a vector is gone through twice at most, some columns at a time, however long it is.
Sums are taken in double precision, in BLAS' order, so that a coordinator on another machine may
get other last bits. Nobody else computes them: everybody reads the step that the coordinator sends.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from fedseed.aggregation.base import (
    AggregationRule,
    Part,
    Parts,
    Past,
    Vector,
    check_vectors,
    pad_vectors,
)
from fedseed.aggregation.geometry import (
    Matrix,
    adaptive_clipping,
    apply_mixing,
    buckets,
    columns,
    gram_of,
    mix_gram,
    nearest_neighbours,
    with_rounding,
)

Before = Literal["nearest-neighbours", "bucketing", "arc"]


class Outcome(NamedTuple):
    """Two functions of some entries of all vectors, (n, m)."""

    values: Callable[[Matrix], Vector]  # the outcome's entries
    # the magnitudes of the terms that each is a sum of, for its rounding
    magnitudes: Callable[[Matrix], Vector]


class Robust(AggregationRule):
    """Holds the settings that all robust rules have. A rule is `Entrywise` or `Geometric`.

    Args:
        liars: f, how many clients may lie. A round needs more than twice as many answers, with
            "bucketing" more still.
        before: what is done to the clients' vectors first, in this order: "nearest-neighbours"
            (each becomes the mean of the n - f nearest to it), "bucketing" (means of a few, drawn
            by seed and round), "arc" (the longest are clipped).
        bucket: s, of how many vectors "bucketing" makes one.
    """

    liars: NonNegativeInt = 0
    before: list[Before] = Field(default_factory=list)
    bucket: PositiveInt = 2

    @model_validator(mode="after")
    def _liars_are_known(self) -> "Robust":
        unknown = [step for step in self.before if step != "bucketing"]
        if unknown and not self.liars:
            raise ValueError(
                f'before = ["{unknown[0]}"] needs liars: how many clients may lie, at least 1'
            )
        return self

    @property
    def fewest(self) -> int:
        """Return the number of vectors that the rule needs: more than twice that of liars."""
        return 2 * self.liars + 1

    @property
    def least(self) -> int:
        """Return the number of answers that a round needs.

        "bucketing" leaves n / s vectors, and a liar may spoil a bucket.
        """
        least = self.fewest
        for step in reversed(self.before):
            if step == "bucketing":
                least = (least - 1) * self.bucket + 1
            else:
                least = max(least, 2 * self.liars + 1)
        return least

    @property
    def geometric(self) -> bool:
        return any(step != "bucketing" for step in self.before)

    @abstractmethod
    def _outcome(self, gram: Matrix | None, mixing: Matrix, past: bool) -> Outcome:
        """Return the combination that makes the outcome's entries from those of all vectors.

        With `past` the last vector is the last round's outcome. The products are None if the rule
        needs none.
        """

    def combine(self, vectors: Sequence[NDArray[np.float64]], weights: Sequence[float]) -> Vector:
        check_vectors(vectors, weights)
        (outcome,) = self.combine_parts([vectors], weights, Past())
        return outcome

    def combine_parts(
        self, parts: Iterable[Part], weights: Sequence[float], past: Past
    ) -> Iterator[Vector]:
        """Yield the outcome.

        Goes through the vectors once for lengths and distances, and once for the outcome.
        """
        n, past_outcome = len(weights), past.outcome if self.remembers else None
        problem = self.shortage(n)
        if problem:
            raise ValueError(problem)
        with_past = parts
        # add the past outcome to the vectors; fill up shorter ones with zeros
        if past_outcome is not None:
            with_past = Parts(
                lambda: (
                    pad_vectors((*part, last))
                    for part, last in zip(parts, past_outcome, strict=True)
                )
            )
        gram = gram_of(with_past, n + (past_outcome is not None)) if self.geometric else None
        noise = past.noise
        if gram is not None and noise is not None and noise.seed is not None:
            gram = with_rounding(gram, noise.seed)
        mixing = self._mixing(gram, n, past)
        outcome_of = self._outcome(gram, mixing, past_outcome is not None)
        past.next = []
        for part in with_past:
            outcome, position = np.empty(len(part[0])), 0
            for points in columns(part):
                entries = outcome_of.values(points)
                if noise is not None:
                    entries = entries + noise.offset * outcome_of.magnitudes(points)
                outcome[position : position + len(entries)] = entries
                position += len(entries)
            if self.remembers:
                past.next.append(outcome.astype(np.float32))
            yield outcome

    def _mixing(self, gram: Matrix | None, n: int, past: Past) -> Matrix:
        """Return M, (n', n), the product of all that is done before the rule."""
        total = np.eye(n)
        for step in self.before:
            if step == "bucketing":
                step_matrix = buckets(len(total), self.bucket, past.seed, past.round)
            else:
                assert gram is not None
                step_of = nearest_neighbours if step == "nearest-neighbours" else adaptive_clipping
                step_matrix = step_of(mix_gram(total, gram[:n, :n]), self.liars)
            total = step_matrix @ total
        return total


class Entrywise(Robust):
    """A rule that looks at each entry alone."""

    @abstractmethod
    def entries(self, points: Matrix) -> Vector:
        """Return the outcome's entries from the vectors', (n, m)."""

    def _outcome(self, gram: Matrix | None, mixing: Matrix, past: bool) -> Outcome:
        def magnitudes(points: Matrix) -> Vector:
            # sums of whole numbers that nothing was done to are exact
            if not self.before and np.array_equal(points, np.rint(points)):
                return np.zeros(points.shape[1])
            return self.entries(apply_mixing(np.abs(mixing), np.abs(points)))

        return Outcome(lambda points: self.entries(apply_mixing(mixing, points)), magnitudes)


class Geometric(Robust):
    """A rule whose outcome is a sum of the vectors, with coefficients that follow from lengths and
    distances.
    """

    @property
    def geometric(self) -> bool:
        return True

    @abstractmethod
    def coefficients(self, gram: Matrix, past: bool) -> Vector:
        """Return the factor of each vector in the outcome.

        Args:
            gram: all products of two vectors, (n, n); with `past` the last vector is the last
                round's outcome.
            past: whether the last vector is the last round's outcome.
        """

    def _outcome(self, gram: Matrix | None, mixing: Matrix, past: bool) -> Outcome:
        assert gram is not None
        whole = np.pad(mixing, (0, int(past)))
        if past:  # the last outcome stays as it is
            whole[-1, -1] = 1.0
        shares = self.coefficients(mix_gram(whole, gram), past) @ whole
        return Outcome(
            lambda points: shares @ points, lambda points: np.abs(shares) @ np.abs(points)
        )
