"""Makes a few scalars private: they are bounded, added up in whole numbers, and get discrete
Gaussian noise.

    v_i   <- v_i min(1, C / |v_i|)                      one vector for each example or client
    answer = (C / B) [ sum_i trunc(B v_i / C) + Y ]     Y_j: discrete Gaussian, B = 2^24,
                                                        sigma = ceil(noise B)

DP-ZO (Tang et al., 2024) and DPZero (Zhang et al., 2024) clip an example's difference of losses and
add noise to the sum. For several directions an example's differences are one vector, bounded before
the vectors are added up, as in DP-AggZO. At client level the vectors are those that clients send.

Everything that depends on data is a sum of whole numbers. Later computations (the division by B,
rounding to single precision) use only the noisy sum, so rounding reveals nothing. Truncation does
not make vectors longer, so |trunc(B v / C)| <= B exactly.

The account uses privacy loss distributions of the continuous Gaussian. The discrete Gaussian's
delta differs from it by a share of about 1 / sigma^2, because a sum over whole numbers differs from
an integral at the cut-off. Ten times this share is subtracted from delta. With sigma = noise B,
this does not change any displayed digit.

    no sampling   t releases with noise s equal one with noise s / sqrt(t), whose epsilon is known
                  in closed form
    poisson       `dp-accounting`'s distribution of one release, composed with itself
    hardly any    if the distance of neighbours' outcomes is at most delta, epsilon is 0
    very many     for more than 2^20 sampled releases, a bound by Renyi's divergences: about a tenth
                  too high, and hundreds of times too high if sampling is rare and noise small
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, erf, expm1, inf, log, log1p, sqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedseed.privacy.draws import Bytes, discrete_gaussian
from fedseed.privacy.settings import PrivacySettings

LEVELS = 1 << 24  # B, the number of steps from 0 to a vector's bound
MOST = 1 << 40  # the most turns that the search for a budget considers
# how many releases are composed at once: `dp-accounting` searches for the range of the sum among
# few candidates, and for many more releases it takes a far larger range than needed
COMPOSED_AT_ONCE = 1 << 10
TRUNCATED_MASS = 1e-15  # the share of outcomes that a composition may leave out, added to delta
# the most sampled releases whose distributions are composed; with more, rounding errors and time
# would grow without limit
MOST_COMPOSED = 1 << 20
# the orders at which Renyi's divergences are computed: the best order falls as epsilon grows
RENYI_ORDERS = sorted({round(2 ** (power / 4)) for power in range(4, 65)})
LARGEST_EXPONENT = 700.0  # beyond it e^x overflows


@dataclass(frozen=True)
class PrivateScalars:
    """The mechanism of a recipe's `[privacy]` for one method."""

    settings: PrivacySettings  # the recipe's settings
    releases: int = 1  # noisy vectors in a client's turn: its local steps, or 1
    batch: int = 1  # number of examples in an estimate, according to the method
    levels: int = LEVELS  # B
    random: Bytes = os.urandom  # makes random bytes

    # the account counts the turns of the client with the most turns
    by_turns: ClassVar[bool] = True

    @property
    def sigma(self) -> int:
        """The deviation of the noise, in whole numbers."""
        return ceil(self.settings.noise * self.levels)

    def noisy_sum(
        self, vectors: Sequence[NDArray[np.floating[Any]]], length: int
    ) -> NDArray[np.float64]:
        """Return the sum of bounded vectors, with noise.

        Args:
            vectors: each of shape (length,). A vector that is not finite counts as zeros. There may
                be none.
            length: entries of the sum.
        """
        total = discrete_gaussian(self.sigma, length, self.random)
        for vector in vectors:
            total += to_levels(vector, self.settings.clip, self.levels)
        return np.asarray(total * (self.settings.clip / self.levels), dtype=np.float64)

    def mean(
        self, vectors: Sequence[NDArray[np.floating[Any]]], client_count: int
    ) -> NDArray[np.float64]:
        """Return the noisy sum of clients' vectors, divided by the number of clients asked.

        The divisor does not depend on how many have answered.

        Args:
            vectors: the vectors of the clients that answered, of equal length; at least one.
            client_count: number of clients that were asked.
        """
        return self.noisy_sum(vectors, len(vectors[0])) / client_count

    @property
    def affordable(self) -> int | None:
        """The most turns within the budget; None if there is no budget."""
        budget = self.settings.budget
        if budget is None:
            return None
        low, high = 0, 1  # number of turns within the budget, and of turns beyond it
        while high < MOST and self.epsilon(high) <= budget:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self.epsilon(middle) <= budget:
                low = middle
            else:
                high = middle
        return low

    def within_budget(self, turns: int) -> bool:
        """Return whether there is a budget, and `turns` turns are within it."""
        return self.settings.budget is not None and self.epsilon(turns) <= self.settings.budget

    def epsilon(self, turns: int) -> float:
        """Return epsilon at delta of `turns` turns."""
        if turns == 0:
            return 0.0
        return composed_epsilon(
            (replace(self.turn, count=turns * self.releases),),
            delta_left(self.settings.delta, self.sigma),
        )

    @property
    def turn(self) -> "Releases":
        """The releases of a client's turn."""
        rate = 1.0 if self.settings.examples is None else self.batch / self.settings.examples
        return Releases(self.sigma / self.levels, rate, self.releases)

    def counted(self, rounds: int) -> dict[str, Any]:
        """Return `spent`, which is quick enough for `status`."""
        return self.spent(rounds)

    def spent(self, rounds: int) -> dict[str, Any]:
        """Return the privacy that the client with most turns has spent in `rounds` turns.

        Returns:
            `level`, `adjacency` (whether neighbours differ by an additional example, or by an
            example that counts as nothing), `turns`, `releases` (noisy vectors of one client),
            `noise`, `delta`, `epsilon`, and `budget` if there is one.
        """
        settings = self.settings
        figures = {
            "level": settings.level,
            "adjacency": "zero-out" if settings.sampling == "none" else "add-or-remove",
            "turns": rounds,
            "releases": rounds * self.releases,
            "noise": settings.noise,
            "delta": settings.delta,
            "epsilon": self.epsilon(rounds),
        }
        return figures if settings.budget is None else {**figures, "budget": settings.budget}


def to_levels(vector: NDArray[np.floating[Any]], clip: float, levels: int) -> NDArray[np.int64]:
    """Return a vector in whole numbers, at most `levels` long.

    Args:
        vector: 1-D; a vector that is not finite becomes zeros.
        clip: the length that becomes `levels`; longer vectors are shortened to it.
        levels: at most 2^24.

    Returns:
        Whole numbers with a sum of squares of at most levels^2.
    """
    doubles = np.asarray(vector, dtype=np.float64)
    largest = float(np.abs(doubles).max(initial=0.0))
    if not 0 < largest < inf:  # also for NaN
        return np.zeros(len(doubles), dtype=np.int64)
    scaled = doubles / largest  # so that no square overflows
    norm = float(np.sqrt(np.square(scaled).sum()))
    share_of_clip = 1.0 if largest * norm > clip else largest * norm / clip
    factor = levels * share_of_clip / norm
    numbers = np.trunc(scaled * factor).astype(np.int64)
    # rounding of doubles may make the vector slightly too long
    while int(np.square(numbers).sum()) > levels * levels:
        numbers -= np.sign(numbers)
    return numbers


def shorten(vector: NDArray[np.floating[Any]], clip: float) -> NDArray[np.float64]:
    """Return a vector shortened to `clip`, up to rounding; zeros if it is not finite."""
    return np.asarray(to_levels(vector, clip, LEVELS) * (clip / LEVELS), dtype=np.float64)


@dataclass(frozen=True, order=True)
class Releases:
    """Released noisy vectors of one kind.

    Args:
        multiplier: the noise's standard deviation, divided by the longest vector of one example.
        rate: the probability with which an example is in a batch; 1: it is in every batch.
        count: the number of vectors.
    """

    multiplier: float
    rate: float
    count: int


def delta_left(delta: float, sigma: float) -> float:
    """Return the delta for the account with the continuous Gaussian.

    Args:
        delta: the delta in the settings.
        sigma: the standard deviation of the discrete noise, in whole numbers; the smallest one, if
            there are several kinds.
    """
    return delta / (1 + 10 / sigma**2)


@cache
def composed_epsilon(kinds: tuple[Releases, ...], delta: float) -> float:
    """Return epsilon at delta of noisy vectors of several kinds together.

    Args:
        kinds: the released vectors, each kind once.
        delta: the probability with which epsilon may be exceeded, from 0 to 1.

    Returns:
        Epsilon. If there are kinds with and without sampling, neighbours differ by an example that
        counts as nothing (under Poisson sampling this equals a missing example).
    """
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

    if not kinds:
        return 0.0
    if _largest_distance(kinds) <= delta:
        return 0.0
    precision = sum(kind.count / kind.multiplier**2 for kind in kinds)
    gaussian = GaussianPrivacyLoss(1 / sqrt(precision))
    # delta at the upper end is e^-800
    low, high = 0.0, precision / 2 + 40 * sqrt(precision)
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if gaussian.get_delta_for_epsilon(middle) > delta:
            low = middle
        else:
            high = middle
    sampled = [kind for kind in kinds if kind.rate < 1.0]
    if not sampled:
        return high
    step = _step_of(kinds, high)
    if step > 0.5:
        # here epsilon is tens of thousands, and sampling makes no useful difference
        return high
    bound = min(high, _renyi_epsilon(kinds, delta))
    if sum(kind.count for kind in sampled) > MOST_COMPOSED:
        return bound
    # with a smaller step, sums of losses overflow; this step is exact to 1e-6 over all releases
    # together
    step = max(step, 1e-6 / sum(kind.count for kind in sampled))
    interval = 2.0 ** ceil(np.log2(step))
    parts = [
        compose_many(_one_release(kind.multiplier, kind.rate, interval), kind.count)
        for kind in sampled
    ]
    unsampled = precision - sum(kind.count / kind.multiplier**2 for kind in sampled)
    if len(sampled) < len(kinds):
        parts.append(_one_release(1 / sqrt(unsampled), 1.0, interval))
    composed = parts[0]
    for part in parts[1:]:
        composed = composed.compose(part)
    # sampling never makes epsilon larger, but the step of losses may make the distribution too
    # coarse
    return min(bound, float(composed.get_epsilon_for_delta(delta)))


def _largest_distance(kinds: Sequence[Releases]) -> float:
    """Return an upper bound of the total variation distance of neighbours' outcomes.

    It is the least delta at which epsilon is 0. The smaller one of two bounds, which hold with and
    without sampling:

        sum of the releases' own distances   count rate erf(1 / (sqrt(8) noise))
        half the root of chi squared         chi^2 + 1 = prod (1 + rate^2 (e^(1 / noise^2) - 1))
    """
    distances, log_product = 0.0, 0.0
    for kind in kinds:
        mean = 1 / kind.multiplier
        distances += kind.count * kind.rate * erf(mean / sqrt(8))
        variance = kind.rate**2 * expm1(min(mean * mean, LARGEST_EXPONENT))
        log_product += kind.count * log1p(variance)
    return min(distances, sqrt(expm1(min(log_product, LARGEST_EXPONENT))) / 2)


def _renyi_epsilon(kinds: Sequence[Releases], delta: float) -> float:
    """Return an upper bound of epsilon at delta, by Renyi's divergences of whole orders.

    The divergence of order a of the sampled Gaussian is that of Mironov, Talwar, Zhang, "Renyi
    Differential Privacy of the Sampled Gaussian Mechanism", 2019, and epsilon follows as in
    Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", 2020, Prop. 12:

        (a - 1) D = log sum_k binomial(a, k) (1 - rate)^(a - k) rate^k e^(k (k - 1) / (2 noise^2))
        epsilon   = D - log(delta a) / (a - 1) + log(1 - 1 / a)
    """
    return min(
        sum(kind.count * renyi_divergence(kind.multiplier, kind.rate, order) for kind in kinds)
        - log(delta * order) / (order - 1)
        + log1p(-1 / order)
        for order in RENYI_ORDERS
    )


@cache
def renyi_divergence(multiplier: float, rate: float, order: int) -> float:
    """Return Renyi's divergence of one release, of a whole order from 2."""
    if rate == 1.0:
        return order / (2 * multiplier**2)
    numbers = np.arange(order + 1, dtype=np.float64)
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(numbers[1:]))])
    log_chances = (
        log_factorials[-1]
        - log_factorials
        - log_factorials[::-1]
        + numbers * log(rate)
        + numbers[::-1] * log1p(-rate)
    )
    # chances add up to 1: leaving them out gives the excess over 1, without cancellation
    exponents = (numbers * (numbers - 1) / (2 * multiplier**2))[2:]
    log_terms = log_chances[2:] + exponents + np.log(-np.expm1(-exponents))
    return float(np.logaddexp(0.0, np.logaddexp.reduce(log_terms))) / (order - 1)


def compose_many(one: Any, count: int) -> Any:
    """Return the privacy loss distribution of `count` releases, in stages of a bounded size.

    Args:
        one: the distribution of one release.
        count: at least 1.
    """
    if count <= COMPOSED_AT_ONCE:
        return one.self_compose(count)
    groups, rest = divmod(count, COMPOSED_AT_ONCE)
    # each group omits its own share of outcomes, and the shares add up
    group = one.self_compose(COMPOSED_AT_ONCE, TRUNCATED_MASS / groups)
    composed = compose_many(group, groups)
    return composed.compose(one.self_compose(rest)) if rest else composed


def _step_of(kinds: Sequence[Releases], highest: float) -> float:
    """Return a step of losses that is fine enough for epsilons up to `highest`."""
    tops, variance = [], 0.0
    for kind in kinds:
        mean = 1 / kind.multiplier
        rest = log1p(-kind.rate) if kind.rate < 1.0 else -inf
        # the largest loss of one release
        tops.append(float(np.logaddexp(log(kind.rate) + mean * mean / 2 + 10 * mean, rest)))
        # the variance of all losses together, approximately
        variance += kind.count * expm1(mean * mean) * kind.rate**2 if mean < 25 else inf
    top, spread = max(tops), sqrt(variance)
    return max(
        top / 1e5,
        min(1e-3, top / 1e3),
        min(highest, spread * spread / 2 + 10 * spread) / 1e6,
    )


@cache
def _one_release(multiplier: float, rate: float, step: float) -> Any:
    """Return the privacy loss distribution of one noisy vector, in multiples of `step`."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    return from_gaussian_mechanism(
        multiplier, value_discretization_interval=step, sampling_prob=rate
    )


def noise_for(
    epsilon: float, turns: int, settings: PrivacySettings, releases: int = 1, batch: int = 1
) -> float:
    """Return the least noise, accurate to a thousandth, with which `turns` turns spend epsilon.

    Args:
        epsilon: the target, at the settings' delta.
        turns: number of turns of the client that is asked in most rounds.
        settings: the recipe's `[privacy]`; its noise does not matter.
        releases: noisy vectors in a turn.
        batch: number of examples in an estimate.

    Raises:
        ValueError: no possible noise is enough.
    """
    low, high = 1e-3, 1e5
    while high > 1.0005 * low:
        middle = (low * high) ** 0.5
        settings_with_noise = settings.model_copy(update={"noise": middle})
        is_within = PrivateScalars(settings_with_noise, releases, batch).epsilon(turns) <= epsilon
        low, high = (low, middle) if is_within else (middle, high)
    if high > 0.999e5:
        raise ValueError(
            f"epsilon = {epsilon:g} in {turns} turns needs more noise than 1e5 times clip"
        )
    return high
