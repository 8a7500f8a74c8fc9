"""Show a run's progress: a bar on a terminal, plain lines elsewhere. And the console for all
output.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.segment import Segment
from rich.text import Text

from fedseed.errors import plural
from fedseed.metrics import metric_text, metric_title, shown_metrics
from fedseed.reports.results import RoundLine
from fedseed.text import clean

FIRST_INTERVAL_SECONDS = 60.0  # between the first two times that a lasting trouble is shown
MOST_INTERVAL_SECONDS = 3600.0
MOST_TROUBLES = 1_000  # how many troubles are remembered


class Screen(Console):
    """A rich console that prints text literally: it reads no markup, and sends no control
    characters but its own.

    Args:
        settings: arguments of `rich.console.Console`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **settings})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the printed objects with cleaned texts, also in tables and bars."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)


class Progress:
    """The interface for messages of a run; this class ignores them."""

    def running(self, name: str, rounds: int) -> AbstractContextManager[None]:
        """Return a context that lasts as long as the run."""
        return nullcontext()

    def round(self, line: RoundLine) -> None:
        """Show a finished round by its line of metrics."""

    def advance(self, number: int) -> None:
        """Show that a round without a line of its own is over."""

    def note(self, text: str) -> None:
        """Show something about the run's data, when it starts."""

    def warn(self, text: str) -> None:
        """Show a warning; the run continues."""


@dataclass
class ShownTrouble:
    """When a trouble was shown, and when it last came up."""

    shown_at: float
    last_at: float
    interval: float = FIRST_INTERVAL_SECONDS  # seconds until it is shown again


@dataclass
class LastingTroubles:
    """Shows a trouble that comes up again and again: at once, and then at growing intervals.

    Args:
        warn: shows a line.
        clock: a monotonic clock, in seconds.
    """

    warn: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    # by text without numbers, the one that came up last at the end
    _troubles: OrderedDict[str, ShownTrouble] = field(default_factory=OrderedDict)

    def report(self, party: str, problem: str) -> None:
        """Report a trouble; texts that differ in numbers alone, as of rounds, are one trouble.

        Args:
            party: the name of the client or process that has it.
            problem: the trouble, with the party's name in it.
        """
        current_time = self.clock()
        key = f"{party}\n" + re.sub(r"\d+", "", problem)
        trouble = self._troubles.pop(key, None)
        if trouble is not None and current_time > trouble.last_at + FIRST_INTERVAL_SECONDS:
            trouble = None  # it was over, and has come back
        if trouble is None:
            trouble = ShownTrouble(current_time, current_time)
            self.warn(problem)
        elif current_time >= trouble.shown_at + trouble.interval:
            trouble.shown_at = current_time
            trouble.interval = min(2 * trouble.interval, MOST_INTERVAL_SECONDS)
            self.warn(problem)
        trouble.last_at = current_time
        self._troubles[key] = trouble
        if len(self._troubles) > MOST_TROUBLES:
            self._troubles.popitem(last=False)


def choose_progress(progress: Progress | bool | None) -> Progress:
    """Return the object that shows a run: the given one; for True a console; for False none. For
    None a console if its output is visible.
    """
    if not isinstance(progress, bool) and progress is not None:
        return progress
    console = Screen(stderr=True)
    is_shown = progress
    if progress is None:
        is_shown = console.is_terminal or console.is_jupyter
    if is_shown:
        return Shown(console)
    return Progress()


def describe(line: RoundLine) -> str:
    """Return one round in a few words."""
    parts = [
        f"{metric_title(name)} {metric_text(name, line.metrics[name])}"
        for name in shown_metrics(line.metrics)
    ]
    if line.taking_part:
        if line.train_loss is not None:
            parts.append(
                f"{metric_title('train_loss')} {metric_text('train_loss', line.train_loss)}"
            )
        parts.append(f"{line.bytes_up:,.0f} B up a client")
    return ", ".join(parts)


class Shown(Progress):
    """Shows a run on a console.

    Args:
        console: the console.
        lines: where it is not a terminal, the most lines about rounds without a line of their own.
    """

    def __init__(self, console: Console, lines: int = 0) -> None:
        self.console = console
        self._lines = lines
        self._said = 0  # how many of them
        self._bar: Bar | None = None
        self._task: Any = None
        self._rounds = 0

    @contextmanager
    def running(self, name: str, rounds: int) -> Iterator[None]:
        self._rounds = rounds
        if not self.console.is_terminal:
            self.console.print(f"{name}: {plural(rounds, 'round')}")
            yield
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Bar(*columns, TimeRemainingColumn(), console=self.console) as bar:
            self._bar = bar
            self._task = bar.add_task(name, total=rounds)
            yield
        self._bar = None

    def round(self, line: RoundLine) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=line.round)
        if "loss" in line.metrics or not self.console.is_terminal:
            self.console.print(
                f"  round {line.round:>{len(str(self._rounds))}}  {describe(line)}",
                highlight=False,
                soft_wrap=True,
            )

    def advance(self, number: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=number)
        elif self._lines and number * self._lines // max(1, self._rounds) > self._said:
            self._said = number * self._lines // self._rounds
            self.console.print(f"  round {number} of {self._rounds}", highlight=False)

    def note(self, text: str) -> None:
        self.console.print(f"  {text}", highlight=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.console.print(
            Text.assemble(("warning", "yellow"), f" {text}"), highlight=False, soft_wrap=True
        )
