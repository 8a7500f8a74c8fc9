import tomllib

import pytest

from fedseed import Federation, Orbit
from fedseed.configuration import Recipe, packaged_recipes, read_recipe
from fedseed.errors import RecipeError
from fedseed.models import load_model
from fedseed.tasks import TASKS, InstructionsTask

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
        ("[task]\nname = 'trivia'", "task.name = 'trivia': choose one of instructions, natural-instructions, sst2$"),
        ("[task]\nname = 3", "task.name = 3: choose one of instructions"),
        ("[task]\nclient = 3", "task.client = 3: unknown key; allowed here: name, clients, families_per_client"),
        (
            "[task]\nname = 'sst2'\npath = 'x'\nunseen = 3",
            "task.unseen = 3: unknown key; allowed here: .*path.*clients",
        ),
        ("[task]\nname = 'sst2'\npath = 'x'\nclients = 0", "task.clients = 0: input should be greater than 0"),
        ("[task]\nname = 'sst2'", "task.path: missing"),
        ("[task]\nname = 'natural-instructions'\npath = 'x'\nfraction = 2.0", "task.fraction = 2.0"),
        (
            "[task]\nname = 'natural-instructions'\npath = 'x'\nclients = 2",
            "unknown key; allowed here: .*max_input_chars",
        ),
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


def test_a_task_without_a_name_is_the_projects_own():
    base = tomllib.loads(GOOD)
    assert Recipe.model_validate(base).task == InstructionsTask()
    assert Recipe.model_validate({**base, "task": {"clients": 3}}).task == InstructionsTask(clients=3)
    assert Recipe.model_validate({**base, "task": InstructionsTask(clients=3)}).task == InstructionsTask(clients=3)
    assert [kind.model_fields["name"].default for kind in TASKS] == ["instructions", "natural-instructions", "sst2"]


TINY = ["model.base=small", "rounds=1", "evaluation.max_new_tokens=3"]
TINY_SST2 = ["task.examples=20", "task.validation=5", "task.evaluation=6", "method.batch=2"]
POOL = ["method.candidates=8", "method.steps=2"]
PUBLISHED = {
    "published-fedkseed": POOL,
    "published-fedkseed-pro": POOL,
    "published-fedzo": ["method.steps=2"],
    "published-feedsign": TINY_SST2,
    "published-dp-feedsign": TINY_SST2,
    "published-zo-fedsgd": TINY_SST2,
    "published-mezo": TINY_SST2,
}


@pytest.mark.parametrize("name", [name for name in packaged_recipes() if name.startswith("published-")])
def test_a_published_recipe_runs_offline_with_a_small_base_and_data(name, natural_instructions, sst2, tmp_path):
    wanted = read_recipe(name)
    folder = sst2() if wanted.task.name == "sst2" else natural_instructions()
    overrides = [*TINY, f"task.path={folder}", *PUBLISHED[name]]
    result = Federation.from_file(name, overrides, out=tmp_path / "run").run()
    summary = result.summary
    assert summary["rounds"] == 1 and summary["skipped"] == 0
    if wanted.task.name == "sst2":
        assert summary["clients"] == summary["clients_per_round"] == (1 if wanted.method.name == "mezo" else 5)
        assert set(summary["final"]) == {"loss", "accuracy"} and 0 <= summary["final"]["accuracy"] <= 100
        assert summary["data_notes"][0].startswith("20 training and 5 validation examples of 60")
    else:
        assert summary["clients"] == 3 and summary["clients_per_round"] == 1
        assert set(summary["final"]) == {"loss", "perplexity", "rouge_l"}
        assert summary["data_notes"][0].startswith("train: 0 of 3 tasks left out")
    if not wanted.method.dense:
        model, _ = load_model("small", wanted.model.dtype)
        assert Orbit.open(tmp_path / "run" / "model.orbit").replay(model) == summary["weights_digest"]


def test_published_recipes_have_the_papers_numbers():
    fedkseed, pro, zo = (read_recipe(f"published-{name}") for name in ("fedkseed", "fedkseed-pro", "fedzo"))
    for recipe in (fedkseed, pro, zo):
        assert (recipe.rounds, recipe.federation.fraction, recipe.method.steps) == (40, 0.05, 200)
        assert (recipe.method.rate, recipe.method.scale, recipe.method.batch) == (3e-7, 5e-4, 1)
        assert (recipe.task.max_input_chars, recipe.task.min_instances, recipe.task.fraction) == (1024, 20, 0.2)
    assert (fedkseed.method.candidates, pro.method.candidates, pro.method.importance) == (4096, 1024, True)
    assert (zo.method.estimator, zo.method.estimates) == ("one-point", 1)
    steps = {"feedsign": (60000, 5e-6), "dp-feedsign": (60000, 5e-6), "zo-fedsgd": (60000, 1e-7), "mezo": (20000, 1e-6)}
    for name, (rounds, rate) in steps.items():
        recipe = read_recipe(f"published-{name}")
        assert (recipe.rounds, recipe.method.rate, recipe.method.scale) == (rounds, rate, 1e-3)
        assert recipe.method.batch == 16 and recipe.method.basis == "normal"
        assert (recipe.task.examples, recipe.task.validation, recipe.task.evaluation) == (1000, 500, 1000)


def test_what_was_left_out_is_said_when_a_run_starts(natural_instructions, capsys):
    from rich.console import Console

    from fedseed.reports.progress import Shown

    rows = [(f"number {i}", ["yes"]) for i in range(20)] + [("many words " * 80, ["no"])] * 5
    folder = natural_instructions(train={"task001_a": rows, "task002_b": rows[:19]}, test={"task003_c": rows[:5]})
    overrides = [*TINY, "method.steps=1", f"task.path={folder}", "task.fraction=1.0", "evaluation.max_length=200"]
    federation = Federation.from_file("published-fedzo", overrides, progress=Shown(Console(width=40)))
    summary = federation.run().summary
    assert summary["data_notes"] == [
        "train: 1 of 2 tasks left out (fewer than 20 usable instances), "
        "0 of 44 instances left out (input over 1,024 characters); 1 tasks give 25 examples",
        "test: 0 of 1 tasks left out (fewer than 1 usable instances), "
        "0 of 5 instances left out (input over 1,024 characters); 1 tasks give 5 examples",
        "5 of the clients' examples left out (over evaluation.max_length = 200 tokens)",
    ]
    shown = capsys.readouterr().out
    for note in summary["data_notes"]:
        assert note in shown and shown.index(note) < shown.index("round 0")
