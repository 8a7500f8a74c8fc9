"""Runs whose weights are hashed in another way, or not after every round."""

import shutil

import pytest

from fedseed import Orbit
from fedseed.errors import OrbitError
from fedseed.orbit import NO_DIGEST, edit
from fedseed.reports.results import read_metrics
from fedseed.weights.digest import base_digest
from fedseed.weights.space import ParameterSpace
from support.left import stop_after, without_seconds
from support.worker_runs import RUNS

TREE = {"digest": "blake2b-tree"}

pytestmark = pytest.mark.usefixtures("quickly")


def test_another_kind_changes_the_digests_and_nothing_else(problem, tmp_path):
    plain = problem.federation(problem.ferret(), out=tmp_path / "plain").run()
    tree = problem.federation(problem.ferret(), out=tmp_path / "tree", **TREE).run()
    assert without_seconds(tree.metrics, "weights_digest") == without_seconds(
        plain.metrics, "weights_digest"
    )
    a, b = (Orbit.open(tmp_path / name / "model.orbit") for name in ("plain", "tree"))
    assert [r.payload for r in a.records] == [r.payload for r in b.records]
    assert (a.header.digest_kind, b.header.digest_kind) == ("blake2b", "blake2b-tree")
    assert not {r.digest for r in a.records} & {r.digest for r in b.records}
    assert (
        b.header.base_digest == base_digest(problem.model(), "blake2b-tree") != a.header.base_digest
    )
    weights = []
    for orbit, result in ((a, plain), (b, tree)):
        model = problem.model()
        assert orbit.replay(model, check_all=True) == result.summary["weights_digest"]
        weights.append(ParameterSpace(model).digest())
    assert weights == [plain.summary["weights_digest"]] * 2  # the same bits
    assert edit.differences(a, b) == ["digest_kind: blake2b, blake2b-tree"]


@pytest.mark.parametrize("name", ["feedsign", "fedavg"])
def test_a_run_is_taken_up_by_its_kind_and_by_no_other(problem, tmp_path, name):
    made, _ = RUNS[name]
    whole = problem.federation(made, out=tmp_path / "whole", **TREE).run()
    stop_after(problem.federation(made, out=tmp_path / "run", **TREE), 4)
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    result = problem.federation(made, out=tmp_path / "run", **TREE).run(resume=True)
    assert without_seconds(result.metrics) == without_seconds(whole.metrics)
    with pytest.raises(
        OrbitError, match=r"digest_kind: blake2b-tree, blake2b here|its base_digest differs"
    ):
        problem.federation(made, out=tmp_path / "other").run(resume=True)


def test_weights_are_hashed_as_often_as_is_asked_for(problem, tmp_path, monkeypatch):
    every = problem.federation(
        problem.ferret(), rounds=10, evaluate_every=4, out=tmp_path / "every"
    ).run()
    made = {"rounds": 10, "evaluate_every": 4, "digest_every": 3}
    counted = []
    digest = ParameterSpace.digest
    monkeypatch.setattr(ParameterSpace, "digest", lambda self: counted.append(1) or digest(self))
    some = problem.federation(problem.ferret(), out=tmp_path / "some", **made).run()
    hashed = {0, 3, 4, 6, 8, 9, 10}
    assert len(counted) == len(hashed)
    for line, expected in zip(some.metrics, every.metrics, strict=True):
        assert line["weights_digest"] == (
            expected["weights_digest"] if line["round"] in hashed else None
        )
    assert without_seconds(some.metrics, "weights_digest") == without_seconds(
        every.metrics, "weights_digest"
    )
    assert some.summary["weights_digest"] == every.summary["weights_digest"]
    orbit = Orbit.open(tmp_path / "some" / "model.orbit")
    assert [record.round for record in orbit.records if record.digest != NO_DIGEST] == sorted(
        hashed - {0}
    )
    assert orbit.replay(problem.model(), check_all=True) == every.summary["weights_digest"]
    assert read_metrics(tmp_path / "some") == some.metrics
    shutil.copytree(tmp_path / "some", tmp_path / "again")
    (tmp_path / "again" / "summary.json").unlink()
    orbit = tmp_path / "again" / "model.orbit"
    edit.rollback(orbit, 7, tmp_path / "cut.orbit")  # nothing is known of the weights after round 7
    shutil.move(tmp_path / "cut.orbit", orbit)
    result = problem.federation(problem.ferret(), out=tmp_path / "again", **made).run(resume=True)
    assert without_seconds(result.metrics) == without_seconds(some.metrics)
    assert orbit.read_bytes() == (tmp_path / "some" / "model.orbit").read_bytes()
