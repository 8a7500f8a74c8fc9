"""An answer about the status is small, whatever clients have sent."""

import json

import pytest

from fedseed.federation.network_coordinator import status_answer

MOST = 256 * 1024


def status(**more):
    return {"run": "x", "round": 3, "began": 1.5, "away": [], "last": {"loss": 0.5, "by": None}, "refusals": {}, **more}


def test_a_small_status_is_said_whole():
    about = status(refusals={"a": {"bad": 3, "worse": 1}}, away=["b"], behind={"a": 3})
    assert json.loads(status_answer(about, MOST)) == about


@pytest.mark.parametrize(
    "refusals",
    [{"a": {"x" * 900_000 + str(n): 1 for n in range(60)}}, {f"{n}{'é' * 1000}": {"r": 2} for n in range(3000)},
     {f"client-{n}": {"\x1b" * 300 + str(m): 1 for m in range(50)} for n in range(40)}],
)  # fmt: skip
def test_refusals_are_shortened_and_all_counted(refusals):
    answer = status_answer(status(refusals=refusals), MOST)
    about = json.loads(answer)
    assert len(answer) <= MOST and (about["round"], about["last"]) == (3, {"loss": 0.5, "by": None})
    counted = sum(sum(reasons.values()) for reasons in about["refusals"].values())
    assert counted == sum(sum(reasons.values()) for reasons in refusals.values())
