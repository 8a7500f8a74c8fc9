"""Byzantine clients of a simulated round.

They follow the protocol: each lie is an encoded update. A client that lies alone changes its own
honest update (`fedseed.attacks.updates.alone`). Clients that know all honest updates decode them,
as the coordinator would, and agree on one vector.
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
from fedseed.federation.coordinator.bounds import Bounds, lower_median
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.federation.messages import Message
from fedseed.methods.payload import LARGEST, DecodeContext

_SAFETY = 0.99  # lies have this share of the largest accepted size


@dataclass
class Byzantine:
    """The Byzantine clients of a simulation. Raises ValueError if the attack does not exist for the
    method.
    """

    coordinator: Coordinator  # the run's coordinator; the attackers know its bounds and state
    kind: AttackKind  # "labels" changes only the attackers' data
    attackers: Set[int]  # the attackers' numbers
    # strength of the attack: z of "alie", epsilon of "inner-product", the factor of "claims"; None:
    # the default
    strength: float | None = None

    def __post_init__(self) -> None:
        problem = attack_problem(self.coordinator.method, self.kind)
        if problem is not None:
            raise ValueError(problem)
        if self.kind == "claims":
            for client in self.attackers:
                self.coordinator.examples[client] = self._claimed(self.coordinator.examples[client])

    def corrupt_messages(
        self,
        number: int,
        messages: Mapping[int, bytes],
        corrupt: Callable[[bytes, AttackKind], bytes],
    ) -> dict[int, bytes]:
        """Return every client's message, with the attackers' messages replaced by lies.

        Args:
            number: the round.
            messages: each answering client's honest update.
            corrupt: makes the lie of a client that lies alone (`Worker.corrupt`).
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
        context = DecodeContext(method, state, "update", number)
        frames = {client: Message.decode(message) for client, message in messages.items()}
        updates = {
            c: method.decode_update(state, number, frame.payload) for c, frame in frames.items()
        }
        honest = {
            client: update for client, update in updates.items() if client not in self.attackers
        }
        lies = self._lies(updates, honest, liars, context)
        changed = {
            client: replace(frames[client], payload=lie.encode()).encode()
            for client, lie in lies.items()
        }
        return {client: changed.get(client, message) for client, message in messages.items()}

    def _lies(
        self,
        updates: Mapping[int, Any],
        honest: Mapping[int, Any],
        liars: list[int],
        context: DecodeContext,
    ) -> dict[int, Any]:
        """Return a false update for each liar."""
        if self.kind in OMNISCIENT and honest:
            if self.kind == "mimic":
                return dict.fromkeys(liars, honest[min(honest)])
            vectors = np.stack([update.vector(context) for update in honest.values()]).astype(
                np.float64
            )
            if self.kind == "alie":
                lie = little_is_enough(vectors, self.strength)
            else:
                lie = inner_product(vectors, len(liars), self.strength)
            return {client: updates[client].with_vector(lie, context) for client in liars}
        # the reversed update; attackers that know no other updates send it, too
        seed = self.coordinator.state.seed
        lies = {client: alone(updates[client], "sign", seed, client, context) for client in liars}
        if self.kind == "largest":
            largest = largest_accepted(
                [update.size(context) for update in honest.values()], self.coordinator.bounds
            )
            return {client: _as_large_as(lie, largest, context) for client, lie in lies.items()}
        if self.kind == "claims":
            # if terms decide a client's weight, a false loss also claims more terms
            for client, lie in lies.items():
                terms_field = lie.weight_terms
                if terms_field is not None:
                    terms = self._claimed(getattr(lie, terms_field))
                    lies[client] = replace(lie, **{terms_field: terms})
        return lies

    def _claimed(self, count: int) -> int:
        factor = CLAIMED if self.strength is None else self.strength
        return min(int(count * factor), (1 << 32) - 1)


def largest_accepted(sizes: list[float], bounds: Bounds) -> float:
    """Return the largest size of an update that is accepted together with these sizes."""
    if bounds.proportion == "off" or not any(size > 0 for size in sizes):
        return _SAFETY * LARGEST
    return _SAFETY * min(LARGEST, bounds.proportion * lower_median(sizes))


def _as_large_as(lie: Any, target_size: float, context: DecodeContext) -> Any:
    """Return the update, scaled to a size.

    An update without a size, such as a vote, stays as it is.
    """
    vector = lie.vector(context).astype(np.float64)
    peak = float(np.abs(vector).max(initial=0.0))
    if not lie.size(context) or not peak:
        return lie
    # a size may have a floor, so enlarge first and then scale down
    scaled = lie.with_vector(vector * (target_size / peak), context)
    factor = target_size / scaled.size(context)
    return lie.with_vector(vector * (target_size / peak * factor), context)
