"""A coordinator's side of the run's log: what stands in it, and how steps get there.

A step counts when the log has it, once, because only a coordinator that knows the log's last entry
can write. docs/internals.md has the argument.
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
class Logged:
    """What the log of a run on a server holds."""

    run: str  # its name there
    last: int = 0  # step
    # of all steps; where a step replaces those before, of the newest that is not empty
    payloads: Sequence[bytes] = ()
    changed: int = 0  # the number of that one
    # of the weights after a step, where clients have said it
    digests: Mapping[int, str] = field(default_factory=dict)
    # the last step, if a file has not got it, waits for its digest (`StepStore.confirm`)
    waits: bool = False
    lasting: bool = True  # it outlives the coordinator, so that the files may follow it


@dataclass
class StepLog:
    """The log while a coordinator runs."""

    end: CoordinatorEnd
    replacing: bool  # each step is whole weights: only the newest are kept
    # of earlier sessions: link, message or reference
    steps: list[tuple[bytes, bytes]] = field(default_factory=list)
    marks: dict[int, str] = field(default_factory=dict)  # digests by round
    ended: bool = False
    _writer: LogWriter = field(init=False)  # once the log was made or read
    _sessions: int = 0  # that are known to have begun, this one included
    _looked: int = 0  # up to which entry `is_taken_over` has looked
    _link: bytes = b""
    # of the newest steps, where they replace each other
    _blobs: list[str] = field(default_factory=list)

    async def create(
        self,
        header: Header,
        names: Sequence[str],
        rounds: int,
        copies: int,
        fingerprint: Fingerprint | None = None,
    ) -> str:
        """Make the log and return its incarnation.

        Args:
            header: the orbit's.
            names: the clients', in the order of their numbers.
            rounds: how many the run has.
            copies: how many servers keep the log.
            fingerprint: what the clients make of texts; None: nobody has said it.
        """
        incarnation = secrets.token_hex(8)
        self._writer = await self.end.writer(None, copies)
        said = {} if fingerprint is None else {"fingerprint": fingerprint.to_json()}
        about = Beginning.model_validate(
            {"epoch": incarnation, "names": list(names), "rounds": rounds, **said}
        )
        start = begin(header)
        await self._writer.append(header_entry(about, start).encode())
        self._link = start[-LINK_BYTES:]
        return incarnation

    async def read(self, last: int, run: str) -> LogContents:
        """Read the log up to entry `last`; return what it says.

        Raises NetworkError: it is empty, or MessageError.
        """
        entries = await self.end.entries(last)
        self._writer = await self.end.writer(last)
        if not entries:
            raise NetworkError(f"the log of run {run} is empty: start again with --fresh")
        whole = LogContents.read(entries)
        self.steps, self.marks, self._sessions, self.ended = (
            whole.steps,
            whole.marks,
            whole.sessions,
            whole.ended,
        )
        self._link = whole.link
        return whole

    async def begin_session(self) -> None:
        """From here on nobody else may write."""
        await self._writer.append(Entry("S", secrets.token_bytes(8)).encode())
        self._sessions += 1

    async def is_taken_over(self, last: int) -> bool:
        """Return whether another coordinator has begun a session by entry `last`.

        Each entry is looked at once.
        """
        if last <= max(self.last, self._looked):
            return False
        self._looked = last
        return sum(data[:1] == b"S" for data in await self.end.entries(last)) > self._sessions

    async def take_up(self, run: str, waits: bool) -> Logged:
        """Return what earlier sessions have logged; new steps follow these.

        Args:
            run: the run's name.
            waits: whether the last step, if the files have not got it, waits for its digest.
        """
        steps, self.steps = self.steps, []
        wanted, changed = [carried for _, carried in steps], 0
        if steps:
            self._link = steps[-1][0]
        if self.replacing:
            sizes = (
                Stored.decode(carried).size if is_stored(carried) else len(carried)
                for carried in wanted
            )
            changed = max(
                (number for number, size in enumerate(sizes, start=1) if size > FRAME_BYTES),
                default=0,
            )
            wanted = [wanted[changed - 1]] if changed else []
            self._blobs = [f"step-{changed}"] if changed else []
        payloads = [(await fetch(self.end, carried, None))[FRAME_BYTES:] for carried in wanted]
        return Logged(run, len(steps), payloads, changed, self.marks, waits, self.end.lasting)

    async def publish(self, number: int, step: bytes) -> None:
        """Append a step: from here on it counts."""
        name = f"step-{number}"
        carried = await carry(self.end, step, name)
        entry, after = step_entry(self._link, step, carried)
        await self._writer.append(entry.encode())
        self._link = after
        if self.replacing and carried != step:
            self._blobs.append(name)
            while len(self._blobs) > 2:
                await self.end.drop(None, self._blobs[0])
                self._blobs.pop(0)

    async def mark(self, number: int, digest: str) -> None:
        """Append which weights the clients have after a round, unless it is known."""
        if number not in self.marks:
            await self._writer.append(mark_entry(number, digest).encode())
            self.marks[number] = digest

    async def finish(self) -> None:
        """Write that the run is over."""
        if not self.ended:
            await self._writer.append(Entry("E", b"").encode())
            self.ended = True
            await self._writer.finish()

    @property
    def last(self) -> int:
        """Return the number of the last entry."""
        return self._writer.last
