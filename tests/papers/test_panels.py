"""Pictures of a figure's curves."""

from matplotlib import pyplot
from PIL import Image

from fedseed.reports.charts import Axis, Series
from fedseed_papers.findings import Panel
from fedseed_papers.panels import draw_panels


def test_what_has_cost_nothing_is_not_on_a_logarithmic_axis(tmp_path, monkeypatch):
    """Nor is its band, which would be a bar to the edge."""
    drawn = []
    with monkeypatch.context() as patched:
        patched.setattr(pyplot, "close", drawn.append)
        series = Series("a", [(0, 1.0), (10, 2.0), (100, 3.0)], [(0, 0.5, 1.5), (10, 1.5, 2.5), (100, 2.5, 3.5)])
        axis = Axis("bytes", log=True, unit="bytes")
        draw_panels([Panel("loss", [series], axis, Axis("loss"))], tmp_path / "panels.png")
    (axes,) = drawn[0].axes
    (band,) = axes.collections
    assert min(x for path in band.get_paths() for x, _ in path.vertices) == 10
    assert list(axes.lines[0].get_xdata()) == [10, 100]
    pyplot.close(drawn[0])


def test_a_picture_of_many_panels_stays_small(tmp_path):
    panel = Panel("loss", [Series("a", [(0, 1.0), (1, 2.0)])], Axis("round"), Axis("loss"))
    sizes = []
    for count in (3, 18):
        draw_panels([panel] * count, tmp_path / f"{count}.png")
        with Image.open(tmp_path / f"{count}.png") as picture:
            sizes.append(picture.size)
    (wide, high), (width, height) = sizes
    assert width < 0.9 * wide and height < 5.4 * high
