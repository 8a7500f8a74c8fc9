"""Versions of transformers that meet in a federation or at an orbit: the same weights, or a refusal
that names both.

`benchmarks/versions.py` makes the other environments, which takes minutes and downloads. A Python
that has another transformers is tried here if FEDSEED_OTHER_PYTHON names it.
"""

import os
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import versions
from versions import FAILS, REFUSED, SAME, Environment, Outcome

OTHER = "FEDSEED_OTHER_PYTHON"
NEW = Environment("new", Path("python"), {"transformers": "5.24.0", "torch": "2.13.0"})
OLD = Environment("old", Path("python"), {"transformers": "4.56.2", "torch": "2.6.0"})
MIDDLE = Environment("middle", Path("python"), {"transformers": "5.0.0", "torch": "2.13.0"})


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("made with transformers 4.56.2, here is transformers 5.24.0", REFUSED),
        ("another base: made with transformers 4.56.2", FAILS),
        ("another base", FAILS),
    ],
)
def test_a_refusal_is_right_only_if_it_names_both_versions(text, verdict):
    assert versions.judge_refusal(text, (NEW, OLD)).verdict == verdict
    assert versions.judge_refusal(text, (NEW, MIDDLE), (OLD, NEW)).verdict == verdict
    assert versions.judge_refusal(text, (NEW, MIDDLE)).verdict == FAILS


def test_the_page_has_each_outcome_and_no_folder():
    text = 'model.base = "/somewhere/bases/new/llama": saved by 5.24.0, and this one is 4.56.2'
    parties = [
        ("llama", "new", "new", "old", Outcome(REFUSED, text)),
        ("gpt2", "new", "new", "old", Outcome(SAME)),
    ]
    orbits = [
        ("gpt2", "new", "new", "old", Outcome(SAME)),
        ("gpt2", "new", "new", "old", Outcome(FAILS, "ferret: other digest")),
    ]
    page = versions.page([NEW, OLD], orbits, parties)
    assert "| new | transformers 5.24.0, torch 2.13.0 |" in page
    assert "| new | new, old | refused | same digest |" in page
    assert "| new | new, old | fails / same digest |" in page
    assert "- gpt2, new, new, old: ferret: other digest" in page
    assert "/somewhere" not in page and "saved by 5.24.0" in page


def test_files_of_two_parties_are_compared_by_their_bytes(tmp_path):
    import numpy as np
    from safetensors.numpy import save_file

    tensors = {"a": np.arange(3, dtype=np.float32), "b": np.ones(2, np.float32)}
    cases = {
        "one": tensors,
        "same": dict(tensors),
        "other": {**tensors, "b": np.zeros(2, np.float32)},
        "less": {"a": tensors["a"]},
    }
    for name, content in cases.items():
        (tmp_path / name).mkdir()
        save_file(content, tmp_path / name / "model.safetensors")
    found = {name: versions.compare_models(tmp_path / "one", tmp_path / name) for name in cases}
    assert {name: one.verdict for name, one in found.items()} == {
        "one": SAME,
        "same": SAME,
        "other": FAILS,
        "less": FAILS,
    }


@pytest.mark.long
def test_a_host_runs_commands_and_says_how_they_ended(tmp_path):
    host = versions.Host(versions.environment_of("here", Path(sys.executable)))
    with closing(host):
        parties = [
            host.start(["list", "methods"], tmp_path / "right.log"),
            host.start(["run", "no-such-recipe"], tmp_path / "wrong.log"),
        ]
        codes = [None, None]
        while None in codes:
            time.sleep(0.05)
            codes = [party.poll() for party in parties]
        assert codes[0] == 0 and codes[1] != 0
        assert "ferret" in (tmp_path / "right.log").read_text()
        assert "no-such-recipe" in versions.last_error(tmp_path / "wrong.log")
        # waits for a server that is not there
        waiting = host.start(
            ["join", "quickstart", "--client", "x", "--nats", "nats://127.0.0.1:9", "--run", "r"],
            tmp_path / "waiting.log",
        )
        assert waiting.poll() is None
        waiting.kill()
        assert waiting.poll() == -9
    assert host.process.returncode == 0


@pytest.mark.slow
def test_another_version_agrees_or_is_named(tmp_path):
    python = os.environ.get(OTHER)
    if python is None:
        pytest.skip(f"{OTHER} names no Python with another transformers")
    here = versions.environment_of("here", Path(sys.executable))
    there = versions.environment_of("there", Path(python))
    older = min(
        here, there, key=lambda one: [int(n) for n in one.versions["transformers"].split(".")]
    )
    crossing = versions.Crossing(tmp_path, [here, there], [older.name], ["llama", "mixtral"])
    crossing.build()
    with versions.nats_server(tmp_path / "server") as server, closing(crossing):
        parties = list(crossing.cross_parties(server))
    rows = [*parties, *crossing.cross_orbits()]
    assert len(parties) == 2 and len(rows) == 2 + 2 * 2 * len(versions.METHODS)
    assert [row for row in rows if row[4].verdict == FAILS] == []
    assert {row[4].verdict for row in rows if row[0] == "llama"} == {SAME}
