"""Three tiers of tests: what ends in two minutes, what a user relies on, and what takes long.

- `make check` leaves out what is marked `long`: tests that start processes, train for seconds or
  need a server.
- `make test` runs all but what is marked `slow`.
- `make slow` (FEDSEED_SLOW=1) runs what is marked `slow`: wider matrices of which the others have a
  part, long faults.

`tiered` takes of a matrix what has every value, or every pair of values, always; what has every
pair, or every three of them, in the slow tier.

Tests that try what a machine draws go on for seconds there; `FEDSEED_SECONDS=600` makes each of
them go on for ten minutes (`limit_seconds`)."""

import itertools
import os

import pytest

SLOW = os.environ.get("FEDSEED_SLOW") == "1"
SECONDS_NAME = "FEDSEED_SECONDS"


def limit_seconds(default):
    """Return for how many seconds a test goes on trying what it draws.

    Args:
        default: the seconds where $FEDSEED_SECONDS is not set.
    """
    return float(os.environ.get(SECONDS_NAME, default))


def covering(cases, together):
    """The smallest set of cases that a greedy search finds in which all that is in some case is in
    one of the set.

    Args:
        cases: tuples of the numbers of their values, all of one length.
        together: 1, every value of every axis; 2, every pair of values of two axes; ...
    """

    def parts(case):
        return set(itertools.combinations(enumerate(case), together))

    missing = set().union(*map(parts, cases)) if cases else set()
    chosen, rest = [], [(case, parts(case)) for case in cases]
    while missing:
        # the first of those that add as much
        best = max(rest, key=lambda one: len(one[1] & missing))
        missing -= best[1]
        chosen.append(best[0])
    return set(chosen)


def tiered(axes, together=1, without=None, quick=None, slow=None):
    """Parametrize a test by a product: of a covering set, and of one with one value more together,
    which is slow.

    Args:
        axes: values by the name of their argument; names may be several, such as "start, count",
            for tuples.
        together: see `covering`.
        without: says by a case's values which there is not.
        quick: how many of those that are always run are quick ones; the rest is long. None: all.
        slow: says by a case's values which are slow in any case; what only they have is tried in
            the slow tier only.
    """
    names = [name.strip() for axis in axes for name in axis.split(",")]
    values = [list(of_axis) for of_axis in axes.values()]

    def flat(case):
        made = []
        for axis, at, of_axis in zip(axes, case, values, strict=True):
            made += of_axis[at] if "," in axis else [of_axis[at]]
        return made

    cases = list(itertools.product(*(range(len(of_axis)) for of_axis in values)))
    cases = [case for case in cases if without is None or not without(*flat(case))]
    always = covering([case for case in cases if slow is None or not slow(*flat(case))], together)
    chosen = sorted(always)
    if quick is not None:  # from all over the matrix
        chosen = chosen[:: max(1, len(chosen) // quick)][:quick]
    long, rest = [pytest.mark.long], [pytest.mark.slow]
    cases = sorted(always | covering(cases, together + 1))
    marks = {case: [] if case in chosen else long if case in always else rest for case in cases}
    return pytest.mark.parametrize(
        names, [pytest.param(*flat(case), marks=marks[case]) for case in cases]
    )


def mark(params, which, marker="slow"):
    """The values of one argument, those for which `which` is true marked.

    A text that it returns is the marker.
    """
    found = [(p, marker if which(p) is True else which(p)) for p in params]
    return [pytest.param(p, marks=[getattr(pytest.mark, name)]) if name else p for p, name in found]
