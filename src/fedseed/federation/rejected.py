"""Messages that were not accepted."""

from collections import OrderedDict, defaultdict

from fedseed.reports.progress import Progress
from fedseed.text import shown

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
