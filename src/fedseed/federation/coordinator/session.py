"""The shared state of a coordinator's conversation: settings, refusals, calls and stragglers."""

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
RESEND_SECONDS = 2.0  # seconds until a plan or a question is repeated to parties without an answer
# a party is slow if it takes longer than GRACE_SECONDS and than this many times the others' time
SLOW_FACTOR = 3.0
GRACE_SECONDS = 1.0
# the delays of one party may add up to this many times the others' time
DELAY_FACTOR = 9.0
Party = TypeVar("Party", bound=Hashable)

MOST_SHOWN = 50  # how many refusals are shown; all are counted
MOST_REASONS = 50  # how many reasons are remembered for each sender
# how many reasons of all senders are remembered; a status answer has room for this many, whatever
# characters they have
MOST_REMEMBERED = 300
MOST_SENDERS = 1_000  # how many senders are remembered
MOST_NAME = 100  # the most characters of a sender's name
OTHERS = "others"


@dataclass
class Rejected:
    """Counts refusals by sender and reason in bounded memory, and shows the first ones.

    Senders and reasons are untrusted text: each is stored as one short line that a terminal can
    show safely.
    """

    progress: Progress  # shows refusals
    run: str  # the run's name, for a hint where to see further refusals
    # counts by sender and reason, the oldest first
    _counts: OrderedDict[tuple[str, str], int] = field(default_factory=OrderedDict)
    # counts of forgotten reasons, by sender
    _others: Counter[str] = field(default_factory=Counter)
    # number of remembered reasons, by sender
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
    minimum: int = 1  # least number of answers; with fewer, the round begins again
    start_with: int | None = None  # number of clients that the first round waits for; None: all
    dead_after: float = 6.0  # seconds of silence after which a client counts as dead
    # digest that the clients' base must have; None: the digest of most clients
    base_digest: str | None = None
    copies: int = 1  # copies of the run's log, if there are several servers
    digest: DigestKind = "blake2b"  # how base and weights are hashed
    names: tuple[str, ...] = ()  # the clients' names, if they are known beforehand
    enrols: bool = False  # whether any client may enrol before the start
    # whether every client evaluates on its own held-out data, instead of one client for all
    each_evaluates: bool = False
    # metrics that an evaluation must have, because the run needs them
    measures: tuple[str, ...] = ()
    # a check that raises RecipeError if the run can't have this number of clients
    check: Callable[[int], None] = lambda clients: None
    # digest that the trained tensors must have before the first step; None: the digest of most
    # clients
    weights_digest: str | None = None
    # settings of secure sums; None: the coordinator reads every answer
    secure: SecureSums | None = None
    # total seconds for which a slow client may delay the others
    patience: float = 20.0
    # folder for the proofs against clients barred from secure sums; None: not stored
    proofs: Path | None = None


@dataclass
class Session:
    """The coordinator's end of the transport, and the state that the coordinator's parts share."""

    end: CoordinatorEnd  # the transport
    settings: CoordinatorSettings  # deadlines and the like
    progress: Progress  # shows progress
    rejected: Rejected  # counts refused messages
    # the log's incarnation; if a run is put on the server again, it gets a new one
    incarnation: str = ""
    stranger: bool = False  # whether an unknown host has sent a message
    clock: Callable[[], float] = time.monotonic  # a monotonic clock, in seconds
    failure: Exception | None = None  # the error that ends the run
    # whether the clients are in this process; then each answers once, even if its answer is refused
    at_hand: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _called: float = 0.0
    _call_interval: float = 1.0  # seconds between calls because of a stranger

    def fail(self, error: Exception) -> None:
        """End the run with an error; `pause` raises it."""
        self.failure = error
        self.stir()

    def stir(self) -> None:
        """Wake the callers of `pause`, because something has happened."""
        self._changed.set()

    async def call(self, soon: Collection[str] = ()) -> None:
        """Ask every host to send a hello.

        Args:
            soon: clients that must get the call immediately.
        """
        await self.end.broadcast(b"C" + self.incarnation.encode(), soon)

    async def pause(self, seconds: float) -> None:
        """Wait until something happens, for at most `seconds`. Raises the run's error if the run
        has failed.
        """
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
    # end of each party's exclusion, and its length in seconds
    _exclusions: dict[Party, tuple[float, float]] = field(default_factory=dict)
    # seconds for which the others have waited for each party
    _delays: dict[Party, float] = field(default_factory=dict)

    def leave_out(self, party: Party, seconds: float, reason: str) -> None:
        """Leave a party out for twice the seconds that the others waited for it, or for its delay
        if that is longer.

        The time doubles with each exclusion in a row. So a party that never answers takes at most
        half of a run's time (if the run is longer than a deadline): the run waits for it again
        after 0, 2, 6, 14, ... deadlines of other work.
        """
        _, last_seconds = self._exclusions.get(party, (0.0, 0.0))
        seconds = max(2 * seconds, self._delays.get(party, 0.0), 2 * last_seconds)
        self._exclusions[party] = self.session.clock() + seconds, seconds
        self.session.progress.warn(f"{reason}: it will not be asked for {round(seconds, 1):g} s")

    def readmit(self, party: Party) -> None:
        """End a party's exclusion, because it has answered in time."""
        self._exclusions.pop(party, None)

    def add_delay(self, party: Party, seconds: float) -> None:
        """Add seconds to a party's delay; a negative number reduces it."""
        self._delays[party] = max(0.0, self._delays.get(party, 0.0) + seconds)

    def remaining_patience(self, party: Party, needed: float) -> float:
        """Return for how many more seconds a party may delay the others, which needed `needed`
        seconds.
        """
        patience = max(self.session.settings.patience, DELAY_FACTOR * needed)
        return max(0.0, patience - self._delays.get(party, 0.0))

    def is_left_out(self, party: Party) -> bool:
        """Return whether a party is currently left out."""
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
    # number of tasks by party: clients of one process have to work one after another
    workloads: Mapping[Party, int]
    minimum: int  # number of answers needed to continue
    patience_factor: float = 1.0
    _answered: Set[Party] = frozenset()
    _in_time: set[Party] = field(default_factory=set)
    _needed: float = 0.0  # seconds for one task of the slowest party that was in time

    def __post_init__(self) -> None:
        self.minimum = max(self.minimum, (len(self.workloads) + 1) // 2)
        self._began = self.stragglers.session.clock()

    def _fair_seconds(self, party: Party) -> float:
        """Return how many seconds a party may take without delaying the others."""
        usual = SLOW_FACTOR * self._needed * self.workloads.get(party, 1)
        return max(GRACE_SECONDS, usual) * self.patience_factor

    def find_stragglers(self, answered: Set[Party]) -> Set[Party]:
        """Record which parties have answered, and return those that are no longer waited for."""
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
        """Ask parties, repeatedly, until all have answered, no other can be waited for, or the time
        is over.

        Args:
            missing: returns the parties that have not answered yet.
            reachable: returns the parties that can be reached.
            ask: asks parties, for the first time (False) or again (True).

        Returns:
            The reachable parties that have not answered although others have.
        """
        session = self.stragglers.session
        is_repeated = False
        resend_at = self._began
        end = self._began + session.settings.deadline * self.patience_factor
        while True:
            missing_now = missing()
            # also after the last answer, because its party may have delayed the others
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
        """Add the time beyond a party's fair time to its delay.

        Parties that were in time get a credit of half of it, because any machine may stall once.
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
        """The waiting time, as text."""
        longest = self.stragglers.session.settings.deadline * self.patience_factor
        return f"within {round(min(self.seconds, longest), 1):g} s"
