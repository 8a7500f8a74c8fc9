"""What travels in FedKSeed: what is read, how large it is, and which candidates are drawn how often."""

import numpy as np
import pytest

from fedseed import FedKSeed
from fedseed.errors import MessageError
from fedseed.methods import fedkseed
from fedseed.methods.fedkseed import Accumulated, Pairs, Pool, probabilities
from fedseed.methods.payload import About
from fedseed.weights.layout import Layout, TensorEntry

LAYOUT = Layout((TensorEntry("w", (8,), "float32"),), (0, 8))
METHOD = FedKSeed(candidates=4, steps=3)
STATE = METHOD.advance(METHOD.start(LAYOUT, 1), Accumulated(np.array([5.0, 0.0, -2.0, 0.0], dtype=np.float32)))


def pairs(indices, scalars):
    return Pairs(np.array(indices, dtype=np.uint32), np.array(scalars, dtype=np.float32))


def test_pairs_of_the_pool_are_read_and_others_are_not():
    for good in (pairs([3], [1.0]), pairs([0, 3, 3], [1.0, 2.0, -1e6])):
        assert METHOD.decode_update(STATE, 2, good.encode()).encode() == good.encode()
    for bad, text in (
        (pairs([], []), "0 bytes of pairs: from 8 to 24"), (pairs([0] * 4, [1.0] * 4), "32 bytes of pairs"),
        (pairs([0, 4], [1.0, 1.0]), "candidate 4: the pool has 4"), (pairs([0], [1.1e6]), "1.1e[+]06|1100000"),
    ):  # fmt: skip
        with pytest.raises(MessageError, match=text):
            METHOD.decode_update(STATE, 2, bad.encode())
    wide = FedKSeed(candidates=4, steps=2, population=2, batch=2)
    assert len(wide.decode_update(STATE, 2, pairs([0] * 4, [1.0] * 4).encode()).scalars) == 4
    assert pairs([0, 1], [-7.0, 2.0]).size(About(METHOD, STATE, "update", 2)) == 7.0


@pytest.mark.parametrize(("after", "size"), [([5, 3, -2, 0], 3), ([5, 0, -2.5, 0], 1), ([5, 0, -2, 0], 0)])
def test_a_step_is_as_large_as_the_most_that_it_adds(after, size):
    assert Accumulated(np.float32(after)).size(About(METHOD, STATE, "step", 2)) == size


def test_pairs_as_vectors_of_the_pool():
    """Of each candidate the sum; of a vector so many of the largest entries as a client may send, or all of them."""
    about = About(METHOD, STATE, "update", 2)
    assert Pairs.words(about) == 4
    assert pairs([3, 0, 3], [1.0, -2.0, 0.5]).vector(about).tolist() == [-2.0, 0.0, 0.0, 1.5]
    whole = Pairs.of(np.array([0.1, 0.0, -3.0, 2.0]), about)
    assert whole.indices.tolist() == [0, 1, 2, 3] and whole.scalars.tolist() == [0.1, 0.0, -3.0, 2.0]
    few = pairs([0], [1.0]).with_vector(np.array([-4.0, 1.0, 2.0, -3.0]), about)
    assert few.indices.tolist() == [0, 2, 3] and few.scalars.tolist() == [-4.0, 2.0, -3.0]
    assert few.indices.dtype == np.uint32 and few.scalars.dtype == np.float32
    more = About(FedKSeed(candidates=8, steps=2, population=3, batch=3), STATE, "update", 2)
    few = pairs([0], [1.0]).with_vector(np.array([1.0, 9.0, 1.0, 8.0, 7.0, -6.0, 5.0, 0.5]), more)
    assert few.indices.tolist() == [0, 1, 3, 4, 5, 6]  # of equal ones the first
    many = About(FedKSeed(candidates=40, steps=15), STATE, "update", 2)
    few = pairs([0], [1.0]).with_vector(np.tile([0.5, -1.0], 20), many)
    assert few.indices.tolist() == list(range(1, 31, 2))


def test_candidates_are_drawn_by_the_plans_probabilities(monkeypatch):
    """By numbers uniform on [0, their sum): what ends at a number begins the next; of a plan of zeros the last."""
    numbers = np.array([0, 1 << 62, 1 << 63, 0xBFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 5], dtype=np.uint64)
    monkeypatch.setattr(fedkseed, "draws", lambda seed, count: numbers[:count] if seed == 7 else None)
    method, zeros = FedKSeed(candidates=4, steps=3, population=2, batch=2), np.zeros(4, np.float32)
    assert method.draw(Pool(1, zeros, np.float32([0, 1, 0.5, 0.5])), 7).tolist() == [1, 1, 2, 2, 3, 1]
    assert method.draw(Pool(1, zeros, zeros), 7).tolist() == [3] * 6
    assert method.draw(Pool(1, zeros, None), 7).tolist() == [0, 0, 0, 3, 3, 1]


@pytest.mark.parametrize(
    ("sums", "uses", "psi"),
    [
        ([2, 9, 0, 4], [2, 3, 0, 2], [0.0, 1.0, 0.5, 0.5]),  # means 1, 3, none, 2: 0 to 1; their mean for the unused
        ([5, 0, 1, 9], [1, 0, 1, 3], [1.0, 0.5, 0.0, 0.5]),  # used once is used
        ([5, 0, 0, 0], [1, 0, 0, 0], [0.0] * 4),  # there is nothing to tell them by
        ([6, 3, 9, 0], [2, 1, 3, 0], [0.0] * 4),
        ([0, 0, 0, 0], [0, 0, 0, 0], [0.0] * 4),
        ([1, 2, 3, 5], [1, 1, 1, 1], [0.0, 0.25, 0.5, 1.0]),
        ([1, 2, 0, 2], [2, 2, 0, 2], [0.0, 1.0, 2 / 3, 1.0]),  # a span below 1 is one
    ],
)
def test_probabilities_are_those_of_equation_13(sums, uses, psi):
    floats = np.array(sums, dtype=np.float32)
    found = probabilities(Accumulated(np.zeros(4, np.float32), floats, np.array(uses, dtype=np.uint32)))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.exp(psi) / np.exp(psi).sum(), rtol=1e-6)
