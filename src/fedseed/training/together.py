"""Lets clients of one process compute together what each could compute alone: a simulation's short cuts."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from fedseed.aggregation.base import claims, shares
from fedseed.errors import NonFiniteError
from fedseed.randomness import Basis
from fedseed.training.client import LocalClient, part_losses

# n parts of each batch at w + scale * direction(along[j]), as (basis, along, scale)
Look = tuple[Basis, tuple[int, ...], float]


@dataclass(frozen=True)
class Seen:
    """The losses that one forward pass over all clients' batches found.

    Args:
        losses: the mean losses of each client's parts, in the order of the clients; 0 for one without examples.
        seconds: what it took.
    """

    losses: Sequence[Sequence[float]]
    seconds: float


class InAnothersMessage(Exception):  # noqa: N818 (no error: it says where the answer is)
    """A client's part is in the message of another client."""


class SharedLosses:
    """Clients that all look at the same perturbed weights: one forward pass over all their batches serves them all.

    A simulation's short cut. A client's loss is the mean over its own examples of the batch of all, so votes and
    projections are what the client alone would find, up to the float noise of another batch size. With a population,
    part j of every client's batch is at the weights of direction j, all parts of all clients in one pass.

    Several processes may share the passes: each makes those of its part and leaves the others out (`found` then has
    losses, and nothing else here means anything), and one of them goes through the round with all that was `known`.

    Args:
        clients: the clients of one round, none of which trains in place.
        known: passes that were made elsewhere.
        part: make only passes whose number, in the order in which they are first asked for, is this modulo `parts`.
        parts: how many processes share the passes.
    """

    def __init__(
        self, clients: Sequence[LocalClient], known: Mapping[Look, Seen] | None = None, part: int = 0, parts: int = 1
    ) -> None:
        self.members = [SharingLosses(client, self, index) for index, client in enumerate(clients)]
        self.found: dict[Look, Seen] = {}  # by the passes made here
        self._known = known or {}
        self._part = part, parts
        self._drawn: list[list[Any]] = []
        self._size = 0
        self._losses: dict[Look, Sequence[Sequence[float]]] = {}

    def draw(self, number: int, size: int) -> list[Any]:
        """Returns the batch of member `number`; draws all members' batches at the first call."""
        if not self._drawn:
            self._size = size
            self._drawn = [next(m.own.batches(size)) if m.own.items else [] for m in self.members]
        if size != self._size:
            raise ValueError("clients that share losses draw one batch of one size a round")
        if not self._drawn[number]:
            raise NonFiniteError("no usable example")
        return self._drawn[number]

    def losses(self, number: int, basis: Basis, along: Sequence[int], scale: float) -> Sequence[float]:
        """Returns the losses of the parts of member `number`'s batch, part j at w + scale * direction(along[j])."""
        look = basis, tuple(along), scale
        if look not in self._losses:
            part, parts = self._part
            if len(self._losses) % parts == part:
                self._losses[look] = self._seen(look).losses
            else:
                self._losses[look] = [[0.0] * len(along)] * len(self.members)  # another process' pass
        return self._losses[look][number]

    def _seen(self, look: Look) -> Seen:
        """Returns one pass, made here or known; its cost is the first member's."""
        cost = self.members[0].cost
        seen = self._known.get(look)
        if seen is None:
            start = time.perf_counter()
            first = self.members[0].own
            losses = part_losses(first.space, first.objective, self._drawn, *look)
            seen = self.found[look] = Seen(losses, time.perf_counter() - start)
        cost.seconds["local"] = cost.seconds.get("local", 0.0) + seen.seconds
        cost.forward_passes += 1
        return seen


class _Sharing(LocalClient):
    """A client as a method sees it, which shares what it computes."""

    def __init__(self, own: LocalClient) -> None:
        super().__init__(own.space, own.objective, own.items, own.seed, own.round, own.number, own.memory, own.cost)
        self.own = own


class SharingLosses(_Sharing):
    """A client of `SharedLosses`, as a method sees it: its losses come from the shared pass."""

    def __init__(self, own: LocalClient, together: SharedLosses, index: int) -> None:
        super().__init__(own)
        self._together = together
        self._index = index

    def batches(self, size: int) -> Iterator[list[Any]]:
        yield self._together.draw(self._index, size)

    def perturbed_loss(self, basis: Basis, k: int, scale: float, items: Sequence[Any]) -> float:
        self.cost.losses += self._together.losses(self._index, basis, (k,), scale)
        return self.cost.losses[-1]

    def population_losses(self, basis: Basis, along: Sequence[int], scale: float, items: Sequence[Any]) -> list[float]:
        found = list(self._together.losses(self._index, basis, along, scale))
        self.cost.losses += found if scale else []
        return found


class SharedGradients:
    """Clients whose gradients are added up where backward puts them: the memory of one, however many they are.

    The first that has a finite loss sends sum_i c_i g_i over all that have one; the others' parts are in its message.
    Where the sum overflows though the losses are finite, each sends its own, so that the bad one is refused.

    Args:
        clients: the clients of one round.
        weighting: what c_i is in proportion to.
    """

    def __init__(self, clients: Sequence[LocalClient], weighting: Literal["equal", "examples", "terms"]) -> None:
        self.members = [SharingGradients(client, self) for client in clients]
        self._clients = list(clients)
        self._weighting = weighting
        self._found: tuple[dict[int, str], bytes, int] | None = None
        self._speaker: int | None = None
        self._apart = False

    def gradient(self, own: LocalClient, batch: int | None, micro_batch: int) -> tuple[bytes, int]:
        """Returns the sum of all clients' gradients; raises as `LocalClient.gradient` does, or InAnothersMessage."""
        if self._found is None and not self._apart:
            self._found = self._add_up(batch, micro_batch)
        if self._found is None:
            self._apart = True
            return own.gradient(batch, micro_batch)
        reasons, data, terms = self._found
        if own.number in reasons:
            raise NonFiniteError(reasons[own.number])
        if self._speaker is None:
            self._speaker = own.number
            self._found = reasons, b"", terms  # the message alone holds it
            return data, terms
        raise InAnothersMessage

    def _add_up(self, batch: int | None, micro_batch: int) -> tuple[dict[int, str], bytes, int] | None:
        """Returns why clients have no part, by number, the sum and its terms; None: the sum is not finite."""
        space = self._clients[0].space
        reasons: dict[int, str] = {}
        while True:
            batches: dict[int, list[Any]] = {}
            for client in self._clients:
                with self._noting(client, reasons):
                    if client.number not in reasons:
                        batches[client.number] = client.gradient_batch(batch)
            taking = [client for client in self._clients if client.number in batches]
            terms = [sum(map(c.objective.weight, batches[c.number])) for c in taking]
            weights = shares(claims(self._weighting, [len(c.items) for c in taking], terms)) if taking else []
            for client, weight in zip(taking, weights, strict=True):
                with self._noting(client, reasons):
                    client.add_gradient(batches[client.number], weight, micro_batch)
                if client.number in reasons:
                    break
            else:
                finite = all(bool(p.grad.isfinite().all()) for p in space.parameters if p.grad is not None)
                data = space.take_gradient()
                return (reasons, data, sum(terms)) if finite else None
            space.take_gradient()  # the sum has a bad gradient in it: begin again without it
            for other in self._clients:
                other.cost.losses.clear()

    @contextmanager
    def _noting(self, client: LocalClient, reasons: dict[int, str]) -> Iterator[None]:
        """Notes why a client can't take part."""
        try:
            yield
        except NonFiniteError as error:
            reasons[client.number] = str(error)


class SharingGradients(_Sharing):
    """A client of `SharedGradients`, as a method sees it."""

    def __init__(self, own: LocalClient, together: SharedGradients) -> None:
        super().__init__(own)
        self._together = together

    def gradient(self, batch: int | None, micro_batch: int) -> tuple[bytes, int]:
        return self._together.gradient(self.own, batch, micro_batch)
