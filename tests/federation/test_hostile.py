"""Hostile keys beside an honest federation: the run ends with the bits of one in which they do nothing."""

import pytest

from support.hostile.federation import NAMES, recipe_of, run

MEMORY = 150 * 10**6
COMPUTED = 1.0  # processor seconds of the coordinator between a question for the status and its answer


def check(ended, quiet, hostile):
    """What must be true whatever hostile keys did.

    Args:
        ended: what became of the run.
        quiet: of the same with nobody hostile.
        hostile: the names to which refusals may be counted.
    """
    assert ended.result == quiet.result
    assert len(ended.digests) == 1
    assert ended.watched.memory < MEMORY
    assert ended.watched.unanswered == 0 and len(ended.watched.answers) > 2
    assert max(ended.watched.computed) < COMPUTED
    assert len(ended.said) < 200_000 and "\x1b[2J" not in ended.said and "Traceback" not in ended.said
    refused = ended.summary["refusals"]
    framed = {name: reasons for name, reasons in refused.items() if name not in hostile}
    assert all("has answered round" in reason for reasons in framed.values() for reason in reasons), framed
    counted = sum(refused.get(ended.hostile.name, {}).values())
    assert ended.hostile.certain <= counted, (ended.hostile.certain, counted)


@pytest.mark.parametrize("method", ["feedsign"])
def test_hostile_keys_change_nothing(method, starter, tmp_path):
    recipe = recipe_of(method, rounds=8, every=4)
    quiet = run(starter, tmp_path / "quiet", recipe)
    ended = run(starter, tmp_path / "loud", recipe, seed=1, acts=12)
    assert sum(ended.hostile.done.values()) >= 8 * 12
    check(ended, quiet, {NAMES[3], "watcher", "a consumer"})
