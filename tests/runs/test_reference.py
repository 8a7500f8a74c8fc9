"""The reference of a recipe's keys: all there are, and the page that is made of them."""

import runpy
from pathlib import Path

import pytest

from fedseed.runs.keys import find_keys, keys_of, near_key
from fedseed.runs.recipe import Recipe, packaged_recipes, read_recipe

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def keys():
    return keys_of(Recipe)


def leaves(table, prefix=""):
    """The keys of a complete recipe: tables that are not there have none."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        elif value is not None and not (name == "tracking" and value == []):
            yield f"{prefix}{name}"


def test_every_key_of_every_recipe_is_there_with_a_meaning(keys):
    known = {key.key for key in keys}
    for name in packaged_recipes():
        read = read_recipe(name)
        assert set(leaves(read.model_dump())) <= known, name
    assert [key.key for key in keys if len(key.about) < 5] == []
    assert len({(key.key, key.of) for key in keys}) == len(keys)


def test_a_key_is_found_by_its_end_and_by_its_table(keys):
    assert [key.key for key in find_keys(keys, "method.training.learning_rate")] == ["method.training.learning_rate"]
    rates = {key.key for key in find_keys(keys, "learning_rate")}
    assert rates == {"method.learning_rate", "method.training.learning_rate"}
    assert [key.key for key in find_keys(keys, "[stopping]")] == ["stopping.patience"]
    assert {key.key for key in find_keys(keys, "tracking")} >= {"tracking[].name", "tracking[].folder"}
    assert find_keys(keys, "colour") == [] and near_key(keys, "xyz") == ""
    assert near_key(keys, "dirctions") == "did you mean method.directions?"


def test_the_page_is_up_to_date():
    """If not: python scripts/make_reference.py."""
    page = runpy.run_path(str(ROOT / "scripts" / "make_reference.py"))
    assert page["FILE"] == ROOT / "docs" / "recipe.md"
    assert page["FILE"].read_text(encoding="utf-8") == page["reference"](), "run scripts/make_reference.py"


def test_the_list_of_keys_is_frozen(keys):
    """Recipes are written by people, and kept: a key that goes, or is called otherwise, breaks theirs."""
    file = Path(__file__).parent / "recipe_keys.txt"
    frozen, now = file.read_text().split(), sorted({key.key for key in keys})
    gone, new = sorted(set(frozen) - set(now)), sorted(set(now) - set(frozen))
    assert not gone, f"{gone}: recipes have these keys. Keep them, or say in CHANGELOG what to write in place of them"
    assert not new, (
        f"new keys: {new}. Could a key that is there say it, or a default that nobody would change? If not, add them "
        f"to {file.name}, in order, and run scripts/make_reference.py, which writes docs/recipe.md and the defaults "
        "that orbits leave out: with a default that means what happened before, old orbits stay as they are"
    )
    assert frozen == sorted(frozen)
