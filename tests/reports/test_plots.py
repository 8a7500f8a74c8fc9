"""Charts: what is on them, asked of Matplotlib, and what a page gets of them."""

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedseed.reports.charts import Axis, Panel, Series, curves
from fedseed.reports.plots import chart, draw, figure_of
from fedseed.reports.results import RoundLine

VALUES = st.floats(min_value=-1e12, max_value=1e12, allow_nan=False).map(lambda v: round(v, 3))
ROUND, LOSS = Axis("round", whole=True), Axis("loss")


def lines(rate=0.1, payload=1000.0):
    return [
        RoundLine(
            n,
            bytes_up=payload * (n > 0),
            bytes_down=payload / 10 * (n > 0),
            forward_passes=40 * (n > 0),
            backward_passes=20 * (n > 0),
            seconds={"local": n, "evaluation": 1e3},
            metrics={"loss": 4 * (1 - rate) ** n, "rouge_l": 10.0 + n},
        )
        for n in range(8)
    ]


def seen_ticks(axis):
    """The values that can be read along an axis."""
    low, high = sorted(axis.get_view_interval())
    at = [tick for tick in axis.get_ticklocs() if low * 0.999 <= tick <= high * 1.001]
    return [text for text in axis.get_major_formatter().format_ticks(at) if text]


@pytest.mark.long
def test_every_axis_has_values(tmp_path):
    """Also where all bytes or passes lie within one power of ten, or over many."""
    near, far = (
        {"a": [lines(payload=1e5)], "b": [lines(0.2, 1.2e5)]},
        {"a": [lines()], "b": [lines(payload=1e9)]},
    )
    for runs in (near, far):
        figure = figure_of(curves(runs), across=4)
        # a row for each metric, of rounds, bytes, passes and seconds
        assert len(figure.axes) == 2 * 4
        for axes in figure.axes:
            assert (
                2 <= len(set(seen_ticks(axes.xaxis))) <= 9 and len(set(seen_ticks(axes.yaxis))) >= 2
            )
        assert [axes.get_ylabel() for axes in figure.axes[::4]] == [
            "held-out loss",
            "held-out Rouge-L, %",
        ]
        seconds = figure.axes[3].get_lines()[0].get_xdata()
        # no evaluations; nothing at zero
        assert list(seconds) == [sum(range(1, n + 1)) for n in range(1, 8)]
        assert [text.get_text() for text in figure.axes[3].get_legend().get_texts()] == ["a", "b"]
    draw(curves(near), tmp_path / "runs.png", across=4)
    with Image.open(tmp_path / "runs.png") as picture:
        assert picture.width > 1000


def test_seeds_are_a_mean_and_a_band_where_all_were_measured():
    short = lines(0.2)[:3]
    panel = curves({"a": [lines(0.1), short]})[0]
    (series,) = panel.series
    assert [at for at, _ in series.points] == [0, 1, 2] and series.points[1][1] == pytest.approx(
        (3.6 + 3.2) / 2
    )
    assert series.band[1] == pytest.approx((1, 3.4 - 0.4 / 2**0.5, 3.4 + 0.4 / 2**0.5))


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10_000), VALUES), min_size=1, max_size=30), st.booleans())
def test_a_pages_chart_has_ticks_whatever_the_values_are(points, log):
    """Also one point, equal values, and (on a logarithmic axis) nothing that can be shown."""
    drawn = chart(Panel("loss", [Series("a", points)], ROUND, Axis("loss", log=log)))
    if drawn is None:
        assert log and all(value <= 0 for _, value in points)
        return
    root = ElementTree.fromstring(drawn)
    assert "nan" not in drawn and len([text for text in root.iter("text") if text.text]) >= 3
    _, _, width, height = map(float, root.get("viewBox").split())
    for x, y in re.findall(
        r"[ML] (-?[\d.]+) (-?[\d.]+)", " ".join(p.get("d") for p in root.iter("path"))
    ):
        assert -5 <= float(x) <= width + 5 and -5 <= float(y) <= height + 5


def test_a_pages_chart_is_light_and_holds_no_markup_of_others():
    long = [Series('"><script>', [(i, math.sin(i / 1000)) for i in range(100_000)])]
    drawn = chart(Panel("<b>", long, Axis("a $ <i>"), Axis("l & l")))
    assert (
        len(drawn) < 25_000
        and "<script" not in drawn
        and "url(" not in drawn
        and "var(--c0)" in drawn
    )
    assert ElementTree.fromstring(drawn).get("aria-label") == "<b>: l & l over a $ <i>"
