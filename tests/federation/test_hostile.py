"""Hostile keys beside an honest federation: the run ends with the bits of one in which they do nothing."""

import os

import pytest

from support.hostile.federation import check, recipe_of, run, undisturbed

pytestmark = pytest.mark.long
SECONDS = float(os.environ.get("FEDSEED_HOSTILE_SECONDS", "15"))  # of each of the four methods


def test_hostile_keys_change_nothing(tmp_path):
    recipe = recipe_of("feedsign", rounds=8, every=4)
    expected = undisturbed(recipe, tmp_path / "undisturbed")
    ended = run(tmp_path / "disturbed", recipe, seed=1, acts=12)
    assert sum(ended.hostile.done.values()) >= 8 * 12 and ended.watcher.done
    check(ended, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "hostile"), [("feedsign", 0), ("ferret", 3), ("fedavg", 3), ("fedadam", 0)])
def test_hostile_keys_go_on_and_on(method, hostile, tmp_path):
    """Floods of 10,000 messages and megabytes, too; the client with the first number is asked to evaluate."""
    recipe = recipe_of(method, rounds=20, every=5)
    expected = undisturbed(recipe, tmp_path / "undisturbed", hostile)
    ended = run(tmp_path / "disturbed", recipe, seed=2, seconds=SECONDS, hostile=hostile, early=20,
                heavy=True)  # fmt: skip
    check(ended, expected)
