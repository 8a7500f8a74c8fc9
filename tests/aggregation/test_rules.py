import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedseed.aggregation import RULES, Mean, Median
from fedseed.aggregation.base import AggregationRule, Past, claims, pad_vectors, shares
from fedseed.methods.base import Answer, Answers

VECTORS = [np.array([1.0, -2.0, 3.0]), np.array([4.0, 0.5, -1.0]), np.array([1e9, 1e9, -1e9])]
WEIGHTS = [0.5, 0.3, 0.2]


def accumulate(rule, total, indices, values, weights):
    given = [Answer(client, weight, None) for client, weight in enumerate(weights)]
    return Answers(1, given, rule).accumulate(total, indices, values)


@pytest.mark.parametrize("rule", [kind() for kind in RULES])
def test_what_every_rule_keeps_to(rule):
    assert rule.about and type(rule).model_fields["name"].default == rule.name
    combined = rule.combine(VECTORS, WEIGHTS)
    assert combined.dtype == np.float64 and combined.shape == (3,)
    same = [np.array([2.0, -7.0])] * 3
    # what all say is what comes out
    np.testing.assert_allclose(rule.combine(same, WEIGHTS), same[0])
    total = np.array([1.0, 1.0, 1.0])
    everywhere = [np.arange(3)] * 3
    np.testing.assert_allclose(
        accumulate(rule, total, everywhere, VECTORS, WEIGHTS), total + combined
    )
    assert (total == 1).all()
    np.testing.assert_array_equal(accumulate(rule, total, [], [], []), total)
    with pytest.raises(ValueError, match="nobody has answered"):
        rule.combine([], [])
    with pytest.raises(ValueError, match="different lengths can't be combined: 1, 2"):
        rule.combine([np.zeros(2), np.zeros(1)], [0.5, 0.5])
    assert rule.least <= 3 and rule.shortage(rule.least) is None
    if rule.least > 1:
        with pytest.raises(
            ValueError, match=f"{rule.name}.*needs {rule.least} answers, and there are 1"
        ):
            rule.combine([np.zeros(2)], [1.0])
    with pytest.raises(ValueError, match="1 weights for 2 vectors"):
        rule.combine([np.zeros(2), np.zeros(2)], [1.0])


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_the_mean_adds_one_client_after_the_other(clients, length, seed):
    random = np.random.default_rng(seed)
    vectors = list(random.normal(size=(clients, length)))
    weights = list(random.dirichlet(np.ones(clients)))
    total = np.zeros(length)
    for vector, weight in zip(vectors, weights, strict=True):
        total += weight * vector
    assert Mean().combine(vectors, weights).tobytes() == total.tobytes()


@pytest.mark.parametrize("rule", [Mean, AggregationRule])
def test_a_vector_in_parts_has_the_mean_of_the_whole(rule):
    parts = [[v[:1].astype(np.float32) for v in VECTORS], [v[1:] for v in VECTORS]]
    combined = list(rule.combine_parts(Mean(), parts, WEIGHTS, Past()))
    assert np.concatenate(combined).tolist() == Mean().combine(VECTORS, WEIGHTS).tolist()
    assert {part.dtype for part in combined} == {np.dtype(np.float64)}


def test_sparse_vectors_are_zero_elsewhere_for_the_median():
    indices = [np.array([0]), np.array([0]), np.array([1])]
    values = [np.array([5.0]), np.array([3.0]), np.array([9.0])]
    assert [v.tolist() for v in pad_vectors([np.ones(1), np.ones(3)])] == [[1, 0, 0], [1, 1, 1]]
    np.testing.assert_array_equal(
        accumulate(Median(), np.zeros(2), indices, values, [1 / 3] * 3), [3.0, 0.0]
    )


EXAMPLES, TERMS = [30, 10, 0], [0, 5, 15]


@pytest.mark.parametrize(
    ("weighting", "said", "weights"),
    [
        ("equal", [1, 1, 1], [1 / 3] * 3),
        ("examples", EXAMPLES, [0.75, 0.25, 0.0]),
        ("terms", TERMS, [0.0, 0.25, 0.75]),
    ],
)
def test_weights_are_in_proportion_to_what_is_said(weighting, said, weights):
    assert list(claims(weighting, EXAMPLES, TERMS)) == said
    assert shares(claims(weighting, EXAMPLES, TERMS)) == weights


@pytest.mark.parametrize("weighting", ["equal", "examples", "terms"])
def test_where_all_say_nothing_they_count_the_same(weighting):
    assert shares(claims(weighting, [0] * 4, [0] * 4)) == [0.25] * 4
