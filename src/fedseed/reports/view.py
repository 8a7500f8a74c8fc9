"""What a run's folder says about the run, finished or going on, as a page shows it.

Free of torch and Matplotlib.
"""

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
    """What a run's files say about a client."""

    name: str  # the client's
    rounds: float = 0.0  # in which it took part
    about: bool = False  # the number of rounds is an estimate: only sums were written
    # rounds in which it sent nothing that counts, by reason
    skipped: Counter[str] = field(default_factory=Counter)
    attacker: bool = False  # it was made to lie
    # its own held-out figures, the newest ones
    metrics: dict[str, float] = field(default_factory=dict)
    measured: int = 0  # the round after which it had them


@dataclass
class RunView:
    """A run as a page shows it."""

    name: str  # what the page calls it
    lines: list[RoundLine]  # of metrics, the ones there are
    summary: Mapping[str, Any] | None = None  # what summary.json holds; None: the run is not over
    recipe: str = ""  # its recipe as text; "" if it has none
    round: int = 0  # the last round that is known to count
    rounds: int | None = None  # how many there will be; None: not known

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the recipe's tables."""
        return tomllib.loads(self.recipe) if self.recipe else {}

    @property
    def method(self) -> str:
        """Returns the method's name; "" if nothing says it."""
        return str(
            (self.summary or {}).get("method") or self.settings.get("method", {}).get("name", "")
        )

    @property
    def title(self) -> str:
        """Returns the recipe's title, or the run's name."""
        return str(self.settings.get("title") or self.name)

    @property
    def measured(self) -> list[str]:
        """Returns the names of the metrics that are measured on held-out examples."""
        return list(self.lines[0].metrics) if self.lines else []

    def before_and_after(self, name: str) -> tuple[float | None, float | None]:
        """Returns a metric before any round, and the newest value.

        None where it was not measured.
        """
        found = self.curve(name)
        return (found[0][1] if found and found[0][0] == 0 else None), (
            found[-1][1] if found else None
        )

    def curve(self, name: str) -> list[tuple[float, float]]:
        """Returns (round, value) wherever a metric was measured."""
        return [(line.round, value) for line in self.lines if (value := line.get(name)) is not None]

    def bytes_curve(self, name: Literal["bytes_up", "bytes_down"]) -> list[tuple[float, float]]:
        """Returns (round, payload bytes of a client that takes part in every round, up to and with
        it).
        """
        each = [getattr(line, name) * line.rounds for line in self.lines]
        return list(zip((line.round for line in self.lines), accumulate(each), strict=True))

    def payload(self) -> tuple[float, float] | None:
        """Returns the mean payload bytes of a client and round, up and down.

        None before the first round.
        """
        lines = [line for line in self.lines if line.round > 0]
        count = sum(line.rounds for line in lines)
        if not count:
            return None
        up, down = (
            sum(getattr(line, name) * line.rounds for line in lines)
            for name in ("bytes_up", "bytes_down")
        )
        return up / count, down / count

    def seconds(self) -> dict[str, float]:
        """Returns all seconds by phase."""
        phases = dict.fromkeys(phase for line in self.lines for phase in line.seconds)
        return {phase: sum(line.seconds.get(phase, 0.0) for line in self.lines) for phase in phases}

    def clients(self) -> list[ClientRow]:
        """Returns what is known of each client that any line names, in the order of their names."""
        rows: dict[str, ClientRow] = {}

        def row(name: str) -> ClientRow:
            return rows.setdefault(name, ClientRow(name))

        for line in self.lines:
            part = line.taking_part / len(line.clients) if line.rounds > 1 and line.clients else 1.0
            for name in line.clients:
                row(name).rounds += part
                row(name).about |= part != int(part)
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
        summary: of a run that is about to write it.

    Raises:
        FedseedError: there is no run in it.
    """
    recipe = _text(folder / "recipe.toml")
    lines = _whole_lines(folder / "metrics.jsonl")
    if summary is None and (text := _text(folder / "summary.json")):
        summary = json.loads(text)
    if not lines and not recipe:
        raise FedseedError(f"{folder}: no run is here: neither recipe.toml nor metrics.jsonl")
    rounds = [line.round for line in (*lines, *_whole_lines(folder / "progress.jsonl"))]
    view = RunView(folder.resolve().name, lines, summary, recipe, max(rounds, default=0))
    view.rounds = view.settings.get("rounds")
    return view


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _whole_lines(path: Path) -> list[RoundLine]:
    """Returns the lines that were written to their ends.

    What comes after a damaged one is left out.
    """
    found: list[RoundLine] = []
    with suppress(ValueError, TypeError):
        for number, text in enumerate(_text(path).split("\n")[:-1], start=1):
            found.append(RoundLine.from_json(json.loads(text), path.name, number))
    return found
