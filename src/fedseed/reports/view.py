"""The content of a run's folder for a page, finished or not. It needs no torch or Matplotlib."""

import json
import tomllib
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from fedseed.errors import FedseedError
from fedseed.reports.results import RoundLine
from fedseed.text import natural


@dataclass
class ClientRow:
    """The facts about a client in a run's files."""

    name: str  # the client's
    rounds: float = 0.0  # number of rounds in which it took part
    is_estimate: bool = False  # whether that number is an estimate, as only sums were written
    # rounds without an accepted answer, by reason
    skipped: Counter[str] = field(default_factory=Counter)
    attacker: bool = False  # whether it was made to lie
    # its own held-out figures, the newest ones
    metrics: dict[str, float] = field(default_factory=dict)
    measured: int = 0  # the round after which it had them


@dataclass
class RunView:
    """A run as a page shows it."""

    name: str  # its name on the page
    lines: list[RoundLine]  # lines of metrics so far
    summary: Mapping[str, Any] | None = None  # content of summary.json; None: the run is not over
    recipe: str = ""  # its recipe as text; "" if it has none
    round: int = 0  # the last round that is known to count
    rounds: int | None = None  # total number of rounds; None: not known

    @property
    def settings(self) -> dict[str, Any]:
        """Return the recipe's tables."""
        if self.recipe:
            return tomllib.loads(self.recipe)
        return {}

    @property
    def method(self) -> str:
        """Return the method's name; "" if it is not known."""
        return str(
            (self.summary or {}).get("method") or self.settings.get("method", {}).get("name", "")
        )

    @property
    def title(self) -> str:
        """Return the recipe's title, or the run's name."""
        return str(self.settings.get("title") or self.name)

    @property
    def measured(self) -> list[str]:
        """Return the names of the metrics that are measured on held-out examples."""
        if self.lines:
            return list(self.lines[0].metrics)
        return []

    def before_and_after(self, name: str) -> tuple[float | None, float | None]:
        """Return a metric before any round, and the newest value.

        None where it was not measured.
        """
        points = self.curve(name)
        first = last = None
        if points:
            last = points[-1][1]
            if points[0][0] == 0:
                first = points[0][1]
        return first, last

    def curve(self, name: str) -> list[tuple[float, float]]:
        """Return (round, value) wherever a metric was measured."""
        return [(line.round, value) for line in self.lines if (value := line.get(name)) is not None]

    def bytes_curve(self, name: Literal["bytes_up", "bytes_down"]) -> list[tuple[float, float]]:
        """Return (round, payload bytes of a client that takes part in every round, up to and with
        it).
        """
        bytes_by_line = [getattr(line, name) * line.rounds for line in self.lines]
        return list(
            zip((line.round for line in self.lines), accumulate(bytes_by_line), strict=True)
        )

    def payload(self) -> tuple[float, float] | None:
        """Return the mean payload bytes of a client and round, up and down.

        None before the first round.
        """
        lines = [line for line in self.lines if line.round > 0]
        count = sum(line.rounds for line in lines)
        if not count:
            return None
        bytes_up = sum(line.bytes_up * line.rounds for line in lines)
        bytes_down = sum(line.bytes_down * line.rounds for line in lines)
        return bytes_up / count, bytes_down / count

    def seconds(self) -> dict[str, float]:
        """Return all seconds by phase."""
        seconds: dict[str, float] = {}
        for line in self.lines:
            for phase, spent in line.seconds.items():
                seconds[phase] = seconds.get(phase, 0.0) + spent
        return seconds

    def clients(self) -> list[ClientRow]:
        """Return the facts about each client in any line, in the order of their names."""
        rows: dict[str, ClientRow] = {}

        def row(name: str) -> ClientRow:
            return rows.setdefault(name, ClientRow(name))

        for line in self.lines:
            part = 1.0
            if line.rounds > 1 and line.clients:
                part = line.taking_part / len(line.clients)
            for name in line.clients:
                row(name).rounds += part
                row(name).is_estimate |= part != int(part)
            for skipped in line.skipped:
                row(skipped["client"]).skipped[skipped["reason"]] += 1
            for name in line.attacked:
                row(name).attacker = True
            for name, values in (line.by_client or {}).items():
                row(name).metrics.update(values)
                row(name).measured = line.round
        return sorted(rows.values(), key=lambda row: natural(row.name))


def view_folder(folder: Path, summary: Mapping[str, Any] | None = None) -> RunView:
    """Read a run's folder as it is now, also while a run writes into it.

    Args:
        folder: the run's.
        summary: the summary of a run that is about to write it.

    Raises:
        FedseedError: there is no run in it.
    """
    recipe = _text(folder / "recipe.toml")
    lines = _whole_lines(folder / "metrics.jsonl")
    if summary is None and (text := _text(folder / "summary.json")):
        summary = json.loads(text)
    if not lines and not recipe:
        raise FedseedError(
            f"{folder}: there is no run in it: neither recipe.toml nor metrics.jsonl"
        )
    rounds = [line.round for line in (*lines, *_whole_lines(folder / "progress.jsonl"))]
    view = RunView(folder.resolve().name, lines, summary, recipe, max(rounds, default=0))
    view.rounds = view.settings.get("rounds")
    return view


def _text(path: Path) -> str:
    if path.exists():
        return path.read_text(encoding="utf-8")
    return ""


def _whole_lines(path: Path) -> list[RoundLine]:
    """Return the complete lines, up to the first damaged one."""
    lines: list[RoundLine] = []
    with suppress(ValueError, TypeError):
        for number, text in enumerate(_text(path).split("\n")[:-1], start=1):
            lines.append(RoundLine.from_json(json.loads(text), path.name, number))
    return lines
