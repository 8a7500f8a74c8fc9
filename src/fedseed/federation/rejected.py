"""Messages that were not accepted."""

from collections import Counter, defaultdict

from fedseed.reports.progress import Progress

MOST_TOLD = 50  # refusals that are said aloud; all are counted
MOST_REASONS = 50  # that are kept for each sender
MOST_SENDERS = 10_000  # that are kept


class Rejected:
    """Counts refusals by sender and reason, in bounded memory, and says the first ones aloud.

    Args:
        progress: shows them.
        run: the run's name, for saying where the others stand.
    """

    def __init__(self, progress: Progress, run: str) -> None:
        self._progress = progress
        self._run = run
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._told = 0
        self._since = 0

    def add(self, sender: str, reason: str) -> None:
        """One more."""
        self._since += 1
        room = sender in self._counts or len(self._counts) < MOST_SENDERS
        reasons = self._counts[sender if room else "others"]
        new = reason not in reasons
        reasons[reason if not new or len(reasons) < MOST_REASONS else "others"] += 1
        if new and self._told < MOST_TOLD:
            self._told += 1
            self._progress.warn(f"a message of {sender} is refused: {reason}")
            if self._told == MOST_TOLD:
                self._progress.warn(f"further refusals: fedseed status {self._run}")

    def since(self) -> int:
        """How many there were since the last call."""
        count, self._since = self._since, 0
        return count

    def counts(self) -> dict[str, dict[str, int]]:
        """By sender and reason."""
        return {sender: dict(reasons) for sender, reasons in self._counts.items()}
