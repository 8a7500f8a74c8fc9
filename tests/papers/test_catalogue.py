"""The catalogue has every numbered figure and table.

What it names is there, and its claims can hold or not.
"""

import re
from functools import cache
from pathlib import Path

import pytest

from fedseed.experiments.sweeps import (
    Sweep,
    SweepLine,
    SweepRun,
    find_sweep,
    packaged_sweeps,
    read_sweep,
)
from fedseed.recipe.packaged import packaged_recipes
from fedseed.recipe.reading import read_recipe
from fedseed_papers import training
from fedseed_papers.catalogue import EVERY_SCENARIO, NOTHING, SCALES, catalogue
from fedseed_papers.findings import UNKNOWN
from fedseed_papers.measuring import SMALL_MAKERS
from fedseed_papers.records import read_results
from fedseed_papers.reproducing import EXACT
from fedseed_papers.training import MEASURES, judge, lower_is_better

NUMBERED = Path(__file__).with_name("numbered.txt").read_text().split()
DOCS = Path(__file__).parents[2] / "docs"
REPRODUCED = DOCS / "reproduced"
REPRODUCE = (DOCS / "reproduce.md").read_text(encoding="utf-8")


SHOWN = [name for name in NUMBERED if name.partition("/")[2].startswith(("figure", "table"))]
STATED = [name for name in NUMBERED if name not in SHOWN]


def rows_of_what_is_not_made():
    """The names in the first column of the page's table "Not made, and why"; each has a reason."""
    section = REPRODUCE.split("## Not made, and why")[1].split("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            assert len(cells) == 2 and len(cells[1]) > 20, line
            yield from re.findall(r"`(\w+/[\w.-]+)`", cells[0])


def test_every_numbered_figure_and_table_is_there_in_order():
    names = [item.name for item in catalogue()]
    assert [
        name for name in names if name.partition("/")[2].startswith(("figure", "table"))
    ] == SHOWN
    assert len(set(names)) == len(names)
    assert {item.state for item in catalogue()} == {"exact", "small", "published only", NOTHING}


def test_every_theorem_lemma_proposition_corollary_and_conjecture_is_an_item_or_listed():
    names, listed = {item.name for item in catalogue()}, list(rows_of_what_is_not_made())
    assert {kind for name in STATED for kind in [name.partition("/")[2].partition("-")[0]]} == {
        "theorem",
        "lemma",
        "proposition",
        "corollary",
        "conjecture",
    }
    for name in STATED:
        assert (name in names) != (name in listed), name
    assert len(set(listed)) == len(listed)


@pytest.mark.parametrize("item", catalogue(), ids=lambda item: item.name)
def test_what_an_item_names_is_there(item):
    assert list(item.scales) == [scale for scale in SCALES if scale in item.scales]
    assert ("exact" in item.scales) == (item.key in EXACT.get(item.paper, {}))
    assert item.title.split(",")[0].lower() == item.paper
    for source in (*item.sources("small"), *item.sources("published")):
        assert source in SMALL_MAKERS or source in packaged_sweeps() or source in packaged_recipes()
    if item.small in packaged_sweeps():
        assert len(read_sweep(packaged_sweeps()[item.small]).seeds) >= 3


def test_every_small_page_has_seeds_interval_and_p_and_few_are_undecided():
    names = {item.name for item in catalogue() if "small" in item.scales}
    small = [result for result in read_results(REPRODUCED) if result["scale"] == "small"]
    assert {result["name"] for result in small} == names
    for claim in (claim for result in small for claim in result["claims"]):
        assert claim["seeds"] >= 5 and len(claim["interval"]) == 2 and 0 <= claim["p"] <= 1, claim[
            "says"
        ]
    assert sum(result["verdict"] == UNKNOWN for result in small) <= 5


# -- claims
# ------------------------------------------------------------------------------------------------

MADE = [
    (item, scale, item.sources(scale))
    for item in catalogue()
    for scale in ("small", "published")
    if item.sources(scale) and item.sources(scale)[0] not in SMALL_MAKERS
]
CLAIMS = [
    pytest.param(sources, form, item.metric_at(scale), id=f"{item.name}-{scale}-{number}")
    for item, scale, sources in MADE
    for number, (_, form) in enumerate(item.claims_at(scale))
]
# scored by Rouge-L, not accuracy
GENERATED = {"natural-instructions", "dolly-15k", "alpaca", "code-alpaca", "gsm8k"}
WITHOUT_CLAIM = {
    ("feedsign/figure-10", "published"): "a picture of other papers' accuracies, without numbers",
}


@cache
def sweep_of(source):
    path = find_sweep(source)
    return Sweep(runs=[SweepRun(label=source, recipe=source)]) if path is None else read_sweep(path)


@cache
def metrics_of(recipe, *settings):
    """What runs of a recipe measure."""
    made = read_recipe(recipe, settings)
    score = "rouge_l" if made.task.name in GENERATED else "accuracy"
    scored = score == "accuracy" or made.evaluation.rouge
    return {"loss", *MEASURES, *((score, training.SCORE) if scored else ())}


def lines_of(sources):
    """A line of five runs for each of the sweeps', in folders that do not exist."""
    for source in sources:
        for scenario, run in sweep_of(source).lines():
            place = Path(source) / (scenario.name or "-") / run.label
            folders = {seed: place / str(seed) for seed in range(1, 6)}
            yield SweepLine(scenario.name, run.label, (), {}, None, folders, {})


def recipes_of(sources):
    """Scenario, label, recipe and settings of each line of an item's sweeps."""
    for source in sources:
        sweep = sweep_of(source)
        for scenario, run in sweep.lines():
            settings = [*sweep.set, *scenario.set, *run.set, *scenario.also.get(run.label, ())]
            yield scenario.name, run.label, run.recipe, settings


def test_every_item_that_is_made_has_a_claim():
    assert {(item.name, scale) for item, scale, _ in MADE if not item.claims_at(scale)} == set(
        WITHOUT_CLAIM
    )


def test_scenarios_of_an_items_sweeps_have_names_of_their_own():
    for item, scale, sources in MADE:
        lines = [(scenario, label) for scenario, label, *_ in recipes_of(sources)]
        assert len(set(lines)) == len(lines), (item.name, scale)


def lines_named(sources, form):
    """Recipe and settings of each line that a claim is about."""
    recipes = {(scenario, label): made for scenario, label, *made in recipes_of(sources)}
    first = next(iter(recipes))[0]
    for named in form.labels:
        label, _, at = named.partition(" @ ")
        asked = at or (first if form.scenario is None else form.scenario)
        for (scenario, name), made in recipes.items():
            if name == label and asked in (scenario, EVERY_SCENARIO):
                yield made


def counted_in_rounds():
    """The claims on rounds to converge."""
    for item, scale, sources in MADE:
        for number, (_, form) in enumerate(item.claims_at(scale)):
            if (form.metric or item.metric_at(scale)) == "rounds to converge":
                yield pytest.param(sources, form, id=f"{item.name}-{scale}-{number}")


COUNTED_IN_ROUNDS = list(counted_in_rounds())


def test_both_scales_count_rounds_for_both_papers():
    names = {param.id.rpartition("-")[0] for param in COUNTED_IN_ROUNDS}
    for name in ("ferret/figure-2", "fedkseed/figure-12"):
        assert {f"{name}-small", f"{name}-published"} <= names


@pytest.mark.parametrize(("sources", "form"), COUNTED_IN_ROUNDS)
def test_lines_that_are_compared_by_rounds_are_evaluated_alike(sources, form):
    """`rounds_to_converge` counts evaluations: with one in four rounds and one in ten, lines that
    both converge in round 2 have 4 and 10.
    """
    made = [read_recipe(recipe, settings) for recipe, settings in lines_named(sources, form)]
    assert len(made) == len(form.labels)
    assert {recipe.evaluation.every for recipe in made} == {1}
    assert len({recipe.rounds for recipe in made}) == 1


@pytest.mark.parametrize(("sources", "form", "metric"), CLAIMS)
def test_a_claim_finds_what_it_is_about_and_can_hold_or_not(sources, form, metric, monkeypatch):
    metric = form.metric or metric
    recipes = {(scenario, label): made for scenario, label, *made in recipes_of(sources)}
    first = next(iter(recipes))[0]
    for named in form.labels:
        label, _, at = named.partition(" @ ")
        asked = at or (first if form.scenario is None else form.scenario)
        found = [
            made
            for (scenario, name), made in recipes.items()
            if name == label and asked in (scenario, EVERY_SCENARIO)
        ]
        assert found, named
        for recipe, settings in found:
            assert metric in metrics_of(recipe, *settings), named

    best_first = (
        range(len(form.labels)) if lower_is_better(metric) else range(len(form.labels), 0, -1)
    )
    apart = [100.0 + 50 * rank for rank in best_first]
    if form.order:
        agree, disagree = apart, apart[::-1]
    elif form.alike:
        agree, disagree = [100.0] * len(apart), apart
    else:
        agree = [2 * (form.least or 0.0) + 1, 1.0][: len(apart)]
        disagree = [(form.least or 0.0) / 2, 1.0][: len(apart)]
    places = {
        named: {
            folder
            for run in training.runs_of(form, named, list(lines_of(sources)))
            for folder in run.values()
        }
        for named in form.labels
    }
    for values, expected in ((agree, "holds in kind"), (disagree, "does not hold here")):

        def measured(folder, name, evaluation="last", values=values):
            value = next(
                v for v, named in zip(values, form.labels, strict=True) if folder in places[named]
            )
            return 1e12 if name == "trainable" != metric else value * (1 + int(folder.name) / 1e4)

        monkeypatch.setattr(training, "measured", measured)
        monkeypatch.setattr(training, "baseline_of", lambda folder, name: float("nan"))
        (claim,) = judge([("it is so", form)], metric, list(lines_of(sources)))
        assert (claim.verdict, claim.seeds) == (expected, 5) and claim.p < 0.01
