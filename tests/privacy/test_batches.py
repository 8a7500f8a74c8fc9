"""How batches are drawn under `[privacy]`: what the account is told of them. False alarms: below one in 10^9."""

from itertools import islice

import numpy as np
import pytest

from fedseed.privacy import PrivacySettings
from fedseed.privacy.draws import private_batches

ITEMS = list(range(20))


def drawn(sampling, count, items=ITEMS, size=6, examples=20):
    sampled = {} if sampling == "none" else {"sampling": sampling, "examples": examples}
    privacy = PrivacySettings(level="example", clip=1.0, noise=1.0, **sampled)
    return list(islice(private_batches(items, size, privacy, 7), count))


def test_poisson_batches_have_each_example_by_itself():
    """With probability 6/20 whatever the others do; sizes vary as a binomial's do."""
    count = 4000
    found = np.zeros((count, 20))
    for row, batch in zip(found, drawn("poisson", count), strict=True):
        assert len(batch) == len(set(batch))
        row[batch] = 1
    together = found.T @ found / count
    expected = np.where(np.eye(20, dtype=bool), 0.3, 0.09)
    assert np.abs(together - expected).max() < 7 * (0.25 / count) ** 0.5
    assert found.sum(axis=1).var() == pytest.approx(20 * 0.3 * 0.7, rel=0.25)
    fewer = [len(batch) for batch in drawn("poisson", count, items=ITEMS[:5])]
    assert np.mean(fewer) == pytest.approx(1.5, abs=0.15) and 0 in fewer  # the rate is the recipe's, not the client's
    assert drawn("poisson", 2, items=[]) == [[], []]


def test_without_sampling_no_example_is_in_a_batch_twice():
    """Nor where one pass ends and the next begins, nor where a client has fewer than a batch."""
    batches = drawn("none", 7)
    assert [len(batch) for batch in batches] == [6] * 7 and all(len(set(batch)) == 6 for batch in batches)
    assert len({i for batch in batches[:3] for i in batch}) == 18  # a pass
    assert [sorted(batch) for batch in drawn("none", 2, items=ITEMS[:4])] == [[0, 1, 2, 3]] * 2
    assert drawn("none", 2, items=[]) == [[], []] and drawn("none", 7) == batches
