"""What the parts of a coordinator's conversation share."""

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field

from fedseed.federation.protocol import call_message
from fedseed.privacy.secure.settings import SecureSums
from fedseed.reports.progress import Progress
from fedseed.text import shown
from fedseed.transport.base import CoordinatorEnd
from fedseed.weights.layout import DigestKind

STRANGER_SECONDS = 30.0  # at most between calls because of somebody who is not known
RESEND_SECONDS = 2.0  # a plan or a question is repeated to those that have not answered


MOST_TOLD = 50  # refusals that are said aloud; all are counted
MOST_REASONS = 50  # that are kept for each sender
MOST_KEPT = 300  # reasons of all senders: so many fit into an answer about the status, whatever characters they have
MOST_SENDERS = 1_000  # that are kept
MOST_NAME = 100  # characters of a sender's name
OTHERS = "others"


class Rejected:
    """Counts refusals by sender and reason, in bounded memory, and says the first ones aloud.

    What is refused, and of whom, is somebody else's text: it is kept in one short line that a terminal can show.

    Args:
        progress: shows them.
        run: the run's name, for saying where the others stand.
    """

    def __init__(self, progress: Progress, run: str) -> None:
        self._progress = progress
        self._run = run
        self._kept: OrderedDict[tuple[str, str], int] = OrderedDict()  # how often, the oldest first
        self._others: dict[str, int] = {}  # how often for reasons that are not kept, by sender
        self._reasons: defaultdict[str, int] = defaultdict(int)  # how many are kept, by every sender there was
        self._told = 0
        self._since = 0

    def add(self, sender: str, reason: str) -> None:
        """One more."""
        self._since += 1
        sender, reason = shown(sender, MOST_NAME), shown(reason)
        if sender not in self._reasons and len(self._reasons) >= MOST_SENDERS:
            sender = OTHERS
        new = (sender, reason) not in self._kept
        if new and self._reasons[sender] >= MOST_REASONS:
            self._others[sender] = self._others.get(sender, 0) + 1
        else:
            self._kept[sender, reason] = self._kept.get((sender, reason), 0) + 1
            self._kept.move_to_end((sender, reason))
            self._reasons[sender] += new
            self._drop()
        if new and self._told < MOST_TOLD:
            self._told += 1
            self._progress.warn(f"a message of {sender} is refused: {reason}")
            if self._told == MOST_TOLD:
                self._progress.warn(f"further refusals: fedseed status {self._run}")

    def _drop(self) -> None:
        """The reason that has come up the longest time ago is forgotten, if there are too many; its count is not."""
        if len(self._kept) > MOST_KEPT:
            (sender, _), count = self._kept.popitem(last=False)
            self._others[sender] = self._others.get(sender, 0) + count
            self._reasons[sender] -= 1

    def since(self) -> int:
        """How many there were since the last call."""
        count, self._since = self._since, 0
        return count

    def counts(self) -> dict[str, dict[str, int]]:
        """By sender and reason."""
        found: dict[str, dict[str, int]] = {}
        for (sender, reason), count in self._kept.items():
            found.setdefault(sender, {})[reason] = count
        for sender, count in self._others.items():
            reasons = found.setdefault(sender, {})
            reasons[OTHERS] = reasons.get(OTHERS, 0) + count
        return found


@dataclass(frozen=True)
class CoordinatorSettings:
    """How a coordinator deals with its clients.

    Args:
        deadline: seconds after which a round does without those that have not answered.
        minimum: answers that a round needs; with fewer it is begun again.
        start_with: clients that must be there before the first round; None: all.
        dead_after: seconds of silence after which a client is taken for dead.
        base_digest: digest that the clients' base must have; None: that of most clients.
        copies: of the run's log, where there are several servers.
        digest: how base and weights are hashed.
        names: the clients, where they are known before anybody comes.
        enrols: whoever comes before the start takes part.
        each_evaluates: every client evaluates on what it holds out, not one for all.
        measures: metrics that an evaluation must have, because the run looks at them.
        check: whether the run can be with so many clients; raises RecipeError.
        weights_digest: digest that the trained tensors must begin with; None: what most clients have.
        secure: how sums of answers are made in secret; None: every answer is read.
    """

    deadline: float = 600.0
    minimum: int = 1
    start_with: int | None = None
    dead_after: float = 6.0
    base_digest: str | None = None
    copies: int = 1
    digest: DigestKind = "blake2b"
    names: tuple[str, ...] = ()
    enrols: bool = False
    each_evaluates: bool = False
    measures: tuple[str, ...] = ()
    check: Callable[[int], None] = lambda clients: None
    weights_digest: str | None = None
    secure: SecureSums | None = None


@dataclass
class Session:
    """A coordinator's end, and what all who talk through it need to know.

    Args:
        end: the transport.
        settings: deadlines and the like.
        progress: shows the run going on.
        rejected: counts messages that are not accepted.
        incarnation: of the log; it begins anew when a run is put on the server again.
        stranger: somebody has written whom this coordinator does not know.
        clock: tells seconds, from some beginning.
        failure: what ends the run, whatever it waits for.
    """

    end: CoordinatorEnd
    settings: CoordinatorSettings
    progress: Progress
    rejected: Rejected
    incarnation: str = ""
    stranger: bool = False
    clock: Callable[[], float] = time.monotonic
    failure: Exception | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _called: float = 0.0
    _between: float = 1.0  # seconds between calls because of a stranger

    def fail(self, error: Exception) -> None:
        """The run can't go on."""
        self.failure = error
        self.stir()

    def stir(self) -> None:
        """Something has happened that somebody may wait for."""
        self._changed.set()

    async def call(self, soon: Collection[str] = ()) -> None:
        """Ask everybody to say hello; `soon`: clients that must not wait for another message to hear of it."""
        await self.end.broadcast(call_message(self.incarnation), soon)

    async def pause(self, seconds: float) -> None:
        """Wait for something to happen, at most so long. Raises what ends the run."""
        if self.failure is not None:
            raise self.failure
        now = self.clock()
        if self.stranger and now > self._called + self._between and self.incarnation:
            again = now < self._called + 2 * STRANGER_SECONDS  # whoever goes on like that does not say hello
            self._between = min(2 * self._between, STRANGER_SECONDS) if again else 1.0
            self.stranger, self._called = False, now
            await self.call()
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # no task of its own, as `wait_for` would make: there is one a step
                await self._changed.wait()
