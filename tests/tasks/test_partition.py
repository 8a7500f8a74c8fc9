"""Partitions are partitions, the same everywhere, with the skew that alpha asks for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseed.errors import RecipeError
from fedseed.tasks.partition import IID, ByField, Dirichlet, Quantity

KINDS = [IID(), Dirichlet(alpha=0.3, minimum=0), Quantity(alpha=0.7, minimum=0)]


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    labels=st.lists(st.integers(0, 5), min_size=12, max_size=200),
    clients=st.integers(1, 12),
    seed=st.integers(0, 2**64 - 1),
)
def test_every_example_has_one_holder(kind, labels, clients, seed):
    dealt = kind.deal(labels, clients, seed)
    assert len(dealt) == clients
    assert sorted(i for mine in dealt for i in mine) == list(range(len(labels)))
    assert dealt == kind.deal(labels, clients, seed)
    assert all(mine == sorted(mine) for mine in dealt)


def test_pinned():
    # the same on any machine and in any version: these values must not change
    labels = [0, 1, 2] * 8
    assert IID().deal(labels, 3, 5) == [
        [1, 5, 6, 14, 16, 19, 20, 21],
        [0, 2, 3, 4, 8, 12, 18, 22],
        [7, 9, 10, 11, 13, 15, 17, 23],
    ]
    assert Dirichlet(alpha=0.5).deal(labels, 3, 5) == [
        [2, 11, 14, 17, 18, 23],
        [5, 7, 8, 19, 20],
        [0, 1, 3, 4, 6, 9, 10, 12, 13, 15, 16, 21, 22],
    ]
    assert [len(mine) for mine in Quantity(alpha=0.5).deal(labels, 3, 5)] == [4, 1, 19]


@pytest.mark.parametrize("alpha", [0.5, 5.0])
def test_proportions_follow_dirichlet(alpha):
    """A share of Dirichlet(alpha, ..., alpha) over N clients has mean 1/N and variance (N-1) / (N^2
    (N alpha + 1)).
    """
    clients, count, draws = 8, 1000, 400
    kind = Dirichlet(alpha=alpha, minimum=0)
    shares = np.array(
        [[len(m) / count for m in kind.deal([0] * count, clients, seed)] for seed in range(draws)]
    )
    variance = (clients - 1) / clients**2 / (clients * alpha + 1)
    variance += (1 / clients * (1 - 1 / clients) - variance) / count  # a finite number of examples
    first = shares[:, 0]
    assert abs(first.mean() - 1 / clients) < 4 * np.sqrt(variance / draws)
    fourth = ((shares - 1 / clients) ** 4).mean()
    assert abs(shares.var() - variance) < 4 * np.sqrt((fourth - variance**2) / draws)


@pytest.mark.long
def test_minimum_is_kept_or_explained():
    labels = [i % 7 for i in range(2000)]
    assert min(len(mine) for mine in Dirichlet(alpha=0.5, minimum=10).deal(labels, 40, 2)) >= 10
    with pytest.raises(
        RecipeError,
        match=r"minimum = 40: in 1,000 draws with alpha = 0.1.*never had more than \d+ examples; "
        r"raise alpha",
    ):
        Dirichlet(alpha=0.1, minimum=40).deal(labels[:500], 12, 2)
    with pytest.raises(RecipeError, match="clients = 30: 20 examples are not enough for 1 each"):
        IID().deal([0] * 20, 30, 1)


def test_by_field_with_fewer_clients_merges_values():
    kind, labels = ByField(field="language"), list("aaaaaaaabbbbbcccdde")
    merged = ["".join(labels[i] for i in mine) for mine in kind.deal(labels, 3, 0)]
    # from the most frequent on, to whoever has least
    assert merged == ["aaaaaaaa", "bbbbbe", "cccdd"]
    assert kind.deal(labels, 1, 0) == [list(range(len(labels)))]
    labels = ["de", "en", "de", "en"]
    assert kind.deal(labels, None, 1) == [[0, 2], [1, 3]]
    with pytest.raises(
        RecipeError, match=r'clients = 3: task.partition.field = "language" has 2 values \(de, en\)'
    ):
        kind.deal(labels, 3, 1)
