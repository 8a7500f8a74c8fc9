import json

import numpy as np
import pytest

from fedseed import FedAvg, FeedSign, Orbit
from fedseed.errors import FedseedError, RecipeError
from fedseed.federation.messages import FRAME_BYTES
from fedseed.methods.payload import Content
from fedseed.reports.results import RoundLine, read_metrics
from fedseed.runs.costs import count_exchanged, merge_rounds, seconds_per_client
from support.heard import Heard
from support.left import before


def test_byte_counts_are_those_of_the_encoded_messages(problem):
    """Count every message again, as it passes."""
    federation = problem.federation(problem.ferret(seeds="per-client"))
    up, down, steps, synced = [], [], [], {}
    coordinator = federation.coordinator
    plans, close = coordinator.plans, coordinator.close
    before(coordinator, "receive", lambda data, sender: up.append(len(data) - FRAME_BYTES))

    def counted_plans():
        made = plans()
        for message, client in (
            (message, client) for message, clients in made.items() for client in clients
        ):
            down.append(len(message) - FRAME_BYTES + sum(steps[synced.get(client, 0) :]))
            synced[client] = len(steps)
        return made

    def counted_close():
        message = close()
        steps.append(len(message.encode()) - FRAME_BYTES)
        return message

    coordinator.plans, coordinator.close = counted_plans, counted_close
    summary = federation.run().summary
    assert summary["payload_bytes_up"] == pytest.approx(sum(up) / len(up))
    assert summary["payload_bytes_down"] == pytest.approx(sum(down) / len(down))
    assert set(up) == {8 + 4 + 4 * 300} and set(steps) == {3 * (8 + 4 + 4 * 300)}


def test_a_client_with_a_nan_loss_sends_nothing_and_the_round_goes_on(problem, tmp_path, quickly):
    problem.clients[2] = [(x * float("nan"), y) for x, y in problem.clients[2]]
    chosen = FedAvg(training=problem.training)
    result = problem.federation(chosen, out=tmp_path / "run", per_round=5).run()
    for line in result.metrics[1:]:
        assert [s["client"] for s in line["skipped"]] == ["client-2"]
        assert "loss is nan at local step 1" in line["skipped"][0]["reason"]
        assert np.isfinite(line["train_loss"])
    assert result.summary["skipped"] == 6
    assert result.summary["final"]["loss"] < result.summary["baseline"]["loss"]
    # the client that sent nothing had no part: the others' shares add up to one
    problem.clients[2] = []
    without = problem.federation(chosen, per_round=5).run().summary
    assert without["weights_digest"] == result.summary["weights_digest"]


def test_a_round_that_nobody_answers_changes_nothing(problem, tmp_path, quickly):
    problem.clients = [[(x * float("nan"), y) for x, y in c] for c in problem.clients]
    result = problem.federation(problem.ferret(), out=tmp_path / "run", rounds=2).run()
    assert len({line["weights_digest"] for line in result.metrics}) == 1
    orbit = Orbit.open(tmp_path / "run" / "model.orbit")
    assert [r.payload for r in orbit.records] == [b"", b""]
    orbit.replay(problem.model())


@pytest.mark.long
def test_what_the_folder_holds(problem, tmp_path):
    result = problem.federation(
        problem.ferret(), out=tmp_path / "run", recipe_text="rounds = 6\n"
    ).run()
    names = {p.name for p in (tmp_path / "run").iterdir()}
    left = {
        "recipe.toml",
        "data.json",
        "metrics.jsonl",
        "model.orbit",
        "summary.json",
        "metrics.png",
        "report.html",
        "log.txt",
    }
    assert names == left
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == result.summary
    assert read_metrics(tmp_path / "run") == result.metrics
    wanted = {
        "method",
        "rounds",
        "parameters",
        "clients",
        "baseline",
        "final",
        "payload_bytes_up",
        "payload_bytes_down",
        "fedavg_bytes",
        "seconds",
        "peak_memory_bytes",
        "weights_digest",
    }
    assert wanted <= set(result.summary)
    assert [("loss" in line) for line in result.metrics] == [
        True,
        False,
        True,
        False,
        True,
        False,
        True,
    ]
    with pytest.raises(FedseedError, match="holds a run already"):
        problem.federation(problem.ferret(), out=tmp_path / "run").run()
    assert read_metrics(tmp_path / "run") == result.metrics


def test_a_step_out_of_proportion_is_warned_of(problem):
    heard = Heard()
    wild = problem.ferret(directions=4, global_rate=20.0)
    result = problem.federation(wild, rounds=2, progress=heard).run()
    assert result.metrics[1]["step_over_weights"] > 0.1
    assert any("of |w|" in text and "raise directions" in text for text in heard.warnings)


def test_too_many_clients_a_round(problem):
    with pytest.raises(RecipeError, match="clients per round = 6"):
        problem.federation(problem.ferret(), per_round=6)


def test_a_seed_that_no_orbit_can_hold_is_refused_before_anything_is_written(problem, tmp_path):
    with pytest.raises(RecipeError, match=r"seed = .*: a whole number from 0 to 2\*\*64 - 1"):
        problem.federation(problem.ferret(), seed=1 << 64, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_largest_seed_leaves_an_orbit_that_is_read(problem, tmp_path, quickly):
    run = problem.federation(
        problem.ferret(), rounds=1, seed=np.uint64(2**64 - 1), out=tmp_path / "run"
    ).run()
    orbit = Orbit.open(tmp_path / "run" / "model.orbit")
    assert (
        orbit.header.seed == 2**64 - 1
        and orbit.replay(problem.model()) == run.summary["weights_digest"]
    )


def line(number, seconds, **more):
    return RoundLine(number, clients=["a", "b"], seconds=seconds, **more)


def test_local_seconds_are_a_clients_and_the_others_a_rounds():
    lines = [
        line(
            1, {"local": 6.0, "projection": 2.0, "aggregation": 0.5, "rebuild": 1.0}, taking_part=2
        ),
        line(
            2, {"local": 2.0, "aggregation": 0.5, "rebuild": 2.0, "evaluation": 9.0}, taking_part=2
        ),
    ]
    assert seconds_per_client(lines) == {
        "local": 2.0,
        "projection": 0.5,
        "aggregation": 0.5,
        "rebuild": 1.5,
    }


def test_numbers_are_means_over_those_who_take_part():
    parts = [Content(9, 10, 1), Content(9, 20, 1)]
    found = count_exchanged(
        4, 3, parts, Content(5, 2, 1), [Content(), Content(), Content(), Content(7, 8, 0, 4)]
    )
    # three of four sent something; what is not known of the third is the mean of the others
    assert found == {
        "scalars_up": 45 / 4,
        "integers_up": 3 / 4,
        "bits_up": 0,
        "scalars_down": 2 + 2,
        "integers_down": 1,
        "bits_down": 1,
    }
    assert set(count_exchanged(0, 0, [], Content(5, 2, 1), []).values()) == {0}


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
    merged = merge_rounds(
        [line(n, {}, taking_part=2, exchanged={"scalars_up": up}) for n, up in ((1, 1.0), (2, 3.0))]
    )
    assert (merged.taking_part, merged.exchanged, merged.rounds) == (4, {"scalars_up": 2.0}, 2)
