"""Which inputs a layer's gradient gives away: all of an exact one, none of noise."""

import csv
import json

import numpy as np
import pytest
import torch

from fedseed.errors import RecipeError
from fedseed.models.loading import load_model
from fedseed.recipe.reading import read_recipe
from fedseed_papers.audits.inputs import (
    Attacked,
    Found,
    find_inputs,
    first_inputs,
    settings_for,
)
from fedseed_papers.audits.inputs_page import audit, interval
from fedseed_papers.audits.spans import (
    LayerGradient,
    pick_by_pursuit,
    pick_by_span,
    rank_share,
    residuals,
)
from support.command import well

VOCABULARY, WIDTH, OUTPUTS = 300, 48, 40
TRUE = [3, 17, 100, 101, 250]


def seen(noise=0.0, project=None, projection=1, inputs=TRUE):
    """A gradient of some inputs among the vocabulary's, with noise."""
    drawn = np.random.default_rng(1)
    vocabulary = drawn.normal(size=(VOCABULARY, WIDTH))
    gradient = drawn.normal(size=(OUTPUTS, len(inputs))) @ vocabulary[inputs]
    gradient += noise * drawn.normal(size=gradient.shape)
    if project is not None:
        signs = np.random.default_rng(projection)
        directions = signs.choice([-1.0, 1.0], size=(project, WIDTH)) / np.sqrt(project)
        return LayerGradient(gradient @ directions.T, vocabulary @ directions.T)
    return LayerGradient(gradient, vocabulary)


def test_an_exact_gradient_gives_its_inputs_away_to_both_attacks():
    layers = [seen()]
    left = residuals(layers)
    assert left[TRUE].max() < 1e-6 and np.delete(left, TRUE).min() > 0.5
    assert sorted(pick_by_span(layers, 5, range(VOCABULARY))) == TRUE
    assert sorted(pick_by_pursuit(layers, 5, range(VOCABULARY))) == TRUE
    # only what is allowed is picked, and what is known needs no pick
    allowed = sorted(set(range(VOCABULARY)) - {3, 17})
    assert sorted(pick_by_pursuit(layers, 3, allowed, [3, 17])) == TRUE[2:]


def test_a_known_projection_of_the_gradient_gives_them_away_while_it_has_room():
    assert sorted(pick_by_span([seen(project=16)], 5, range(VOCABULARY))) == TRUE
    # five inputs fill four directions: the span is everything, and says nothing
    assert pick_by_span([seen(project=4)], 5, range(VOCABULARY)) == []
    # two layers with projections of their own say more than one
    two = [seen(project=10, projection=2), seen(project=10, projection=3)]
    assert sorted(pick_by_pursuit(two[:1], 5, range(VOCABULARY))) != TRUE
    assert sorted(pick_by_pursuit(two, 5, range(VOCABULARY))) == TRUE


def test_noise_hides_them_at_last_and_pursuit_stands_some():
    some, much = [seen(noise=0.5)], [seen(noise=100.0)]
    assert sorted(pick_by_pursuit(some, 5, range(VOCABULARY))) == TRUE
    assert len(set(pick_by_pursuit(much, 5, range(VOCABULARY))) & set(TRUE)) <= 1
    # more inputs than dimensions, of which pursuit picks as many as it is asked for
    many = list(range(0, 120, 2))
    picked = pick_by_pursuit([seen(inputs=many)], 60, range(VOCABULARY))
    assert len(picked) == len(set(picked)) == 60


def test_shares_of_ranks():
    assert rank_share([2.0], [1.0, 0.0]) == 1 and rank_share([0.0], [0.0, 0.0]) == 0.5
    assert rank_share([0.0, 3.0], [1.0]) == 0.5
    assert interval([1.0]) == 0 and interval([0.0, 1.0]) == pytest.approx(12.706 / 2, rel=1e-3)


def test_the_first_matrices_are_those_that_see_one_token_alone():
    model, _ = load_model("small")
    inputs, names = first_inputs(model, 1488)
    assert names == [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"]
    row = model.model.layers[0].input_layernorm(model.model.embed_tokens(torch.tensor([7])))
    np.testing.assert_allclose(inputs[7], row[0].detach().numpy(), rtol=1e-5)
    # OPT adds positions to its embeddings
    assert first_inputs(load_model("words")[0], 64)[1] == []


def found_in(recipe, kinds, clients, counts=(256,), ranks=(16,)):
    attacked = Attacked(kinds, counts, ranks, clients, 1, max(clients) + 3, [1, 2])
    return find_inputs(read_recipe(recipe, ['model.device="cpu"']), attacked)


def test_a_texts_gradient_gives_its_tokens_away_and_few_coefficients_do_not():
    """The attack bites: what it does not find of others is not for want of an attack."""
    found = found_in("small-ferret", ["fedsgd", "ferret"], [1])
    for attempt in found.attempts_of("fedsgd", 0, 1):
        assert attempt.span > 0.95 and attempt.pursuit > 0.8 and attempt.member == 1
        assert attempt.wanted > 5 and attempt.chance < 0.05 and attempt.other < 0.5
    for attempt in found.attempts_of("ferret", 256, 1):
        assert attempt.span == 0 and attempt.pursuit < 0.5
        # whoever can guess the whole text knows it again by its coefficients
        assert attempt.member == 1 and attempt.numbers == 256


def test_pictures_are_told_apart_by_what_one_layer_learns_from_them():
    kinds = ["fedsgd", "ferret", "ferret-bits", "subspace", "subspace-bits"]
    found = found_in("digits-ferret", kinds, [1, 3])
    assert found.of_pictures and found.vocabulary == 100
    for attempt in found.attempts_of("fedsgd", 0, 1):
        assert attempt.span == attempt.pursuit == 1 and attempt.error < 1e-3
    for attempt in found.attempts_of("fedsgd", 0, 3):
        assert attempt.wanted == 3 and attempt.span == 1 and attempt.error > 0.1
    for kind in kinds[1:]:
        assert {a.error is None or np.isfinite(a.error) for a in found.attempts} == {True}
        assert {a.clients for a in found.attempts if a.kind == kind} == {1, 3}
    page = audit(found, "digits-ferret", {})
    assert page.answers[0].mark == "warn" and len(page.sheets[0].rows) == 10


def test_what_can_not_be_attacked_is_refused():
    with pytest.raises(RecipeError, match="attacks are known for fedsgd"):
        settings_for("fedmezo", 0, 1)
    with pytest.raises(RecipeError, match="audit inputs: subspace with 0"):
        settings_for("subspace", 0, 1)
    with pytest.raises(RecipeError, match="rotary"):
        found_in("words-ferret", ["fedsgd"], [1])
    attacked = Attacked(["fedsgd"], [8], [8], [4], 1, 4, [1])
    with pytest.raises(RecipeError, match="has to stay out"):
        find_inputs(read_recipe("digits-ferret", ['model.device="cpu"']), attacked)


def test_the_command_writes_page_and_figures(tmp_path):
    out = tmp_path / "audit"
    well(
        *["audit", "inputs", "digits-ferret", "--methods", "fedsgd"],
        *f"--candidates 3 --clients 1,2 --seeds 2 --out {out}".split(),
    )
    result = json.loads((out / "audit.json").read_text())
    assert result["audit"] == "inputs" and len(result["attempts"]) == 4
    rows = list(csv.DictReader((out / "attempts.csv").open()))
    assert [row["clients"] for row in rows] == ["1", "2", "1", "2"]
    text = (out / "page.html").read_text()
    assert "Inputs from messages" in text and "arXiv 2604.21197" in text


def test_a_kind_that_was_found_no_better_than_chance_is_said_to_be_so():
    attempts = found_in("digits-ferret", ["fedsgd"], [1]).attempts
    from dataclasses import replace

    weak = [replace(a, span=0.0, pursuit=0.01, chance=0.01) for a in attempts]
    page = audit(Found(weak, 10, 100, ["layer.weight"], True), "digits", {})
    assert page.answers[0].mark == "good"
