"""Charts as data: axes and curves, also those of runs. `plots` draws them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from math import isfinite
from statistics import fmean, stdev
from typing import Literal

from fedseed.metrics import metric_title, shown_metrics
from fedseed.reports.results import RoundLine

Seeds = Sequence[Sequence[RoundLine]]  # the lines of metrics of one run with each seed


@dataclass(frozen=True)
class Series:
    """A line of a chart."""

    name: str  # what it is
    points: Sequence[tuple[float, float]]  # (x, y); those that are not finite are left out
    # (x, low, high) of a band around the line, such as a deviation
    band: Sequence[tuple[float, float, float]] = ()
    number: int = 0  # the number of its style, the same in all charts of a page


@dataclass(frozen=True)
class Axis:
    """One axis of a chart."""

    label: str  # what it shows
    log: bool = False  # logarithmic; values of zero and less are left out
    unit: Literal["", "B", "s"] = ""  # format of its numbers
    whole: bool = False  # whole numbers only, such as rounds


@dataclass(frozen=True)
class Panel:
    """A chart."""

    title: str  # above it
    series: Sequence[Series]  # its lines
    x: Axis  # the horizontal axis
    y: Axis  # the vertical axis
    start: float | None = None  # height of a horizontal line at the starting value


ROUND = Axis("round", whole=True)
# a horizontal axis: its name, its axis, and a function from a line of metrics to the amount that it
# adds
COSTS: tuple[tuple[str, Axis, Callable[[RoundLine], float]], ...] = (
    (
        "payload bytes",
        Axis("payload bytes of a client that takes part", log=True, unit="B"),
        lambda line: (line.bytes_up + line.bytes_down) * line.rounds,
    ),
    (
        "passes",
        Axis("forward passes (a backward pass is two), all clients", log=True),
        RoundLine.passes,
    ),
    (
        "seconds",
        Axis("seconds of rounds, all clients", log=True, unit="s"),
        lambda line: sum(spent for phase, spent in line.seconds.items() if phase != "evaluation"),
    ),
)


def curves(
    runs: Mapping[str, Seeds], heading: str = "", names: Sequence[str] | None = None
) -> list[Panel]:
    """Return charts of each metric of some runs over rounds and over costs: means over seeds, with
    deviations.

    Args:
        runs: the runs, by label; a label's place among them decides its style.
        heading: text before each title, such as a scenario.
        names: names of the metrics; None: all that are shown.
    """
    every = [lines for lines in chain.from_iterable(runs.values()) if lines]
    panels = []
    for name in names or shown_metrics(
        dict.fromkeys(chain.from_iterable(lines[0].metrics for lines in every))
    ):
        title, axis = metric_title(name), Axis(metric_title(name, unit=True))
        if heading:
            title = f"{heading}: {title}"
        by_round = []
        for number, (label, seeds) in enumerate(runs.items()):
            values = [_values_by_round(lines, name) for lines in seeds]
            by_round.append(Series(label, *_mean(values), number))
        panels.append(Panel(f"{title} over rounds", by_round, ROUND, axis))
        for axis_title, x, cost in COSTS:
            series = [
                _plot_over(line, runs[line.name][0], cost) for line in by_round if line.points
            ]
            panels.append(Panel(f"{title} over {axis_title}", series, x, axis))
    return panels


def _values_by_round(lines: Sequence[RoundLine], name: str) -> dict[int, float | None]:
    return {line.round: line.metrics.get(name) for line in lines}


def _mean(
    tables: Sequence[Mapping[int, float | None]],
) -> tuple[list[tuple[float, float]], list[tuple[float, float, float]]]:
    """Return the mean of several seeds' curves where all have a point, and a deviation to both
    sides.
    """
    points: list[tuple[float, float]] = []
    band: list[tuple[float, float, float]] = []
    for position in tables[0] if tables else ():
        values = [
            value
            for table in tables
            if (value := table.get(position)) is not None and isfinite(value)
        ]
        if len(values) == len(tables):
            points.append((position, fmean(values)))
        if len(values) == len(tables) > 1:
            band.append((position, fmean(values) - stdev(values), fmean(values) + stdev(values)))
    return points, band


def _plot_over(
    series: Series, lines: Sequence[RoundLine], cost: Callable[[RoundLine], float]
) -> Series:
    """Return a curve over rounds as a curve over the rounds' accumulated cost."""
    spent = dict(zip((line.round for line in lines), accumulate(map(cost, lines)), strict=True))
    band = [(spent[int(position)], low, high) for position, low, high in series.band]
    return Series(
        series.name,
        [(spent[int(position)], value) for position, value in series.points],
        band,
        series.number,
    )
