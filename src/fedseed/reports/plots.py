"""Pictures of runs."""

from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from fedseed.metrics import metric_title, shown_metrics
from fedseed.reports import fonts
from fedseed.reports.charts import Unit, log_ticks, short_number
from fedseed.reports.results import RoundLine
from fedseed.reports.style import COLOURS, look

DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D")
SHADES = 256  # colours of a picture, which make it three times smaller than all that there could be
Lines = Sequence[RoundLine]


def line_style(number: int) -> dict[str, Any]:
    """How the line of this number looks: 48 lines look different, also without colours most neighbours do."""
    colour, dashes = look(number)
    return {
        "color": COLOURS[colour],
        "linestyle": DASHES[dashes],
        "marker": MARKERS[(number // 3 + dashes) % len(MARKERS)],  # a run that was evaluated once is a point
        "markersize": 3.5,
        "linewidth": 1.6,
    }


def draw_runs(runs: Mapping[str, Lines], path: Path) -> None:
    """Loss and scores over rounds, the bytes a client has sent and received, and forward passes.

    Args:
        runs: name of each run and its lines of metrics.
        path: PNG file to write.
    """
    metrics = shown_metrics(dict.fromkeys(name for lines in runs.values() for line in lines for name in line.metrics))
    metrics = [name for name in metrics if name in next(iter(runs.values()))[0].metrics]
    if not metrics:
        return
    names, note = fonts.prepare(list(runs))
    figure, grid = plt.subplots(len(metrics), 3, figsize=(12.5, 3.2 * len(metrics)), squeeze=False, sharey="row")
    for row, metric in zip(grid, metrics, strict=True):
        for number, (name, lines) in enumerate(zip(names, runs.values(), strict=True)):
            style = {**line_style(number), "label": name}
            measured = [i for i, line in enumerate(lines) if metric in line.metrics]
            if not measured:
                continue
            values = [lines[i].metrics[metric] for i in measured]
            row[0].plot([lines[i].round for i in measured], values, **style)
            for axes, spent in ((row[1], _payload(lines)), (row[2], _forward_passes(lines))):
                paid = [(spent[i], value) for i, value in zip(measured, values, strict=True) if spent[i] > 0]
                axes.plot([x for x, _ in paid], [y for _, y in paid], **style)
                axes.axhline(values[0], color="0.6", linewidth=0.8, linestyle=":")
            if number == 0:
                row[1].annotate(
                    "zero-shot", (0.01, values[0]), xycoords=("axes fraction", "data"), color="0.4", va="bottom"
                )
        finish_axes(row[0], "round", metric_title(metric, unit=True))
        finish_axes(row[1], "payload of a client taking part, both ways", "")
        finish_axes(row[2], "forward passes, all clients", "")
        _finish_spent(row)
    grid[0][2].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save(figure, path, note)


def draw_sweep(curves: Mapping[str, Mapping[str, Sequence[Lines]]], path: Path) -> None:
    """Held-out loss, Rouge-L and accuracy over rounds, bytes, passes and seconds: means over seeds, and deviations.

    A row for each scenario and metric.

    Args:
        curves: by scenario and name, each seed's lines of metrics.
        path: PNG file to write.
    """
    labels = list(dict.fromkeys(name for runs in curves.values() for name in runs))
    names, note = fonts.prepare([*labels, *curves])
    metrics = _measured(lines for runs in curves.values() for seeds in runs.values() for lines in seeds)
    rows = [(scenario, runs, metric) for scenario, runs in curves.items() for metric in metrics]
    headings = dict(zip(curves, names[len(labels) :], strict=True))
    figure, grid = plt.subplots(len(rows), 4, figsize=(18, 3.6 * len(rows)), squeeze=False, sharey="row")
    for row, (scenario, runs, metric) in zip(grid, rows, strict=True):
        for label, seeds in runs.items():
            style = line_style(labels.index(label))
            measured = [[i for i, line in enumerate(lines) if metric in line.metrics] for lines in seeds]
            length = min(map(len, measured))  # a run may have stopped early
            pairs = zip(seeds, measured, strict=True)
            values = np.array([[lines[i].metrics[metric] for i in at[:length]] for lines, at in pairs])
            mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=1) if len(values) > 1 else 0
            first, at = seeds[0], measured[0][:length]
            costs = (
                list(accumulate(line.passes() for line in first)),
                list(accumulate(line.own_seconds() for line in first)),
            )
            spent: tuple[list[float], ...] = ([line.round for line in first], _payload(first), *costs)
            for column, axes in enumerate(row):
                x = np.array([spent[column][i] for i in at], dtype=float)
                where = x > (-1 if column == 0 else 0)  # nothing is spent yet: not on a logarithmic axis
                axes.plot(x[where], mean[where], label=names[labels.index(label)], **style)
                band = (mean - deviation)[where], (mean + deviation)[where]
                axes.fill_between(x[where], *band, color=style["color"], alpha=0.15, linewidth=0)
        finish_axes(row[0], "round", metric_title(metric, unit=True))
        finish_axes(row[1], "payload of a client taking part, both ways", "")
        finish_axes(row[2], "forward passes (a backward pass is two), all clients", "")
        finish_axes(row[3], "seconds of rounds, all clients", "")
        _finish_spent(row)
        row[0].set_title(headings[scenario], fontsize=10, loc="left")
    grid[0][3].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save(figure, path, note)


def _measured(runs: Iterable[Lines]) -> list[str]:
    """The metrics to be drawn that every run has measured."""
    every = [lines[0].metrics for lines in runs if lines]
    return [name for name in shown_metrics(every[0]) if all(name in metrics for metrics in every)] if every else []


def draw_probabilities(probabilities: NDArray[np.floating], path: Path) -> None:
    """FedKSeed-Pro's probabilities of its candidates, from the most to the least likely (FedKSeed, Fig. 13).

    Args:
        probabilities: shape (K,), adding up to 1.
        path: PNG file to write.
    """
    figure, axes = plt.subplots(figsize=(6, 3.4))
    relative = np.sort(np.asarray(probabilities, dtype=np.float64))[::-1] * len(probabilities)
    axes.plot(np.arange(1, len(relative) + 1), relative, color=COLOURS[0], linewidth=1.8)
    axes.axhline(1, color="0.6", linewidth=0.8, linestyle=":")
    axes.annotate("uniform", (0.01, 1), xycoords=("axes fraction", "data"), color="0.4", va="bottom")
    axes.set_title(f"most to least likely: {relative[0] / relative[-1]:.2f} times", fontsize=10)
    finish_axes(axes, "candidate, by rank", "probability times K")
    save(figure, path)


def _payload(lines: Lines) -> list[float]:
    """Bytes up and down of a client that takes part, up to and with each line."""
    each = ((line.bytes_up + line.bytes_down) * line.rounds for line in lines)
    return list(accumulate(each))


def _forward_passes(lines: Lines) -> list[int]:
    return list(accumulate(line.forward_passes for line in lines))


def finish_axes(axes: Axes, x: str, y: str) -> None:
    """The house style: two spines, a faint grid behind what is drawn, ticks with their values.

    Args:
        axes: to be finished.
        x: what the horizontal axis shows.
        y: what the vertical axis shows.
    """
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(alpha=0.25)
    axes.tick_params(labelleft=True)  # also where a row shares its axis


def log_axis(axes: Axes, unit: Unit = "") -> None:
    """Make the horizontal axis logarithmic, with several ticks that have their values, however few decades there are.

    Args:
        axes: what it shows is on it already, above zero.
        unit: how its numbers are written.
    """
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    apart = 0.14 * np.log10(high / low)  # or their values would touch
    ticks: list[float] = []
    for tick in log_ticks(low, high):
        if not ticks or np.log10(tick / ticks[-1]) >= apart:
            ticks.append(tick)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value, unit)))


def save(figure: Figure, path: Path, note: str | None = None, dpi: float = 110) -> None:
    """Write a picture, and forget it.

    Args:
        figure: what was drawn.
        path: PNG file to write.
        note: a line below it.
        dpi: pixels an inch.
    """
    figure.tight_layout()
    if note is not None:
        figure.text(0.01, 0.0, note, fontsize=8, va="top", color="0.4")
    with BytesIO() as drawn:
        figure.savefig(drawn, dpi=dpi, bbox_inches="tight", format="png")
        Image.open(drawn).convert("RGB").quantize(SHADES).save(path, format="PNG", optimize=True)
    plt.close(figure)


def _finish_spent(row: Sequence[Axes]) -> None:
    """Rounds are whole numbers; what was spent stands on logarithmic axes, if anything was."""
    row[0].xaxis.set_major_locator(MaxNLocator(6, integer=True))
    units: tuple[Unit, ...] = ("bytes", "", "s")
    for axes, unit in zip(row[1:], units, strict=False):
        if any(np.size(line.get_xdata()) and not str(line.get_label()).startswith("_") for line in axes.get_lines()):
            log_axis(axes, unit)
