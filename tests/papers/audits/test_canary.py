"""The canary test: found without privacy, at chance with it and where none was planted.

A broken draw is caught.

What guesses say about epsilon: the bound is the textbook's, and holds for a mechanism whose epsilon
is known."""

import json
from dataclasses import replace
from math import exp, inf, log

import numpy as np
import pytest

from fedseed.recipe.reading import read_recipe
from fedseed.tasks.data import Choice, ClientData, Cloze, Example, Picture, TaskData
from fedseed_papers.audits.canaries import planting
from fedseed_papers.audits.canary import CanaryTest, Game, Planned, canary_test
from fedseed_papers.audits.canary_page import build_canary_page, canary_data
from fedseed_papers.audits.guessing import (
    chance_of_at_least,
    epsilon_at_least,
    most_right,
    share_at_least,
)
from support.command import refused, well
from support.page import Page

GRADIENTS = """
rounds = 3
[model]
base = "digits"
trainable = "head"
[task]
name = "digits"
clients = 3
examples = 24
[method]
name = "fedsgd"
learning_rate = 0.05
"""


def data(examples, held=(), classes=("a", "b", "c")):
    clients = [ClientData("none", []), ClientData("one", examples), ClientData("two", examples)]
    return TaskData(clients, {"": held}, classes=classes)


def game(planted, twin, with_it):
    ones = np.ones(len(twin))
    return Game(1, planted, ones, np.array(with_it, dtype=float), np.array(twin, dtype=float), ones)


# -- what is planted
# ------------------------------------------------------------------------------------------------


def test_a_texts_canaries_differ_in_their_answers_alone():
    examples = [
        Example("A long question: 1 + 1 =", " 2"),
        Example("1 + 1 =", " 2"),
        Example("Why?", " That is so."),
    ]
    plan = planting(data(examples), 50, copies=2)
    # the first client that has any; its shortest examples
    assert (plan.client, list(plan.places)) == (1, [1, 2])
    assert {c.prompt for c in plan.candidates} == {"1 + 1 ="} and len(
        {c.response for c in plan.candidates}
    ) == 50
    assert all(
        c.response.startswith(" ") and c.response[1:].replace(" ", "").isdigit()
        for c in plan.candidates
    )
    planted = plan.planted(data(examples), 7)
    assert planted.clients[1].examples == [examples[0], plan.candidates[7], plan.candidates[7]]
    assert planted.clients[2].examples == examples


@pytest.mark.parametrize(
    ("make", "own", "given"),
    [
        (
            lambda i: Picture(np.full((2, 2, 1), i, dtype=np.uint8), i % 3),
            lambda c: int(c.pixels[0, 0, 0]),
            "label",
        ),
        (lambda i: Choice(str(i), ("x", "y", "z"), i % 3), lambda c: int(c.prompt), "gold"),
        (
            lambda i: Cloze(f"{i} <mask>", ("x", "y", "z"), i % 3),
            lambda c: int(c.text.split()[0]),
            "gold",
        ),
    ],
)
def test_other_canaries_are_held_out_examples_with_a_wrong_class(make, own, given):
    held = [make(i) for i in range(30)]
    plan = planting(data([make(0)], held), 30)
    assert len(plan.candidates) == 30 and all(
        own(c) % 3 != getattr(c, given) for c in plan.candidates
    )
    assert planting(data([make(0)], held), 5, client="two").client == 2


# -- what is made of it
# ------------------------------------------------------------------------------------------------


def test_a_score_is_the_way_of_the_weights_not_the_steepness_of_the_loss():
    steep = replace(game(0, [3, 9, 3, 3], [2, 5, 3, 3]), lengths=np.array([1.0, 8.0, 1.0, 0.0]))
    assert steep.scores.tolist() == [1.0, 0.5, 0.0, 0.0]
    assert np.isfinite(replace(steep, lengths=np.zeros(4)).scores).all()


def test_a_bound_above_the_account_contradicts_it():
    games = [game(j, np.zeros(50), -np.eye(50)[j]) for j in range(10)]
    test = CanaryTest(games, "one", 1, {"epsilon": 1.0, "delta": 1e-5, "adjacency": "replace-one"})
    assert test.hits == 10 and test.epsilon_at_least > 4.9 and test.contradicts
    for spent in ({**test.spent, "epsilon": 6.0}, None, {"epsilon": float("inf")}):
        assert not replace(test, spent=spent).contradicts
    # an exchange is two steps between neighbours of other kinds
    for kind in ("zero-out", "add-or-remove"):
        other = replace(
            test, spent={"epsilon": 3.0, "delta": 1e-5, "adjacency": kind, "level": "example"}
        )
        assert (
            not other.contradicts
            and other.epsilon == 6.0
            and other.delta == pytest.approx(1e-5 * (1 + np.exp(3)))
        )
        assert replace(other, spent={**other.spent, "epsilon": 2.0}).contradicts
        assert replace(other, copies=2).account is None
    page = build_canary_page(test, "mine", {})
    assert [a.short for a in page.answers] == ["found", "at chance", "above the account"]
    assert canary_data(test)["contradicts_account"] is True


# -- guesses
# ------------------------------------------------------------------------------------------------


def test_the_share_is_clopper_and_pearsons():
    assert share_at_least(10, 10, 0.95) == pytest.approx(0.05 ** (1 / 10), abs=1e-9)
    assert share_at_least(0, 10, 0.95) == 0
    assert chance_of_at_least(9, 10, share_at_least(9, 10, 0.95)) == pytest.approx(0.05)
    assert chance_of_at_least(0, 10, 0.3) == pytest.approx(1) and chance_of_at_least(
        1, 3, 0.1
    ) == pytest.approx(1 - 0.9**3)


def test_the_bound_and_what_epsilon_allows_are_each_others_inverse():
    for epsilon, n, delta in ((1.0, 100, 0.0), (3.0, 10, 0.0), (5.0, 1000, 1e-3)):
        p = most_right(epsilon, n, delta)
        assert log((n - 1) * (p - delta) / (1 - p)) == pytest.approx(epsilon)
    assert (
        most_right(0.0, 100) == pytest.approx(1 / 100)
        and most_right(1e9, 100) == most_right(inf, 100) == 1.0
    )


@pytest.mark.parametrize(("epsilon", "games"), [(1.0, 10), (2.0, 100), (4.0, 40)])
def test_it_does_not_exceed_the_epsilon_of_randomised_response(epsilon, games):
    """The most telling mechanism of that epsilon: it names the truth with odds e^epsilon. 1 in 20
    may exceed it.
    """
    n, drawn = 50, np.random.default_rng(1)
    right = drawn.binomial(games, exp(epsilon) / (exp(epsilon) + n - 1), 2000)
    bounds = {k: epsilon_at_least(int(k), games, n) for k in set(right.tolist())}
    too_high = np.mean([bounds[k] > epsilon for k in right.tolist()])
    assert too_high <= 0.05 + 3 * (0.05 * 0.95 / 2000) ** 0.5
    # a tight mechanism whose account is of zeros in its place: half of that epsilon for an exchange
    if games == 40:
        spent = {"epsilon": epsilon / 2, "delta": 0.0, "adjacency": "zero-out"}
        account = CanaryTest([], "one", 1, spent).epsilon
        alarms, false = (
            [bounds[k] > limit for k in right.tolist()] for limit in (account, spent["epsilon"])
        )
        assert np.mean(alarms) <= 0.07 and np.mean(false) > 0.5
    if games == 100:
        # and it is not far below
        assert np.median([bounds[k] for k in right.tolist()]) > epsilon - 1.2


# -- runs
# ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_it_is_found_without_privacy_and_nowhere_else(tmp_path):
    """One example of eight, whole gradients: in every run.

    In the twins, which have no canary, at chance.
    """
    (tmp_path / "mine.toml").write_text(GRADIENTS)
    options = ["--runs", 3, "--out", tmp_path / "audit", "--json"]
    shown = well("audit", "canary", tmp_path / "mine.toml", *options)
    found = json.loads(shown.stdout)
    assert found["found"] >= 2 and max(found["ranks"]) <= 3 and found["found_in_control"] <= 1
    assert found["epsilon_at_least"] > 2.5 and found["privacy"] is None
    page = Page((tmp_path / "audit" / "page.html").read_text())
    assert "Is the canary found?" in " ".join(page.said) and all(
        r.startswith("data:") for r in page.refers
    )
    assert (tmp_path / "audit" / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "audit" / "data.csv").read_text().count("no canary planted") > 10
    refused(1, "holds an audit", "audit", "canary", tmp_path / "mine.toml", *options)


@pytest.mark.slow
def test_it_is_at_chance_at_epsilon_1():
    """All of a client's data is the canary; the account is of a client."""
    short = [
        "task.clients=3",
        "federation.per_round=3",
        "task.examples=24",
        "rounds=20",
        "method.batch=4",
    ]
    private = read_recipe(
        "digits-feedsign", [*short, "method.epsilon=0.05", "method.learning_rate=0.02"]
    )
    test = canary_test(private, Planned(3, 100, copies=8))
    assert test.spent["epsilon_pure"] == pytest.approx(1.0) and test.epsilon <= 1
    # One by chance: 3 in 100, and shows at 95% confidence more than the 0.44 accounted at delta;
    # two: 3 in 10,000.
    assert test.hits <= 1 and test.epsilon_at_least <= test.spent["epsilon_pure"]
