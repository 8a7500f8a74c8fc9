"""The examples of docs/own-code.md: at most thirty lines each, and they run as they stand."""

import subprocess
import sys

import pytest

from support.documents import ROOT

EXAMPLES = {
    "own_federation.py": "loss 11.802 -> ",
    "own_loop.py": "step 200: loss 5.",
    "many_models.py": "'Count: 3 times one",
}


@pytest.mark.long
@pytest.mark.parametrize(("name", "printed"), EXAMPLES.items(), ids=EXAMPLES)
def test_an_example_runs_as_it_stands(name, printed, tmp_path):
    path = ROOT / "examples" / name
    assert len(path.read_text().splitlines()) <= 30
    assert f"examples/{name}" in (ROOT / "docs" / "own-code.md").read_text()
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


@pytest.mark.long
def test_three_trainers_end_with_the_same_weights(shared_server, tmp_path):
    path = ROOT / "examples" / "own_trainer.py"
    assert len(path.read_text().splitlines()) <= 30
    assert "examples/own_trainer.py" in (ROOT / "docs" / "own-code.md").read_text()
    command = [sys.executable, "-m", "fedseed", "serve", path.with_suffix(".toml"), "--nats", shared_server.url]
    works = [[sys.executable, path, name, shared_server.url] for name in ("bird", "star", "boat")]
    going = [subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for words in [*works, command]]
    *said, coordinator = [process.communicate()[0] for process in going]
    assert [process.returncode for process in going] == [0] * 4
    digests = {text.splitlines()[-2] for text in said}
    assert len(digests) == 1 and digests.pop() in coordinator
