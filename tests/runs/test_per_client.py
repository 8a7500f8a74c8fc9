"""What a round costs a client: seconds of its own, and numbers up and down."""

import pytest

from fedseed import FeedSign
from fedseed.methods.payload import Content
from fedseed.reports.results import RoundLine
from fedseed.runs.costs import exchanged, merge_rounds, seconds_per_client


def line(number, seconds, **more):
    return RoundLine(number, clients=["a", "b"], seconds=seconds, **more)


def test_local_seconds_are_a_clients_and_the_others_a_rounds():
    lines = [
        line(1, {"local": 6.0, "projection": 2.0, "aggregation": 0.5, "rebuild": 1.0}, taking_part=2),
        line(2, {"local": 2.0, "aggregation": 0.5, "rebuild": 2.0, "evaluation": 9.0}, taking_part=2),
    ]
    assert seconds_per_client(lines) == {"local": 2.0, "projection": 0.5, "aggregation": 0.5, "rebuild": 1.5}


def test_numbers_are_means_over_those_who_take_part():
    parts = [Content(9, 10, 1), Content(9, 20, 1)]
    found = exchanged(4, 3, parts, Content(5, 2, 1), [Content(), Content(), Content(), Content(7, 8, 0, 4)])
    # three of four sent something; what is not known of the third is the mean of the others
    assert found == {
        "scalars_up": 45 / 4, "integers_up": 3 / 4, "bits_up": 0, "scalars_down": 2 + 2, "integers_down": 1,
        "bits_down": 1,
    }  # fmt: skip
    assert set(exchanged(0, 0, [], Content(5, 2, 1), []).values()) == {0}


@pytest.mark.parametrize("stepwise", [False, True])
def test_a_runs_seconds_of_a_client_are_its_sums_over_clients(problem, stepwise):
    signs = FeedSign(basis="rademacher", batch=4, scale=1e-3, learning_rate=1e-3)
    method = signs if stepwise else problem.ferret()
    result = problem.federation(method, rounds=4, per_round=3).run()
    summary = result.summary
    assert sum(entry["taking_part"] for entry in result.metrics[1:]) == 4 * 3
    found, sums = summary["seconds_per_client"], summary["seconds"]
    assert found["local"] == pytest.approx(sums["local"] / 12) and found["local"] > 0
    assert found["projection"] == pytest.approx(sums.get("projection", 0.0) / 12)
    assert found["rebuild"] == pytest.approx(sums["rebuild"] / 4)
    assert found["aggregation"] == pytest.approx(sums["aggregation"] / 4)


def test_merged_lines_add_up_who_took_part():
    merged = merge_rounds([line(n, {}, taking_part=2, exchanged={"scalars_up": up}) for n, up in ((1, 1.0), (2, 3.0))])
    assert (merged.taking_part, merged.exchanged, merged.rounds) == (4, {"scalars_up": 2.0}, 2)
