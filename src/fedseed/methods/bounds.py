"""Conditions that the papers' theorems put on the learning rate, with what is measured of the loss.

A theorem holds for losses that are L-smooth: no eigenvalue of the Hessian H is larger than L. A
search for a rate measures the curvature u^T H u along the steps' directions u, so that L is at
least that. If the directions are random, d times the mean curvature is tr H = L r, with the
effective rank r, and L is at most tr H where the loss is convex. So a bound is known within limits.

`rate_bound` has a function for each method that the papers have a theorem on; a method from
elsewhere may register its own. They stand here and not with the methods, which read like the
papers' boxes.
"""

from dataclasses import dataclass
from functools import singledispatch
from math import sqrt

from fedseed.methods.base import Method
from fedseed.methods.fedkseed import FedKSeed
from fedseed.methods.fedmezo import FedMeZO
from fedseed.methods.fedsgd import FedSGD
from fedseed.methods.fedzo import FedZO
from fedseed.methods.feedsign import FeedSign
from fedseed.methods.ferret import Ferret
from fedseed.methods.mezo import MeZO
from fedseed.methods.stepwise import Stepwise
from fedseed.methods.zofedsgd import ZOFedSGD


@dataclass(frozen=True)
class Landscape:
    """What a search for a rate has measured of the loss around the base.

    Args:
        parameters: d, the number of values that are trained.
        clients: N, the number of clients in a round.
        slope: the mean fall of the loss per unit of length along the method's steps.
        curvature: the mean curvature along them.
    """

    parameters: int
    clients: int
    slope: float
    curvature: float

    @property
    def trace(self) -> float:
        """Return an estimate of tr H = L r, if the steps are along random directions."""
        return self.parameters * self.curvature


@dataclass(frozen=True)
class RateBound:
    """A theorem's condition on the learning rate.

    Args:
        theorem: paper and number.
        condition: in the paper's symbols.
        most: the rate that it allows at most: with the smallest L that was measured.
        least: the rate that it allows in any case: with the largest L; None: not known.
        note: what the numbers are based on, or why there are none.
    """

    theorem: str
    condition: str
    most: float | None = None
    least: float | None = None
    note: str = ""

    def __str__(self) -> str:
        text = f"{self.theorem}: {self.condition}"
        if self.most is None:
            return f"{text}; {self.note}"
        if self.least is None:
            return f"{text}: at most {self.most:.2g} here ({self.note})"
        if self.least == self.most:
            return f"{text}: {self.most:.2g} here ({self.note})"
        return f"{text}: between {self.least:.2g} and {self.most:.2g} here ({self.note})"


NO_CURVATURE = "the curvature along the steps was not positive, so that L is not known"
FOR_ONE_VOTE = "it is for plain steps along one direction, which these settings change"
FOR_PLAIN_STEPS = "it is for plain steps (-rate times the estimate), which these settings change"
# theorem and condition
THEOREM_B_1 = (
    "FeedSign, Theorem B.1 (of 3.11)",
    "the loss falls for rates below 2 (1 - 2 p) sqrt(2 / pi) |grad| / (L r)",
)
THEOREM_3_1 = (
    "FedMeZO, Theorems 3.1 and 3.4 (Eqs. 7 and 11)",
    "rates up to min(1 / (3 H L sqrt(c_g d)), N / (3 H L c_g), 1 / H^2)",
)
THEOREM_4 = "Ferret, Theorem 4", "rates up to 1 / (20 beta T)"
LEMMA_F_1 = "FeedSign, Lemma F.1", "the loss falls for rates below 2 / L"
LEMMA_3_9 = "FeedSign, Lemma 3.9 (Eq. 35)", "the loss falls for rates below 2 / (L zeta)"
# FedKSeed's Theorem 1 (Eq. 9) is on FedZO
UNNAMED = RateBound(
    "FedKSeed, Theorem 1",
    "it bounds the squared gradient up to a constant",
    note="neither that constant nor a condition on the rate is in the paper",
)


@singledispatch
def rate_bound(method: Method, landscape: Landscape) -> RateBound | None:
    """Return the condition that a paper's theorem puts on a method's learning rate.

    None if the papers have no theorem for the method.

    Args:
        method: the method with its settings.
        landscape: what is known of the loss around the base.
    """
    return None


@rate_bound.register(MeZO)
@rate_bound.register(ZOFedSGD)
def _(method: MeZO | ZOFedSGD, landscape: Landscape) -> RateBound:
    if not _takes_plain_steps(method):
        return RateBound(*LEMMA_3_9, note=FOR_PLAIN_STEPS)
    return zeroth_order_bound(landscape, method.per_step)


@rate_bound.register
def _(method: FeedSign, landscape: Landscape) -> RateBound:
    if not _takes_plain_steps(method) or method.has_many_directions:
        return RateBound(*THEOREM_B_1, note=FOR_ONE_VOTE)
    return sign_bound(landscape)


@rate_bound.register
def _(method: FedMeZO, landscape: Landscape) -> RateBound:
    if method.normalize != "none" or method.clip_projection is not None:
        return RateBound(*THEOREM_3_1, note=FOR_PLAIN_STEPS)
    return local_zeroth_order_bound(landscape, method.steps)


@rate_bound.register
def _(method: Ferret, landscape: Landscape) -> RateBound:
    training = method.training
    if training.optimizer != "sgd" or training.momentum or method.server != "average":
        return RateBound(*THEOREM_4, note=FOR_PLAIN_STEPS)
    return projected_bound(landscape, None if training.epochs else training.steps)


@rate_bound.register
def _(method: FedSGD, landscape: Landscape) -> RateBound:
    if method.server != "average":
        return RateBound(*LEMMA_F_1, note=FOR_PLAIN_STEPS)
    return gradient_bound(landscape)


@rate_bound.register(FedKSeed)
@rate_bound.register(FedZO)
def _(method: FedKSeed | FedZO, landscape: Landscape) -> RateBound:
    return UNNAMED


def _takes_plain_steps(method: Stepwise) -> bool:
    """Return whether a step is -eta times the mean estimate."""
    return (
        method.optimizer == "sgd"
        and method.divide_by == "nothing"
        and method.normalize == "none"
        and method.clip_projection is None
    )


def zeroth_order_bound(landscape: Landscape, directions: int) -> RateBound:
    """Return the bound of FeedSign's Lemma 3.9 (Eqs. 13 and 14; Malladi et al., 2023).

    The expected loss falls for 0 < eta < 2 / (L zeta c_g (1 + c_h)) (Eq. 35), with
    zeta = (d r + d - 2) / (n (d + 2)) + 1. For batches and clients that are alike c_g = 1 and
    c_h = 0, which are taken here. With tr H = L r, L zeta = (d tr H + (d - 2) L) / (n (d + 2)) + L.

    Args:
        landscape: what was measured.
        directions: n, the number of directions of a step.
    """
    theorem, condition = LEMMA_3_9
    if landscape.curvature <= 0:
        return RateBound(theorem, condition, note=NO_CURVATURE)
    d, trace = landscape.parameters, landscape.trace

    def allowed(largest: float, trace: float) -> float:
        return 2 / ((d * trace + (d - 2) * largest) / (directions * (d + 2)) + largest)

    return RateBound(
        theorem,
        condition,
        allowed(landscape.curvature, trace),
        allowed(trace, trace),
        f"tr H = L r is about {trace:.2g}; L was not measured: it is between "
        f"{landscape.curvature:.2g} and that",
    )


def sign_bound(landscape: Landscape) -> RateBound:
    """Return the bound of FeedSign's Theorem B.1 (Eq. 19), which Theorem 3.11 sums over steps.

    The expected loss falls as long as eta < 2 (1 - 2 p) sqrt(2 / pi) |grad| / (L r). A vote's mean
    slope along z / |z| is (1 - 2 p) sqrt(2 / pi) |grad| / sqrt(d), so that this is
    2 sqrt(d) slope / tr H.
    """
    theorem, condition = THEOREM_B_1
    trace = landscape.trace
    if trace <= 0:
        return RateBound(theorem, condition, note=NO_CURVATURE)
    if landscape.slope <= 0:
        return RateBound(
            theorem,
            condition,
            note="the steps did not lead downhill on average, so that p is not below one half",
        )
    rate = 2 * sqrt(landscape.parameters) * landscape.slope / trace
    return RateBound(
        theorem,
        condition,
        rate,
        rate,
        f"L r = tr H is about {trace:.2g}; the numerator is from the mean slope. It shrinks with "
        "the gradient during the run. The floor of Theorem 3.11 needs delta, which was not "
        "measured",
    )


def local_zeroth_order_bound(landscape: Landscape, steps: int) -> RateBound:
    """Return the condition of FedMeZO's Theorem 3.1 (Eq. 7), the same as Eq. 11 of Theorem 3.4.

    eta <= min(1 / (3 H L sqrt(c_g d)), N / (3 H L c_g), 1 / H^2). c_g, a factor on the variance of
    batches, is at least 1, which is taken here.

    Args:
        landscape: what was measured.
        steps: H, the number of local steps in a round.
    """
    theorem, condition = THEOREM_3_1
    of_steps = 1 / steps**2
    if landscape.curvature <= 0:
        return RateBound(
            theorem, condition, of_steps, note=f"1 / H^2, with H = {steps}; {NO_CURVATURE}"
        )
    by_curvature = 3 * steps * landscape.curvature
    most = min(
        1 / (by_curvature * sqrt(landscape.parameters)), landscape.clients / by_curvature, of_steps
    )
    return RateBound(theorem, condition, most, note=f"with c_g = 1; {_largest_is_more(landscape)}")


def projected_bound(landscape: Landscape, steps: int | None) -> RateBound:
    """Return the condition of Ferret's Theorem 4: eta <= 1 / (20 beta T).

    Args:
        landscape: what was measured; beta is L.
        steps: T, the number of local steps; None: it differs from client to client.
    """
    theorem, condition = THEOREM_4
    if steps is None:
        return RateBound(
            theorem, condition, note="with training.epochs clients have no common number T of steps"
        )
    if landscape.curvature <= 0:
        return RateBound(theorem, condition, note=NO_CURVATURE.replace("L is", "beta is"))
    return RateBound(
        theorem,
        condition,
        1 / (20 * landscape.curvature * steps),
        note=_largest_is_more(landscape, "beta"),
    )


def gradient_bound(landscape: Landscape) -> RateBound:
    """Return the bound of FeedSign's Lemma F.1, the textbook's for gradients: eta < 2 / L."""
    theorem, condition = LEMMA_F_1
    if landscape.curvature <= 0:
        return RateBound(theorem, condition, note=NO_CURVATURE)
    return RateBound(theorem, condition, 2 / landscape.curvature, note=_largest_is_more(landscape))


def _largest_is_more(landscape: Landscape, symbol: str = "L") -> str:
    return (
        f"{symbol} was not measured: it is at least the curvature along the steps, "
        f"{landscape.curvature:.2g}"
    )
