"""The coordinator's side of the run's log: reads its contents and adds steps.

A step counts as soon as the log has it. It can't be there twice, because only a coordinator that
knows the log's last entry can write. docs/internals.md gives the argument.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedseed.errors import NetworkError
from fedseed.federation.control import Beginning
from fedseed.federation.fingerprint import Fingerprint
from fedseed.federation.large import Stored, carry, fetch, is_stored
from fedseed.federation.messages import FRAME_BYTES
from fedseed.federation.protocol import Entry, LogContents, header_entry, mark_entry, step_entry
from fedseed.orbit import Header
from fedseed.orbit.file import begin
from fedseed.orbit.record import LINK_BYTES
from fedseed.transport.base import CoordinatorEnd, LogWriter


@dataclass(frozen=True)
class StepLogContents:
    """The contents of a run's log on a server."""

    run: str  # the run's name on the server
    last: int = 0  # the last step
    # the payloads of all steps; if a step replaces earlier ones, only the newest that is not empty
    payloads: Sequence[bytes] = ()
    changed: int = 0  # the number of the newest step that is not empty
    # digests of the weights after a step, if clients have reported them
    digests: Mapping[int, str] = field(default_factory=dict)
    # whether to wait for the last step's digest if the file lacks this step (`StepStore.confirm`)
    waits: bool = False
    lasting: bool = True  # whether the log outlives the coordinator, so that the files follow it


@dataclass
class StepLog:
    """The log of a running coordinator."""

    end: CoordinatorEnd
    replacing: bool  # whether each step is whole weights, of which only the newest are kept
    # for each step of earlier sessions: its link, and the message or a reference to it
    steps: list[tuple[bytes, bytes]] = field(default_factory=list)
    marks: dict[int, str] = field(default_factory=dict)  # digests by round
    ended: bool = False
    _writer: LogWriter = field(init=False)  # set when the log is created or read
    _sessions: int = 0  # number of known sessions, including this one
    _looked: int = 0  # the last entry that `is_taken_over` has checked
    _link: bytes = b""
    # blobs of the newest steps, if steps replace each other
    _blobs: list[str] = field(default_factory=list)

    async def create(
        self,
        header: Header,
        names: Sequence[str],
        rounds: int,
        copies: int,
        fingerprint: Fingerprint | None = None,
    ) -> str:
        """Create the log and return its incarnation.

        Args:
            header: the orbit's header.
            names: the clients' names, in the order of their numbers.
            rounds: the run's number of rounds.
            copies: number of servers that keep the log.
            fingerprint: fingerprint of the clients' tokenizer; None: not known.
        """
        incarnation = secrets.token_hex(8)
        self._writer = await self.end.writer(None, copies)
        optional = {} if fingerprint is None else {"fingerprint": fingerprint.to_json()}
        beginning = Beginning.model_validate(
            {"epoch": incarnation, "names": list(names), "rounds": rounds, **optional}
        )
        start = begin(header)
        await self._writer.append(header_entry(beginning, start).encode())
        self._link = start[-LINK_BYTES:]
        return incarnation

    async def load(self, last: int, run: str) -> LogContents:
        """Read the log up to entry `last`; return its contents.

        Raises NetworkError if the log is empty, and MessageError if it is invalid.
        """
        entries = await self.end.entries(last)
        self._writer = await self.end.writer(last)
        if not entries:
            raise NetworkError(f"the log of run {run} is empty: start again with --fresh")
        contents = LogContents.from_entries(entries)
        self.steps, self.marks = contents.steps, contents.marks
        self._sessions, self.ended = contents.sessions, contents.ended
        self._link = contents.link
        return contents

    async def begin_session(self) -> None:
        """Begin a session. From here on no earlier coordinator can write."""
        await self._writer.append(Entry("S", secrets.token_bytes(8)).encode())
        self._sessions += 1

    async def is_taken_over(self, last: int) -> bool:
        """Return whether another coordinator has begun a session, up to entry `last`.

        Each entry is checked only once.
        """
        if last <= max(self.last, self._looked):
            return False
        self._looked = last
        return sum(data[:1] == b"S" for data in await self.end.entries(last)) > self._sessions

    async def take_up(self, run: str, waits: bool) -> StepLogContents:
        """Return the contents of earlier sessions; new steps follow these.

        Args:
            run: the run's name.
            waits: whether to wait for the last step's digest if the files lack this step.
        """
        steps, self.steps = self.steps, []
        carried_steps, changed = [carried for _, carried in steps], 0
        if steps:
            self._link = steps[-1][0]
        if self.replacing:
            sizes = (
                Stored.decode(carried).size if is_stored(carried) else len(carried)
                for carried in carried_steps
            )
            changed = max(
                (number for number, size in enumerate(sizes, start=1) if size > FRAME_BYTES),
                default=0,
            )
            carried_steps = [carried_steps[changed - 1]] if changed else []
            self._blobs = [f"step-{changed}"] if changed else []
        payloads = [
            (await fetch(self.end, carried, None))[FRAME_BYTES:] for carried in carried_steps
        ]
        return StepLogContents(
            run, len(steps), payloads, changed, self.marks, waits, self.end.lasting
        )

    async def publish(self, number: int, step: bytes) -> None:
        """Append a step. It counts from here on."""
        name = f"step-{number}"
        carried = await carry(self.end, step, name)
        entry, new_link = step_entry(self._link, step, carried)
        await self._writer.append(entry.encode())
        self._link = new_link
        if self.replacing and carried != step:
            self._blobs.append(name)
            while len(self._blobs) > 2:
                await self.end.drop(None, self._blobs[0])
                self._blobs.pop(0)

    async def mark(self, number: int, digest: str) -> None:
        """Append the digest of the clients' weights after a round, unless the log has it
        already.
        """
        if number not in self.marks:
            await self._writer.append(mark_entry(number, digest).encode())
            self.marks[number] = digest

    async def finish(self) -> None:
        """Append the entry that ends the run."""
        if not self.ended:
            await self._writer.append(Entry("E", b"").encode())
            self.ended = True
            await self._writer.finish()

    @property
    def last(self) -> int:
        """The number of the last entry."""
        return self._writer.last
