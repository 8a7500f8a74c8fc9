"""FedZO: zeroth-order local steps, dense averaging.

Fang, Yu, Jiang, Shi, Jones, Zhou: "Communication-Efficient Stochastic Zeroth-Order Optimization for Federated
Learning", 2022, as Ferret and FedKSeed compare with it:

    g    = (1 / b2) sum_j rho_j z_j,  rho_j = [l(w + eps z_j; X) - l(w; X)] / eps,  X of b1 examples
    w   <- w - eta g, T times; then FedAvg's average
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from fedseed.methods.client import Client
from fedseed.methods.dense import DenseState, Weights
from fedseed.methods.fedavg import Averaged
from fedseed.methods.payload import Nothing
from fedseed.methods.zeroth import ZerothOrder
from fedseed.randomness import Domain, derive
from fedseed.weights.change import Add, Term


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

    steps: PositiveInt = 200
    estimates: PositiveInt = 1
    estimator: Literal["one-point", "two-point"] = "one-point"
    learning_rate: PositiveFloat = 1e-6
    batch: PositiveInt = 1
    weighting: Literal["equal", "examples"] = "examples"
    small_steps: Literal["nearest", "stochastic"] = "nearest"

    def train(self, state: DenseState, plan: Nothing, client: Client) -> Weights:
        """T steps along directions of the client's own seed, then the weights."""
        seed = derive(state.seed, Domain.CLIENT_SEED, client.round, client.number)
        basis = self.directions(seed)

        def gradient(t: int, items: Sequence[Any]) -> Term:
            """g."""
            first = t * self.estimates
            along = range(first, first + self.estimates)
            if self.estimator == "two-point":
                found = self.two_points(client, basis, along, items)
            elif self.normalize == "none":
                found = [self.one_point(client, basis, k, items) for k in along]
            else:  # one population
                found = self.one_points(client, basis, along, items)
            return Term(basis, np.array([one.rho / self.estimates for one in found], dtype=np.float32), first)

        for t, g in self.local_steps(client, range(self.steps), gradient):
            client.apply(Add([g], -self.rate(client.round), self.rounding(seed, t)))
        return Weights(client.weights())
