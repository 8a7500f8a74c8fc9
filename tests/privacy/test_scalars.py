"""The mechanism of `[privacy]`: what is bounded, what noise it gets, and what the account says of
both.
"""

import warnings
from math import erf, sqrt
from random import Random

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

from fedseed.privacy import PrivacySettings, PrivateScalars, noise_for
from fedseed.privacy.scalars import (
    LEVELS,
    MOST,
    MOST_COMPOSED,
    Releases,
    compose_many,
    composed_epsilon,
    renyi_divergence,
    shorten,
    to_levels,
)

LEVELS_OF = {
    "client": {"level": "client"},
    "example": {"level": "example"},
    "poisson": {"level": "example", "examples": 50, "sampling": "poisson"},
}


def mechanism(kind, noise=2.0, releases=1, batch=5, levels=LEVELS, **settings):
    random = Random(1).randbytes
    return PrivateScalars(
        PrivacySettings(**{"clip": 0.5, "noise": noise, **LEVELS_OF[kind], **settings}),
        releases,
        batch,
        levels,
        random,
    )


# -- bounds and noise
# ------------------------------------------------------------------------------------------------


def test_no_vector_is_longer_than_its_bound():
    """In whole numbers, exactly, however doubles round."""
    random = np.random.default_rng(2)
    vectors = [
        random.normal(size=n) * 10.0**power
        for n in (1, 2, 3, 64, 8192)
        for power in (-9, -1, 0, 3, 150, 300)
    ]
    vectors += [np.full(n, 0.5 / n**0.5) for n in range(1, 60)]
    for vector in vectors:
        found = to_levels(vector, 0.5, LEVELS)
        assert sum(int(v) ** 2 for v in found.tolist()) <= LEVELS**2
        norm = float(np.linalg.norm(vector / np.abs(vector).max()) * np.abs(vector).max())
        shortened = vector * min(1.0, 0.5 / norm)
        assert found == pytest.approx(shortened / 0.5 * LEVELS, abs=2)  # the same direction
    assert not any(
        to_levels(np.array([1.0, odd]), 0.5, LEVELS).any() for odd in (np.nan, np.inf, -np.inf)
    )
    assert (
        to_levels(np.array([-0.5]), 0.5, LEVELS).tolist() == [-LEVELS]
        and len(to_levels(np.zeros(0), 0.5, LEVELS)) == 0
    )
    # its squares are 4 more than 2^60, which doubles do not see
    longer = [549564285.0, 922442736.0, -7753.0, 105.0, 5.0]
    assert to_levels(np.array(longer), 1.0, 1 << 30).tolist() == [
        549564284,
        922442735,
        -7752,
        104,
        4,
    ]


def test_what_is_bounded_keeps_its_direction_or_is_nothing():
    assert shorten(np.array([3.0, -4.0]), 2.5) == pytest.approx([1.5, -2.0], abs=3e-7)
    assert shorten(np.array([0.3, -0.4], dtype=np.float32), 2.5) == pytest.approx(
        [0.3, -0.4], abs=3e-7
    )
    assert shorten(np.array([1.0, np.nan]), 2.5).tolist() == [0.0, 0.0]


def test_noise_between_two_whole_numbers_is_the_larger_one():
    assert mechanism("client", noise=0.3, levels=4).sigma == 2


def test_the_noise_is_what_the_account_is_told():
    """Its deviation is noise times clip, on every entry by itself, whatever is summed up and
    however many there are.
    """
    found = np.array(
        [
            mechanism("client", noise=3.0).noisy_sum([], 10_000),
            mechanism("client").noisy_sum([], 10_000),
        ]
    )
    assert found.std(axis=1) == pytest.approx([1.5, 1.0], rel=0.03)
    assert abs(np.corrcoef(found[0][:-1], found[0][1:])[0, 1]) < 0.04
    same = mechanism("client", noise=3.0).noisy_sum([np.full(10_000, 1e-3)] * 2, 10_000)
    assert same - found[0] == pytest.approx(np.full(10_000, 2e-3), abs=1e-6)
    divided = mechanism("client").mean([np.zeros(10_000)] * 3, client_count=4)
    assert divided == pytest.approx(found[1] / 4)
    assert mechanism("client").mean([np.zeros(10_000)], client_count=2) == pytest.approx(
        found[1] / 2
    )


# -- the account
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LEVELS_OF)
def test_epsilon_is_that_of_the_privacy_loss_distribution(kind):
    """What really happens, said to the library directly: 7 turns of 3 releases, noise 2 clip, 5 of
    50 examples.
    """
    one = privacy_loss_distribution.from_gaussian_mechanism(
        2.0, sampling_prob=0.1 if kind == "poisson" else 1.0
    )
    least = one.self_compose(21).get_epsilon_for_delta(1e-6)
    spent = mechanism(kind, releases=3, delta=1e-6).spent(7)
    assert least * (1 - 1e-4) <= spent["epsilon"] <= least * 1.001
    assert (spent["turns"], spent["releases"], spent["delta"]) == (7, 21, 1e-6)
    assert spent["adjacency"] == ("add-or-remove" if kind == "poisson" else "zero-out")
    assert mechanism(kind).spent(0)["epsilon"] == 0.0 and "budget" not in spent
    assert mechanism(kind, releases=3, delta=1e-6).counted(7) == spent


def test_what_discrete_noise_may_add_is_taken_off_delta():
    """Ten times 1 / sigma^2, with sigma = 4."""
    exact = GaussianPrivacyLoss(1.0)
    found = mechanism("client", noise=1.0, levels=4, delta=1e-3).epsilon(1)
    assert exact.get_delta_for_epsilon(found) == pytest.approx(1e-3 / 1.625, rel=1e-6)


@pytest.mark.parametrize(("kind", "epsilon"), [("poisson", 3.681), ("example", 21.54)])
def test_the_account_of_the_pages_recipe(kind, epsilon):
    """Divergences of Renyi's gave 3.99 and 23.9 for it."""
    examples = {} if kind == "example" else {"examples": 139}
    one = mechanism(kind, noise=4.75, batch=32, **examples)
    assert one.epsilon(300) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize("kind", LEVELS_OF)
def test_the_budget_is_spent_as_far_as_it_goes(kind):
    one = mechanism(kind, noise=6.0, budget=3.0)
    most = one.affordable
    assert (
        most > 1
        and one.epsilon(most) <= 3.0 < one.epsilon(most + 1)
        and one.spent(1)["budget"] == 3.0
    )
    assert (
        mechanism(kind).affordable is None
        and mechanism(kind, noise=0.5, budget=0.1).affordable == 0
    )


@pytest.mark.parametrize("turns", [1, 1000, 10**6, 10**9, MOST])
def test_much_noise_at_rare_sampling_costs_nothing(turns):
    """One example of 10^9 in a batch: even all turns together are seen with a chance below delta.

    Their losses of 1e-13 overflowed, and of 10^9 turns they took minutes.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        private = mechanism("poisson", noise=1e5, batch=1, examples=10**9, budget=0.5)
        assert private.epsilon(turns) == 0.0
        assert private.affordable >= turns - 1


def test_epsilon_is_nothing_up_to_the_distance_of_neighbours_outcomes():
    """Of one release: rate erf(1 / (sqrt(8) noise)), here 0.1 erf(0.1768)."""
    one = (Releases(2.0, 0.1, 1),)
    distance = 0.1 * erf(1 / (sqrt(8) * 2.0))
    assert composed_epsilon(one, distance * 1.001) == 0.0 < composed_epsilon(one, distance * 0.999)
    # of many the root of their number counts, and of very many the distance is almost 1
    assert composed_epsilon((Releases(2.0, 1e-4, 10_000),), 0.003) == 0.0
    assert composed_epsilon((Releases(2.0, 1e-4, 10_000),), 0.001) > 0.0
    assert composed_epsilon((Releases(0.01, 0.5, 100),), 1 - 1e-9) > 0.0


@pytest.mark.parametrize(("noise", "rate", "count"), [(2.0, 0.01, 5000), (10.0, 0.001, 200_000)])
def test_stages_compose_as_the_library_does_at_once(noise, rate, count):
    one = privacy_loss_distribution.from_gaussian_mechanism(noise, sampling_prob=rate)
    at_once = one.self_compose(count).get_epsilon_for_delta(1e-5)
    in_stages = compose_many(one, count).get_epsilon_for_delta(1e-5)
    assert in_stages == pytest.approx(at_once, rel=1e-6)


@pytest.mark.parametrize(("noise", "rate"), [(10.0, 0.001), (1000.0, 0.5), (1.0, 0.001)])
def test_beyond_a_million_releases_a_bound_takes_over_that_is_not_below(noise, rate):
    def epsilon(count):
        return composed_epsilon((Releases(noise, rate, count),), 1e-5)

    counts = [10_000, MOST_COMPOSED, MOST_COMPOSED + 1, 10**9, MOST]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = [epsilon(count) for count in counts]
    assert values == sorted(values)
    assert values[2] <= 1.15 * values[1]


def test_renyis_bound_of_many_small_losses_is_a_gaussians():
    """10^9 releases of noise 1000 and rate 0.001 are nearly one release of noise 1 / 0.0316."""
    together = 1 / (1e9**0.5 * 0.001 / 1000)
    exact = composed_epsilon((Releases(together, 1.0, 1),), 1e-5)
    bound = composed_epsilon((Releases(1000.0, 0.001, 10**9),), 1e-5)
    assert exact <= bound <= 1.2 * exact


def test_renyis_divergence_is_an_integral():
    """Of order 3, noise 1.5 and rate 0.2: of the densities' quotient to the third, by summing."""
    values = np.linspace(-30.0, 40.0, 700_001)
    density = np.exp(-(values**2) / (2 * 1.5**2)) / (1.5 * sqrt(2 * np.pi))
    quotient = 0.8 + 0.2 * np.exp((values - 0.5) / 1.5**2)
    moment = float((density * quotient**3).sum() * (values[1] - values[0]))
    assert renyi_divergence(1.5, 0.2, 3) == pytest.approx(np.log(moment) / 2, rel=1e-9)
    # tiny losses do not cancel: rate^2 / noise^2 for order 2
    assert renyi_divergence(1e5, 1e-9, 2) == pytest.approx(1e-28, rel=1e-6)


def test_noise_is_found_for_an_epsilon():
    settings = mechanism("client").settings
    noise = noise_for(2.0, 10, settings, releases=3, batch=5)
    most, less = (mechanism("client", by * noise, releases=3).epsilon(10) for by in (1, 0.998))
    assert most <= 2.0 < less
    sampled = noise_for(200.0, 1, mechanism("poisson").settings, batch=5)  # little noise
    most, less = (mechanism("poisson", by * sampled).epsilon(1) for by in (1, 0.998))
    assert sampled < 0.2 and most <= 200.0 < less
    with pytest.raises(ValueError, match="needs more noise"):
        noise_for(1e-9, 10, settings)


def gaussian(sigma, shift, far=240):
    """The odds of shift + Y, at -far ... far."""
    values = np.arange(-far, far + 1)
    mass = np.exp(-((values - shift) ** 2) / (2.0 * sigma**2))
    return mass / np.exp(-(np.arange(-4 * far, 4 * far + 1.0) ** 2) / (2.0 * sigma**2)).sum()


def neighbours(kind, sigma, levels):
    """The exact odds of one release on two neighbouring data sets, for the worst that one may
    hold.
    """
    if kind in ("client", "example"):
        return gaussian(sigma, 0), gaussian(sigma, levels)
    # two examples and one more, each in the batch with probability 1/2
    with_it, without = np.zeros(481), np.zeros(481)
    for mine in (0, 1):
        for others in ((0, 0), (0, 1), (1, 0), (1, 1)):
            held = gaussian(sigma, levels * (others[0] - others[1] + mine))
            with_it += held / 8
            without += 0 if mine else held / 4
    return with_it, without


def exceeded(first, second, epsilon, times):
    """The exact probability by which the odds of so many releases exceed e^epsilon times those of
    the neighbour.
    """
    here, there = first, second
    for _ in range(times - 1):
        here, there = np.outer(here, first).ravel(), np.outer(there, second).ravel()
    return float(np.maximum(here - np.exp(epsilon) * there, 0).sum())


@pytest.mark.parametrize("kind", LEVELS_OF)
@pytest.mark.parametrize("times", [1, 2])
def test_neighbours_are_within_epsilon_exactly(kind, times):
    """Every outcome's exact odds, with 4 levels in place of 2^24.

    And the test would see noise of two thirds.
    """
    sampled = {"examples": 4} if kind == "poisson" else {}
    delta = 1e-3
    one = mechanism(kind, noise=4.0, batch=2, levels=4, delta=delta, **sampled)
    assert one.sigma == 16
    epsilon = one.epsilon(times)
    first, second = neighbours(kind, one.sigma, 4)
    assert (
        max(exceeded(first, second, epsilon, times), exceeded(second, first, epsilon, times))
        <= delta
    )
    if kind in ("client", "example"):
        first, second = neighbours(kind, 9, 4)
        assert exceeded(first, second, epsilon, times) > delta


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"level": "example", "sampling": "poisson"}, "needs examples"),
        ({"level": "example", "examples": 9}, "needs sampling"),
        ({"level": "client", "sampling": "poisson", "examples": 9}, "does not use sampling"),
        ({"level": "client", "clip": 0.0}, "greater than 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong, text):
    with pytest.raises(ValueError, match=text):
        PrivacySettings(**{"clip": 1.0, "noise": 1.0, **wrong})
