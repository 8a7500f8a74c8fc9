"""Pictures of runs."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # told apart by colour-blind readers
LABELS = {"loss": "held-out loss", "rouge_l": "held-out Rouge-L"}


def draw_runs(runs: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Loss and Rouge-L over rounds, and over the bytes a client has sent and received.

    Args:
        runs: name of each run and its lines of metrics.
        path: PNG file to write.
    """
    shown = [m for m in LABELS if any(m in line for lines in runs.values() for line in lines)]
    if not shown:
        return
    figure, grid = plt.subplots(len(shown), 2, figsize=(9, 3.2 * len(shown)), squeeze=False, sharey="row")
    for row, metric in enumerate(shown):
        for colour, (name, lines) in zip(COLOURS * 9, runs.items(), strict=False):
            sent = accumulate(line.get("bytes_up", 0) + line.get("bytes_down", 0) for line in lines)
            points = [(line["round"], b, line[metric]) for line, b in zip(lines, sent, strict=True) if metric in line]
            rounds, bytes_, values = zip(*points, strict=True)
            style = {"color": colour, "marker": "o", "markersize": 3.5, "linewidth": 1.6, "label": name}
            grid[row][0].plot(rounds, values, **style)
            grid[row][1].plot(bytes_[1:], values[1:], **style)
            grid[row][1].axhline(values[0], color="0.6", linewidth=0.8, linestyle=":")
            if colour == COLOURS[0]:
                grid[row][1].annotate("zero-shot", (0.01, values[0]), xycoords=("axes fraction", "data"), color="0.4")
        _finish_axes(grid[row][0], "round", LABELS[metric])
        _finish_axes(grid[row][1], "payload bytes per client taking part, both ways", "")
        if any(line.get("bytes_up", 0) for lines in runs.values() for line in lines):
            grid[row][1].set_xscale("log")
    grid[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _finish_axes(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
