"""Pictures: what is on them, asked of Matplotlib before they are written."""

import warnings

import numpy as np
import pytest
from PIL import Image

from fedseed.reports import fonts, plots
from fedseed.reports.partition import PartitionStatistics, draw_partition
from fedseed.reports.plots import draw_runs, draw_sweep, line_style
from fedseed.reports.results import RoundLine


def lines(rate=0.1, payload=1000.0):
    return [
        RoundLine(n, bytes_up=payload * (n > 0), bytes_down=payload / 10 * (n > 0), forward_passes=40 * (n > 0),
                  backward_passes=20 * (n > 0), seconds={"local": n, "evaluation": 1e3},
                  metrics={"loss": 4 * (1 - rate) ** n, "rouge_l": 10.0 + n})
        for n in range(8)
    ]  # fmt: skip


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were written, still open; letters that no font has are errors."""
    kept = []
    monkeypatch.setattr(plots.plt, "close", kept.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield kept
    monkeypatch.undo()
    for figure in kept:
        plots.plt.close(figure)


@pytest.fixture
def only_own_font(monkeypatch):
    monkeypatch.setattr(fonts, "_others", tuple)
    monkeypatch.setitem(fonts.rcParams, "font.family", [fonts.OWN])


def seen_ticks(axis):
    """The values that can be read along an axis."""
    low, high = sorted(axis.get_view_interval())
    at = [tick for tick in axis.get_ticklocs() if low * 0.999 <= tick <= high * 1.001]
    return [text for text in axis.get_major_formatter().format_ticks(at) if text]


def test_every_axis_has_values(drawn, tmp_path):
    """Also where all bytes or passes lie within one power of ten, or over many."""
    draw_runs({"a": lines(payload=1e5), "b": lines(0.2, 1.2e5)}, tmp_path / "runs.png")
    draw_sweep({"iid": {"a": [lines()], "b": [lines(payload=1e9)]}, "skewed": {"a": [lines()]}}, tmp_path / "sweep.png")
    for figure in drawn:
        for axes in figure.axes:
            for axis in (axes.xaxis, axes.yaxis):
                assert len(set(seen_ticks(axis))) >= 2, (axes.get_xlabel(), axes.get_ylabel())
                assert axis.get_tick_params()["labelleft" if axis is axes.yaxis else "labelbottom"]
    assert len(drawn) == 2
    grid = drawn[1].axes  # a row for each scenario and metric, of rounds, bytes, passes and seconds
    assert len(grid) == 4 * 4 and [axes.get_ylabel() for axes in grid[::4]] == 2 * [
        "held-out loss",
        "held-out Rouge-L, %",
    ]
    assert list(grid[3].get_lines()[0].get_xdata()) == [sum(range(1, n + 1)) for n in range(1, 8)]  # no evaluations
    with Image.open(tmp_path / "runs.png") as picture:
        assert picture.width > 1000


def test_no_two_of_thirty_runs_look_the_same(drawn, tmp_path):
    assert len({tuple(line_style(n).values()) for n in range(48)}) == 48
    draw_runs({f"run-{n}": lines(0.01 * (n + 1)) for n in range(30)}, tmp_path / "runs.png")
    looks = {
        (line.get_color(), line.get_linestyle(), line.get_marker())
        for line in drawn[0].axes[0].get_lines()
        if line.get_label()[:1] != "_"
    }
    assert len(looks) == 30


HELD = PartitionStatistics(("北病院", "south"), ("良い", "bad"), np.array([[10, 5], [3, 9]]))


def texts(figure):
    return " ".join(text.get_text() for text in figure.findobj(plots.matplotlib.text.Text))


def test_names_that_no_font_has_are_shown_by_number(drawn, only_own_font, tmp_path):
    draw_partition(HELD, "病院 held", tmp_path / "held.png")
    draw_runs({"ferret": lines(), "北病院": lines(0.2)}, tmp_path / "runs.png")
    draw_sweep({"病院": {"东": [lines()]}}, tmp_path / "sweep.png")
    assert "?? held" in texts(drawn[0]) and "[1]" in texts(drawn[0]) and "no font of this machine" in texts(drawn[0])
    assert "[2]" in texts(drawn[1]) and "北" not in "".join(map(texts, drawn))


def test_a_font_that_has_the_letters_is_taken(monkeypatch):
    """A font of Matplotlib's own stands for one of the machine's: it has what the chosen one, made poorer, lacks."""
    monkeypatch.setitem(fonts.rcParams, "font.family", [fonts.OWN])
    file = fonts.font_manager.findfont("DejaVu Serif")
    monkeypatch.setattr(fonts, "_others", lambda: (("DejaVu Serif", file),))
    real = fonts.letters_of
    monkeypatch.setattr(fonts, "letters_of", lambda f: real(f) - ({ord("Ж")} if f != file else set()))
    assert fonts.prepare(["ЖЖ", "a\n北"]) == (["ЖЖ", "[2]"], fonts.prepare(["a", "北"])[1])
    assert fonts.rcParams["font.family"] == [fonts.OWN, "DejaVu Serif"]


def test_the_last_resort_is_no_font():
    """It comes with Matplotlib and has a box for every letter."""
    assert all("LastResort" not in file for _, file in fonts._others())


def test_the_grid_is_behind_the_bars(drawn, tmp_path):
    draw_partition(HELD, "held", tmp_path / "held.png")
    for axes in drawn[0].axes:
        assert axes.get_axisbelow() is True
    counts = seen_ticks(drawn[0].axes[0].yaxis)
    assert all("." not in text for text in counts)  # examples are whole
