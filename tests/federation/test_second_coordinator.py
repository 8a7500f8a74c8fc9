"""A second coordinator that is refused leaves the one that runs alone, also while that one is
paused and does not answer, as on a suspended laptop.
"""

import shutil
import signal

import pytest

from support.network import until
from support.problem import METHODS
from support.tiers import mark

RECIPES = {
    name: {"method": METHODS[name], "rounds": rounds, "evaluation": {"every": 5}}
    for name, rounds in (("feedsign", 30), ("fedavg", 10))
}
FOLDERS = {
    "the same": "another process is running in this folder",
    "an empty one": "continue in the run's folder (--out)",
    "another recipe's": "was started with another recipe: seed is 4 there, 3 here",
    "one without metrics": "metrics.jsonl has no round 0",
}
CASES = [
    (method, folder)
    for method in RECIPES
    for folder in FOLDERS
    if method == "feedsign" or folder in ("the same", "an empty one", "one without metrics")
]
QUICK = (("feedsign", "the same"), ("feedsign", "an empty one"))


def prepare(folder, net, other):
    """Make the folder that the second one is given."""
    if folder == "the same":
        return net.out
    if folder == "another recipe's":
        other.mkdir()
        text = (net.out / "recipe.toml").read_text()
        assert "seed = 3\n" in text
        (other / "recipe.toml").write_text(text.replace("seed = 3\n", "seed = 4\n"))
    elif folder != "an empty one":
        shutil.copytree(net.out, other)
        (other / "metrics.jsonl").unlink()
    return other


@pytest.mark.parametrize("case", mark(CASES, lambda case: case not in QUICK), ids=" in ".join)
def test_one_that_is_refused_leaves_a_paused_one_alone(
    case, problem, network, shared_server, in_process, tmp_path
):
    method, folder = case
    net = network(shared_server, RECIPES[method], inline=200)
    expected = in_process(problem, net.recipe)
    coordinator, host = net.coordinator(), net.host(0, 1, 2, 3, 4, slow=0.05)
    until(lambda: host.reached(3), 120, "nothing goes on")
    coordinator.signal(signal.SIGSTOP)
    other = prepare(folder, net, tmp_path / "other")
    before = sorted(path.name for path in other.iterdir()) if other.exists() else None
    second = net.coordinator(out=str(other))
    why = FOLDERS[folder]
    if (method, folder) == ("fedavg", "one without metrics"):  # which is nothing of the run
        why = FOLDERS["an empty one"]
    assert second.wait() == 1 and why in second.text, second.text
    if folder in ("an empty one", "another recipe's"):  # and nothing was left there
        after = sorted(path.name for path in other.iterdir()) if other.exists() else None
        assert after == before
    coordinator.signal(signal.SIGCONT)
    net.check(problem, coordinator, [host], expected.summary)
