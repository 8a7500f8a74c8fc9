"""Claims that runs decide: verdicts from numbers, rounds to converge, curves.

And a small item made with real runs.
"""

import json
import math

import pytest

from fedseed.errors import FedseedError
from fedseed.experiments.sweeps import SweepLine, WorkerPool
from fedseed.reports.results import read_summary
from fedseed.runs.assembly import build
from fedseed_papers.catalogue import Form, choose_items
from fedseed_papers.reproducing import Making
from fedseed_papers.training import gap_sheet, judge, measured, probabilities, rounds_to_converge

(ITEM,) = choose_items("ferret/figure-2")


def run(folder, losses, **summary):
    """A finished run's files, with so many losses from round 0 on."""
    folder.mkdir(parents=True)
    lines = [
        {
            "round": i,
            "loss": loss,
            "bytes_up": 10,
            "bytes_down": 20,
            "rounds": 1,
            "forward_passes": 4,
            "backward_passes": 3,
            "seconds": {"local": 2.0, "evaluation": 50.0},
        }
        for i, loss in enumerate(losses)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    known = {
        "final": {"loss": losses[-1], "accuracy": 100 - 10 * losses[-1]},
        "payload_bytes_up": 10,
        "payload_bytes_down": 20,
        "parameters": 7,
        **summary,
    }
    (folder / "summary.json").write_text(json.dumps(known))
    return folder


def line(tmp_path, label, finals, scenario="", **summary):
    place = tmp_path / scenario / label
    folders = {
        i: run(place / str(i), [5.0, 3.0, final], **summary) for i, final in enumerate(finals)
    }
    return SweepLine(scenario, label, (), {}, None, folders, {})


def verdict(lines, **expected):
    return judge([("it is so", Form(**expected))], ITEM.metric, lines)[0].verdict


HOLDS, FAILS, UNKNOWN = "holds in kind", "does not hold here", "can't be judged at this scale"


def test_lines_are_judged_by_paired_differences(tmp_path):
    finals = {
        "better": [1.0, 1.4, 0.6, 1.2, 0.8],
        "worse": [1.2, 1.61, 0.81, 1.39, 1.0],
        "near": [1.05, 1.3, 0.7, 1.25, 0.75],
        "few": [9.0, 9.1, 9.2, 9.0],
        "level": [1.01, 1.4, 0.61, 1.19, 0.81],
        "one": [1.0] * 5,
        "slight": [1.01] * 5,
        "lost": [math.nan] * 5,
        "half": [1.0, math.nan, 0.6, 1.2, 0.8],
    }
    lines = [line(tmp_path, label, found) for label, found in finals.items()]
    for expected, labels, more in (
        # a fifth apart, with deviations of a third: seen in pairs
        (HOLDS, ["better", "worse"], {}),
        (FAILS, ["worse", "better"], {}),
        (UNKNOWN, ["better", "near"], {}),
        (HOLDS, ["level", "better"], {"ties": True}),
        (FAILS, ["worse", "better"], {"ties": True, "metric": "loss"}),
        (HOLDS, ["one", "slight"], {}),
        (UNKNOWN, ["better", "few"], {}),  # four runs are no evidence
        (HOLDS, ["better", "lost"], {}),
        (FAILS, ["lost", "better"], {}),
        (UNKNOWN, ["better", "half"], {}),
        (FAILS, ["worse", "better"], {"metric": "accuracy"}),  # more is better
        (HOLDS, ["better", "worse"], {"metric": "accuracy"}),
        (UNKNOWN, ["better", "absent"], {}),
        (UNKNOWN, ["better", "worse"], {"scenario": "another"}),
    ):
        assert verdict(lines, order=labels, **more) == expected, (labels, more)
    for expected, labels in (
        (HOLDS, ["better", "level"]),
        (FAILS, ["better", "level", "worse"]),
        (UNKNOWN, ["better", "one"]),
        (HOLDS, ["one", "slight"]),
    ):
        assert verdict(lines, alike=labels) == expected, labels
    (claim,) = judge([("it is so", Form(order=["better", "worse"]))], ITEM.metric, lines)
    assert claim.here == (
        "loss: better 1.000 ± 0.316, worse 1.202 ± 0.315; the first's lead +0.202 [0.192, 0.212], "
        "p = 7e-07, 5 seeds."
    )


def test_the_margin_is_a_tenth_of_what_was_gained_over_the_base(tmp_path):
    lines = [
        line(tmp_path, f"line {final}", [final] * 5, baseline={"loss": 5.0})
        for final in (1.0, 1.39, 1.41)
    ]
    assert verdict(lines, alike=["line 1.0", "line 1.39"]) == HOLDS  # of a gain of 4
    assert verdict(lines, alike=["line 1.0", "line 1.41"]) == FAILS


def test_a_run_that_stopped_early_is_judged_by_its_best_validation_loss(tmp_path):
    """Last losses say that the first is behind; where validation was best it is ahead."""
    lines = []
    for label, losses, best in (("one", [5.0, 2.0, 3.0], 1), ("other", [5.0, 4.0, 2.5], 2)):
        stopped = {"early": True, "best_round": best, "best_validation_loss": 1.0}
        folders = {
            seed: run(
                tmp_path / label / str(seed), [x + seed / 1e3 for x in losses], stopped=stopped
            )
            for seed in range(5)
        }
        lines.append(SweepLine("", label, (), {}, None, folders, {}))
    form = Form(order=["one", "other"])
    (last,) = judge([("it is so", form)], "loss", lines)
    (best,) = judge([("it is so", form)], "loss", lines, "best")
    assert (last.verdict, best.verdict) == (FAILS, HOLDS)
    assert measured(lines[0].folders[3], "loss", "best") == pytest.approx(2.003)
    without = run(tmp_path / "without", [5.0, 2.0, 3.0])
    assert math.isnan(measured(without, "loss", "best"))


def test_a_claim_about_every_scenario_is_one_about_the_mean_over_them(tmp_path):
    """FeedSign's column "Gap" is such a mean: ahead in one task of two, and on average behind."""
    tasks = {
        "sst2": {"FO": 90.0, "one": 80.0, "other": 79.0},
        "squad": {"FO": 85.0, "one": 60.0, "other": 70.0},
    }
    lines = []
    for task, scores in tasks.items():
        name = "f1" if task == "squad" else "accuracy"
        for label, score in scores.items():
            made = line(tmp_path, label, [1.0] * 5, scenario=task)
            for seed, folder in made.folders.items():
                summary = read_summary(folder)
                final = {"loss": 1.0, name: score + seed / 10}
                (folder / "summary.json").write_text(json.dumps({**summary, "final": final}))
            lines.append(made)
    assert verdict(lines, order=["one", "other"], metric="score") == HOLDS  # the first scenario
    assert verdict(lines, order=["one", "other"], metric="score", scenario="*") == FAILS
    assert verdict(lines, order=["other", "one"], metric="score", scenario="*") == HOLDS
    (claim,) = judge(
        [("it is so", Form(order=["other", "one"], metric="score", scenario="*"))], "loss", lines
    )
    assert claim.interval == pytest.approx((4.5, 4.5))  # 79 and 70 beside 80 and 60
    sheet = gap_sheet("FO", lines)
    assert sheet.head == ("line", "sst2", "squad", "Gap")
    assert sheet.rows == [["one", "-10.0", "-25.0", "-17.5"], ["other", "-11.0", "-15.0", "-13.0"]]
    unfinished = [made for made in lines if (made.scenario, made.label) != ("squad", "one")]
    unfinished.append(SweepLine("squad", "one", (), {}, None, {}, {1: "killed"}))
    assert verdict(unfinished, order=["other", "one"], metric="score", scenario="*") == UNKNOWN
    assert gap_sheet("FO", unfinished).rows[0] == ["one", "-10.0", "-", "-10.0"]


def test_ratios_and_numbers(tmp_path):
    lines = [
        line(tmp_path, "big", [1.0] * 5, payload_bytes_up=3000),
        line(tmp_path, "small", [2.0] * 5),
    ]
    assert verdict(lines, ratio=["big", "small"], metric="bytes", least=100) == HOLDS
    assert verdict(lines, ratio=["big", "small"], metric="bytes", least=101) == FAILS
    assert verdict(lines, of="big", metric="accuracy", least=90) == HOLDS
    assert verdict(lines, of="small", metric="accuracy", least=90) == FAILS
    for wrong in (
        {},
        {"order": ["a"], "alike": ["b"]},
        {"ratio": ["a", "b"]},
        {"order": ["a"], "least": 1.0},
    ):
        with pytest.raises(ValueError, match=r"a claim is one of|least goes with"):
            Form(**wrong)


def test_rounds_to_converge_are_the_first_with_95_percent():
    def lines(*losses):
        return [{"round": 2 * i, "loss": loss} for i, loss in enumerate(losses)] + [
            {"round": 99, "train_loss": 1.0}
        ]

    # 95% of 4.0 are 3.8: 1.2 would do
    assert rounds_to_converge(lines(5.0, 3.0, 1.1, 1.05, 1.0)) == 4
    # it still falls: not before the end
    assert rounds_to_converge(lines(5.0, 3.0, 1.3, 1.0)) == math.inf
    assert rounds_to_converge(lines(5.0, 1.0, 4.0, math.nan)) == 2
    assert math.isnan(rounds_to_converge(lines(5.0, 6.0))) and math.isnan(rounds_to_converge([]))
    scores = [{"round": i, "accuracy": value} for i, value in enumerate((10.0, 50.0, 90.0, 91.0))]
    assert rounds_to_converge(scores, "accuracy") == 2


TINY = [
    "rounds=2",
    "task.clients=2",
    "federation.per_round=2",
    "method.candidates=16",
    "method.basis_size=16",
    "method.steps=4",
    "task.examples=10",
    "task.evaluation=1",
    "task.validation=1",
    "evaluation.every=1",
    "evaluation.max_new_tokens=2",
]


@pytest.fixture
def here(monkeypatch, quickly):
    """Sweeps' runs in this process: real ones, but for the processes."""
    jobs = []

    def play(pool, job):
        if not (job.folder / "summary.json").exists():
            jobs.append(job)
            build(job.read_recipe(), job.folder).run()
        return None

    monkeypatch.setattr(WorkerPool, "run", play)
    return jobs


@pytest.mark.long
def test_a_small_item_is_made_of_runs_and_taken_up_again(here, monkeypatch, tmp_path):
    (item,) = choose_items("fedkseed/figure-13")
    said = []
    making = Making(tmp_path, said.append, settings=TINY, seeds=[1])
    result = making.make(item, "small")
    assert [job.folder.name for job in here] == ["seed-1"]
    folder = tmp_path / "fedkseed" / "figure-13" / "small"
    files = {"page.html", "data.csv", "picture.png", "tables.txt", "result.json"}
    assert {path.name for path in folder.iterdir()} >= files
    assert result["verdict"] == UNKNOWN  # one seed
    below = measured(here[0].folder, "candidates below 1 / K")
    found = probabilities(here[0].folder)
    # a softmax of importances between 0 and 1: the most and the least likely are always e apart,
    # which is no claim
    assert found[0] / found[-1] == pytest.approx(math.e, rel=1e-5)
    assert below == 100 * sum(16 * p < 1 for p in found) / 16
    assert f"FedKSeed-Pro,1,{below:g}" in (folder / "table-4.csv").read_text()
    rows = (folder / "data.csv").read_text().splitlines()
    assert sum(row.startswith("Probabilities") for row in rows) == 16
    assert len([row for row in rows if row.startswith("held-out loss over passes,")]) == 3
    # all is there; more seeds add runs; other settings run anew
    making.make(item, "small")
    assert len(here) == 1 and said[-1].endswith("(there already)")
    longer = Making(tmp_path, said.append, settings=TINY, seeds=[1, 2]).make(item, "small")
    assert [job.folder.name for job in here[1:]] == ["seed-2"]
    spent = [read_summary(job.folder)["seconds"]["total"] for job in here]
    took = [result["seconds"], longer["seconds"]]  # of all its runs, whichever item had them made
    assert took == pytest.approx([spent[0], sum(spent)], abs=0.01)  # rounded
    monkeypatch.setattr(WorkerPool, "run", lambda pool, job: "not run anew")
    with pytest.raises(
        FedseedError, match="every run of small-fedkseed-probabilities failed: not run anew"
    ):
        Making(tmp_path, said.append, settings=[*TINY, "method.steps=3"], seeds=[1]).make(
            item, "small"
        )
    # another plan's runs are not mixed with this one's
    assert not (here[0].folder / "summary.json").exists()
