"""Messages to nodes through Flower's Grid, and their replies. Free of torch."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedseed.errors import MessageError
from fedseed.flower import wire

SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.5  # seconds between looks for replies, which double from one to the other
SPARE_SECONDS = 60.0  # for which Flower keeps a message beyond the time that it is waited for
LOOK_SECONDS = 2.0  # between looks at who is still there


@dataclass(frozen=True)
class Reply:
    """A node's answer.

    Args:
        table: what it says; None: there is none.
        problem: why.
    """

    table: wire.Table | None
    problem: str = ""


@dataclass
class Post:
    """Sends, collects and counts.

    Args:
        grid: Flower's.
        messages: how many were sent or came.
        bytes_down: serialized bytes of what was sent, frames and all.
        bytes_up: of what came.
    """

    grid: Any
    messages: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    _open: dict[str, int] = field(default_factory=dict)  # nodes by message, of `send`

    def nodes(self) -> list[int]:
        """The nodes that are connected."""
        return list(self.grid.get_node_ids())

    def send(self, what: str, bodies: Mapping[int, Mapping[str, Any]], group: str, seconds: float) -> dict[str, int]:
        """Send a message to each of some nodes; returns the messages' ids, each with its node.

        Args:
            what: Flower's message type.
            bodies: what each node is told.
            group: Flower's name for what belongs together; the round's number.
            seconds: after which nobody waits for an answer any more.
        """
        from flwr.app import Message

        sent: dict[str, int] = {}
        for node, body in bodies.items():  # one at a time: many at once may be more than one request holds
            message = Message(wire.content(body), node, what, ttl=seconds + SPARE_SECONDS, group_id=group)
            for identity in self.grid.push_messages([message]):
                if identity:
                    sent[str(identity)] = node
            self.messages += 1
            self.bytes_down += wire.size(message)
        return sent

    def look(self, waited: dict[str, int]) -> dict[int, Reply]:
        """The replies that have come; their messages are no longer waited for."""
        if not waited:
            return {}
        found: dict[int, Reply] = {}
        for message in self.grid.pull_messages(list(waited)):
            node = waited.pop(message.metadata.reply_to_message_id, None)
            if node is None:
                continue
            self.messages += 1
            if message.has_error():
                found[node] = Reply(None, " ".join(f"Flower reports: {message.error.reason}".split()))
                continue
            self.bytes_up += wire.size(message)
            try:
                table = wire.table(message)
                problem = str(table.get("problem", ""))
                found[node] = Reply(None if problem else table, problem)
            except MessageError as error:
                found[node] = Reply(None, str(error))
        return found

    def ask(
        self, what: str, bodies: Mapping[int, Mapping[str, Any]], group: str, seconds: float,
        enough: Callable[[], bool] = lambda: False,
    ) -> Iterable[tuple[int, Reply]]:  # fmt: skip
        """Send, and hand out replies as they come, until all have, time is over or those that have not are gone.

        Args:
            what: Flower's message type.
            bodies: what each node is told.
            group: the round's number.
            seconds: to wait.
            enough: whether to wait no longer.
        """
        waited = self.send(what, bodies, group, seconds)
        silent = set(bodies) - set(waited.values())
        end, looked, pause = time.monotonic() + seconds, time.monotonic(), SHORTEST_PAUSE
        while waited and not enough():
            found = self.look(waited)
            yield from found.items()
            now = time.monotonic()
            if not waited or now > end:
                break
            if now > looked + LOOK_SECONDS:
                looked, there = now, set(self.nodes())
                for identity in [one for one, node in waited.items() if node not in there]:
                    yield waited.pop(identity), Reply(None, "it has gone")
            pause = SHORTEST_PAUSE if found else min(2 * pause, LONGEST_PAUSE)
            time.sleep(pause)
        for node in (*waited.values(), *silent):
            yield (
                node,
                Reply(None, "no answer before the deadline" if node not in silent else "it can't be reached"),
            )
