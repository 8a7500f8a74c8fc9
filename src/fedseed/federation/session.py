"""Holds what the parts of a coordinator's conversation share."""

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
from fedseed.text import shown
from fedseed.transport.base import CoordinatorEnd
from fedseed.weights.layout import DigestKind

STRANGER_SECONDS = 30.0  # at most so many pass between calls because of somebody who is not known
RESEND_SECONDS = 2.0  # a plan or a question is repeated to those that have not answered
TIMES = 3.0  # times what the others need may somebody take without holding them up,
GRACE_SECONDS = 1.0  # and so many seconds
REPEATED = 9.0  # times what the others need may somebody hold them up in all
Who = TypeVar("Who", bound=Hashable)

MOST_TOLD = 50  # refusals that are shown; all are counted
MOST_REASONS = 50  # reasons that are kept for each sender
# reasons of all senders: so many fit into an answer about the status, whatever characters they have
MOST_KEPT = 300
MOST_SENDERS = 1_000  # senders that are kept
MOST_NAME = 100  # characters of a sender's name
OTHERS = "others"


@dataclass
class Rejected:
    """Counts refusals by sender and reason, in bounded memory, and shows the first ones.

    Senders and reasons are somebody else's text: each is kept as one short line that a terminal can
    show.
    """

    progress: Progress  # shows refusals
    run: str  # the run's name, for saying where further refusals can be seen
    # how often, the oldest first
    _kept: OrderedDict[tuple[str, str], int] = field(default_factory=OrderedDict)
    # how often for reasons that are not kept, by sender
    _others: Counter[str] = field(default_factory=Counter)
    # how many are kept, by every sender there was
    _reasons: Counter[str] = field(default_factory=Counter)
    _told: int = 0
    _since: int = 0

    def add(self, sender: str, reason: str) -> None:
        """Count one more refusal."""
        self._since += 1
        sender, reason = shown(sender, MOST_NAME), shown(reason)
        if sender not in self._reasons and len(self._reasons) >= MOST_SENDERS:
            sender = OTHERS
        new = (sender, reason) not in self._kept
        if new and self._reasons[sender] >= MOST_REASONS:
            self._others[sender] += 1
        else:
            self._kept[sender, reason] = self._kept.pop((sender, reason), 0) + 1  # at the end
            self._reasons[sender] += new
            # the reason that has not come up for longest is forgotten, not its count
            if len(self._kept) > MOST_KEPT:
                (oldest, _), count = self._kept.popitem(last=False)
                self._others[oldest] += count
                self._reasons[oldest] -= 1
        if new and self._told < MOST_TOLD:
            self._told += 1
            self.progress.warn(f"a message of {sender} is refused: {reason}")
            if self._told == MOST_TOLD:
                self.progress.warn(f"further refusals: fedseed status {self.run}")

    def since(self) -> int:
        """Return how many refusals there were since the last call."""
        count, self._since = self._since, 0
        return count

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return how many refusals there were, by sender and reason."""
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for (sender, reason), count in self._kept.items():
            found[sender][reason] = count
        for sender, count in self._others.items():
            found[sender][OTHERS] += count
        return found


@dataclass(frozen=True)
class CoordinatorSettings:
    """How a coordinator deals with its clients."""

    deadline: float = 600.0  # seconds after which a round does without those that have not answered
    minimum: int = 1  # answers that a round needs; with fewer it is begun again
    start_with: int | None = None  # clients that must be there before the first round; None: all
    dead_after: float = 6.0  # seconds of silence after which a client is taken for dead
    # digest that the clients' base must have; None: that of most clients
    base_digest: str | None = None
    copies: int = 1  # how many copies of the run's log are kept, where there are several servers
    digest: DigestKind = "blake2b"  # how base and weights are hashed
    names: tuple[str, ...] = ()  # the clients, where they are known before anybody comes
    enrols: bool = False  # whether whoever comes before the start takes part
    # whether every client evaluates on what it holds out, not one for all
    each_evaluates: bool = False
    # metrics that an evaluation must have, because the run looks at them
    measures: tuple[str, ...] = ()
    # raises RecipeError if the run can't be with so many clients
    check: Callable[[int], None] = lambda clients: None
    # digest that the trained tensors must begin with; None: what most clients have
    weights_digest: str | None = None
    # how sums of answers are made in secret; None: every answer is read
    secure: SecureSums | None = None
    # seconds in all for which one several times as slow as the others may hold them up
    patience: float = 20.0
    # folder for why clients are barred from secure sums; None: nothing is kept
    proofs: Path | None = None


@dataclass
class Session:
    """A coordinator's end, and what all who talk through it need to know."""

    end: CoordinatorEnd  # the transport
    settings: CoordinatorSettings  # deadlines and the like
    progress: Progress  # shows the run going on
    rejected: Rejected  # counts messages that are not accepted
    # the log's incarnation; the log begins anew when a run is put on the server again
    incarnation: str = ""
    stranger: bool = False  # whether somebody has written whom this coordinator does not know
    clock: Callable[[], float] = time.monotonic  # returns seconds since some moment
    failure: Exception | None = None  # the error that ends the run, whatever it waits for
    # whether clients are in this process: each answers once, whatever becomes of its answer
    at_hand: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _called: float = 0.0
    _between: float = 1.0  # seconds between calls because of a stranger

    def fail(self, error: Exception) -> None:
        """End the run with an error; `pause` raises it."""
        self.failure = error
        self.stir()

    def stir(self) -> None:
        """Wake those who wait in `pause`: something has happened."""
        self._changed.set()

    async def call(self, soon: Collection[str] = ()) -> None:
        """Ask everybody to say hello.

        `soon`: clients that must not wait for another message to hear of it.
        """
        await self.end.broadcast(b"C" + self.incarnation.encode(), soon)

    async def pause(self, seconds: float) -> None:
        """Wait for something to happen, at most so long. Raises the error that ends the run."""
        if self.failure is not None:
            raise self.failure
        now = self.clock()
        if self.stranger and now > self._called + self._between and self.incarnation:
            # a stranger who keeps writing does not say hello
            again = now < self._called + 2 * STRANGER_SECONDS
            self._between = min(2 * self._between, STRANGER_SECONDS) if again else 1.0
            self.stranger, self._called = False, now
            await self.call()
        self._changed.clear()
        with suppress(TimeoutError):
            # `wait_for` would make a task, and this runs at every step
            async with asyncio.timeout(seconds):
                await self._changed.wait()


def between_looks(count: int) -> float:
    """Return seconds between two looks at all of so many that are waited for: each costs a
    microsecond or two.
    """
    return max(0.25, 1e-5 * count)


@dataclass
class Late(Generic[Who]):
    """Keeps who is there and lets the others wait: each is left out for a while and then asked
    again.

    What somebody takes beyond `TIMES` of what the slowest of the others needed is held against it,
    and what it does in time speaks for it. When that comes to the settings' `patience`, and to
    several times what the others needed, it is not waited for.
    """

    session: Session
    # until when, and for how many seconds
    _out: dict[Who, tuple[float, float]] = field(default_factory=dict)
    # seconds for which the others have waited
    _owed: dict[Who, float] = field(default_factory=dict)

    def leave_out(self, who: Who, seconds: float, why: str) -> None:
        """Leaves somebody out for twice the seconds it was waited for, or what it owes.

        Doubled each time in a row.

        So all waiting for one client is at most the rest of a run's time, where that is a deadline
        or more: it is waited for when the rest has come to 0, 2, 6, 14, ... deadlines.
        """
        seconds = max(2 * seconds, self._owed.get(who, 0.0), 2 * self._out.get(who, (0.0, 0.0))[1])
        self._out[who] = self.session.clock() + seconds, seconds
        self.session.progress.warn(f"{why}: it is not asked for {round(seconds, 1):g} s")

    def back(self, who: Who) -> None:
        """Leaves somebody out no more: it has answered in time."""
        self._out.pop(who, None)

    def owe(self, who: Who, seconds: float) -> None:
        """Somebody has held the others up for so many seconds, or (less than 0) has not."""
        self._owed[who] = max(0.0, self._owed.get(who, 0.0) + seconds)

    def patience(self, who: Who, needed: float) -> float:
        """Return for how long somebody may hold up others that needed so many seconds."""
        return max(
            0.0, max(self.session.settings.patience, REPEATED * needed) - self._owed.get(who, 0.0)
        )

    def is_out(self, who: Who) -> bool:
        """Tell whether somebody is left out now."""
        return self.session.clock() < self._out.get(who, (-inf, 0.0))[0]

    def named(self) -> list[Who]:
        """Return who is left out, or has used up a third of the patience with it."""
        most = self.session.settings.patience / 3
        return [
            who
            for who in {**self._out, **self._owed}
            if self.is_out(who) or self._owed.get(who, 0.0) > most
        ]

    def without(self, here: frozenset[Who], least: int) -> frozenset[Who]:
        """Return those here who may be asked: all but those left out, unless too few would
        remain.
        """
        rest = frozenset(who for who in here if not self.is_out(who))
        return rest if len(rest) >= least else here


@dataclass
class Wait(Generic[Who]):
    """Waits for several at once, and sees who of them holds the others up."""

    late: Late[Who]  # what is known of each
    # who is waited for, and for how much work: two of one process wait for each other
    asked: Mapping[Who, int]
    least: int  # answers without which nothing can go on
    longer: float = 1.0  # how many times as much patience as usual
    _answered: Set[Who] = frozenset()
    _in_time: set[Who] = field(default_factory=set)
    _needed: float = 0.0  # seconds that the slowest of those in time took for a single one's work

    def __post_init__(self) -> None:
        self.least = max(self.least, (len(self.asked) + 1) // 2)
        self._began = self.late.session.clock()

    def _fair(self, who: Who) -> float:
        """Seconds that somebody may take without holding anybody up."""
        return max(GRACE_SECONDS, TIMES * self._needed * self.asked.get(who, 1)) * self.longer

    def holding(self, answered: Set[Who]) -> Set[Who]:
        """Note who has answered by now; return who is not waited for any longer."""
        took, enough = self.seconds, len(self._answered) >= self.least
        for who in (answered & self.asked.keys()) - self._answered:
            if enough and took > self._fair(who):
                self._hold_up(who)
            else:
                self._in_time.add(who)
                self.late.owe(who, -max(took, GRACE_SECONDS))
                self._needed = max(self._needed, took / self.asked[who])
        self._answered = frozenset(answered)
        if not enough:
            return set()
        waited = self.asked.keys() - answered
        most = {
            who: self._fair(who) + self.late.patience(who, self._needed) * self.longer
            for who in waited
        }
        return {who for who in waited if took > most[who]}

    async def answers(
        self,
        missing: Callable[[], Set[Who]],
        here: Callable[[], Set[Who]],
        ask: Callable[[Set[Who], bool], Awaitable[None]],
    ) -> Set[Who]:
        """Ask, and asks again, until all have answered, or nobody is there to wait for, or time is
        over.

        Args:
            missing: returns who has not answered yet.
            here: returns who can be reached.
            ask: asks somebody, for the first time (False) or again.

        Returns:
            Who is there and has let others, who have answered, wait until the time was over.
        """
        session, again = self.late.session, False
        resend, until = self._began, self._began + session.settings.deadline * self.longer
        while True:
            missing_now = missing()
            # who comes last may have held up the others
            held = self.holding(self.asked.keys() - missing_now)
            if not missing_now:
                return frozenset()
            waited, now = missing_now & here(), session.clock()
            if now >= until or waited <= held:
                return waited if self._answered else frozenset()
            if now >= resend:
                await ask(missing_now, again)
                again, resend = True, now + session.end.resend_seconds
            await session.pause(between_looks(len(self.asked)))

    def _hold_up(self, who: Who) -> None:
        """Somebody has held the others up until now: for half as long, each of them may itself, as
        machines stall.
        """
        seconds = max(0.0, self.seconds - self._fair(who))
        self.late.owe(who, seconds)
        for other in self._in_time:
            self.late.owe(other, -seconds / 2)

    def leave_out(self, who: Who, why: str) -> None:
        """Leaves somebody out who has not answered yet."""
        self._hold_up(who)
        self.late.leave_out(who, self.seconds, why)

    @property
    def seconds(self) -> float:
        """Seconds since this wait began."""
        return self.late.session.clock() - self._began

    @property
    def within(self) -> str:
        """Say how long was waited."""
        longest = self.late.session.settings.deadline * self.longer
        return f"within {round(min(self.seconds, longest), 1):g} s"
