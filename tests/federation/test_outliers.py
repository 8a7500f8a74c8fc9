"""Where exactly the bounds are: what an update, a claim and a step may be next to the others,
number by number.
"""

from math import inf, nan

import numpy as np
import pytest

from fedseed import Basis
from fedseed.federation.coordinator.bounds import WINDOW, Bounds, LastSteps, too_far
from fedseed.methods.payload import LARGEST
from fedseed.optimizers.rules import Rule
from fedseed.weights.change import Add, Average, Entries, Optimize, Patch, Rebuild, Replace, Term
from fedseed.weights.layout import Layout, TensorEntry

TEN = Bounds(proportion=10.0, claims=10.0)


def refused(sizes, claims=(), bounds=TEN):
    return bounds.outliers(dict(enumerate(sizes)), dict(enumerate(claims)))


@pytest.mark.parametrize(
    ("sizes", "clients"),
    [
        ([1.0, 1.0, 10.0], []),  # exactly so many times the median is not more
        ([1.0, 1.0, 10.1], [2]),
        ([1.0, 1.0, 2.0, 2.0, 10.1], []),  # the middle one is 2
        ([1.0, 2.0, 2.0, 10.1], []),
        ([1.0, 1.0, 2.0, 10.1], [3]),  # of an even number the lower one
        ([10.1, 1.0, 1.0], [0]),  # in any order
        ([0.1, 0.1, 0.1, 1.1], [3]),
        ([0.1, 0.1, 0.9], []),
        ([0.0, 0.0, 0.0, 1.0, 1.0, 10.1], [5]),  # those without a size are no part of it
        ([0.0, 0.0, 1.0, 10.1], []),  # so here are two only
        ([1.0, 10.1], []),
    ],
)
def test_an_update_or_a_claim_next_to_the_median(sizes, clients):
    assert list(refused(sizes)) == clients
    assert list(refused([1.0] * len(sizes), sizes)) == clients
    assert refused(sizes, sizes, Bounds(proportion="off", claims="off")) == {}


def test_what_none_can_have_measured_is_no_part_of_the_median():
    assert refused([LARGEST, 1.0]) == {}
    assert refused([LARGEST * 1.001, 1.0]) == {
        0: f"larger than {LARGEST:.0e}, more than any honest update"
    }
    for value in (inf, nan, LARGEST * 2):
        assert list(refused([1.0, value, 1.0, value, 10.1, 1.0])) == [1, 3, 4]
        assert refused([value] * 3) == {}  # all of them: nobody can say who
    assert list(refused([1.0, 1.0, 1.0, inf], [1, 20, 1, 1])) == [3, 1]
    assert refused([2.0, 2.0, 6e5, 2.0], [1, 1, 1, 20]) == {
        3: "it claims more than 10 times the examples or terms of others (bounds.claims)",
        2: "out of all proportion: 1e+05 times the median of its round (bounds.proportion = 10)",
    }


def last(*sizes, bounds=TEN):
    steps = LastSteps(bounds)
    for size in sizes:
        steps.take(size)
    return steps


def test_a_step_next_to_the_last_ones():
    assert last(1.0, 1.0).problem(1e5) is None  # two are too few
    three = last(0.0, 2.0, 1.0, 2.0)  # the empty one says nothing
    assert list(three.sizes) == [2.0, 1.0, 2.0]
    assert three.problem(20.0) is None and three.problem(20.1) is not None
    text = "it is out of all proportion: 123, but the last 3 were about 2 (bounds.proportion)"
    assert three.problem(123.0) == text
    assert last(0.5, 0.5, 0.5).problem(5.1) is not None
    for steps in (last(), three, last(1.0, 1.0, 1.0, bounds=Bounds(proportion="off"))):
        for size in (inf, nan, LARGEST * 1.001):
            assert "honest steps stay below 1e+06" in steps.problem(size)
    assert last(1.0, 1.0, 1.0, bounds=Bounds(proportion="off")).problem(LARGEST) is None
    assert last().problem(LARGEST) is None


def test_only_the_newest_are_remembered_and_they_can_be_kept():
    steps = last(*[1.0] * 20, *[100.0] * (WINDOW // 2 + 1))
    assert len(steps.sizes) == WINDOW and steps.problem(500.0) is None
    again = LastSteps(TEN)
    again.load(steps.sizes)
    assert list(again.sizes) == list(steps.sizes)
    again.take(3.0)
    assert len(again.sizes) == WINDOW and again.sizes[-1] == 3.0
    again.load([0.5])
    assert list(again.sizes) == [0.5]
    for wrong in ([1.0, 0.0], [1.0, -1.0], [1.0, inf], [nan], ["x"]):
        with pytest.raises(ValueError, match=r"a number above 0|could not convert"):
            again.load(wrong)


def layout(*dtypes):
    return Layout(
        tuple(TensorEntry(f"t{n}", (4,), dtype) for n, dtype in enumerate(dtypes)),
        (0, 4 * len(dtypes)),
    )


def along(*coefficients):
    """Every weight moves by the root of the sum of their squares."""
    return [Term(Basis("rademacher", 1), np.array(coefficients))]


def test_a_sum_over_directions_next_to_what_a_weight_can_hold():
    single, half = layout("float32"), layout("bfloat16", "float16", "float32")
    assert (
        too_far(Add(along(1e6)), single) is None
        and too_far(Add(along(1.001e6)), single) is not None
    )
    text = "it would move every weight by about 1.2e+06, but the largest possible weight is 1e+06"
    assert too_far(Add(along(1.0, 1.0, 1.0, 1.0), 6e5), single) == text
    for value, fits in ((65503.0, True), (65505.0, False)):  # of several dtypes the narrowest
        assert (too_far(Add(along(value)), half) is None) == fits
        assert (too_far(Rebuild(along(1.0), value), half) is None) == fits
        assert (too_far(Optimize(along(2.0), Rule("momentum", value / 2)), half) is None) == fits
    huge = Add(along(1e9))
    # empty, or looked at in another way
    for other in (Add([]), Average([(1.0, [huge])]), Replace(b"")):
        assert too_far(other, single) is None


def some(*values, scale=1.0):
    """Values for single entries, each in a patch of its own."""
    return Entries([Patch(at, np.float32([value])) for at, value in enumerate(values)], scale)


def test_single_entries_next_to_what_a_weight_can_hold():
    """The farthest counts, up or down; none at all is not far however it is multiplied."""
    single, half = layout("float32"), layout("bfloat16", "float16", "float32")
    assert too_far(some(1e6, 1.0), single) is too_far(some(2e6, scale=0.5), single) is None
    text = "it would move a weight by 2e+06, but the largest possible weight is 1e+06"
    for far in (
        some(1.0, -2e6, 3.0),
        some(1.0, 4.0, scale=-5e5),
        Entries([Patch(0, np.float32([2e6, 1.0]))]),
    ):
        assert too_far(far, single) == text
    for value, fits in ((65503.0, True), (65505.0, False)):
        assert (too_far(some(value), half) is None) == fits
    for none in (Entries([], 2e6), Entries([Patch(0, np.zeros(0, np.float32))], 2e6)):
        assert too_far(none, single) is None
