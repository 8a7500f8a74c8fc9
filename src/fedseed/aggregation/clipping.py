"""Rules that clip: the norm bound, and centred clipping, whose memory helps against many small lies
in a row.

Centred clipping: Karimireddy, He, Jaggi: "Learning from History for Byzantine Robust Optimization",
ICML 2021, Algorithm 2 and Eq. (CC):

    v <- v + (1 / n) sum_i (x_i - v) min(1, tau / |x_i - v|)       L times, from v = m of the round
    before
    m <- beta m + (1 - beta) v                                     the outcome

The paper's clients keep momenta of their own and send them. Here only the coordinator remembers
anything: without clipping, m is the average of the clients' momenta.
"""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from fedseed.aggregation.base import Vector
from fedseed.aggregation.geometry import Matrix, clipping, distances_to, lengths
from fedseed.aggregation.robust import Geometric


class NormBound(Geometric):
    """Norm thresholding; every client counts the same.

        (1 / n) sum_i x_i min(1, M / |x_i|)

    Sun, Kairouz, Suresh, McMahan: "Can You Really Backdoor Federated Learning?", 2019, Section 4. A
    liar moves the outcome by M / n at most, in any direction: the rule bounds what a lie does and
    removes none.

    Besides the arguments of `Robust`:

    Args:
        bound: M; "median": the median length of the round's vectors.
    """

    name: Literal["norm-bound"] = "norm-bound"
    about: ClassVar[str] = (
        "the mean of vectors clipped to a length; bounds what a liar does, finds none"
    )

    bound: PositiveFloat | Literal["median"] = "median"

    def coefficients(self, gram: Matrix, past: bool) -> Vector:
        norms = lengths(gram)
        return clipping(norms, self.bound) / len(norms)


class CentredClipping(Geometric):
    """Centred clipping; every client counts the same.

    The coordinator remembers the last round's outcome and keeps it in the run's folder, so that a
    resumed run goes on with it. Whoever has the orbit alone has the model, but would go on from
    zero. Where directions are new in every round, the last outcome says nothing about this one, so
    the rule begins with zero each time.

    Besides the arguments of `Robust`:

    Args:
        radius: tau, how far a vector may be from the centre; "median": the median distance of the
            round's vectors.
        iterations: L, how often it clips and moves the centre.
        momentum: beta, how much of the last outcome stays; for methods whose directions are the
            same in every round.
    """

    name: Literal["centred-clipping"] = "centred-clipping"
    about: ClassVar[str] = (
        "clips how far each vector is from the last outcome, which it remembers; momentum"
    )
    remembers: ClassVar[bool] = True

    radius: PositiveFloat | Literal["median"] = "median"
    iterations: PositiveInt = 1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @property
    def needs_past(self) -> str | None:
        if self.momentum:
            return f"momentum = {self.momentum:g}"
        return None

    def coefficients(self, gram: Matrix, past: bool) -> Vector:
        n = len(gram) - past
        centre = np.zeros(len(gram))
        if past:
            centre[n] = 1.0
        coefficients = centre.copy()
        for _ in range(self.iterations):
            scales = clipping(distances_to(gram, coefficients)[:n], self.radius) / n
            coefficients = (1.0 - scales.sum()) * coefficients
            coefficients[:n] += scales
        return self.momentum * centre + (1.0 - self.momentum) * coefficients
