"""What makes an app: a recipe, Flower's configurations, and Flower itself."""

import sys

import pytest

from fedseed.errors import FedseedError, RecipeError
from fedseed.flower import client_app, server_app
from fedseed.flower.config import place_of, recipe_of


@pytest.mark.parametrize(
    ("make", "module"), [(server_app, "flwr.serverapp"), (client_app, "flwr.clientapp")]
)
def test_what_is_missing_is_named(make, module, monkeypatch):
    """And nothing else of fedseed asks for Flower."""
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        FedseedError, match=r"^Flower is not installed: pip install '\.\[flower\]' in"
    ):
        make("small-ferret")


def test_configurations(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text('rounds = 3\n[method]\nname = "ferret"\n')
    config = {"set": "rounds=4; method.directions=50", "recipe": "", "out": "x", "data": ""}
    recipe = recipe_of(path, config)
    assert (recipe.rounds, recipe.method.directions) == (4, 50)
    assert recipe_of(path, {"recipe": "quickstart-ferret"}).rounds != 3
    with pytest.raises(RecipeError, match="run config: unknown key 'rounds'"):
        recipe_of(path, {"rounds": 3})
    place = place_of({"client": "north, south", "data": "/d"})
    assert (place.clients, str(place.own_data.path), place.own_data.evaluation_file) == (
        ("north", "south"),
        "/d",
        None,
    )
    found = [
        place_of({"partition-id": n, "num-partitions": 2}).select(["a", "b", "c"]) for n in range(2)
    ]
    assert found == [["a", "c"], ["b"]]
    with pytest.raises(RecipeError, match="node config: name the node's clients"):
        place_of({"data": "/d"})
