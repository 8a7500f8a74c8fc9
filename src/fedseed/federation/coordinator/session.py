"""Shared state of a coordinator's conversation: settings, refusals, calls, stragglers."""

import asyncio
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Generic, TypeVar

from fedseed.privacy.secure.settings import SecureSums
from fedseed.reports.progress import Progress
from fedseed.text import show_text
from fedseed.transport.base import CoordinatorEnd
from fedseed.weights.layout import DigestKind

STRANGER_SECONDS = 30.0  # most seconds between calls because of an unknown host
RESEND_SECONDS = 2.0  # a plan or a question is repeated to those that have not answered
# a party is slow if it takes more than this many times as long as the others, and GRACE_SECONDS
SLOW_FACTOR = 3.0
GRACE_SECONDS = 1.0
# the delays of one party may add up to this many times the time that the others need
DELAY_FACTOR = 9.0
Party = TypeVar("Party", bound=Hashable)

MOST_SHOWN = 50  # refusals that are shown; all are counted
MOST_REASONS = 50  # reasons that are remembered for each sender
# reasons of all senders; this many fit into a status answer, whatever characters they have
MOST_REMEMBERED = 300
MOST_SENDERS = 1_000  # senders that are remembered
MOST_NAME = 100  # characters of a sender's name
OTHERS = "others"


@dataclass
class Rejected:
    """Counts refusals by sender and reason in bounded memory, and shows the first ones.

    Senders and reasons are foreign text: each is stored as one short line that a terminal can show.
    """

    progress: Progress  # shows refusals
    run: str  # the run's name, to say where further refusals can be seen
    # how often, the oldest first
    _counts: OrderedDict[tuple[str, str], int] = field(default_factory=OrderedDict)
    # how often for reasons that are not remembered, by sender
    _others: Counter[str] = field(default_factory=Counter)
    # how many reasons are remembered, by sender
    _reasons: Counter[str] = field(default_factory=Counter)
    _shown_count: int = 0
    _since: int = 0

    def add(self, sender: str, reason: str) -> None:
        """Count one more refusal."""
        self._since += 1
        sender, reason = show_text(sender, MOST_NAME), show_text(reason)
        if sender not in self._reasons and len(self._reasons) >= MOST_SENDERS:
            sender = OTHERS
        is_new = (sender, reason) not in self._counts
        if is_new and self._reasons[sender] >= MOST_REASONS:
            self._others[sender] += 1
        else:
            # move this reason to the end, as the newest one
            self._counts[sender, reason] = self._counts.pop((sender, reason), 0) + 1
            self._reasons[sender] += is_new
            # forget the oldest reason, but not its count
            if len(self._counts) > MOST_REMEMBERED:
                (oldest, _), count = self._counts.popitem(last=False)
                self._others[oldest] += count
                self._reasons[oldest] -= 1
        if is_new and self._shown_count < MOST_SHOWN:
            self._shown_count += 1
            self.progress.warn(f"a message of {sender} is refused: {reason}")
            if self._shown_count == MOST_SHOWN:
                self.progress.warn(f"further refusals: fedseed status {self.run}")

    def since(self) -> int:
        """Return the number of refusals since the last call."""
        count, self._since = self._since, 0
        return count

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return the numbers of refusals, by sender and reason."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for (sender, reason), count in self._counts.items():
            counts[sender][reason] = count
        for sender, count in self._others.items():
            counts[sender][OTHERS] += count
        return counts


@dataclass(frozen=True)
class CoordinatorSettings:
    """A coordinator's settings for dealing with its clients."""

    deadline: float = 600.0  # seconds after which a round goes on without missing answers
    minimum: int = 1  # answers that a round needs; with fewer it is begun again
    start_with: int | None = None  # clients that the first round waits for; None: all
    dead_after: float = 6.0  # seconds of silence after which a client counts as dead
    # digest of the clients' base; None: that of most clients
    base_digest: str | None = None
    copies: int = 1  # copies of the run's log, where there are several servers
    digest: DigestKind = "blake2b"  # how base and weights are hashed
    names: tuple[str, ...] = ()  # the clients, where they are known beforehand
    enrols: bool = False  # whether every client that comes before the start takes part
    # whether every client evaluates on its held-out data, not one for all
    each_evaluates: bool = False
    # metrics that an evaluation must have, because the run depends on them
    measures: tuple[str, ...] = ()
    # raises RecipeError if the run can't have this many clients
    check: Callable[[int], None] = lambda clients: None
    # digest of the trained tensors before the first step; None: that of most clients
    weights_digest: str | None = None
    # settings of secure sums; None: every answer is read
    secure: SecureSums | None = None
    # total seconds for which a slow client may delay the others
    patience: float = 20.0
    # folder for the proofs against clients barred from secure sums; None: not stored
    proofs: Path | None = None


@dataclass
class Session:
    """A coordinator's end of the transport, and the state that its parts share."""

    end: CoordinatorEnd  # the transport
    settings: CoordinatorSettings  # deadlines and the like
    progress: Progress  # shows the run going on
    rejected: Rejected  # counts messages that are not accepted
    # the log's incarnation; a run that is put on the server again gets a new one
    incarnation: str = ""
    stranger: bool = False  # whether an unknown host has written
    clock: Callable[[], float] = time.monotonic  # seconds since some moment
    failure: Exception | None = None  # the error that ends the run
    # whether clients are in this process: each answers once, even if its answer is refused
    at_hand: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _called: float = 0.0
    _call_interval: float = 1.0  # seconds between calls because of a stranger

    def fail(self, error: Exception) -> None:
        """End the run with an error; `pause` raises it."""
        self.failure = error
        self.stir()

    def stir(self) -> None:
        """Wake those who wait in `pause`, because something has happened."""
        self._changed.set()

    async def call(self, soon: Collection[str] = ()) -> None:
        """Ask every host to say hello.

        Args:
            soon: clients that must hear of it without waiting for another message.
        """
        await self.end.broadcast(b"C" + self.incarnation.encode(), soon)

    async def pause(self, seconds: float) -> None:
        """Wait at most `seconds` for something to happen. Raises the error that ends the run."""
        if self.failure is not None:
            raise self.failure
        current_time = self.clock()
        if self.stranger and current_time > self._called + self._call_interval and self.incarnation:
            # a stranger may keep writing without ever saying hello
            is_repeated = current_time < self._called + 2 * STRANGER_SECONDS
            self._call_interval = (
                min(2 * self._call_interval, STRANGER_SECONDS) if is_repeated else 1.0
            )
            self.stranger, self._called = False, current_time
            await self.call()
        self._changed.clear()
        with suppress(TimeoutError):
            # `wait_for` would make a task each time, and this runs at every step
            async with asyncio.timeout(seconds):
                await self._changed.wait()


def poll_interval(count: int) -> float:
    """Return the seconds between two checks of `count` parties: each costs a microsecond or two."""
    return max(0.25, 1e-5 * count)


@dataclass
class Stragglers(Generic[Party]):
    """Leaves out for a while those parties that delay the others, and then asks them again.

    Time that a party takes beyond `SLOW_FACTOR` times what the slowest of the others needed is its
    delay, and answers in time make up for it. When the delay comes to the settings' `patience`, and
    to several times what the others needed, the party is not waited for.
    """

    session: Session
    # end of the exclusion, and its length in seconds
    _exclusions: dict[Party, tuple[float, float]] = field(default_factory=dict)
    # seconds for which the others have waited
    _delays: dict[Party, float] = field(default_factory=dict)

    def leave_out(self, party: Party, seconds: float, reason: str) -> None:
        """Leave a party out for twice the seconds it was waited for, or for its delay.

        The time doubles with each exclusion in a row. So a party that never answers costs at most
        half of a run's time, where that is a deadline or more: it is waited for when the rest has
        come to 0, 2, 6, 14, ... deadlines.
        """
        _, last_seconds = self._exclusions.get(party, (0.0, 0.0))
        seconds = max(2 * seconds, self._delays.get(party, 0.0), 2 * last_seconds)
        self._exclusions[party] = self.session.clock() + seconds, seconds
        self.session.progress.warn(f"{reason}: it is not asked for {round(seconds, 1):g} s")

    def readmit(self, party: Party) -> None:
        """End a party's exclusion: it has answered in time."""
        self._exclusions.pop(party, None)

    def add_delay(self, party: Party, seconds: float) -> None:
        """Add seconds to a party's delay, or subtract them (less than 0)."""
        self._delays[party] = max(0.0, self._delays.get(party, 0.0) + seconds)

    def remaining_patience(self, party: Party, needed: float) -> float:
        """Return the seconds for which a party may still delay others that needed `needed`."""
        patience = max(self.session.settings.patience, DELAY_FACTOR * needed)
        return max(0.0, patience - self._delays.get(party, 0.0))

    def is_left_out(self, party: Party) -> bool:
        """Return whether a party is left out now."""
        end_time, _ = self._exclusions.get(party, (-inf, 0.0))
        return self.session.clock() < end_time

    def list_slow(self) -> list[Party]:
        """Return the parties that are left out, or have used up a third of the patience."""
        limit = self.session.settings.patience / 3
        return [
            party
            for party in {**self._exclusions, **self._delays}
            if self.is_left_out(party) or self._delays.get(party, 0.0) > limit
        ]

    def filter_out(self, parties: frozenset[Party], minimum: int) -> frozenset[Party]:
        """Return the parties that are not left out; all if fewer than `minimum` would remain."""
        rest = frozenset(party for party in parties if not self.is_left_out(party))
        return rest if len(rest) >= minimum else parties


@dataclass
class Wait(Generic[Party]):
    """Waits for several parties at once, and finds those that delay the others."""

    stragglers: Stragglers[Party]
    # units of work by party: clients of one process wait for each other
    workloads: Mapping[Party, int]
    minimum: int  # answers that are needed to go on
    patience_factor: float = 1.0
    _answered: Set[Party] = frozenset()
    _in_time: set[Party] = field(default_factory=set)
    _needed: float = 0.0  # seconds for a unit of work, of the slowest party in time

    def __post_init__(self) -> None:
        self.minimum = max(self.minimum, (len(self.workloads) + 1) // 2)
        self._began = self.stragglers.session.clock()

    def _fair_seconds(self, party: Party) -> float:
        """Return the seconds that a party may take without delaying the others."""
        usual = SLOW_FACTOR * self._needed * self.workloads.get(party, 1)
        return max(GRACE_SECONDS, usual) * self.patience_factor

    def find_stragglers(self, answered: Set[Party]) -> Set[Party]:
        """Record who has answered by now; return the parties that are no longer waited for."""
        elapsed = self.seconds
        is_enough = len(self._answered) >= self.minimum
        for party in (answered & self.workloads.keys()) - self._answered:
            if is_enough and elapsed > self._fair_seconds(party):
                self._charge_delay(party)
            else:
                self._in_time.add(party)
                self.stragglers.add_delay(party, -max(elapsed, GRACE_SECONDS))
                self._needed = max(self._needed, elapsed / self.workloads[party])
        self._answered = frozenset(answered)
        if not is_enough:
            return set()
        stragglers = set()
        for party in self.workloads.keys() - answered:
            patience = self.stragglers.remaining_patience(party, self._needed)
            if elapsed > self._fair_seconds(party) + patience * self.patience_factor:
                stragglers.add(party)
        return stragglers

    async def collect_answers(
        self,
        missing: Callable[[], Set[Party]],
        reachable: Callable[[], Set[Party]],
        ask: Callable[[Set[Party], bool], Awaitable[None]],
    ) -> Set[Party]:
        """Ask, and ask again, until all have answered, nobody can be waited for, or time is over.

        Args:
            missing: returns the parties that have not answered yet.
            reachable: returns the parties that can be reached.
            ask: asks parties, for the first time (False) or again (True).

        Returns:
            Reachable parties that have not answered, while others have.
        """
        session = self.stragglers.session
        is_repeated = False
        resend_at = self._began
        end = self._began + session.settings.deadline * self.patience_factor
        while True:
            missing_now = missing()
            # also after the last answer, which may have delayed the others
            stragglers = self.find_stragglers(self.workloads.keys() - missing_now)
            if not missing_now:
                return frozenset()
            awaited = missing_now & reachable()
            current_time = session.clock()
            if current_time >= end or awaited <= stragglers:
                return awaited if self._answered else frozenset()
            if current_time >= resend_at:
                await ask(missing_now, is_repeated)
                is_repeated = True
                resend_at = current_time + session.end.resend_seconds
            await session.pause(poll_interval(len(self.workloads)))

    def _charge_delay(self, party: Party) -> None:
        """Add the time beyond the fair one to a party's delay.

        The parties in time are credited half of it, because any machine may stall once.
        """
        seconds = max(0.0, self.seconds - self._fair_seconds(party))
        self.stragglers.add_delay(party, seconds)
        for punctual in self._in_time:
            self.stragglers.add_delay(punctual, -seconds / 2)

    def leave_out(self, party: Party, reason: str) -> None:
        """Leave out a party that has not answered yet."""
        self._charge_delay(party)
        self.stragglers.leave_out(party, self.seconds, reason)

    @property
    def seconds(self) -> float:
        """Seconds since this wait began."""
        return self.stragglers.session.clock() - self._began

    @property
    def within(self) -> str:
        """The time that was waited, as a text."""
        longest = self.stragglers.session.settings.deadline * self.patience_factor
        return f"within {round(min(self.seconds, longest), 1):g} s"
