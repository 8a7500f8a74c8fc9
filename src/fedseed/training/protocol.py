"""The interface by which a method works with a client in training.

`fedseed.training.client.LocalClient` does it.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedseed.randomness import Basis
from fedseed.training.settings import Autocast, LocalTraining
from fedseed.weights.change import Change, Floats
from fedseed.weights.subspace import RandomSubspace


class Client(Protocol):
    """Stands for one client in one round.

    Whatever happens to the weights is undone when the round is over.
    """

    number: int
    round: int

    def batches(self, size: int) -> Iterator[list[Any]]:
        """Yield endless batches of the client's examples, each pass over them in an order of its
        own.

        (seed, round, client) decide it, no global generator does. Raises NonFiniteError if the
        client has no examples; so do all that draw batches.
        """

    def estimates(
        self,
        method: Any,
        basis: Basis,
        along: Sequence[int],
        items: Sequence[Any],
        one_sided: bool = False,
    ) -> list[Any]:
        """Return the estimates along some directions, as the method measures them
        (`ZerothOrder.measured`).
        """

    def example_losses(
        self, basis: Basis, k: int, scale: float, items: Sequence[Any]
    ) -> list[float]:
        """Return the mean loss over each item's own terms at w + scale * direction(k).

        Scale may be 0.
        """

    def population_losses(
        self, basis: Basis, along: Sequence[int], scale: float, items: Sequence[Any]
    ) -> list[float]:
        """Return the mean losses over all terms of n equal parts of `items`.

        One forward pass over all of them.

        Part j is evaluated at w + scale * direction(along[j]); n is the length of `along`, and
        scale may be 0.
        """

    def apply(self, change: Change) -> None:
        """Changes the weights, for a local step."""

    def skip(self, reason: str) -> None:
        """Count a local step that was not usable, and notes why."""

    def autocast(self, dtype: Autocast | None) -> AbstractContextManager[None]:
        """Lets forward passes inside the block compute in a 16-bit dtype where torch's autocast
        does; None: not.
        """

    def first_order(self, training: LocalTraining) -> None:
        """Train the weights in place. Raises NonFiniteError if a loss is not finite."""

    def train_factors(
        self, training: LocalTraining, subspace: RandomSubspace, interval: int | None = None
    ) -> list[Floats]:
        """Train B at W + B P, from zero, where P spans random subspaces; W stays as it is.

        Args:
            training: local training.
            subspace: the matrices P.
            interval: of several subspaces one is trained at a time, for so many steps; None: each
                of them once, for as many steps as the others.

        Returns:
            B of each tensor, in the shapes of `RandomSubspace.factor_shape`.

        Raises:
            NonFiniteError: a loss is not finite.
            ValueError: the model can't be trained so.
        """

    def gradient(self, batch: int | None, micro_batch: int) -> tuple[bytes, int]:
        """Return the gradient of a batch's mean loss as bytes, and how many terms that loss is the
        mean of.

        The batch is of so many examples, None: of all that the client has; `micro_batch` of them go
        through the model at a time. Raises NonFiniteError if the loss is not finite.
        """

    def project_gradients(
        self, training: LocalTraining, basis: Basis, counts: Sequence[int]
    ) -> list[Floats]:
        """Train with plain SGD, and return V^T (w_start - w_end), summed up gradient by gradient.

        Raises NonFiniteError if a loss is not finite.
        """

    def change_norms(self) -> NDArray[np.float64]:
        """Return |w_start - w_now| for each block."""

    def project_change(self, basis: Basis, counts: Sequence[int]) -> list[Floats]:
        """Return V^T (w_start - w_now), counts[l] directions for block l."""

    def difference(self) -> Floats:
        """Return w_start - w_now as one vector of length d, which the caller may change."""

    def weights(self) -> bytes:
        """Return all trainable tensors as they are, in order, in their own dtypes (rounded to them
        if need be).
        """

    def recall(self, size: int | None = None) -> Floats | None:
        """Return what it kept when it last took part in a round before this one, `size` numbers
        (default: d).

        None: nothing yet.
        """

    def keep(self, vector: Floats) -> None:
        """Keep a vector of length d for later rounds.

        The same round again keeps another in its place.
        """

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Count the time that is spent inside the block under this name."""
