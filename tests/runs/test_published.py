"""Every published recipe is tried: two rounds with all of its settings but sizes.

The base is tiny and random, of the architecture, tokenizer and file format that the recipe's own
has; the data is made by us in the data set's original files."""

import math

import pytest

from fedseed import Federation, Orbit
from fedseed.models.heads import Head
from fedseed.models.loading import load_model
from fedseed.orbit.header import flat
from fedseed.recipe.packaged import packaged_recipes
from fedseed.recipe.reading import read_recipe
from fedseed.weights.layout import ITEM_BYTES
from support.classification_files import write_original
from support.instruction_files import WRITERS, numbered, write_natural_instructions
from support.pictures import write_cifar10, write_cifar100
from support.published_bases import BASES, write_base
from support.tiers import mark

NAMES = [name for name in packaged_recipes() if name.startswith("published-")]

# All that may differ from a published recipe, and why.
SIZES = {
    "rounds": "two",
    "model.base": "a tiny one of the same architecture",
    "task.path": "a small copy",
    "task.clients": "as the small copy of Dolly-15k has an eighth of its examples",
    "task.examples": "drawn from the small copy",
    "task.validation": "drawn from the small copy",
    "task.evaluation": "drawn from the small copy",
    "method.steps": "few local steps",
    "method.training.steps": "few local steps",
    "evaluation.max_new_tokens": "short answers",
}
DATA = {
    "natural-instructions": lambda folder: write_natural_instructions(
        folder, train={f"task{n:03d}_copy": numbered(20 + n % 9, f"train {n}") for n in range(40)}
    ),
    **WRITERS,
    "dolly-15k": lambda folder: WRITERS["dolly-15k"](folder, each=250),
    "sst2": lambda folder: write_original("sst2", folder),
    "rte": lambda folder: write_original("rte", folder),
    "snli": lambda folder: write_original("snli", folder, train=120),
    "cifar10": lambda folder: write_cifar10(folder / "made"),
    "cifar100": lambda folder: write_cifar100(folder / "made"),
}
COPIES = {  # sizes by task
    **{task: ["task.evaluation=3"] for task in ("dolly-15k", "alpaca", "code-alpaca", "gsm8k")},
    **{
        task: ["task.examples=40", "task.validation=10", "task.evaluation=10"]
        for task in ("sst2", "rte")
    },
    "snli": ["task.evaluation=10"],
}
CLIENTS = {  # all, and in a round; five and all of them, if nothing else is said
    **dict.fromkeys((name for name in NAMES if "fedmezo-" in name), (3, 3)),
    **dict.fromkeys((name for name in NAMES if "resnet" in name), (25, 25)),
    "published-fedmezo-lora": (40, 3),
    "published-ferret-gsm8k": (3, 3),
    "published-ferret-code-alpaca": (9, 9),
    "published-mezo": (1, 1),
}
PER_TASK = {"natural-instructions": (40, 2), "dolly-15k": (40, 2)}
TEXTS = {"loss", "perplexity", "rouge_l"}
SCORES = {
    **dict.fromkeys(("natural-instructions", "dolly-15k", "alpaca", "code-alpaca"), TEXTS),
    "gsm8k": {*TEXTS, "final_number"},
    **{task: {"loss", "accuracy"} for task in ("sst2", "rte", "snli", "cifar10", "cifar100")},
}


def reduced(name, base, path):
    """The overrides that make a recipe small."""
    recipe = read_recipe(name)
    sizes = [
        "rounds=2",
        f"model.base={base}",
        f"task.path={path}",
        *COPIES.get(recipe.task.name, []),
    ]
    if getattr(recipe.task, "clients", None) == 200:
        sizes.append("task.clients=40")
    if hasattr(recipe.method, "steps"):
        sizes.append("method.steps=4")
    if getattr(getattr(recipe.method, "training", None), "steps", None):
        sizes.append("method.training.steps=2")
    if "rouge_l" in SCORES[recipe.task.name]:
        sizes.append("evaluation.max_new_tokens=3")
    return sizes


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Bases and data, each made once."""
    there = {}

    def make(kind, name, write):
        if (kind, name) not in there:
            there[kind, name] = write(tmp_path_factory.mktemp(kind))
        return there[kind, name]

    return make


# one with gradients, one zeroth-order and one with pictures are quick; slow are those whose method,
# task and base all are in others, too (the last test)
QUICK = ("published-ferret", "published-feedsign")
SLOW = {
    "published-fedit-sgd",
    "published-fedkseed",
    "published-fedkseed-dolly-alpha5",
    "published-fedkseed-pro-dolly-alpha05",
    "published-fedkseed-pro-dolly-alpha5",
    "published-fedmezo-code-alpaca",
    "published-fedmezo-dolly",
    "published-fedmezo-lora",
    "published-fedmezo-sgd",
    "published-ferret-as-coded",
    "published-ferret-dolly-alpha05",
    "published-ferret-dolly-alpha5",
    "published-ferret-gsm8k",
    "published-zo-fedsgd-resnet18-cifar10",
    "published-zo-fedsgd-vit-cifar10",
    "published-zo-fedsgd-vit-cifar100",
}


@pytest.mark.parametrize(
    "name", mark(NAMES, lambda name: name not in QUICK and ("long", "slow")[name in SLOW])
)
def test_two_rounds_with_all_settings_but_sizes_as_published(
    name, made, tmp_path, without_pictures
):
    published = read_recipe(name)
    task, method = published.task.name, published.method
    base = made(
        "base",
        published.model.base,
        lambda folder: write_base(published.model.base, folder / "made"),
    )
    overrides = reduced(name, base, made("data", task, DATA[task]))

    small, whole = (
        flat(recipe.model_dump()) for recipe in (read_recipe(name, overrides), published)
    )
    assert {
        key for key in whole.keys() | small.keys() if whole.get(key) != small.get(key)
    } <= SIZES.keys()

    result = Federation.from_file(name, overrides, out=tmp_path / "run").run()
    summary = result.summary
    assert summary["rounds"] == 2 and summary["skipped"] == summary["refused"] == 0
    clients = CLIENTS.get(name, PER_TASK.get(task, (5, 5)))
    assert (summary["clients"], summary["clients_per_round"]) == clients
    more = {"validation_loss"} if published.stopping else set()
    assert set(summary["final"]) == SCORES[task] | more
    assert all(math.isfinite(value) for value in summary["final"].values())
    assert summary["final"]["loss"] > 0
    check_traffic(published, summary)
    # the weights are what the run's file says they are
    if not method.catch_up.replaces:
        orbit = Orbit.open(tmp_path / "run" / "model.orbit")
        head = Head(orbit.header.classes, published.seed) if task.startswith("cifar") else None
        model, _ = load_model(str(base), published.model.dtype, head=head)
        assert orbit.replay(model) == summary["weights_digest"]
    else:
        assert (tmp_path / "run" / "model.safetensors").is_file()


def check_traffic(published, summary):
    """What a client sends is what the method's paper counts, for the settings as published."""
    method, up = (
        published.method,
        {k.removesuffix("_up"): v for k, v in summary["exchanged"].items() if "_up" in k},
    )
    d = summary["parameters"]
    expected = {
        "ferret": lambda: {"integers": 1, "bits": 0},
        "fedkseed": lambda: {"scalars": 4, "integers": 4, "bits": 0},
        "feedsign": lambda: {"scalars": 0, "integers": 0, "bits": 1},
        "zo-fedsgd": lambda: {"scalars": 1, "integers": 1, "bits": 0},
        "mezo": lambda: {"scalars": 1, "integers": 0, "bits": 0},
    }.get(method.name, lambda: {"scalars": d, "integers": 0, "bits": 0})()
    assert {name: up[name] for name in expected} == expected
    # K for the most changed block, fewer for the others; all blocks together
    if method.name == "ferret":
        assert method.directions <= up["scalars"] <= method.directions * summary["blocks"]
    if method.name == "fedkseed":
        assert summary["exchanged"]["scalars_down"] == method.candidates * (
            2 if method.importance else 1
        )
    if method.catch_up.replaces:
        assert summary["fedavg_bytes"] / 2 >= d * min(ITEM_BYTES.values())


def test_the_bases_and_data_of_all_recipes_are_made():
    recipes = [read_recipe(name) for name in NAMES]
    assert len(NAMES) == 37
    assert {recipe.model.base for recipe in recipes} == BASES.keys()
    assert {recipe.task.name for recipe in recipes} == DATA.keys() == SCORES.keys()
    always = [recipe for name, recipe in zip(NAMES, recipes, strict=True) if name not in SLOW]
    assert len(always) == len(NAMES) - len(SLOW)  # each name of them is one
    for part in (
        lambda r: r.method.name,
        lambda r: r.task.name,
        lambda r: r.model.base,
        lambda r: bool(r.stopping),
    ):
        assert set(map(part, always)) == set(map(part, recipes))
