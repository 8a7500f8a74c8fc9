"""Pictures of runs."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # told apart by colour-blind readers
Lines = Sequence[Mapping[str, Any]]
LABELS = {
    "loss": "held-out loss",
    "rouge_l": "held-out Rouge-L",
    "accuracy": "held-out accuracy, %",
    "macro_f1": "held-out macro F1, %",
    "f1": "held-out F1, %",
    "final_number": "held-out final numbers, %",
}


def draw_runs(runs: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Loss and scores over rounds, the bytes a client has sent and received, and forward passes.

    Args:
        runs: name of each run and its lines of metrics.
        path: PNG file to write.
    """
    shown = [m for m in LABELS if any(m in line for lines in runs.values() for line in lines)]
    if not shown:
        return
    figure, grid = plt.subplots(len(shown), 3, figsize=(12.5, 3.2 * len(shown)), squeeze=False, sharey="row")
    for row, metric in enumerate(shown):
        for colour, (name, lines) in zip(COLOURS * 9, runs.items(), strict=False):
            style = {"color": colour, "marker": "o", "markersize": 3.5, "linewidth": 1.6, "label": name}
            measured = [i for i, line in enumerate(lines) if metric in line]
            values = [lines[i][metric] for i in measured]
            rounds = [lines[i]["round"] for i in measured]
            grid[row][0].plot(rounds, values, **style)
            for column, spent in ((1, _payload(lines)), (2, _forward_passes(lines))):
                grid[row][column].plot([spent[i] for i in measured[1:]], values[1:], **style)
                grid[row][column].axhline(values[0], color="0.6", linewidth=0.8, linestyle=":")
                if spent[-1] > 0:
                    grid[row][column].set_xscale("log")
            if colour == COLOURS[0]:
                grid[row][1].annotate("zero-shot", (0.01, values[0]), xycoords=("axes fraction", "data"), color="0.4")
        finish_axes(grid[row][0], "round", LABELS[metric])
        finish_axes(grid[row][1], "payload bytes per client taking part, both ways", "")
        finish_axes(grid[row][2], "forward passes, all clients", "")
    grid[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_sweep(curves: Mapping[str, Mapping[str, Sequence[Lines]]], path: Path) -> None:
    """Held-out loss over rounds, bytes and passes: means over seeds, with their deviation; a row for each scenario.

    Args:
        curves: by scenario and name, each seed's lines of metrics.
        path: PNG file to write.
    """
    figure, grid = plt.subplots(len(curves), 3, figsize=(14, 3.6 * len(curves)), squeeze=False, sharey="row")
    for row, (scenario, runs) in zip(grid, curves.items(), strict=True):
        for number, (name, seeds) in enumerate(runs.items()):
            style = {
                "color": COLOURS[number % len(COLOURS)],
                "linestyle": ("-", "--", ":", "-.")[number // len(COLOURS) % 4],
                "linewidth": 1.6,
                "marker": "o",  # a run that was evaluated once is a point
                "markersize": 2.5,
            }
            measured = [[i for i, line in enumerate(lines) if "loss" in line] for lines in seeds]
            length = min(map(len, measured))  # a run may have stopped early
            values = np.array([[s[i]["loss"] for i in at[:length]] for s, at in zip(seeds, measured, strict=True)])
            mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=1) if len(values) > 1 else 0
            first, at = seeds[0], measured[0][:length]
            axes = ([line["round"] for line in first], _payload(first), _passes(first))
            for column, spent in enumerate(axes):
                where = slice(0 if column == 0 else 1, None)  # nothing is spent yet: not on a logarithmic axis
                x = [spent[i] for i in at][where]
                row[column].plot(x, mean[where], label=name, **style)
                band = (mean - deviation)[where], (mean + deviation)[where]
                row[column].fill_between(x, *band, color=style["color"], alpha=0.15, linewidth=0)
        for column, label in enumerate(
            ("round", "payload bytes per client taking part", "forward passes (a backward pass is two), all clients")
        ):
            finish_axes(row[column], label, "held-out loss" if column == 0 else "")
            if column:
                row[column].set_xscale("log")
                row[column].xaxis.set_minor_formatter("")  # or labels would overlap within a decade
        row[0].set_title(scenario, fontsize=10, loc="left")
    grid[0][2].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


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
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _passes(lines: Lines) -> list[int]:
    """Forward and backward passes up to and with each line; a backward pass counts as two."""
    return list(accumulate(line.get("forward_passes", 0) + 2 * line.get("backward_passes", 0) for line in lines))


def _payload(lines: Sequence[Mapping[str, Any]]) -> list[float]:
    """Bytes up and down of a client that takes part, up to and with each line."""
    each = ((line.get("bytes_up", 0) + line.get("bytes_down", 0)) * line.get("rounds", 1) for line in lines)
    return list(accumulate(each))


def _forward_passes(lines: Sequence[Mapping[str, Any]]) -> list[int]:
    return list(accumulate(line.get("forward_passes", 0) for line in lines))


def finish_axes(axes: Axes, x: str, y: str) -> None:
    """The house style: two spines, a faint grid.

    Args:
        axes: to be finished.
        x: what the horizontal axis shows.
        y: what the vertical axis shows.
    """
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
