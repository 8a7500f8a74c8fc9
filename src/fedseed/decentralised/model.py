"""A node's weights: a function of the updates that it knows, by rounds.

Each round's updates are combined by a coordinator's own code, which every node runs for itself. If
an update arrives for a round that is already applied, the weights are set back to the last
checkpoint before that round, and the later rounds are replayed.

Checkpoints are copies of the trainable tensors in memory, at intervals that grow with their age, so
that going back a few rounds is cheap, and going back many is possible. The base is always one of
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedseed.errors import MessageError, NonFiniteError
from fedseed.federation.client.state import Hosted
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.federation.messages import Message, MessageKind
from fedseed.methods.payload import State
from fedseed.orbit.header import Header
from fedseed.orbit.record import NO_DIGEST, Record
from fedseed.weights.space import SavedWeights

Updates = Mapping[int, Mapping[int, bytes]]  # by round, then by node
INTERVAL, KEPT = 16, 6


@dataclass(frozen=True)
class Checkpoint:
    """The weights after a round, and all that the method remembers."""

    round: int
    weights: SavedWeights
    state: State  # the method's
    coordinator: Coordinator


class MeshModel:
    """The weights of one node.

    Args:
        hosted: the model at its base, with the node's examples.
        coordinator: combines the updates of a round; before the first round.
        node: this node's number.
        interval: rounds between checkpoints.
        kept: the most checkpoints that are kept besides that of the base; each is a copy of the
            trainable tensors.
    """

    def __init__(
        self,
        hosted: Hosted,
        coordinator: Coordinator,
        node: int,
        interval: int = INTERVAL,
        kept: int = KEPT,
    ) -> None:
        self.hosted = hosted
        self.worker = hosted.worker
        self.node = node
        self.round = 0  # the last applied round
        self.undone = 0  # number of rounds that were undone
        self.replayed = 0  # number of rounds that were replayed
        self._furthest = 0
        self._coordinator = coordinator
        self._interval, self._kept = interval, kept
        self._steps: list[bytes] = []  # the payload of each applied round's step
        self._checkpoints = [self._checkpoint()]

    @property
    def header(self) -> Header:
        """Return the orbit's header."""
        return self.hosted.header

    def check_update(self, number: int, payload: bytes) -> None:
        """Raise MessageError if the method could not have asked for an update. Only the method and
        the base decide, so that all nodes decide alike.
        """
        self.worker.method.decode_update(self._checkpoints[0].state, number, payload)

    def move_to(self, last: int, changed: int, updates: Updates) -> None:
        """Bring the weights to the end of a round.

        Args:
            last: the round.
            changed: the first round whose updates differ from those of the last call.
            updates: those of all rounds from the last checkpoint before `changed`, or from the
                current round, to `last`; a round without updates changes nothing.
        """
        if min(last + 1, changed) <= self.round:
            self._undo(min(last, changed - 1))
        while self.round < last:
            stop = min(last, (self.round // self._interval + 1) * self._interval)
            records = []
            for number in range(self.round + 1, stop + 1):
                records.append(Record(number, self._combine(number, updates.get(number, {}))))
                self.replayed += number <= self._furthest
            self.worker.catch_up(records)
            self._steps += [record.payload for record in records]
            self.round = stop
            self._furthest = max(self._furthest, stop)
            if stop % self._interval == 0:
                self._keep(self._checkpoint())

    def first_needed(self, last: int, changed: int) -> int:
        """Return the first round whose updates `move_to` needs."""
        target = min(last, changed - 1)
        if target >= self.round:
            return self.round + 1
        return self._checkpoint_before(target).round + 1

    def train(self, number: int) -> bytes:
        """Return this node's update for a round.

        Args:
            number: the round; the weights are those after the round before it.

        Raises:
            NonFiniteError: no loss was finite, so there is nothing to send.
        """
        names = list(self.hosted.names)
        self._coordinator.open(number)
        plan = self._coordinator.plan(self.node)
        answer = self.worker.train(plan, self.node, self.hosted.items[names[self.node]])
        if answer.message is None:
            raise NonFiniteError(answer.reason or "no update")
        return Message.decode(answer.message).payload

    def digest(self) -> str:
        """Return the digest of the weights."""
        return self.worker.space.digest()

    def evaluate(self) -> dict[str, Any]:
        """Return the metrics of the recipe's evaluation at the current weights."""
        model = self.worker.space.model
        model.eval()
        return self.hosted.evaluate(model)

    def records(self) -> list[Record]:
        """Return the applied rounds as an orbit's records; the last one has the digest."""
        records = [Record(number, step) for number, step in enumerate(self._steps, start=1)]
        if records:
            records[-1] = Record(len(records), self._steps[-1], self.digest() or NO_DIGEST)
        return records

    def _combine(self, number: int, updates: Mapping[int, bytes]) -> bytes:
        """Return the step that a coordinator makes from a round's updates."""
        coordinator, code = self._coordinator, self.worker.method.code
        coordinator.open(number)
        for node, payload in sorted(updates.items()):
            message = Message(MessageKind.UPDATE, code, number, node, payload)
            try:
                coordinator.receive(message.encode(), node)
            except MessageError:
                # treated like a client whose answer is refused; the same at all nodes
                continue
        coordinator.close()
        return coordinator.closed_payload

    def _checkpoint(self) -> Checkpoint:
        state = self.worker.state
        weights = self.worker.space.save()
        return Checkpoint(self.round, weights, state, self._coordinator.snapshot())

    def _keep(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint; if there are too many, drop the one whose loss costs least."""
        self._checkpoints.append(checkpoint)
        if len(self._checkpoints) <= self._kept + 1:
            return
        rounds = [kept.round for kept in self._checkpoints]
        # a gap may be as long as its age; the base and the newest checkpoint always stay
        gaps = [
            ((rounds[i + 1] - rounds[i - 1]) / (self.round - rounds[i] + self._interval), i)
            for i in range(1, len(rounds) - 1)
        ]
        del self._checkpoints[min(gaps)[1]]

    def _checkpoint_before(self, number: int) -> Checkpoint:
        """Return the newest checkpoint of a round up to `number`."""
        earlier = [kept for kept in self._checkpoints if kept.round <= number]
        return earlier[-1]

    def _undo(self, number: int) -> None:
        """Go back to the last checkpoint of a round up to `number`; later ones are dropped."""
        checkpoint = self._checkpoint_before(number)
        self.worker.space.load(checkpoint.weights)
        self.worker.state = checkpoint.state
        self._coordinator = checkpoint.coordinator.snapshot()
        self._checkpoints = [kept for kept in self._checkpoints if kept.round <= checkpoint.round]
        del self._steps[checkpoint.round :]
        self.undone += self.round - number
        self.round = checkpoint.round
