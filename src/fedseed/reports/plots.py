"""Draw charts, and clients' data, with Matplotlib: as PNG files, and as SVG for pages."""

import re
import warnings
from collections.abc import Sequence
from io import BytesIO, StringIO
from itertools import chain
from math import ceil, isfinite
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib import colormaps, font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator, StrMethodFormatter
from PIL import Image

from fedseed.reports.charts import Panel
from fedseed.reports.partition import SHOWN_CLIENTS, PartitionStatistics
from fedseed.text import show_text

# twelve colours that stay apart also for colour-blind readers, and also on a dark background
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#882255",
    "#332288",
    "#44AA99",
    "#999933",
    "#661100",
    "#6A6A6A",
)
DARK_COLOURS = (
    "#4DA3DB",
    "#F0803C",
    "#35C79B",
    "#E29CC3",
    "#F0B840",
    "#7CC8F0",
    "#D0608C",
    "#9A8CE8",
    "#6CC9BC",
    "#C6C664",
    "#C98A6C",
    "#A8A8A8",
)
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D")
SOFT, FAINT = "#5a6472", "#dfe3e8"  # colours of texts and axes, and of the grid
MOST_POINTS = 600  # most points of a line; more can't be distinguished
MARKED = 60  # a line with at most this number of points shows them
SHORT = 28  # most characters of a name
ROWS = 4  # number of panels above which a picture has fewer pixels: thirty panels take 200 kB
SHADES = 256  # number of colours of a picture; with all colours it would be three times as large
# fonts for letters that Matplotlib's own font lacks, such as Asian scripts, if this machine has
# them
FONTS = (
    "Noto Sans CJK",
    "Source Han Sans",
    "WenQuanYi",
    "Droid Sans Fallback",
    "Microsoft YaHei",
    "PingFang",
    "Hiragino",
    "Yu Gothic",
    "Malgun Gothic",
    "Arial Unicode",
)
UNUSED = re.compile(
    r' id="[\w.]*_\d+"| clip-path="[^"]*"|font-family: [^;"]*;? ?| transform="rotate\(-0 [^"]*"|'
    r'<defs>\s*<(style|clipPath).*?</defs>|<path d="[^"]*" style="fill: none"/>',
    re.DOTALL,
)
matplotlib.use("Agg")
warnings.filterwarnings("ignore", "Glyph .* missing from font")
matplotlib.rcParams.update(
    {
        "font.family": [
            "DejaVu Sans",
            *(name for name in font_manager.get_font_names() if name.startswith(FONTS)),
        ],
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "fedseed",
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.edgecolor": SOFT,
        "axes.labelcolor": SOFT,
        "axes.titlesize": 10,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "grid.color": FAINT,
        "xtick.color": SOFT,
        "ytick.color": SOFT,
        "legend.frameon": False,
        "legend.fontsize": 8,
    }
)


def _line_style(number: int) -> dict[str, Any]:
    """Return the style of the line of this number: 48 lines look different, and most neighbours
    differ without colours, too.
    """
    dashes = number // len(COLOURS) % len(DASHES)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[dashes],
        # a run that was evaluated once is a point
        "marker": MARKERS[(number // 3 + dashes) % len(MARKERS)],
        "markersize": 3.5,
        "linewidth": 1.6,
    }


def draw(panels: Sequence[Panel], path: Path, across: int = 3) -> None:
    """Draw charts side by side into a PNG file, as `figure_of` does.

    Nothing is written if there are none.
    """
    if panels:
        save(figure_of(panels, across), path)


def figure_of(panels: Sequence[Panel], across: int = 3) -> Figure:
    """Return a figure with charts side by side.

    Args:
        panels: at least one.
        across: number of charts in a row.
    """
    names_by_panel = [[line.name for line in panel.series] for panel in panels]
    names = list(dict.fromkeys(chain.from_iterable(names_by_panel)))
    across = min(across, len(panels))
    rows = ceil(len(panels) / across)
    figure = Figure(figsize=(4.6 * across, 3.5 * rows))
    grid = list(figure.subplots(rows, across, squeeze=False).flat)
    together = len(names) > 1 and all(one == names for one in names_by_panel)
    for axes, panel in zip(grid, panels, strict=False):
        _plot(axes, panel)
        axes.set_title(panel.title, loc="left")
        if not together and len(panel.series) > 1:
            axes.legend()
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    if together:  # a single legend, beside the charts
        grid[across - 1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _plot(axes: Axes, panel: Panel) -> None:
    """Draw a chart's lines, bands and axes."""
    has_band = False
    for series in panel.series:
        points = _select_points(series.points, panel)
        style = {
            **_line_style(series.number),
            **({} if len(points) <= MARKED else {"marker": None}),
        }
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            label=series.name,
            clip_on=False,
            **style,
        )
        has_band = has_band or bool(points)
        band = [
            (x, low, high)
            for x, low, high in series.band
            if _select_points([(x, low), (x, high)], panel)[1:]
        ]
        if band:
            positions, low, high = zip(*band, strict=True)
            axes.fill_between(
                positions, low, high, color=style["color"], alpha=0.15, linewidth=0, clip_on=False
            )
    if panel.start is not None and isfinite(panel.start):
        axes.axhline(panel.start, color=SOFT, linewidth=0.8, linestyle=":")
    axes.set_xlabel(panel.x.label)
    axes.set_ylabel(panel.y.label)
    for way, axis, title in (("x", axes.xaxis, panel.x), ("y", axes.yaxis, panel.y)):
        if title.log and has_band:
            axes.set(**{f"{way}scale": "log"})
            first, last = axis.get_view_interval()
            axis.set_major_locator(
                LogLocator(subs=(1.0,) if last > 100 * first else (1.0, 2.0, 5.0), numticks=7)
            )
            axis.set_minor_locator(NullLocator())
            if first < 0.1 and not title.unit:
                axis.set_major_formatter(StrMethodFormatter("{x:g}"))
                continue
        elif title.whole:
            axis.set_major_locator(MaxNLocator(6, integer=True))
        if title.unit or title.log:
            axis.set_major_formatter(EngFormatter(title.unit, sep=" " if title.unit else ""))


def _select_points(
    points: Sequence[tuple[float, float]], panel: Panel
) -> list[tuple[float, float]]:
    """Return the points that can be shown.

    Of too many points, evenly spaced ones and the last one are kept.
    """
    indices = [
        (x, y)
        for x, y in points
        if isfinite(x) and isfinite(y) and (x > 0 or not panel.x.log) and (y > 0 or not panel.y.log)
    ]
    every = ceil(len(indices) / MOST_POINTS)
    if every > 1:
        return [*indices[:-1:every], indices[-1]]
    return indices


def save(figure: Figure, path: Path) -> None:
    """Write a picture as a PNG file."""
    figure.tight_layout()
    rows = figure.get_figheight() / 3.5
    with BytesIO() as buffer:
        dpi = 110 * min(1.0, (ROWS / rows) ** 0.5)
        figure.savefig(buffer, dpi=dpi, bbox_inches="tight", format="png")
        Image.open(buffer).convert("RGB").quantize(SHADES).save(path, format="PNG", optimize=True)


def chart(panel: Panel) -> Markup | None:
    """Return a chart as SVG for a page, whose style sheet sets the colours.

    None if there is nothing to show.

    Its title, legend and the name of its vertical axis are put beside it on the page.

    Args:
        panel: the chart.
    """
    if not any(_select_points(series.points, panel) for series in panel.series):
        return None
    figure = Figure(figsize=(4.6, 2.5), layout="constrained")
    axes = figure.subplots()
    _plot(axes, panel)
    axes.set_ylabel("")
    with StringIO() as buffer:
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
        text = buffer.getvalue()
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    head = (
        f'<svg {box[0]} role="img" '
        f'aria-label="{escape(f"{panel.title}: {panel.y.label} over {panel.x.label}")}">'
    )
    text = head + UNUSED.sub("", text[text.index("<svg") :].partition(">")[2])
    text = re.sub(r"\s*\n\s*", " ", text).replace("xlink:href", "href").replace("> <", "><")
    for number, colour in enumerate(COLOURS):
        text = text.replace(colour.lower(), f"var(--c{number})")
    return Markup(text.replace(SOFT, "var(--soft)").replace(FAINT, "var(--faint)"))


def swatch(number: int) -> Markup:
    """Return a short line in the style of a number, for a legend."""
    style = _line_style(number)
    dashes = {"-": "", "--": "6 3", ":": "2 2", "-.": "7 2 2 2"}[style["linestyle"]]
    shapes = (
        f'<path d="M1 6H27" style="stroke: var(--c{number % len(COLOURS)}); stroke-dasharray: '
        f'{dashes or 0}"/>'
    )
    return Markup(f'<svg class="swatch" viewBox="0 0 28 12" aria-hidden="true">{shapes}</svg>')


def draw_partition(statistics: PartitionStatistics, title: str, path: Path) -> None:
    """Draw stacked bars of each client's examples by label: numbers and shares. Many clients are
    sorted by their most frequent label and its share, to be readable.

    Args:
        statistics: the numbers of examples.
        title: above the picture.
        path: PNG file to write.
    """
    many = len(statistics.clients) > SHOWN_CLIENTS
    shares = statistics.counts / np.maximum(statistics.sizes, 1)[:, None]
    # clients without examples come last
    top = np.where(statistics.sizes > 0, shares.argmax(axis=1), len(statistics.labels))
    order = np.lexsort((-shares.max(axis=1), top)) if many else np.arange(len(statistics.clients))
    labelled = statistics.labels != ("",)
    figure = Figure(figsize=(8.5, 5.4 if labelled else 3))
    axes = figure.subplots(2 if labelled else 1, 1, squeeze=False, sharex=True)
    is_few = len(statistics.labels) <= len(COLOURS)
    colours: Any = COLOURS
    if not is_few:
        colours = colormaps["turbo"](np.linspace(0.02, 0.98, len(statistics.labels)))
    x = np.arange(len(statistics.clients))
    for row, (values, heading) in enumerate(
        ((statistics.counts, "examples"), (100 * shares, "share, %"))[: len(axes)]
    ):
        bottom = np.zeros(len(x))
        for i, label in enumerate(statistics.labels):
            label_counts = values[order, i]
            # many bars have no gaps and no edges, which would be wider than the bars
            axes[row][0].bar(
                x,
                label_counts,
                1.0 if many else 0.85,
                bottom,
                color=colours[i],
                label=label,
                linewidth=0,
            )
            bottom += label_counts
        axes[row][0].set_ylabel(heading)
        axes[row][0].yaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes[row][0].set_xlim(-0.6, len(x) - 0.4)
        axes[row][0].grid(axis="x", visible=False)
    last = axes[-1][0]
    if many:
        last.set_xlabel(
            f"{len(x):,} clients" + (", by their most frequent label" if labelled else "")
        )
        last.set_xticks([])
    else:
        crowded = len(x) * max(map(len, statistics.clients)) > 80
        last.set_xticks(
            x,
            [show_text(name, SHORT) for name in statistics.clients],
            rotation=90 if crowded else 0,
            fontsize=8,
        )
    if len(axes) > 1:
        axes[1][0].set_ylim(0, 100)
    axes[0][0].set_title(
        f"{title} (mixtures {statistics.skew:.2f} apart)" if labelled else title, loc="left"
    )
    if labelled and is_few:
        handles, names = axes[0][0].get_legend_handles_labels()
        legend = [show_text(name, SHORT) for name in names[::-1]]
        figure.legend(handles[::-1], legend, loc="center left", bbox_to_anchor=(1.0, 0.5))
    elif labelled:
        figure.text(
            1.0, 0.5, f"{len(statistics.labels):,} labels,\na colour each", fontsize=8, va="center"
        )
    save(figure, path)
