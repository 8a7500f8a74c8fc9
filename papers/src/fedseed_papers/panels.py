"""The curves of a figure as a picture."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path

from matplotlib import pyplot as plt

from fedseed.reports.plots import finish_axes, line_style, log_axis, save
from fedseed_papers.findings import Panel

ACROSS = 3  # panels in a row
ROWS = 4  # with more of them the picture is made of fewer pixels: thirty panels are 200 kB


def draw_panels(panels: Sequence[Panel], path: Path) -> None:
    """All panels, each with its lines and their names.

    Args:
        panels: at least one.
        path: PNG file to write.
    """
    across = min(ACROSS, len(panels))
    rows = ceil(len(panels) / across)
    figure, grid = plt.subplots(rows, across, figsize=(4.6 * across, 3.5 * rows), squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        for series in panel.series:
            points = [(x, y) for x, y in series.points if (x > 0 or not panel.x.log) and (y > 0 or not panel.y.log)]
            style = line_style(series.number)
            axes.plot([x for x, _ in points], [y for _, y in points], label=series.name, **style)
            band = [values for values in series.band if values[0] > 0 or not panel.x.log]
            if band:
                at, low, high = zip(*band, strict=True)
                axes.fill_between(at, low, high, color=style["color"], alpha=0.15, linewidth=0)
        finish_axes(axes, panel.x.label, panel.y.label)
        axes.set_title(panel.title, fontsize=10)
        if panel.y.log:
            axes.set_yscale("log")
        if panel.x.log and any(series.points for series in panel.series):
            log_axis(axes, panel.x.unit)
        if len(panel.series) > 1:
            axes.legend(frameon=False, fontsize=8)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    save(figure, path, dpi=110 * min(1.0, (ROWS / rows) ** 0.5))
