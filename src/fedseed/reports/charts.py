"""Line charts as SVG text for pages: small, without scripts, in colours that a page's style sheet chooses.

Matplotlib would take half a second and 60 MB for what a coordinator draws at the end of a run, and a live page every
other second.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10
from typing import Literal

from markupsafe import Markup, escape

from fedseed.reports.style import look

WIDTH, HEIGHT = 460, 250  # of the drawing, in its own units; a page scales it
LEFT, RIGHT, TOP, BOTTOM = 58, 26, 12, 40  # margins around the plot
NEAR = 44  # of two ticks on the horizontal axis
MOST_POINTS = 600  # of a line; more can't be told apart
MARKED = 60  # a line with at most so many points shows them, with their values
Unit = Literal["", "bytes", "s"]


@dataclass(frozen=True)
class Series:
    """A line of a chart.

    Args:
        name: what it is.
        points: (x, y); those that are not finite are left out.
        band: (x, low, high) around it, such as a deviation.
        number: of its look: the same in all charts of a page.
    """

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()
    number: int = 0


@dataclass(frozen=True)
class Axis:
    """One axis of a chart.

    Args:
        label: what it shows.
        log: logarithmic; values of zero and less are left out.
        unit: how its numbers are written.
        whole: whole numbers only, such as rounds.
    """

    label: str
    log: bool = False
    unit: Unit = ""
    whole: bool = False


def line_chart(title: str, series: Sequence[Series], x: Axis, y: Axis, start: float | None = None) -> Markup | None:
    """A chart with axes, ticks and lines; None if there is nothing to show.

    Args:
        title: said to those who can't see it.
        series: the lines.
        x: the horizontal axis.
        y: the vertical axis.
        start: a horizontal line where everything began.
    """
    shown = [(s, _kept(s.points, x, y)) for s in series]
    points = [point for _, kept in shown for point in kept]
    if not points:
        return None
    bands = [(at, v) for s in series for at, low, high in s.band for v in (low, high) if _fits(at, v, x, y)]
    across = _Scale([p[0] for p in points], x, LEFT, WIDTH - RIGHT)
    values = [p[1] for p in [*points, *bands]] + ([start] if start is not None and _fits(1.0, start, x, y) else [])
    up = _Scale(values, y, HEIGHT - BOTTOM, TOP, roomy=True)
    parts = [_grid(across, up), _labels(x, y)]
    if start is not None and isfinite(start):
        parts.append(f'<path class="start" d="M{LEFT} {up(start):.1f}H{WIDTH - RIGHT}"/>')
    parts += [_band(s, across, up, x, y) for s in series if s.band]
    parts += [_line(s, kept, across, up, x, y) for s, kept in shown if kept]
    said = escape(f"{title}: {y.label} over {x.label}")
    # what goes in is numbers and escaped text
    return Markup(f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{said}">{"".join(parts)}</svg>')


def swatch(number: int) -> Markup:
    """A short line with the look of a number, for a legend."""
    drawn = f'<path class="line {_class(number)}" d="M1 6H27"/>'
    return Markup(f'<svg class="swatch" viewBox="0 0 28 12" aria-hidden="true">{drawn}</svg>')


def short_number(value: float, unit: Unit = "") -> str:
    """A number of an axis, with a unit: 1.2k, 30 MB, 4 min."""
    if value == 0:
        return "0"
    if unit == "s" and abs(value) >= 120:
        return f"{value / 60:g} min" if abs(value) < 7200 else f"{value / 3600:g} h"
    if unit == "" and abs(value) < 10_000:
        return f"{value:.4g}" if abs(value) >= 1e-3 else f"{value:.0e}".replace("e-0", "e-")
    if unit == "s":
        return f"{value:.3g} s" if abs(value) >= 1e-2 else f"{value * 1000:.3g} ms"
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 10**power:
            return f"{value / 10**power:.3g}{' ' if unit else ''}{prefix}{'B' if unit else ''}"
    return f"{value:.3g}{' B' if unit else ''}"


# -- scales ------------------------------------------------------------------------------------------------------------


class _Scale:
    """Where a value stands on the drawing, and which values have ticks."""

    def __init__(self, values: Sequence[float], axis: Axis, begin: float, end: float, roomy: bool = False) -> None:
        self.axis, self.begin, self.end = axis, begin, end
        low, high = min(values), max(values)
        if axis.log:
            low, high = (low / 2, high * 2) if low == high else (low, high)
        elif low == high:
            spread = abs(low) * 0.1 or 1.0
            low, high = (low - spread, high + spread) if roomy else (low, high + (1.0 if axis.whole else spread))
        elif roomy:
            spread = 0.04 * (high - low)
            low, high = (0.0 if low == 0 else low - spread), high + spread
        self.low, self.high = low, high
        self.ticks = log_ticks(low, high) if axis.log else _ticks(low, high, axis.whole)

    def __call__(self, value: float) -> float:
        low, high = (log10(self.low), log10(self.high)) if self.axis.log else (self.low, self.high)
        at = log10(value) if self.axis.log else value
        return self.begin + (at - low) / (high - low) * (self.end - self.begin)


def _ticks(low: float, high: float, whole: bool) -> list[float]:
    """Four to eight round values from low to high."""
    rough = (high - low) / 5
    power = 10.0 ** floor(log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.9999)
    if whole:
        step = max(1.0, ceil(step))
    return [round(i * step, 12) for i in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Values for the ticks of a logarithmic axis: powers of ten, with 2 and 5 between them if there are few.

    Of an axis so short that two of those do not fit on it, round values at even distances.

    Args:
        low: the axis' lower end, above 0.
        high: its upper end.
    """
    first, last = floor(log10(low)), ceil(log10(high))
    found = [10.0**p for p in range(first, last + 1) if low * 0.999 <= 10.0**p <= high * 1.001]
    if len(found) > 6:
        return found[:: ceil(len(found) / 6)]
    if len(found) >= 3:
        return found
    found = [m * 10.0**p for p in range(first, last + 1) for m in (1, 2, 5) if low <= m * 10.0**p <= high]
    if len(found) >= 2:
        return found
    return _ticks(low, high, whole=False) if low < high else [low]


# -- parts of a drawing ------------------------------------------------------------------------------------------------


def _fits(at: float, value: float, x: Axis, y: Axis) -> bool:
    return isfinite(at) and isfinite(value) and (at > 0 or not x.log) and (value > 0 or not y.log)


def _kept(points: Sequence[tuple[float, float]], x: Axis, y: Axis) -> list[tuple[float, float]]:
    """The points that can be shown; of very many an even choice, with the last one."""
    kept = [(at, value) for at, value in points if _fits(at, value, x, y)]
    if len(kept) > MOST_POINTS:
        every = ceil(len(kept) / MOST_POINTS)
        kept = [*kept[:-1:every], kept[-1]]
    return kept


def _grid(across: _Scale, up: _Scale) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>']
    for tick in up.ticks:
        at = up(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{right}"/>')
        text = short_number(tick, up.axis.unit)
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
    last = float(-NEAR)
    for tick in across.ticks:
        at = across(tick)
        if at - last < NEAR:  # their texts would touch
            continue
        last = at
        parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{bottom}"/>')
        text = short_number(tick, across.axis.unit)
        parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{text}</text>')
    return "".join(parts)


def _labels(x: Axis, y: Axis) -> str:
    middle = (LEFT + WIDTH - RIGHT) / 2
    return f'<text class="label" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x.label)}</text>'


def _class(number: int) -> str:
    colour, dashes = look(number)
    return f"c{colour} d{dashes}"


def _line(series: Series, kept: Sequence[tuple[float, float]], across: _Scale, up: _Scale, x: Axis, y: Axis) -> str:
    at = [(across(a), up(v)) for a, v in kept]
    path = "M" + "L".join(f"{a:.1f} {v:.1f}" for a, v in at)
    parts = [f'<path class="line {_class(series.number)}" d="{path}"/>'] if len(at) > 1 else []
    if len(at) <= MARKED:
        colour = f"c{look(series.number)[0]}"
        for (a, v), (where, value) in zip(at, kept, strict=True):
            said = escape(f"{series.name}, {x.label} {short_number(where, x.unit)}: {short_number(value, y.unit)}")
            parts.append(
                f'<circle class="point {colour}" cx="{a:.1f}" cy="{v:.1f}" r="2.6"><title>{said}</title></circle>'
            )
    return "".join(parts)


def _band(series: Series, across: _Scale, up: _Scale, x: Axis, y: Axis) -> str:
    fit = [(a, low, high) for a, low, high in series.band if _fits(a, low, x, y) and _fits(a, high, x, y)]
    if len(fit) < 2:
        return ""
    above = "L".join(f"{across(a):.1f} {up(high):.1f}" for a, _, high in fit)
    below = "L".join(f"{across(a):.1f} {up(low):.1f}" for a, low, _ in reversed(fit))
    return f'<path class="band c{look(series.number)[0]}" d="M{above}L{below}Z"/>'
