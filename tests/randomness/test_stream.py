import hashlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedseed.errors import RecipeError
from fedseed.randomness import stream
from fedseed.randomness.stream import (
    Domain,
    derive,
    permutation,
    philox4x32,
    sample,
    uniform_integers,
    words,
)

ONES = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)  # digits of it


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ONES,) * 4, (ONES, ONES), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (*PI, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_known_answers_of_philox(counter, key, answer):
    assert " ".join(f"{int(w):08x}" for w in philox4x32(counter, key)) == answer


def test_counter_and_key_are_laid_out_as_specified():
    seed = 0x299F31D0A4093822  # low word a4093822, high word 299f31d0
    block = 0x85A308D3243F6A88
    row = words(seed, 0x03707344, 0x13198A2E, block, 1)[0]
    assert [f"{int(w):08x}" for w in row] == ["d16cfe09", "94fdcceb", "5001e420", "24126ea1"]


@example(0, 0, 2**33 - 3, 20)
@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, ONES),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2 * stream.FEW),
)
def test_blocks_are_the_definitions_whether_a_few_are_made_one_by_one_or_many_at_once(
    seed, direction, first, count
):
    found = words(seed, np.int64(7), np.int64(direction), first, count)
    index = [(first + i) % 2**64 for i in range(count)]
    low_high = np.array([(i & ONES, i >> 32) for i in index], dtype=np.uint64).reshape(count, 2)
    made = philox4x32((low_high[:, 0], low_high[:, 1], direction, 7), (seed & ONES, seed >> 32))
    assert found.dtype == np.uint32
    np.testing.assert_array_equal(found, np.stack(made, axis=-1))


def test_uses_of_a_seed_share_no_numbers():
    rows = [words(7, domain, 0, 0, 1000) for domain in Domain]
    flat = np.concatenate([r.reshape(-1, 2) for r in rows]).astype(np.uint64)
    pairs = flat[:, 0] << np.uint64(32) | flat[:, 1]
    assert len(np.unique(pairs)) == len(pairs)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(ValueError, match="seed = "):
        words(seed, 0, 0, 0, 1)


@pytest.mark.parametrize("seed", [-1, 2**64, True, 1.5, "7"])
def test_what_is_given_as_a_seed_and_is_none_is_said(seed):
    assert stream.check_seed(np.int64(0)) == 0 and stream.check_seed(2**64 - 1) == 2**64 - 1
    with pytest.raises(RecipeError, match=f"--seeds = '?{seed}'?: a whole number from 0 to 2"):
        stream.check_seed(seed, "--seeds")


@given(st.integers(0, 2**64 - 1), st.integers(0, 200))
def test_permutation_is_one(seed, count):
    assert sorted(permutation(seed, Domain.DATA_ORDER, count)) == list(range(count))


def test_sample_is_fair():
    """Each of 20 members is taken 5 in 20 times; 4,000 draws, tolerance 4 standard errors."""
    draws = 4000
    taken = np.zeros(20)
    for number in range(draws):
        chosen = sample(3, Domain.SAMPLING, 20, 5, direction=number)
        assert len(set(chosen)) == 5
        taken[chosen] += 1
    assert np.abs(taken / draws - 0.25).max() < 4 * np.sqrt(0.25 * 0.75 / draws)


def test_nobody_and_everybody_can_be_sampled_and_no_more():
    assert sample(3, Domain.SAMPLING, 5, 0, 0) == [] and sample(3, Domain.SAMPLING, 0, 0, 0) == []
    assert sample(3, Domain.SAMPLING, 5, 5, 0) == [0, 1, 2, 3, 4]
    for count in (-1, 6):
        with pytest.raises(ValueError, match=f"can't take {count} of 5"):
            sample(3, Domain.SAMPLING, 5, count, 0)


def test_the_stream_never_changes():
    """Golden values: if one differs, old orbits would replay to other weights.

    Then the stream needs a new version.
    """
    assert (
        derive(1, Domain.ROUND_SEED, 1) == 5329966003183221108
        and derive(1, Domain.HEAD) == 13962038128430791552
    )
    assert stream.coins(1, 2, 9).tolist() == [-1, -1, 1, 1, -1, 1, 1, -1, -1]
    assert stream.coins(1, 3, 9).tolist() == [-1, 1, 1, 1, -1, 1, -1, -1, 1]
    assert stream.rate_number(1, 2, 4) == -0.03873513893950753
    assert stream.draws(1, 2).tolist() == [18055721151385232884, 17370958461318871627]
    assert list(permutation(1, Domain.DATA_ORDER, 8)) == [0, 5, 1, 7, 2, 3, 4, 6]
    numbers = uniform_integers(42, Domain.SAMPLING, 1001)
    assert (
        hashlib.blake2b(numbers.astype("<u8").tobytes(), digest_size=8).hexdigest()
        == "fa5ddb2e92172653"
    )
