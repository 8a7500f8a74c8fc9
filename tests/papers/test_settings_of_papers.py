"""Item, model, data set, clients and claimed numbers of the published scale belong together: the
catalogue and its sweeps beside a table that was copied from the papers.
"""

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from fedseed.experiments.sweeps import Sweep, SweepRun, find_sweep, packaged_sweeps, read_sweep
from fedseed.recipe.packaged import packaged_recipes
from fedseed.recipe.reading import read_recipe
from fedseed.tasks.partition import ByField, Dirichlet
from fedseed_papers.catalogue import EVERY_SCENARIO, catalogue

TABLE = tomllib.loads(Path(__file__).with_name("settings_of_papers.toml").read_text())
ITEMS = [item for item in catalogue() if "published" in item.scales]
MODELS = {
    "datajuicer/LLaMA-1B-dj-refine-150B": "DataJuicer-1.3B",
    "openlm-research/open_llama_3b": "LLaMA-3B",
    "meta-llama/Llama-2-7b-hf": "LLaMA2-7B",
    "meta-llama/Llama-2-13b-hf": "LLaMA2-13B",
    "meta-llama/Meta-Llama-3-8B": "LLaMA3-8B",
    "Qwen/Qwen2.5-7B": "Qwen2.5-7B",
    "facebook/opt-125m": "OPT-125M",
    "facebook/opt-1.3b": "OPT-1.3B",
    "facebook/opt-13b": "OPT-13B",
    "roberta-large": "RoBERTa-large",
    "google/vit-base-patch16-224-in21k": "ViT-base",
    "google/vit-large-patch16-224-in21k": "ViT-large",
    "microsoft/resnet-18": "ResNet-18",
}
# numbers in claims that are settings, not results
NAMES = re.compile(r"[A-Za-z]+[\d.]*-\d+(\.\d+)?[BM]|Dirichlet \d\.\d|alpha \d\.\d|over 90%|SST-\d")
RESULT = re.compile(r"(?<![\w.])-?\d[\d,]*\.\d+(?:e\d+)?|(?<![\w.])\d{1,3},\d{3}(?= MB| and)")


def column_of(recipe):
    """Model and data of a recipe, as the table writes them."""
    split = getattr(recipe.task, "partition", None)
    if split is None:
        shown = ""
    elif isinstance(split, ByField):
        shown = f" by {split.field}"
    elif isinstance(split, Dirichlet):
        shown = f" dirichlet {split.alpha}"
    else:
        shown = f" {split.kind}"
    return f"{MODELS[recipe.model.base]} on {recipe.task.name}{shown}"


def clients_of(recipe):
    """How many clients take part in a round, as the table writes it."""
    federation = recipe.federation
    return federation.per_round or f"{100 * federation.fraction:g}%"


@cache
def lines_of(sources):
    """Scenario, label and recipe of each line of an item's sweeps."""
    found = []
    for source in sources:
        path = find_sweep(source)
        sweep = (
            Sweep(runs=[SweepRun(label=source, recipe=source)])
            if path is None
            else read_sweep(path)
        )
        for scenario, run in sweep.lines():
            settings = [*sweep.set, *scenario.set, *run.set, *scenario.also.get(run.label, ())]
            found.append((scenario.name, run.label, read_recipe(run.recipe, settings)))
    return found


def columns_said(said):
    return {f"{model} on {data}" for model in said["models"] for data in said["data"]}


def test_the_table_has_each_item_with_a_published_scale():
    assert sorted(TABLE) == sorted(item.name for item in ITEMS)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_sweeps_have_the_papers_models_data_and_clients(item):
    said, lines = TABLE[item.name], lines_of(item.sources("published"))
    assert columns_said(said) <= {column_of(recipe) for *_, recipe in lines}
    alone = said.get("alone", [])
    together = {
        clients_of(recipe)
        for _, label, recipe in lines
        if label not in alone and column_of(recipe) in columns_said(said)
    }
    assert together == set(said["a_round"])
    assert {label for _, label, recipe in lines if label in alone} == set(alone)
    assert all(clients_of(recipe) == 1 for _, label, recipe in lines if label in alone)


def places_of(form, lines):
    """The columns that a claim's lines have; "*" for a mean over all scenarios."""
    first = lines[0][0]
    places = set()
    for named in form.labels:
        label, _, scenario = named.partition(" @ ")
        asked = scenario or (first if form.scenario is None else form.scenario)
        if asked == EVERY_SCENARIO:
            places.add(EVERY_SCENARIO)
        places |= {column_of(recipe) for at, name, recipe in lines if (at, name) == (asked, label)}
    return places


CLAIMS = [
    pytest.param(item, says, form, id=f"{item.name}-{number}")
    for item in ITEMS
    for number, (says, form) in enumerate(item.claims_at("published"))
]


@pytest.mark.parametrize(("item", "says", "form"), CLAIMS)
def test_a_claim_is_judged_where_the_paper_makes_it(item, says, form):
    places = places_of(form, lines_of(item.sources("published")))
    assert places and places <= {EVERY_SCENARIO, *columns_said(TABLE[item.name])}, says


@pytest.mark.parametrize(("item", "says", "form"), CLAIMS)
def test_a_claims_numbers_are_those_of_its_lines_in_the_paper(item, says, form):
    numbers = RESULT.findall(NAMES.sub("", says))
    if not numbers:
        return
    places = places_of(form, lines_of(item.sources("published")))
    fitting = [
        entry["values"]
        for entry in TABLE[item.name].get("says", [])
        if {entry["at"]} == places and set(entry["values"]) - {"times"} <= set(form.labels)
    ]
    assert any(sorted(values.values()) == sorted(set(numbers)) for values in fitting), numbers


def test_each_number_of_the_table_is_claimed():
    for item in ITEMS:
        text = " ".join(says for says, _ in item.claims_at("published"))
        for entry in TABLE[item.name].get("says", []):
            assert all(value in text for value in entry["values"].values()), (item.name, entry)


# -- FedMeZO stops after 30 rounds without a better validation loss (Appendix E) -------------------


def stopping_recipes():
    for name in packaged_recipes():
        if name.startswith("published-"):
            yield name, read_recipe(name)
    for name in packaged_sweeps():
        if name.startswith("published-fedmezo"):
            for scenario, label, recipe in lines_of((name,)):
                yield f"{name} {scenario} {label}", recipe


def test_early_stopping_looks_at_30_rounds_and_can_act():
    stopping = [(name, r) for name, r in stopping_recipes() if r.stopping is not None]
    assert len(stopping) > 50
    for name, recipe in stopping:
        assert recipe.stopping.patience * recipe.evaluation.every == 30 < recipe.rounds, name


def test_metrics_of_runs_that_stop_early_are_those_of_the_best_validation():
    """FedMeZO, Appendix E.3: runs that stop in different rounds are not compared by their last."""
    stopping = {
        item.name
        for item in ITEMS
        if all(recipe.stopping for *_, recipe in lines_of(item.sources("published")))
    }
    by_best = {item.name for item in ITEMS if item.evaluation_at("published") == "best"}
    assert by_best <= stopping
    # a surge of the loss, which the best validation loss would hide, and memory
    assert stopping - by_best == {"fedmezo/figure-10", "fedmezo/table-1"}


# -- FeedSign keeps MeZO's number of perturbations in Tables 2, 7 and 13 (Section 4, Appendix H) ---


@pytest.mark.parametrize(
    ("table", "perturbations"), [("2", 20_000), ("7", 100_000), ("13", 100_000)]
)
def test_all_zeroth_order_lines_look_along_as_many_directions(table, perturbations):
    looked = {
        (label, recipe.rounds * clients_of(recipe))
        for _, label, recipe in lines_of((f"published-feedsign-table-{table}",))
        if label != "FO"
    }
    assert looked == {(label, perturbations) for label in ("MeZO", "ZO-FedSGD", "FeedSign")}
