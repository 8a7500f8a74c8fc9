"""The catalogue has every numbered figure and table of the papers, and every scale that it names can be made."""

from pathlib import Path

import pytest

from fedseed.experiments.sweeps import packaged_sweeps, read_sweep
from fedseed.runs.recipe import packaged_recipes
from fedseed_papers.catalogue import NOTHING, SCALES, catalogue
from fedseed_papers.measuring import SMALL_MAKERS
from fedseed_papers.reproducing import EXACT

NUMBERED = Path(__file__).with_name("numbered.txt").read_text().split()


def test_every_numbered_figure_and_table_is_there_in_order():
    assert [
        item.name for item in catalogue() if item.name.partition("/")[2].startswith(("figure", "table"))
    ] == NUMBERED
    assert len({item.name for item in catalogue()}) == len(catalogue())
    assert {item.state for item in catalogue()} == {"exact", "small", "published only", NOTHING}


@pytest.mark.parametrize("item", catalogue(), ids=lambda item: item.name)
def test_what_an_item_names_is_there(item):
    assert list(item.scales) == [scale for scale in SCALES if scale in item.scales]
    assert ("exact" in item.scales) == (item.key in EXACT.get(item.paper, {}))
    assert item.title.split(",")[0].lower() == item.paper
    for source in filter(None, (item.small, item.published)):
        assert source in SMALL_MAKERS or source in packaged_sweeps() or source in packaged_recipes()
    if item.small in packaged_sweeps():
        sweep = read_sweep(packaged_sweeps()[item.small])
        assert len(sweep.seeds) >= 3
