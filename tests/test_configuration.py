import tomllib

import pytest

from fedseed.configuration import Recipe, packaged_recipes, read_recipe
from fedseed.errors import RecipeError

GOOD = """
rounds = 3
[method]
name = "ferret"
directions = 100
[method.training]
rate = 0.1
"""


@pytest.fixture
def recipe(tmp_path):
    def write(text):
        path = tmp_path / "recipe.toml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("name", packaged_recipes())
def test_packaged_recipes_are_valid_and_complete_ones_read_back(name, recipe):
    read = read_recipe(name)
    assert read.title
    again = read_recipe(recipe(read.to_toml()))
    assert again == read


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (("directions = 100", "direction = 100"), ["method.direction = 100", "unknown key", "directions"]),
        (("rounds = 3", "rounds = 0"), ["rounds = 0", "greater than 0"]),
        (("rounds = 3", "rounds = 'many'"), ["rounds = 'many'", "valid integer"]),
        (("rounds = 3", "rounds = true"), ["rounds = True", "valid integer"]),
        (("rounds = 3", ""), ["rounds: missing"]),
        (("rate = 0.1", "rate = -1.0"), ["method.training.rate = -1.0", "greater than 0"]),
        (("rate = 0.1", "rates = 0.1"), ["method.training.rates = 0.1", "unknown key", "optimizer"]),
        (("rate = 0.1", "optimizer = 'lion'"), ["method.training.optimizer = 'lion'", "'adamw'"]),
        (('"ferret"', '"ferrets"'), ["method.name = 'ferrets'", "ferret, fedkseed, feedsign"]),
        (('name = "ferret"\n', ""), ["method.name: missing"]),
        (("directions = 100", "blocks = 'all'"), ["method.blocks = 'all'"]),
        (("directions = 100", "basis = 'uniform'"), ["method.basis = 'uniform'", "'hadamard'"]),
        (("directions = 100", "directions = 10.5"), ["method.directions = 10.5"]),
    ],
)
def test_what_is_wrong_is_named_in_one_line(recipe, change, texts):
    assert change[0] in GOOD
    with pytest.raises(RecipeError) as caught:
        read_recipe(recipe(GOOD.replace(*change)))
    message = str(caught.value)
    assert "\n" not in message and "recipe.toml" in message
    for text in texts:
        assert text in message


def test_tables_of_the_recipe(recipe):
    for table, text in (
        ("[federation]\nper_round = 2\nfraction = 0.5", "not both"),
        ("[federation]\nfraction = 1.5", "federation.fraction = 1.5"),
        ("[task]\nname = 'trivia'", "task.name = 'trivia'"),
        ("[model]\ndtype = 'int8'", "model.dtype = 'int8'"),
        ("[modell]\nbase = 'x'", "modell"),
    ):
        with pytest.raises(RecipeError, match=text):
            read_recipe(recipe(GOOD + table))


def test_missing_files_and_bad_toml(recipe, tmp_path):
    with pytest.raises(RecipeError, match=r"nowhere.toml: no such recipe file.*quickstart-ferret"):
        read_recipe("nowhere.toml")
    with pytest.raises(RecipeError, match="not valid TOML"):
        read_recipe(recipe("rounds = = 3"))


def test_overrides(recipe):
    path = recipe(GOOD)
    read = read_recipe(
        path,
        ["method.training.rate=0.5", "model.base=./there", "seed = 9", 'method.basis="hadamard"', "method.blocks=4"],
    )
    assert read.method.training.rate == 0.5 and read.model.base == "./there" and read.seed == 9
    assert read.method.basis == "hadamard" and read.method.blocks == 4
    for pair, text in (("rounds", "key=value"), ("rounds.x=1", "rounds is a value"), ("method.x=1", "method.x = 1")):
        with pytest.raises(RecipeError, match=text):
            read_recipe(path, [pair])


def test_clients_in_a_round():
    base = tomllib.loads(GOOD)
    for table, expected in (({}, 20), ({"per_round": 3}, 3), ({"fraction": 0.05}, 1), ({"fraction": 0.5}, 10)):
        assert Recipe.model_validate({**base, "federation": table}).federation.count(20) == expected
