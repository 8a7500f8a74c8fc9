"""Centred clipping: what differs from the last round's outcome is clipped; many small lies in a row are remembered.

Karimireddy, He, Jaggi: "Learning from History for Byzantine Robust Optimization", ICML 2021, Algorithm 2 and Eq. (CC):

    v <- v + (1 / n) sum_i (x_i - v) min(1, tau / |x_i - v|)       L times, from v = m of the round before
    m <- beta m + (1 - beta) v                                     the outcome

The paper's clients keep momenta of their own and send them. Here nobody but the coordinator remembers anything: without
clipping m is the average of the clients' momenta.
"""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from fedseed.aggregation.base import Vector
from fedseed.aggregation.geometry import Matrix, distances_to
from fedseed.aggregation.norm_bound import clipping
from fedseed.aggregation.robust import Geometric


class CentredClipping(Geometric):
    """Centred clipping; every client counts the same.

    What it remembers is the last round's outcome, at the coordinator. It is kept in the run's folder, so that a resumed
    run goes on with it; whoever has the orbit alone has the model, and would go on from zero. Where directions are new
    in every round, the last outcome says nothing about this one: there it begins with zero each time.

    Args (besides those of `Robust`):
        radius: tau, how far a vector may be from the centre; "median": the median distance of the round's vectors.
        iterations: L, how often it clips and moves the centre.
        momentum: beta, how much of the last outcome stays; for methods whose directions are the same in every round.
    """

    name: Literal["centred-clipping"] = "centred-clipping"
    about: ClassVar[str] = "clips how far each vector is from the last outcome, which it remembers; momentum"
    remembers: ClassVar[bool] = True

    radius: PositiveFloat | Literal["median"] = "median"
    iterations: PositiveInt = 1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @property
    def needs_past(self) -> str | None:
        return f"momentum = {self.momentum:g}" if self.momentum else None

    def coefficients(self, gram: Matrix, past: bool) -> Vector:
        n = len(gram) - past
        centre = np.zeros(len(gram))
        if past:
            centre[n] = 1.0
        found = centre.copy()
        for _ in range(self.iterations):
            far = distances_to(gram, found)[:n]
            each = clipping(far, float(np.median(far)) if self.radius == "median" else self.radius) / n
            found = (1.0 - each.sum()) * found
            found[:n] += each
        return self.momentum * centre + (1.0 - self.momentum) * found
