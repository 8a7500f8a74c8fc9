"""What Byzantine clients of a simulated round send.

They keep to the protocol: each lie is an encoded update.

A lie of one client alone is made of its honest update (`fedseed.attacks.updates.alone`); those who
know the honest updates of the round decode them, as the coordinator would, and agree on one vector.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedseed.attacks.updates import (
    CLAIMED,
    OMNISCIENT,
    SINGLE,
    AttackKind,
    alone,
    attack_problem,
    inner_product,
    little_is_enough,
)
from fedseed.federation.bounds import Bounds, lower_median
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.messages import Message
from fedseed.methods.payload import LARGEST, About

_BELOW = 0.99  # of the largest size that is accepted


@dataclass
class Byzantine:
    """The Byzantine clients of a simulation. Raises ValueError if the method has no such attack."""

    coordinator: Coordinator  # of the run; its bounds and state are known to everybody
    kind: AttackKind  # what they do; "labels" acts through their data
    attackers: Set[int]  # their numbers
    # z of "alie", epsilon of "inner-product", times of "claims"; None: as usual
    strength: float | None = None

    def __post_init__(self) -> None:
        if problem := attack_problem(self.coordinator.method, self.kind):
            raise ValueError(problem)
        if self.kind == "claims":
            for client in self.attackers:
                self.coordinator.examples[client] = self._claimed(self.coordinator.examples[client])

    def sent(
        self,
        number: int,
        messages: Mapping[int, bytes],
        corrupt: Callable[[bytes, AttackKind], bytes],
    ) -> dict[int, bytes]:
        """Return what each client sends; honest ones what they were given.

        Args:
            number: the round.
            messages: of each client that answers, its honest update.
            corrupt: makes the lie of a client alone (`Worker.corrupt`).
        """
        liars = sorted(self.attackers & messages.keys())
        if self.kind == "labels" or not liars:
            return dict(messages)
        if self.kind in SINGLE:
            return {
                c: corrupt(data, self.kind) if c in self.attackers else data
                for c, data in messages.items()
            }
        method, state = self.coordinator.method, self.coordinator.state
        about = About(method, state, "update", number)
        frames = {client: Message.decode(message) for client, message in messages.items()}
        updates = {
            c: method.decode_update(state, number, frame.payload) for c, frame in frames.items()
        }
        honest = {
            client: update for client, update in updates.items() if client not in self.attackers
        }
        lies = self._lies(updates, honest, liars, about)
        changed = {
            client: replace(frames[client], payload=lie.encode()).encode()
            for client, lie in lies.items()
        }
        return {client: changed.get(client, message) for client, message in messages.items()}

    def _lies(
        self, updates: Mapping[int, Any], honest: Mapping[int, Any], liars: list[int], about: About
    ) -> dict[int, Any]:
        """Return an update of each liar."""
        if self.kind in OMNISCIENT and honest:
            if self.kind == "mimic":
                return dict.fromkeys(liars, honest[min(honest)])
            vectors = np.stack([update.vector(about) for update in honest.values()]).astype(
                np.float64
            )
            alie = self.kind == "alie"
            lie = (
                little_is_enough(vectors, self.strength)
                if alie
                else inner_product(vectors, len(liars), self.strength)
            )
            return {client: updates[client].with_vector(lie, about) for client in liars}
        seed = self.coordinator.state.seed  # reversed, also by those who know nobody's update
        lies = {client: alone(updates[client], "sign", seed, client, about) for client in liars}
        if self.kind == "largest":
            most = largest_accepted(
                [update.size(about) for update in honest.values()], self.coordinator.bounds
            )
            return {client: _as_large_as(lie, most, about) for client, lie in lies.items()}
        if self.kind == "claims":
            # a loss of so many times the terms, too, where that decides its weight
            for client, lie in lies.items():
                if (field := lie.weight_terms) is not None:
                    lies[client] = replace(lie, **{field: self._claimed(getattr(lie, field))})
        return lies

    def _claimed(self, count: int) -> int:
        return min(
            int(count * (CLAIMED if self.strength is None else self.strength)), (1 << 32) - 1
        )


def largest_accepted(sizes: list[float], bounds: Bounds) -> float:
    """Return how large an update may be beside others of these sizes, just so that nobody refuses
    it.
    """
    if bounds.proportion == "off" or not any(size > 0 for size in sizes):
        return _BELOW * LARGEST
    return _BELOW * min(LARGEST, bounds.proportion * lower_median(sizes))


def _as_large_as(lie: Any, most: float, about: About) -> Any:
    """Return the same update, longer.

    One whose size says nothing, such as a vote, stays as it is.
    """
    vector = lie.vector(about).astype(np.float64)
    peak = float(np.abs(vector).max(initial=0.0))
    if not lie.size(about) or not peak:
        return lie
    # sizes have floors: first make it large, then fit
    scaled = lie.with_vector(vector * (most / peak), about)
    factor = most / scaled.size(about)
    return lie.with_vector(vector * (most / peak * factor), about)
