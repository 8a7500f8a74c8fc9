"""How numbers over seeds become verdicts: paired t tests, Welch's where seeds differ, equivalence,
Holm, two looks.

A claim has evidence for it and against it: one-sided p values of the hypotheses that it is false,
and that it is true. Its p is twice the smaller. "As good" and "alike" have a margin, a tenth of the
gain over the base (two one-sided tests: Schuirmann, "A comparison of the two one-sided tests
procedure and the power approach", 1987); "ahead" is refuted by a lead that is surely less than the
margin, and holds of any that is surely above 0. Where a number is only known to be beyond what was
measured, pairs are counted (the sign test; the interval is the median's). Claims of an item share
5% of error (Holm, "A simple sequentially rejective multiple test procedure", 1979): 1% at five
seeds, 4% more at ten.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import comb, exp, inf, isfinite, isinf, isnan, log, nan, sqrt
from statistics import fmean, median, stdev
from typing import NamedTuple

from scipy.stats import binom, t

from fedseed_papers.findings import UNKNOWN, Claim, Verdict, judged

# the error that claims of an item may have together, from so many seeds on
LOOKS = {5: 0.01, 10: 0.04}
SURE = 0.95  # of the intervals that are shown, whatever the level of a verdict
# of the gain over the base (where there is none, of the largest mean): alike lines differ by less
MARGIN = 0.1

BySeed = Mapping[int, float]


class Difference(NamedTuple):
    """The mean of a difference, its standard error, the degrees of freedom, and how many seeds it
    comes from.
    """

    mean: float
    error: float
    freedom: float
    seeds: int

    def p_above(self, bound: float) -> float:
        """Return the p value of the hypothesis that the true difference is at most the bound."""
        return self._tail(self.mean - bound)

    def p_below(self, bound: float) -> float:
        """Return the p value of the hypothesis that the true difference is at least the bound."""
        return self._tail(bound - self.mean)

    def interval(self) -> tuple[float, float]:
        """Return the interval that holds the true difference with 95% confidence."""
        reach = 0.0
        if self.error:
            reach = self.error * float(t.ppf((1 + SURE) / 2, self.freedom))
        return self.mean - reach, self.mean + reach

    def _tail(self, distance: float) -> float:
        if not self.error:
            return 0.0 if distance > 0 else 1.0  # nothing is random
        return float(t.sf(distance / self.error, self.freedom))


class Evidence(NamedTuple):
    """What is known of a claim.

    Args:
        seeds: of the line that has fewest.
        estimate: of the difference (or ratio, or number) that it is about.
        interval: which holds the true one with 95% confidence.
        p_for: one-sided, of the hypothesis that the claim is false.
        p_against: of the hypothesis that it is true.
    """

    seeds: int
    estimate: float
    interval: tuple[float, float]
    p_for: float
    p_against: float

    @property
    def p(self) -> float:
        """Return the two-sided p value."""
        return min(1.0, 2 * min(self.p_for, self.p_against))


NOTHING = Evidence(0, nan, (nan, nan), 1.0, 1.0)


def difference(a: BySeed, b: BySeed) -> Difference:
    """Return a - b: paired where both have the same seeds, and so the same clients and batches.

    Else Welch's.
    """
    if set(a) == set(b):
        differences = [a[seed] - b[seed] for seed in a]
        return Difference(
            fmean(differences),
            stdev(differences) / sqrt(len(differences)),
            len(differences) - 1,
            len(differences),
        )
    parts = [(stdev(one.values()) ** 2 / len(one), len(one) - 1) for one in (a, b)]
    whole = sum(variance for variance, _ in parts)
    freedom = 1.0
    if whole:
        freedom = whole**2 / sum(variance**2 / free for variance, free in parts)
    return Difference(
        fmean(a.values()) - fmean(b.values()), sqrt(whole), freedom, min(len(a), len(b))
    )


def ahead(best: BySeed, worst: BySeed, margin: float = 0.0, lead: float = 0.0) -> Evidence:
    """Return what says that a line is ahead of another.

    Args:
        best: of which more is better, as of `worst`; -inf: worse than whatever was measured.
        worst: the other line.
        margin: the first may also be as good, or worse by so much.
        lead: what counts as one: less than that is evidence against.
    """
    diverged = [not any(map(isfinite, line.values())) for line in (best, worst)]
    if diverged[0] != diverged[1] and all(map(isfinite, (worst if diverged[0] else best).values())):
        # of all ways to deal the runs that ended without a number to two lines, just one is this
        # one (Fisher)
        p, sign = 1 / comb(len(best) + len(worst), len(best)), -1 if diverged[0] else 1
        return Evidence(
            min(len(best), len(worst)), sign * inf, (sign * inf, sign * inf), *(p, 1.0)[::sign]
        )
    if set(best) == set(worst) and any(map(isinf, [*best.values(), *worst.values()])):
        return _counted([best[seed] - worst[seed] for seed in best], -margin, lead - margin)
    if not are_known(best, worst):
        return NOTHING
    evidence = difference(best, worst)
    return Evidence(
        evidence.seeds,
        evidence.mean,
        evidence.interval(),
        evidence.p_above(-margin),
        evidence.p_below(lead - margin),
    )


def _counted(gaps: Sequence[float], least: float, highest: float) -> Evidence:
    """Return what pairs say that have more than the least, or less than the most.

    A pair without a number neither.
    """
    count, reach = len(gaps), int(binom.ppf((1 - SURE) / 2, len(gaps), 0.5))
    low = sorted(-inf if isnan(gap) else gap for gap in gaps)
    high = sorted(inf if isnan(gap) else gap for gap in gaps)
    within = (low[reach - 1], high[-reach]) if reach else (-inf, inf)
    above_least = sum(gap > least for gap in gaps)
    below_highest = sum(gap < highest for gap in gaps)
    p_for = float(binom.sf(above_least - 1, count, 0.5))
    p_against = float(binom.sf(below_highest - 1, count, 0.5))
    return Evidence(count, median(low), within, p_for, p_against)


def alike(lines: Sequence[BySeed], margin: float) -> Evidence:
    """Return what says that no two lines differ by more than a margin."""
    if not are_known(*lines):
        return NOTHING
    pairs = [difference(a, b) for a, b in combinations(lines, 2)]
    widest = max(pairs, key=lambda pair: abs(pair.mean))
    p_for = max(max(pair.p_above(-margin), pair.p_below(margin)) for pair in pairs)
    p_against = min(min(pair.p_above(margin), pair.p_below(-margin)) for pair in pairs) * len(pairs)
    return Evidence(
        min(pair.seeds for pair in pairs),
        widest.mean,
        widest.interval(),
        p_for,
        min(1.0, p_against),
    )


def at_least(line: BySeed, least: float, baseline: BySeed | None = None) -> Evidence:
    """Return what says that a number is at least `least`, or its ratio over another line's (both
    positive).
    """
    if not are_known(line, baseline or line):
        return NOTHING
    unit: Callable[[float], float] = exp
    if baseline is None:
        unit = float
    if baseline is None:
        evidence, bound = difference(line, dict.fromkeys(line, 0.0)), least
    elif min(*line.values(), *baseline.values()) <= 0:
        return NOTHING
    else:
        logs = []
        for one in (line, baseline):
            logs.append({seed: log(value) for seed, value in one.items()})
        evidence, bound = difference(*logs), log(least)
    low, high = map(unit, evidence.interval())
    estimate = (
        evidence.mean if baseline is None else fmean(line.values()) / fmean(baseline.values())
    )
    # equal will do, if nothing varies
    p_for = (
        evidence.p_above(bound)
        if evidence.error
        else float(evidence.mean < bound - 1e-9 * abs(bound))
    )
    return Evidence(evidence.seeds, estimate, (low, high), p_for, evidence.p_below(bound))


def at_most(line: BySeed, bound: float) -> Evidence:
    """Return what says that a number is at most `bound`."""
    evidence = at_least({seed: -value for seed, value in line.items()}, -bound)
    low, high = evidence.interval
    return Evidence(
        evidence.seeds, -evidence.estimate, (-high, -low), evidence.p_for, evidence.p_against
    )


def are_known(*lines: BySeed) -> bool:
    """Return whether lines have two numbers at least, all of them finite."""
    return all(len(line) > 1 and all(map(isfinite, line.values())) for line in lines)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted so that all of them together err as often as one."""
    adjusted, highest = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def level(seeds: int) -> float:
    """Return the error that may be spent with so many seeds; 0 with too few."""
    return max((spent for count, spent in LOOKS.items() if count <= seeds), default=0.0)


def verdict(evidence: Evidence, p: float) -> Verdict:
    """Return the verdict of evidence with its adjusted p: the one place where the words are
    decided.
    """
    if p >= level(evidence.seeds):
        return UNKNOWN
    # Holm's factor; a small lead may be surely one, and surely small
    factor = 1.0
    if evidence.p:
        factor = p / evidence.p
    return judged(2 * evidence.p_for * factor < level(evidence.seeds), kind=True)


def concluded(claims: Sequence[tuple[str, str, Evidence]]) -> list[Claim]:
    """Return an item's claims with their verdicts, which share one error.

    Args:
        claims: what the paper says, what was measured, and what is known of it.
    """
    adjusted = iter(holm([evidence.p for *_, evidence in claims if evidence is not NOTHING]))
    claims_made = []
    for says, place, evidence in claims:
        if evidence is NOTHING:
            claims_made.append(Claim(says, place, UNKNOWN))
            continue
        p, (low, high) = (
            next(adjusted),
            (end if isfinite(end) else str(end) for end in evidence.interval),
        )
        claims_made.append(
            Claim(
                says,
                f"{place} {describe_evidence(evidence, p)}",
                verdict(evidence, p),
                evidence.seeds,
                (low, high),
                p,
            )
        )
    return claims_made


def describe_evidence(evidence: Evidence, p: float) -> str:
    """Return the numbers behind a verdict in words."""
    if evidence is NOTHING:
        return "too few runs, or runs without a number."
    low, high = evidence.interval
    return f"{evidence.estimate:+.3g} [{low:.3g}, {high:.3g}], p = {p:.2g}, {evidence.seeds} seeds."
