"""The plug-ins in examples/ that are one file each: a method with gradients, and a transport."""

import os
import subprocess
import sys

import pytest

from support.documents import ROOT
from support.forked import fedseed_forked

EXAMPLES = ROOT / "examples"
RECIPE = """rounds = 2
[task]
name = "instructions"
clients = 3
evaluation = 2
unseen = 1
[federation]
per_round = 3
[method]
name = "majority-vote"
training = { learning_rate = 0.1, steps = 2, batch = 4 }
[evaluation]
every = 2
rouge = false
"""


def test_majority_votes_orbit_is_its_model(tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    plugin = ["--plugin", str(EXAMPLES / "plugin_majority_vote.py")]
    run = fedseed_forked("run", "recipe.toml", *plugin, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    verify = ["orbit", "verify", "runs/recipe/model.orbit", "--replay"]
    replay = fedseed_forked(*verify, *plugin, cwd=tmp_path)
    assert replay.returncode == 0, replay.stderr
    assert "2 recorded digests are right" in replay.stdout


@pytest.mark.long
def test_the_folder_transport_keeps_the_contract(tmp_path):
    """In a process of its own, as a plug-in stays where it is loaded."""
    contract = "tests/transport/test_contract.py"
    words = [
        "-q",
        "-k",
        "address",
        "-p",
        "plugin_folder_transport",
        "-p",
        "no:cacheprovider",
        contract,
    ]
    path = os.pathsep.join(map(str, (EXAMPLES, ROOT / "src", ROOT / "tests")))
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "FEDSEED_CONTRACT": f"folder://{tmp_path}/shared",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "failed" not in done.stdout, done.stdout + done.stderr
