"""Values for single entries: across tensors, in every dtype, to the bits of one addition and one
rounding.
"""

import numpy as np
import pytest
import torch

from fedseed.orbit.replay import Pending
from fedseed.weights.change import Entries, Patch, expected_norm
from weights.test_change import space
from weights.test_space import flat


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_entry_is_added_and_rounded_once(dtype):
    made = space(dtype)
    rng = np.random.default_rng(1)
    values = rng.normal(size=30).astype(np.float32)
    chosen = np.sort(rng.choice(np.arange(20, made.size), 9, replace=False)).astype(np.uint32)
    change = Entries(
        [Patch(0, values[:20]), Patch(5, values[20:29], chosen - 5), Patch(made.size, values[:0])],
        -0.3,
    )
    expected = flat(made).float()
    where = torch.from_numpy(np.r_[np.arange(20), chosen].astype(np.int64))
    expected[where] += torch.from_numpy(values[:29] * np.float32(-0.3))
    pending = Pending(made)
    pending.add(change)
    pending.flush()
    assert torch.equal(flat(made), expected.to(dtype))
    assert expected_norm(change, made.layout) == pytest.approx(0.3 * np.linalg.norm(values[:29]))


def test_what_can_not_be_changes_nothing():
    made = space()
    before, one = made.digest(), np.ones(2, dtype=np.float32)
    bad = [
        ([Patch(made.size - 1, one)], "entries 79 to 80: from 0 to 79"),
        ([Patch(0, one, np.array([3, 3]))], "ascending"),
        ([Patch(0, np.float32([1, np.inf]))], "NaN or infinite"),
        (
            [Patch(70, np.ones(3, dtype=np.float32), np.array([3, 5, 10]))],
            "entries 73 to 80: from 0 to 79",
        ),
        ([Patch(10, one), Patch(2, one, np.array([1, 30]))], "entries 3 to 32: from 12"),
        ([Patch(0, one, np.array([3]))], "one ascending offset for each"),
        ([Patch(4, one), Patch(5, one)], "entries 5 to 6: from 6"),
    ]
    for patches, text in bad:
        with pytest.raises(ValueError, match=text):
            made.apply(Entries(patches))
    with pytest.raises(ValueError, match="scale"):
        made.apply(Entries([Patch(0, one)], np.inf))
    assert made.digest() == before


@pytest.mark.parametrize("start", [30, 48])
def test_a_patch_of_all_entries_from_one_on_crosses_tensors(start):
    """Of 48, 8 and 24 entries."""
    made = space()
    values = np.arange(1, 31, dtype=np.float32)
    expected = flat(made)
    expected[start : start + 30] += 2 * torch.from_numpy(values)
    made.apply(Entries([Patch(start, values)], 2.0))
    assert torch.equal(flat(made), expected)
