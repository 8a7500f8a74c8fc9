"""Decide when a node makes its next step, and which nodes it waits for. A node that has made step t
waits for step t of all present nodes. A node is present if its beat has risen, or its entry has
come, within `silence_seconds`. A beat is a number that each node counts up, and that summaries pass
on. A node waits for at most `deadline_seconds`.

A node that is behind more than half of the present ones continues at their step: it was away, and
they have not waited. A node that is ahead waits. So a node that was alone and ran to the end does
not make others skip steps, and the steps of a majority are not repeated.

None of this changes the final weights. A wrong guess costs time, or a replayed round.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fedseed.decentralised.history import History


@dataclass(frozen=True)
class PaceSettings:
    """How long a node waits for others."""

    deadline_seconds: float = 600.0  # seconds to wait for a present node
    silence_seconds: float = 6.0  # seconds of silence after which a node counts as absent
    beat_seconds: float = 1.0  # seconds between summaries
    farewell_seconds: float = 60.0  # seconds to wait at the end for absent nodes


class Pace:
    """The presence of the other nodes, and the number of the next step.

    Args:
        node: this node's number.
        history: the logs.
        settings: how long a node waits for others.
        current_time: seconds of the node's clock.
    """

    def __init__(
        self, node: int, history: History, settings: PaceSettings, current_time: float
    ) -> None:
        self.node = node
        self.history = history
        self.settings = settings
        self.beats = [0] * len(history.names)
        # time of the last news of each node; at first all get time to appear
        self._news = [current_time] * len(history.names)
        self._waits_since = current_time

    def beat(self, current_time: float) -> None:
        """Increase this node's beat by one."""
        self.beats[self.node] += 1
        self._news[self.node] = current_time

    def hear_beats(self, beats: Sequence[int], current_time: float) -> None:
        """Take the beats of a summary.

        This node continues from the highest beat of its own that others know, as it may have been
        restarted.
        """
        for node, beat in enumerate(beats):
            if beat > self.beats[node]:
                self.beats[node] = beat
                self._news[node] = current_time

    def hear_entry(self, node: int, current_time: float) -> None:
        """Record a new entry of a node."""
        self._news[node] = current_time

    def step_made(self, current_time: float) -> None:
        """Record that this node has made a step."""
        self._waits_since = current_time

    def is_present(self, node: int, current_time: float) -> bool:
        """Return whether a node has sent news recently, and may send more."""
        if self.history.is_closed(node):
            return False
        return node == self.node or current_time - self._news[node] < self.settings.silence_seconds

    def present(self, current_time: float) -> list[int]:
        """Return the numbers of the nodes that are present, this one among them."""
        return [node for node in range(len(self.beats)) if self.is_present(node, current_time)]

    def missing(self, number: int, current_time: float) -> list[int]:
        """Return the present nodes that have not made step `number` yet, without this one."""
        return [
            node
            for node in self.present(current_time)
            if node != self.node and self.history.logs[node].last_round < number
        ]

    def next_round(self, current_time: float) -> int | None:
        """Return the number of the step to make now; None: the node waits for others, or no step is
        left.
        """
        history = self.history
        own_round = history.logs[self.node].last_round
        if own_round >= history.rounds or history.is_closed(self.node):
            return None
        last_round = max(own_round, self._round_of_most(current_time))
        waits_long = current_time - self._waits_since >= self.settings.deadline_seconds
        if not waits_long and self.missing(last_round, current_time):
            return None
        return min(last_round + 1, history.rounds)

    def _round_of_most(self, current_time: float) -> int:
        """Return the highest round that more than half of the present nodes have finished, if this
        one is more than a step behind it; else 0.
        """
        logs = self.history.logs
        rounds = sorted(
            (logs[node].last_round for node in self.present(current_time)), reverse=True
        )
        reached = rounds[len(rounds) // 2]
        return reached if reached > logs[self.node].last_round + 1 else 0

    def is_over(self, current_time: float) -> bool:
        """Return whether this node need not wait any longer. Its log, and those of all nodes, are
        at the last round or closed. For absent nodes it waits `farewell_seconds`.
        """
        for node, log in enumerate(self.history.logs):
            is_done = log.last_round >= self.history.rounds or self.history.is_closed(node)
            if is_done:
                continue
            if node == self.node or self.is_present(node, current_time):
                return False
            silence = current_time - max(self._news[node], self._waits_since)
            if silence < self.settings.farewell_seconds:
                return False
        return True
