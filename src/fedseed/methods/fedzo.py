"""FedZO: zeroth-order local steps, averaged weights.

Fang, Yu, Jiang, Shi, Jones, Zhou: "Communication-Efficient Stochastic Zeroth-Order Optimization for
Federated Learning", 2022, in the form that Ferret and FedKSeed compare with:

    g    = (1 / b2) sum_j rho_j z_j,  rho_j = [l(w + eps z_j; X) - l(w; X)] / eps,  X of b1 examples
    w   <- w - eta g, T times; then FedAvg's average
"""

from typing import ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt

from fedseed.methods.dense import DenseState, Weights
from fedseed.methods.fedavg import Averaged
from fedseed.methods.payload import Nothing
from fedseed.methods.zeroth import Population, mixing_shares
from fedseed.training.protocol import Client
from fedseed.weights.change import Term


class FedZO(Averaged, Population):
    """FedZO's settings.

    Besides the arguments of `Population` and `Averaged`:

    Args:
        steps: T, the number of local steps in a round.
        batch: b1, the number of examples for an estimate.
        estimates: b2, the number of directions in a step; with a population of n, b2 n directions.
        estimator: "one-point" (as published) or "two-point" (which is FedKSeed's version of
            FedMeZO).
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
        """Take T steps along directions from the client's own seed, and send the weights."""
        seed = state.client_seed(client.round, client.number)
        basis, count = self.directions(seed), self.estimates * self.population
        draws = [range(t * count, (t + 1) * count) for t in range(self.steps)]
        for along, projections in self.local_steps(
            client, basis, draws, self.estimator == "one-point"
        ):
            g = Term(basis, mixing_shares(projections), along[0])
            client.apply(self.local_step([g], client.round, seed, along[0] // count))
        return Weights(client.weights())
