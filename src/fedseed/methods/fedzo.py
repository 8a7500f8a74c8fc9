"""FedZO: zeroth-order local steps, dense averaging.

Fang, Yu, Jiang, Shi, Jones, Zhou: "Communication-Efficient Stochastic Zeroth-Order Optimization for Federated
Learning", 2022, as Ferret and FedKSeed compare with it:

    g    = (1 / b2) sum_j rho_j z_j,  rho_j = [l(w + eps z_j; X) - l(w; X)] / eps,  X of b1 examples
    w   <- w - eta g, T times; then FedAvg's average
"""

from typing import ClassVar, Literal

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from fedseed.errors import NonFiniteError
from fedseed.methods.base import Client, Nothing, Weighting
from fedseed.methods.fedavg import Averaged, FedAvgState, Weights
from fedseed.methods.zeroth import ZerothOrder
from fedseed.randomness import Domain, derive


class FedZO(Averaged, ZerothOrder):
    """FedZO's settings.

    Args (besides those of `ZerothOrder` and `Averaged`):
        steps: T, local steps a round.
        batch: b1, examples of an estimate.
        estimates: b2, directions of a step.
        estimator: "one-point" (as published) or "two-point" (then this is FedMeZO as FedKSeed names it).
    """

    name: Literal["fedzo"] = "fedzo"
    code: ClassVar[int] = 7
    about: ClassVar[str] = "zeroth-order local steps, weights sent and averaged"
    trains_in_place: ClassVar[bool] = True

    steps: PositiveInt = 200
    estimates: PositiveInt = 1
    estimator: Literal["one-point", "two-point"] = "one-point"
    rate: PositiveFloat = 1e-6
    batch: PositiveInt = 1
    weighting: Weighting = "examples"
    small_steps: Literal["nearest", "stochastic"] = "nearest"

    def train(self, state: FedAvgState, plan: Nothing, client: Client) -> Weights:
        """T steps along directions of the client's own seed, then the weights."""
        from fedseed.weights.space import Term

        seed = derive(state.seed, Domain.CLIENT_SEED, client.round, client.number)
        basis = self.directions(seed)
        estimate = self.one_point if self.estimator == "one-point" else self.two_point
        reason = ""
        moved = 0
        for t, items in zip(range(self.steps), client.batches(self.batch), strict=False):
            first = t * self.estimates
            try:
                rho = [estimate(client, basis, first + j, items) / self.estimates for j in range(self.estimates)]
            except NonFiniteError as error:
                reason = str(error)
                client.skip(reason)
                continue
            rounding = (seed, t) if self.small_steps == "stochastic" else None
            terms = [Term(basis, np.array(rho, dtype=np.float32), first)]
            client.space.add_terms(terms, scale=-self.rate, rounding=rounding)
            moved += 1
        if not moved:
            raise NonFiniteError(f"no local step was usable: {reason}")
        return Weights(client.space.dense())
