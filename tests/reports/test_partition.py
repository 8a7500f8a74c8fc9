"""Who holds what: counts, the table, the picture."""

import pytest
from PIL import Image

from fedseed.reports import plots
from fedseed.reports.partition import partition_statistics, partition_table
from fedseed.tasks.data import ClientData, Example, TaskData
from fedseed.tasks.partition import Dirichlet
from support.reports import printed


def dealt(partition, clients, labels):
    clients = [
        ClientData(f"client-{n:03d}", [Example("p", "r")] * len(mine), [labels[i] for i in mine])
        for n, mine in enumerate(partition.deal(labels, clients, 1))
    ]
    return partition_statistics(TaskData(clients))


TEN = [f"label {i % 10}" for i in range(6000)]


def test_counts():
    a, b = ClientData("a", [1, 2, 3], ["10", "9", "9"]), ClientData("b", [4], ["x"])
    held = partition_statistics(TaskData([a, b]))
    assert held.labels == ("9", "10", "x") and held.counts.tolist() == [[2, 1, 0], [0, 0, 1]]
    # a has 2/3, 1/3, 0 and b 0, 0, 1; the whole has 1/2, 1/4, 1/4: distances 1/4 and 3/4
    assert held.skew == pytest.approx(0.5)


def test_few_clients_have_a_row_each():
    held = dealt(Dirichlet(alpha=0.5), 6, TEN)
    text = "".join(printed(part, 80) for part in partition_table(held))
    assert max(map(len, text.splitlines())) <= 80
    for name, size, row in zip(held.clients, held.sizes, held.counts, strict=True):
        line = next(line for line in text.splitlines() if name in line)
        assert f" {size:,} " in line and f" {held.labels[row.argmax()]}: {row.max():,}" in line
    assert "6 clients, 6,000 examples of 10 labels" in text
    assert f"its mixture is {held.skew:.2f} from the whole's" in " ".join(text.split())


@pytest.mark.long
def test_the_picture_shows_every_example(tmp_path, monkeypatch):
    """Areas of the bars of a colour add up to the examples of its label."""
    held = dealt(Dirichlet(alpha=0.1, minimum=0), 8, TEN)
    drawn, save = [], plots.save
    monkeypatch.setattr(
        plots, "save", lambda figure, *rest: (drawn.append(figure), save(figure, *rest))
    )
    plots.draw_partition(held, "a title", tmp_path / "picture.png")
    figure = drawn[0]
    axes = figure.axes[0]
    sums = [sum(bar.get_height() for bar in container) for container in axes.containers]
    assert sums == pytest.approx(held.counts.sum(axis=0).tolist())
    assert len(figure.axes) == 2
    tops = [bar.get_y() + bar.get_height() for bar in axes.containers[-1]]
    assert sorted(tops) == pytest.approx(sorted(held.sizes.tolist()))
    colours = {container[0].get_facecolor() for container in axes.containers}
    assert len(colours) == len(held.labels)
    with Image.open(tmp_path / "picture.png") as picture:
        assert picture.height > 200 and picture.width > 700
