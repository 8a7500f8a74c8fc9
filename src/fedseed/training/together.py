"""Lets clients of one process share forward passes that each could make alone: a simulation's short
cut.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedseed.errors import NonFiniteError
from fedseed.randomness import Basis
from fedseed.training.client import LocalClient, part_losses

# n parts of each batch at w + scale * direction(along[j]), as (basis, along, scale)
Look = tuple[Basis, tuple[int, ...], float]


class PassLosses(NamedTuple):
    """What one forward pass over all clients' batches found."""

    # the mean losses of each client's parts, in order; 0 for one without examples
    losses: Sequence[Sequence[float]]
    seconds: float  # what it took


class SharedLosses:
    """Clients that all look at the same perturbed weights: one forward pass over all their batches
    serves them all.

    A simulation's short cut. A client's loss is the mean over its own examples of the batch of all,
    so votes and projections are what the client alone would find, up to the float noise of another
    batch size. With a population, part j of every client's batch is at the weights of direction j,
    all parts of all clients in one pass.

    Several processes may share the passes: each makes those of its part and leaves the others out
    (`passes` then has losses, and nothing else here means anything), and one of them goes through
    the round with all that was `known`.

    Args:
        clients: the clients of one round, none of which trains in place.
        known: passes that were made elsewhere.
        part: make only passes whose number, in the order in which they are first asked for, is this
            modulo `parts`.
        parts: how many processes share the passes.
    """

    def __init__(
        self,
        clients: Sequence[LocalClient],
        known_passes: Mapping[Look, PassLosses] | None = None,
        part: int = 0,
        parts: int = 1,
    ) -> None:
        self.members = [SharingLosses(client, self, index) for index, client in enumerate(clients)]
        self.passes: dict[Look, PassLosses] = {}  # by the passes made here
        self._known = known_passes or {}
        self._part = part, parts
        self._batches: list[list[Any]] = []
        self._size = 0
        self._losses: dict[Look, Sequence[Sequence[float]]] = {}

    def draw(self, number: int, size: int) -> list[Any]:
        """Return the batch of member `number`; draws all members' batches at the first call."""
        if not self._batches:
            self._size = size
            self._batches = [
                next(LocalClient.batches(m, size)) if m.items else [] for m in self.members
            ]
        if size != self._size:
            raise ValueError("clients that share losses draw one batch of one size a round")
        if not self._batches[number]:
            raise NonFiniteError("no usable example")
        return self._batches[number]

    def losses(
        self, number: int, basis: Basis, along: Sequence[int], scale: float
    ) -> Sequence[float]:
        """Return the losses of the parts of member `number`'s batch, part j at w + scale *
        direction(along[j]).
        """
        look = basis, tuple(along), scale
        if look not in self._losses:
            part, parts = self._part
            mine = len(self._losses) % parts == part  # else another process makes it
            if mine:
                self._losses[look] = self._pass(look)
            else:
                self._losses[look] = [[0.0] * len(along)] * len(self.members)
        return self._losses[look][number]

    def _pass(self, look: Look) -> Sequence[Sequence[float]]:
        """Return the losses of one pass, made here or known; its cost is the first member's."""
        first, known_pass = self.members[0], self._known.get(look)
        if known_pass is None:
            start = time.perf_counter()
            losses = part_losses(first.space, first.objective, self._batches, *look)
            known_pass = self.passes[look] = PassLosses(losses, time.perf_counter() - start)
        first.cost.seconds["local"] = first.cost.seconds.get("local", 0.0) + known_pass.seconds
        first.cost.forward_passes += 1
        return known_pass.losses


class SharingLosses(LocalClient):
    """A client of `SharedLosses`, as a method sees it: its losses come from the shared pass."""

    def __init__(self, client: LocalClient, together: SharedLosses, index: int) -> None:
        super().__init__(
            client.space,
            client.objective,
            client.items,
            client.seed,
            client.round,
            client.number,
            client.memory,
            client.cost,
        )
        self._together = together
        self._index = index

    def batches(self, size: int) -> Iterator[list[Any]]:
        yield self._together.draw(self._index, size)

    def population_losses(
        self, basis: Basis, along: Sequence[int], scale: float, items: Sequence[Any]
    ) -> list[float]:
        losses = list(self._together.losses(self._index, basis, along, scale))
        if scale:
            self.cost.losses += losses
        return losses
