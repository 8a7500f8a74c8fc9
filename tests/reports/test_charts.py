"""Charts as SVG: ticks that can be read, whatever the values are."""

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedseed.reports.charts import HEIGHT, WIDTH, Axis, Series, line_chart, log_ticks, short_number
from fedseed.reports.style import COLOURS, DASHES, look

VALUES = st.floats(min_value=-1e12, max_value=1e12, allow_nan=False).map(lambda v: round(v, 3))


def ticks(chart):
    return [e.text for e in ElementTree.fromstring(chart) if e.get("class") == "tick"]


@given(st.lists(st.tuples(st.integers(0, 10_000), VALUES), min_size=1, max_size=30), st.booleans())
def test_every_line_fits_in_and_has_ticks(points, log):
    """Also one point, equal values, and (on a logarithmic axis) nothing that can be shown."""
    chart = line_chart("loss", [Series("a", points)], Axis("round", whole=True), Axis("loss", log=log))
    if chart is None:
        assert log and all(value <= 0 for _, value in points)
        return
    numbers = re.findall(r'd="([^"]*)"', chart)
    for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", " ".join(numbers)):
        assert -1 <= float(x) <= WIDTH + 1 and -1 <= float(y) <= HEIGHT + 1
    said = ticks(chart)
    assert len(said) >= 3 and all(said)


@given(st.floats(1e-6, 1e12), st.floats(1.02, 1e9))
def test_logarithmic_axes_have_two_to_nine_ticks_within(low, times):
    found = log_ticks(low, low * times)
    assert 2 <= len(found) <= 9 and found == sorted(found)
    assert all(low * 0.99 <= tick <= low * times * 1.01 for tick in found)


def test_what_is_not_finite_is_left_out_and_nothing_is_no_chart():
    lines = [Series("a", [(0, math.nan), (1, 2.0), (2, math.inf), (3, 1.0)])]
    chart = line_chart("loss", lines, Axis("round"), Axis("loss"))
    assert chart is not None and "nan" not in chart and "inf" not in chart and chart.count("<circle") == 2
    assert line_chart("loss", [Series("a", [(0, math.nan)])], Axis("round"), Axis("loss")) is None


def test_names_are_texts_whatever_is_in_them():
    chart = line_chart("<b>", [Series('"><script>', [(0, 1.0), (1, 2.0)])], Axis("round"), Axis("l & l"))
    assert "<script" not in chart and ElementTree.fromstring(chart).get("aria-label") == "<b>: l & l over round"


def test_very_long_lines_stay_small_and_keep_their_end():
    points = [(i, math.sin(i / 1000)) for i in range(100_000)]
    chart = line_chart("loss", [Series("a", points)], Axis("round"), Axis("loss"))
    assert len(chart) < 20_000
    end = re.search(r'class="line [^"]*" d="[^"]*L([\d.]+) ', chart)
    assert float(end.group(1)) == pytest.approx(WIDTH - 26)


def test_48_lines_look_different():
    assert len({look(number) for number in range(48)}) == 48 == len(set(COLOURS)) * len(DASHES)


def test_short_logarithmic_axes_have_round_ticks():
    assert log_ticks(18.616, 41.7706) == [20.0, 25.0, 30.0, 35.0, 40.0]
    assert log_ticks(3.0, 3.0) == [3.0] and log_ticks(3.0, 30.0) == [5.0, 10.0, 20.0]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0, "bytes", "0"), (1500, "bytes", "1.5 kB"), (0.5, "", "0.5"), (2e-5, "", "2e-5"), (12_000, "", "12k"),
     (0.002, "s", "2 ms"), (30, "s", "30 s"), (18.61600680400352, "s", "18.6 s"), (600, "s", "10 min"),
     (7200, "s", "2 h"), (3e9, "bytes", "3 GB")],
)  # fmt: skip
def test_numbers_of_axes(value, unit, text):
    assert short_number(value, unit) == text
