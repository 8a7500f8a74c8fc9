"""One node of a mesh, without a network or a clock of its own: bytes come in and go out.

A process on a transport, or a simulation, runs it: passes on neighbours' messages (`receive`),
calls `tick` every beat, sends the messages in `outbox`, and computes steps:

    work = node.plan_work(seconds)         # None: wait
    payload = work.compute(model)      # may take long, in a thread
    node.finish_work(work, payload, seconds)

The node's own entries are on disk before they are in the outbox.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fedseed.decentralised.entry import MOST_PAYLOAD, Entry, EntryKind
from fedseed.decentralised.history import Fork, History, MissingEntries
from fedseed.decentralised.messages import (
    MOST_BEATS,
    TAG_BYTES,
    Kind,
    Line,
    Summary,
    decode_entries,
    decode_forks,
    encode_entries,
    encode_forks,
    kind_of,
    take_batch,
)
from fedseed.decentralised.model import MeshModel, Updates
from fedseed.decentralised.pace import Pace, PaceSettings
from fedseed.errors import FedseedError, MessageError, NonFiniteError
from fedseed.text import show_text

# number of entries before the end that are sent when two logs differ, so that the fork is found
LOOK_BACK = 64
# most reasons for refusals that are remembered for each neighbour
MOST_REASONS = 32
# the purposes by which sent bytes are counted
STEPS, REPAIRS, UPKEEP = "steps", "repairs", "upkeep"


@dataclass(frozen=True)
class Outgoing:
    """A message to neighbours."""

    data: bytes
    receivers: Sequence[str]
    purpose: str  # the purpose by which its bytes are counted


@dataclass(frozen=True)
class Work:
    """A step to make, with copies of the logs' entries that it needs, so that the logs may grow
    meanwhile.
    """

    round: int
    changed: int  # the first round whose updates have changed
    updates: Updates

    def compute(self, model: MeshModel) -> bytes | None:
        """Bring the weights to the end of the round before, and return this node's update.

        None: no loss was usable, so the node abstains.
        """
        model.move_to(self.round - 1, self.changed, self.updates)
        try:
            return model.train(self.round)
        except NonFiniteError:
            return None


class Node:
    """One node.

    Args:
        name: its name.
        neighbours: the names of the nodes that it sends to and hears.
        history: the logs, with what an earlier process has kept.
        model: the weights, at the base.
        settings: how long it waits for others.
        current_time: seconds of its clock.

    Raises:
        FedseedError: a name is not one of the run's nodes.
    """

    def __init__(
        self,
        name: str,
        neighbours: Sequence[str],
        history: History,
        model: MeshModel,
        settings: PaceSettings,
        current_time: float,
    ) -> None:
        for one in (name, *neighbours):
            if one not in history.names:
                raise FedseedError(f"{show_text(one)} is none of the run's nodes")
        self.name = name
        self.number = history.names.index(name)
        self.neighbours = [one for one in dict.fromkeys(neighbours) if one != name]
        self.history = history
        self.model = model
        self.pace = Pace(self.number, history, settings, current_time)
        self.outbox: list[Outgoing] = []
        self.sent: Counter[str] = Counter()  # bytes by purpose, once for each receiver
        self.heard_bytes = 0
        # reasons why messages were refused, by neighbour, and how often
        self.refusals: dict[str, Counter[str]] = {}
        self.fork_notes: list[str] = []  # lines about nodes with a proven fork
        # each neighbour's last summary, and whether it has ended
        self._lines: dict[str, Sequence[Line]] = {}
        self._gone: set[str] = set()
        # the time of each neighbour's last message
        self._heard: dict[str, float] = {}
        self._began = current_time

    # -- what comes in ---------------------------------------------------------------------------

    def receive(self, sender: str, data: bytes, current_time: float) -> None:
        """Take a neighbour's message; one that is not valid is refused and counted.

        Raises FedseedError: this node itself has made two different steps of one number. Another
        process under its name, or an old copy of its log, is the cause.
        """
        self.heard_bytes += len(data)
        if sender not in self.neighbours:
            self._refuse(sender, "not a neighbour")
            return
        try:
            kind = kind_of(data)
            self._heard[sender] = current_time
            if kind is Kind.SUMMARY:
                self._take_summary(sender, Summary.decode(data), current_time)
            elif kind is Kind.ENTRIES:
                self._take_entries(sender, decode_entries(data), current_time)
            else:
                self._take_forks(sender, decode_forks(data))
        except MessageError as error:
            self._refuse(sender, str(error))
        if self.number in self.history.forks:
            raise FedseedError(
                f"{self.history.describe_fork(self.number)}. Another process runs as {self.name}, "
                "or its log was replaced by an older copy: the node can't continue under this name"
            )

    def _refuse(self, sender: str, reason: str) -> None:
        reasons = self.refusals.setdefault(sender, Counter())
        text = show_text(reason)
        if text in reasons or len(reasons) < MOST_REASONS:
            reasons[text] += 1
        else:
            reasons["other reasons"] += 1

    def _take_entries(self, sender: str, entries: Sequence[Entry], current_time: float) -> None:
        new: list[Entry] = []
        has_gap = False
        try:
            for entry in entries:
                known_fork = self.history.forks.get(entry.node)
                try:
                    if self.history.take(entry, sync=entry.node == self.number):
                        new.append(entry)
                        self.pace.hear_entry(entry.node, current_time)
                except MissingEntries:
                    has_gap = True
                except MessageError as error:
                    self._refuse(sender, str(error))
                    fork = self.history.forks.get(entry.node)
                    if fork is not None:
                        self._answer_fork(sender, entry.node, fork is not known_fork)
        finally:
            self._pass_on(new, sender)
        if has_gap or (new and self._lacks_something_of(sender)):
            self._send(self._summary(), [sender], UPKEEP)

    def _take_forks(self, sender: str, forks: Sequence[Fork]) -> None:
        for first, second in forks:
            if self.history.take_fork(first, second):
                self._tell_fork(first.node, sender)

    def _answer_fork(self, sender: str, node: int, is_new: bool) -> None:
        """Send a proven fork to all neighbours, also to those that may know it."""
        if is_new:
            self._tell_fork(node, "")
        else:
            self._send(encode_forks([self.history.forks[node]]), [sender], REPAIRS)

    def _tell_fork(self, node: int, sender: str) -> None:
        self.fork_notes.append(self.history.describe_fork(node))
        receivers = [one for one in self.neighbours if one != sender]
        self._send(encode_forks([self.history.forks[node]]), receivers, REPAIRS)

    def _take_summary(self, sender: str, summary: Summary, current_time: float) -> None:
        self._check_summary(summary)
        self._lines[sender] = summary.lines
        if summary.ends:
            self._gone.add(sender)
        else:
            self._gone.discard(sender)
        self.pace.hear_beats([line.beat for line in summary.lines], current_time)
        for node, line in enumerate(summary.lines):
            self._bring_up_to_date(sender, node, line)

    def _check_summary(self, summary: Summary) -> None:
        ours = self.model.header.base_digest
        if summary.base_digest.hex() != ours:
            raise MessageError(
                f"another base: its digest is {summary.base_digest.hex()}, here {ours}"
            )
        if summary.fingerprint != self.history.fingerprint:
            raise MessageError("another run: recipe, rounds, run's name or list of nodes differ")
        if len(summary.lines) != len(self.history.names):
            raise MessageError(
                f"a summary of {len(summary.lines)} nodes: there are {len(self.history.names)}"
            )

    def _bring_up_to_date(self, sender: str, node: int, line: Line) -> None:
        """Send a neighbour the entries of a log that it lacks, or those that prove that two logs
        differ.
        """
        history = self.history
        count = history.counts[node]
        fork = history.forks.get(node)
        if fork is not None and line.count >= fork[0].number:
            self._send(encode_forks([fork]), [sender], REPAIRS)
            return
        if line.count > count:
            return
        start = line.count
        if line.tag != history.link_at(node, line.count)[:TAG_BYTES]:
            start = max(0, line.count - LOOK_BACK)
        missing = history.entries_after(node, start)
        if missing:
            self._send(encode_entries(take_batch(missing)), [sender], REPAIRS)

    def _lacks_something_of(self, neighbour: str) -> bool:
        """Return whether a neighbour's summary has entries that are missing here."""
        lines = self._lines.get(neighbour, ())
        counts = self.history.counts
        return any(line.count > count for line, count in zip(lines, counts, strict=False))

    # -- what goes out ---------------------------------------------------------------------------

    def tick(self, current_time: float) -> None:
        """Send a summary to the neighbours; called every beat."""
        self.pace.beat(current_time)
        self._send(self._summary(), self.neighbours, UPKEEP)

    def say_farewell(self) -> None:
        """Tell the neighbours that this node ends, and needs no further entries."""
        self._send(self._summary(ends=True), self.neighbours, UPKEEP)

    def _summary(self, ends: bool = False) -> bytes:
        history = self.history
        lines = [
            Line(count, history.link_at(node, count)[:TAG_BYTES], min(beat, MOST_BEATS))
            for node, (count, beat) in enumerate(zip(history.counts, self.pace.beats, strict=True))
        ]
        base_digest = bytes.fromhex(self.model.header.base_digest)
        return Summary(history.fingerprint, base_digest, lines, ends).encode()

    def _pass_on(self, entries: Sequence[Entry], sender: str = "") -> None:
        """Send new entries to all neighbours but the one they came from."""
        receivers = [one for one in self.neighbours if one != sender]
        rest = list(entries)
        while rest:
            batch = take_batch(rest)
            rest = rest[len(batch) :]
            self._send(encode_entries(batch), receivers, STEPS)

    def _send(self, data: bytes, receivers: Sequence[str], purpose: str) -> None:
        if receivers:
            self.sent[purpose] += len(data) * len(receivers)
            self.outbox.append(Outgoing(data, receivers, purpose))

    # -- steps -----------------------------------------------------------------------------------

    def plan_work(self, current_time: float) -> Work | None:
        """Return the step to make now; None: the node waits for others, or no step is left."""
        if not self._knows_own_log(current_time):
            return None
        number = self.pace.next_round(current_time)
        if number is None:
            return None
        return self._work(number)

    def plan_last_move(self) -> Work:
        """Return the work that brings the weights to the last round with a known step."""
        return self._work(self.history.last_round + 1)

    def _work(self, number: int) -> Work:
        changed = self.history.take_changes()
        first = self.model.first_needed(number - 1, changed)
        return Work(number, changed, self.history.updates_of(first, number - 1))

    def finish_work(self, work: Work, payload: bytes | None, current_time: float) -> None:
        """Write a step into this node's own log, on disk, and only then send it.

        Args:
            work: as planned.
            payload: the update; None: the node abstains from this round.
            current_time: seconds of the node's clock.

        Raises:
            StorageError: it can't be written; it is not sent then.
        """
        is_outdated = work.round <= self.history.logs[self.number].last_round
        if is_outdated or self.history.is_closed(self.number):
            # meanwhile its log has ended, or neighbours have sent steps of its own that it had lost
            return
        kind = EntryKind.STEP if payload is not None else EntryKind.ABSTENTION
        self._append(work.round, payload or b"", kind, current_time)

    def leave(self, current_time: float) -> None:
        """Write the end of this node's log: the others no longer wait for it."""
        log = self.history.logs[self.number]
        if not log.has_left:
            self._append(max(1, log.last_round), b"", EntryKind.END, current_time)

    def _append(self, number: int, payload: bytes, kind: EntryKind, current_time: float) -> None:
        if len(payload) > MOST_PAYLOAD:
            raise FedseedError(
                f"an update of {len(payload):,} bytes: a mesh carries at most {MOST_PAYLOAD:,}; "
                "set method.bytes, or fewer directions"
            )
        entry = self.history.next_entry(self.number, number, payload, kind)
        self.history.take(entry, sync=True)
        self.pace.step_made(current_time)
        self._pass_on([entry])

    def _knows_own_log(self, current_time: float) -> bool:
        """Return whether the length of this node's own log is known. If a node has lost its files,
        its neighbours may know steps that it has made. So the present neighbours are asked before
        the first step.
        """
        own_count, age = self.history.counts[self.number], current_time - self._began
        settings = self.pace.settings
        others_know_more = any(line[self.number].count > own_count for line in self._lines.values())
        # a false summary can't delay the node for longer
        if others_know_more and age < settings.deadline_seconds:
            return False
        has_heard_all = all(one in self._lines for one in self.neighbours)
        return has_heard_all or age >= settings.silence_seconds

    def is_over(self, current_time: float) -> bool:
        """Return whether nothing is left to do: there is no step to make, send or receive."""
        return self.pace.is_over(current_time) and self.is_settled(current_time)

    def is_settled(self, current_time: float) -> bool:
        """Return whether all present neighbours have all entries of this node."""
        return all(
            one in self._gone or self._is_silent(one, current_time) or self._is_equal(one)
            for one in self.neighbours
        )

    def _is_silent(self, neighbour: str, current_time: float) -> bool:
        heard_at = self._heard.get(neighbour, self._began)
        return current_time - heard_at >= self.pace.settings.silence_seconds

    def _is_equal(self, neighbour: str) -> bool:
        """Return whether a neighbour's summary has all entries of this node."""
        counts = [line.count for line in self._lines.get(neighbour, ())]
        return counts == self.history.counts
