"""The broker goes away and comes back: everybody waits and goes on, with the digest of an undisturbed run."""

import pytest

from support.hostile.federation import METHODS
from support.hostile.outages import drawn, weather


@pytest.mark.parametrize(
    ("method", "inline"),
    [
        ("fedavg", 200),  # weights go through the object store
        pytest.param("feedsign", None, marks=pytest.mark.slow),
        pytest.param("ferret", None, marks=pytest.mark.slow),
        pytest.param("ferret", 200, marks=pytest.mark.slow),
        pytest.param("fedadam", 200, marks=pytest.mark.slow),
    ],
)
def test_everybody_waits_and_goes_on(method, inline, starter, problem, tmp_path, in_process):
    outages = drawn(seed=7, count=3, longest=3.0)

    def expected(recipe):
        return in_process(problem, recipe).summary

    weather(starter, problem, tmp_path, {"seed": 3, "method": METHODS[method]}, outages, expected, inline)
