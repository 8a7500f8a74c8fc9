"""What a canary test says, for people and programs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedseed.errors import plural
from fedseed.reports.charts import Axis, Panel, Series
from fedseed.reports.tables import Sheet
from fedseed_papers.audits.canary import CONFIDENCE, CanaryTest
from fedseed_papers.audits.guessing import epsilon_at_least, first_guesses, most_right, shares_found
from fedseed_papers.audits.page import Answer, Audit

CHANCE = 0.05  # what is at least as likely by blind guessing counts as chance
HAS = {
    "model": "the last model, the recipe, all other data and a twin run of the same seed without a "
    "canary",
    "orbit": "every step, and with them the model of every round, the recipe and all other data",
}
LIMITS = (
    "A test bounds privacy from below: that nothing was found does not say that nothing can be.",
    "The attack sees the last model, or with --by orbit every step, not what the coordinator "
    "receives.",
    "The bound is about exchanging the canary's examples, and so is the account beside it: where "
    "neighbours have an example (or client) more or less, twice its epsilon, and its delta times "
    "1 + e^epsilon. An account of single examples says nothing about several copies.",
)


def canary_data(test: CanaryTest) -> dict[str, Any]:
    """Return what audit.json holds of this."""
    return {
        "runs": len(test.games),
        "candidates": test.candidates,
        "copies": test.copies,
        "client": test.client,
        "found": test.hits,
        "by": test.by,
        "found_by_model": test.ranks_by_model.count(1),
        "found_without_twin": test.ranks_alone.count(1),
        "found_in_control": test.ranks_control.count(1),
        "by_chance": test.by_chance,
        "mean_percentile": test.mean_percentile,
        "confidence": CONFIDENCE,
        "epsilon_at_least": test.epsilon_at_least,
        "privacy": test.spent,
        "contradicts_account": test.contradicts,
        "ranks": test.ranks,
        "ranks_by_model": test.ranks_by_model,
        "ranks_without_twin": test.ranks_alone,
        "ranks_in_control": test.ranks_control,
    }


def build_canary_page(test: CanaryTest, name: str, facts: Mapping[str, str]) -> Audit:
    """Return the page's content.

    Args:
        test: the test.
        name: of the recipe.
        facts: where the numbers come from.
    """
    runs, n = len(test.games), test.candidates
    whose = f"{plural(test.copies, 'example')} of {test.client}"
    return Audit(
        "canary",
        f"Canary test of {name}",
        f"In each of {plural(runs, 'run')} one of {n} canaries, drawn evenly, took the place of "
        f"{whose}. The attack has {HAS[test.by]}, and guesses which one it was.",
        [answer_guessing(test), control(test), bound(test)],
        [_curve(test), _scores(test), _bounds(test)],
        [_table(test)],
        limits=LIMITS,
        facts=facts,
    )


def answer_guessing(test: CanaryTest) -> Answer:
    """Return whether the canary was found."""
    runs, n = len(test.games), test.candidates
    chance = test.by_chance > CHANCE
    return Answer(
        "Is the canary found?",
        f"In {test.hits} of {plural(runs, 'run')}; blind guessing is right in 1 of {n}, and as "
        f"often as this with probability {test.by_chance:.2g}. In the mean, "
        f"{100 * test.mean_percentile:.1f}% of the other candidates score below it (50% at "
        f"chance). {_weaker(test)}in {test.ranks_alone.count(1)} of {runs}.",
        "at chance" if chance else "found",
        "good" if chance else "warn",
    )


def _weaker(test: CanaryTest) -> str:
    """Return how far attacks get that have less."""
    if test.by == "model":
        return "Without a twin, by the losses alone: "
    count = test.ranks_by_model.count(1)
    return (
        f"By the last model and a twin: in {count} of {len(test.games)}; by the last model's "
        "losses alone: "
    )


def control(test: CanaryTest) -> Answer:
    """Return whether the same attack finds a canary that is not there."""
    asks, ranks = "And where no canary was planted?", test.ranks_control
    if not ranks:
        return Answer(asks, "One pair of runs has no other to compare with.", "not tried")
    right, twin_text = ranks.count(1), ", against another twin," if test.by == "model" else ""
    return Answer(
        asks,
        f"The attack on the {plural(len(ranks), 'twin')}{twin_text} names the one that would have "
        f"been planted in {right} of {len(ranks)}.",
        "at chance" if right <= 1 else "found",
        "good" if right <= 1 else "warn",
    )


def bound(test: CanaryTest) -> Answer:
    """Return the bound, beside the account."""
    bound_text = f"at least {test.epsilon_at_least:.2f} with {100 * CONFIDENCE:.0f}% confidence"
    highest = epsilon_at_least(len(test.games), len(test.games), test.candidates, test.delta)
    reach = (
        f"With {plural(len(test.games), 'run')} and {test.candidates} candidates {highest:.2f} is "
        "the most it could show."
    )
    if test.spent is None:
        return Answer(
            "How private is it?",
            f"Epsilon is {bound_text}. {reach} The run accounts for nothing.",
            "no account",
        )
    if test.epsilon is None:
        return Answer(
            "How private is it?",
            f"Epsilon is {bound_text}. {reach} The account says nothing of this exchange.",
            "no account",
        )
    accounted = f"The account says {test.epsilon:.3g} at delta = {test.delta:.3g}, for an exchange"
    allowed = (
        "which lets a guess be right with probability "
        f"{most_right(test.epsilon, test.candidates, test.delta):.2g}"
    )
    return Answer(
        "Is the account right?",
        f"Epsilon is {bound_text}. {reach} {accounted}, {allowed}.",
        "above the account" if test.contradicts else "within the account",
        "warn" if test.contradicts else "good",
    )


def _curve(test: CanaryTest) -> Panel:
    n = test.candidates
    lines = [
        Series("with a twin", shares_found(test.ranks_by_model, n), number=1),
        Series("by the losses alone", shares_found(test.ranks_alone, n), number=0),
        Series("blind guessing", [(float(r), r / n) for r in first_guesses(n)], number=23),
    ]
    if test.by == "orbit":
        lines.insert(0, Series("by the orbit", shares_found(test.ranks, n), number=3))
    if test.ranks_control:
        lines.insert(-1, Series("no canary planted", shares_found(test.ranks_control, n), number=2))
    return Panel("Found", lines, Axis("among the first guesses", log=True), Axis("share of runs"))


def _scores(test: CanaryTest) -> Panel:
    """Return each run's canary among the others, in their standard deviations."""
    canary, band, middle = [], [], []
    for number, game in enumerate(test.games, start=1):
        others = np.delete(game.scores, game.planted)
        unit = float(others.std()) or 1.0
        low, mid, high = (
            float(np.quantile(others - others.mean(), q)) / unit for q in (0.025, 0.5, 0.975)
        )
        canary.append((float(number), float(game.scores[game.planted] - others.mean()) / unit))
        middle.append((float(number), mid))
        band.append((float(number), low, high))
    lines = [
        Series("the canary", canary, number=1),
        Series("the others (band: 95%)", middle, band, 0),
    ]
    return Panel("Scores, in the others' deviations", lines, Axis("run", whole=True), Axis("score"))


def _bounds(test: CanaryTest) -> Panel:
    """Epsilon at least, over how often the canary is found."""
    runs, n = len(test.games), test.candidates
    points = [(float(k), epsilon_at_least(k, runs, n, test.delta)) for k in range(runs + 1)]
    lines = [
        Series("epsilon at least", points, number=0),
        Series("this test", [(test.hits, test.epsilon_at_least)], number=1),
    ]
    if test.epsilon is not None:
        lines.append(
            Series("accounted", [(0.0, test.epsilon), (float(runs), test.epsilon)], number=2)
        )
    return Panel(
        f"Bound, {100 * CONFIDENCE:.0f}% confidence",
        lines,
        Axis("runs in which it is found", whole=True),
        Axis("epsilon"),
    )


def _table(test: CanaryTest) -> Sheet:
    rows = []
    control: Sequence[int | None] = test.ranks_control or [None] * len(test.games)
    places_of = zip(test.ranks, test.ranks_alone, control, strict=True)
    for number, (game, places) in enumerate(zip(test.games, places_of, strict=True), start=1):
        j = game.planted
        losses = (game.base[j], game.twin[j], game.with_it[j])
        rows.append(
            [
                str(number),
                str(game.seed),
                str(j),
                *("-" if p is None else str(p) for p in places),
                *(f"{x:.4g}" for x in losses),
            ]
        )
    head = [
        "run",
        "seed",
        "canary",
        "place",
        "place by losses",
        "place if not planted",
        "loss, base",
        "loss, twin",
        "loss, run",
    ]
    return Sheet(
        "Runs", head, rows, f"Places are of {test.candidates}; 1 is the attack's first guess."
    )
