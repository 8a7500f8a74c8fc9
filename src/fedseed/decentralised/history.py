"""All logs of a run, as far as one node knows them. Entries of a log are taken in its own order.
Two different entries with one number prove that their author has made two different steps of that
number. From this number on its log is ignored by every node that has the proof. If there are
several proofs, the lowest number counts, so that all nodes with the same entries and proofs have
the same set of steps. With keys only the author can make such a proof. Without keys everybody who
reaches the network can, as they can write under any name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedseed.decentralised.entry import Entry, EntryKind, Identity, read_entries
from fedseed.decentralised.logfile import LogFile
from fedseed.durable import make_folder, write_whole
from fedseed.errors import MessageError, StorageError
from fedseed.transport.subjects import token

NO_ROUND = 1 << 32  # a number above that of every round
Fork = tuple[Entry, Entry]  # two different entries of one log and number
# raises MessageError if a round's update is not one that the method could have asked for
CheckPayload = Callable[[int, bytes], None]


class MissingEntries(Exception):  # noqa: N818
    """An entry can't be taken yet: the log has a gap before it."""


@dataclass
class Log:
    """One node's log, in memory."""

    entries: list[Entry] = field(default_factory=list)
    links: list[bytes] = field(default_factory=list)  # the link of each entry
    file: LogFile | None = None

    @property
    def last_round(self) -> int:
        """Return the last round that the node has finished; 0 if there is none."""
        return self.entries[-1].round if self.entries else 0

    @property
    def has_left(self) -> bool:
        """Return whether the log has ended: its node makes no more steps."""
        return bool(self.entries) and self.entries[-1].kind is EntryKind.END


class History:
    """The logs of all nodes, as far as this one knows them.

    Args:
        fingerprint: the run's fingerprint (`entry.fingerprint_of`).
        identity: names and keys of the nodes.
        rounds: the number of rounds; no entry has a higher one.
        check_payload: checks an update before it is taken; the same at all nodes.
        folder: where the logs are kept; None: only in memory.

    Raises:
        StorageError: a file can't be written, is damaged, or is of another run.
    """

    def __init__(
        self,
        fingerprint: bytes,
        identity: Identity,
        rounds: int,
        check_payload: CheckPayload,
        folder: Path | None = None,
    ) -> None:
        self.fingerprint = fingerprint
        self.identity = identity
        self.rounds = rounds
        self._check_payload = check_payload
        self.names = list(identity.names)
        self.logs = [Log() for _ in self.names]
        self.forks: dict[int, Fork] = {}
        self.notes: list[str] = []  # notes about the files on disk, for people
        # the updates of each round, by node
        self._updates: dict[int, dict[int, bytes]] = {}
        # the first round whose updates have changed since `take_changes`
        self._first_changed = NO_ROUND
        self._forks_file: Path | None = None
        if folder is not None:
            self._open(folder)

    def _open(self, folder: Path) -> None:
        make_folder(folder)
        for number, name in enumerate(self.names):
            file = LogFile(folder / f"{token(name)}.log", self.fingerprint)
            if file.lost_bytes:
                self.notes.append(
                    f"{file.path}: an unfinished entry of {file.lost_bytes} bytes was cut off"
                )
            try:
                for entry in file.entries:
                    self._check_place(entry, number)
                    self._append(entry)
            except (MessageError, MissingEntries) as error:
                raise StorageError(
                    f"{file.path}: damaged: {error}; delete the file: other nodes have its steps"
                ) from error
            self.logs[number].file = file
        self._forks_file = folder / "forks"
        if self._forks_file.exists():
            try:
                entries = read_entries(self._forks_file.read_bytes())
                for first, second in zip(entries[::2], entries[1::2], strict=True):
                    self.take_fork(first, second)
            except (MessageError, ValueError) as error:
                raise StorageError(
                    f"{self._forks_file}: damaged: {error}; delete it: other nodes have it"
                ) from error

    @property
    def counts(self) -> list[int]:
        """Return the number of entries of each node's log."""
        return [len(log.entries) for log in self.logs]

    @property
    def last_round(self) -> int:
        """Return the last round of which a step is known; 0 if there is none."""
        return max((log.last_round for log in self.logs), default=0)

    def link_at(self, node: int, count: int) -> bytes:
        """Return the link of a log's first `count` entries.

        Args:
            node: the log's node.
            count: from 0 to the number of its entries.
        """
        return self.logs[node].links[count - 1] if count else self.fingerprint

    def is_closed(self, node: int) -> bool:
        """Return whether no further step of a node can come: it has left, or has forked."""
        return self.logs[node].has_left or node in self.forks

    def updates_of(self, first: int, last: int) -> dict[int, dict[int, bytes]]:
        """Return a copy of the updates of rounds `first` to `last`: by round, then by node."""
        return {
            number: dict(self._updates[number])
            for number in range(first, last + 1)
            if number in self._updates
        }

    def take_changes(self) -> int:
        """Return the first round whose updates have changed since the last call.

        `NO_ROUND`: none has.
        """
        first, self._first_changed = self._first_changed, NO_ROUND
        return first

    def next_entry(
        self, node: int, round_number: int, payload: bytes, kind: EntryKind = EntryKind.STEP
    ) -> Entry:
        """Return the next entry of a log, signed by this node's key; it is not taken yet.

        Args:
            node: the log's number, which is this node's own.
            round_number: the step's number.
            payload: the update; empty if there is none.
            kind: the entry's kind.
        """
        count = len(self.logs[node].entries)
        previous = self.link_at(node, count)
        entry = Entry(node, count + 1, round_number, payload, previous, kind)
        return self.identity.sign(entry)

    def take(self, entry: Entry, sync: bool = False) -> bool:
        """Take an entry, and keep it in its log's file.

        Args:
            entry: as its author has made it.
            sync: it is on disk before this returns.

        Returns:
            Whether it is new.

        Raises:
            MissingEntries: earlier entries of the log have to come first.
            MessageError: it is refused. If it proves a fork of its author, the fork is recorded
                (`forks`).
            StorageError: it can't be written; nothing has changed.
        """
        if entry.node >= len(self.names):
            raise MessageError(f"an entry of node {entry.node}: there are {len(self.names)} nodes")
        self.identity.check(entry)
        log = self.logs[entry.node]
        if entry.number <= len(log.entries):
            known_entry = log.entries[entry.number - 1]
            if known_entry == entry:
                return False
            self.take_fork(known_entry, entry)
            raise MessageError(self.describe_fork(entry.node))
        # entries before the two different ones still count
        if entry.node in self.forks and entry.number >= self.forks[entry.node][0].number:
            raise MessageError(self.describe_fork(entry.node))
        self._check_place(entry, entry.node)
        if log.file is not None:
            log.file.append(entry, sync)
        self._append(entry)
        return True

    def _check_place(self, entry: Entry, node: int) -> None:
        """Raise an error unless an entry is the next one of a node's log."""
        log, name = self.logs[node], self.names[node]
        if entry.node != node:
            raise MessageError(f"an entry of node {entry.node} in the log of {name}")
        if log.has_left:
            raise MessageError(f"{name} had ended its log, and continues with entry {entry.number}")
        count = len(log.entries)
        if entry.number > count + 1:
            raise MissingEntries
        if entry.previous != self.link_at(node, count):
            if count:
                problem = "follows an entry that differs from the one known here"
            else:
                problem = "is of another run: recipe, base, rounds or list of nodes differ"
            raise MessageError(f"entry {entry.number} of {name} {problem}")
        if entry.kind is EntryKind.END:
            return
        if not log.last_round < entry.round <= self.rounds:
            raise MessageError(
                f"entry {entry.number} of {name} is step {entry.round}: a step from "
                f"{log.last_round + 1} to {self.rounds} is expected"
            )
        if entry.kind is EntryKind.STEP:
            try:
                self._check_payload(entry.round, entry.payload)
            except MessageError as error:
                raise MessageError(f"step {entry.round} of {name}: {error}") from error

    def _append(self, entry: Entry) -> None:
        log = self.logs[entry.node]
        log.entries.append(entry)
        log.links.append(entry.link)
        if entry.kind is EntryKind.STEP:
            self._updates.setdefault(entry.round, {})[entry.node] = entry.payload
            self._first_changed = min(self._first_changed, entry.round)

    def take_fork(self, first: Entry, second: Entry) -> bool:
        """Take a proof that a node has made two different entries of one number.

        Returns:
            Whether it changes anything, as the first proof or one with a lower number.

        Raises:
            MessageError: it is not a proof.
        """
        if first.node != second.node or first.number != second.number or first == second:
            raise MessageError("two entries that prove nothing")
        if first.node >= len(self.names):
            raise MessageError(f"an entry of node {first.node}: there are {len(self.names)} nodes")
        for entry in (first, second):
            self.identity.check(entry)
        known_fork = self.forks.get(first.node)
        if known_fork is not None and known_fork[0].number <= first.number:
            return False
        self.forks[first.node] = (first, second)
        self._cut(first.node, first.number - 1)
        if self._forks_file is not None:
            pairs = [one.encode() + other.encode() for one, other in self.forks.values()]
            write_whole(self._forks_file, b"".join(pairs))
        return True

    def _cut(self, node: int, count: int) -> None:
        """Drop the entries of a log beyond the first `count`."""
        log = self.logs[node]
        for entry in log.entries[count:]:
            if entry.kind is EntryKind.STEP:
                del self._updates[entry.round][node]
                self._first_changed = min(self._first_changed, entry.round)
        del log.entries[count:], log.links[count:]
        if log.file is not None:
            log.file.cut(log.entries)

    def describe_fork(self, node: int) -> str:
        """Return a line about a node that has made two different steps of one number."""
        number = self.forks[node][0].number
        return (
            f"{self.names[node]} has made two different entries of number {number}: its steps from "
            "this number on do not count"
        )

    def entries_after(self, node: int, count: int) -> Sequence[Entry]:
        """Return the entries of a log after the first `count`."""
        return self.logs[node].entries[count:]

    def close(self) -> None:
        """Close the files."""
        for log in self.logs:
            if log.file is not None:
                log.file.close()
