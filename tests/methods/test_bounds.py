"""The papers' conditions on the learning rate, against values worked out by hand."""

import pytest

from fedseed import FedAvg, FedKSeed, FedMeZO, FedSGD, FedZO, FeedSign, Ferret, MeZO, ZOFedSGD
from fedseed.methods import RandOpt
from fedseed.methods.bounds import Landscape, rate_bound
from fedseed.training.settings import LocalTraining

# d = 100, N = 3, curvature 0.5 along random directions: tr H = 50
MEASURED = Landscape(100, 3, 0.3, 0.5)
FLAT = Landscape(100, 3, 0.3, -0.5)


@pytest.mark.parametrize("method", [MeZO(), ZOFedSGD()])
def test_lemma_3_9_lies_between_the_smallest_and_the_largest_l(method):
    bound = rate_bound(method, MEASURED)
    # L = 0.5: L zeta = (100 * 50 + 98 * 0.5) / 102 + 0.5 = 49.5 + 0.5
    assert bound.most == pytest.approx(2 / 50)
    # L = tr H = 50: (5000 + 4900) / 102 + 50 = 147.0588
    assert bound.least == pytest.approx(2 / 147.0588, rel=1e-6)
    assert str(bound).startswith(
        "FeedSign, Lemma 3.9 (Eq. 35): the loss falls for rates below 2 / (L zeta): between 0.014 "
        "and 0.04 here (tr H = L r is about 50; L was not measured"
    )


def test_lemma_3_9_with_several_directions_in_a_step():
    bound = rate_bound(MeZO(estimates=11), MEASURED)
    # 49.5 / 11 + 0.5 = 5
    assert bound.most == pytest.approx(2 / 5)


def test_theorem_b_1_of_feedsign():
    bound = rate_bound(FeedSign(), MEASURED)
    # 2 * sqrt(100) * 0.3 / 50
    assert bound.least == bound.most == pytest.approx(0.12)
    assert "0.12 here (L r = tr H is about 50" in str(bound)
    uphill = rate_bound(FeedSign(), Landscape(100, 3, -0.3, 0.5))
    assert uphill.most is None and "downhill" in str(uphill)


@pytest.mark.parametrize(
    ("steps", "length", "rate"),
    [
        (10, 100, 1 / 150),  # 1 / (3 * 10 * 0.5 * 10)
        (10, 1, 1 / 100),  # 1 / H^2; the others are 1 / 15 and 3 / 15
        (1, 1, 2 / 3),  # 1 / (3 * 0.5)
    ],
)
def test_theorem_3_1_of_fedmezo(steps, length, rate):
    bound = rate_bound(FedMeZO(steps=steps), Landscape(length, 3, 0.3, 0.5))
    assert bound.most == pytest.approx(rate) and bound.least is None


def test_theorem_4_of_ferret_and_lemma_f_1():
    bound = rate_bound(Ferret(training=LocalTraining(steps=10)), MEASURED)
    assert bound.most == pytest.approx(1 / (20 * 0.5 * 10))
    assert str(bound) == (
        "Ferret, Theorem 4: rates up to 1 / (20 beta T): at most 0.01 here (beta was not "
        "measured: it is at least the curvature along the steps, 0.5)"
    )
    assert rate_bound(FedSGD(), MEASURED).most == pytest.approx(4)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (MeZO(optimizer="adam"), "plain steps"),
        (ZOFedSGD(clip_projection=1.0), "plain steps"),
        (FeedSign(votes_per_round=2), "one direction"),
        (FedMeZO(normalize="ranks"), "plain steps"),
        (Ferret(training=LocalTraining(optimizer="adamw")), "plain steps"),
        (Ferret(training=LocalTraining(epochs=1)), "no common number T"),
        (FedSGD(server="adam"), "plain steps"),
        (FedKSeed(), "nor a condition on the rate"),
        (FedZO(), "nor a condition on the rate"),
    ],
)
def test_where_a_theorem_does_not_apply_the_reason_is_shown(method, reason):
    bound = rate_bound(method, MEASURED)
    assert bound.most is None and reason in str(bound)


@pytest.mark.parametrize("method", [MeZO(), FeedSign(), Ferret(), FedSGD()])
def test_without_positive_curvature_there_is_no_number(method):
    bound = rate_bound(method, FLAT)
    assert bound.most is None and "not positive" in str(bound)


def test_without_positive_curvature_fedmezo_still_has_its_steps():
    bound = rate_bound(FedMeZO(steps=10), FLAT)
    assert bound.most == pytest.approx(0.01) and "1 / H^2, with H = 10" in str(bound)


@pytest.mark.parametrize("method", [FedAvg(), RandOpt()])
def test_methods_of_no_paper_have_no_bound(method):
    assert rate_bound(method, MEASURED) is None
