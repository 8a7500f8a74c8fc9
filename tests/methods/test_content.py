"""What messages hold, by kinds of numbers, from the declared fields alone: known values of every
method.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pytest
from numpy.typing import NDArray

from fedseed import FedAvg, FedKSeed, FedMeZO, FedSGD, FeedSign, MeZO, ZOFedSGD
from fedseed.methods.payload import (
    Array,
    Bits,
    Content,
    Floats,
    Many,
    Payload,
    Ragged,
    Scalar,
    sum_contents,
)
from support.problem import Problem

QUICK = {"basis": "rademacher", "batch": 4, "scale": 1e-3, "learning_rate": 1e-3}
D = 20 * 32 + 32 + 32 * 5 + 5  # parameters of the problem's model
CLIENTS, ROUNDS = 5, 2


@dataclass(frozen=True)
class Inner(Payload):
    seed: Annotated[int, Scalar("u8")]
    blocks: Annotated[tuple[Floats, ...], Ragged("most")]


@dataclass(frozen=True)
class All(Payload):
    rate: Annotated[float, Scalar("f8")]
    nothing: Annotated[float | None, Scalar("f4", condition="never")]
    indices: Annotated[NDArray[np.uint32], Array("u4", "n")]
    scalars: Annotated[Floats, Array("f4", "n")]
    signs: Annotated[NDArray[np.int8], Bits("votes")]
    parts: Annotated[tuple[Inner, ...], Many(Inner)]


def test_each_kind_of_field_counts_as_what_it_is():
    floats = np.zeros(3, dtype=np.float32)
    inner = Inner(7, (floats, floats[:1]))
    payload = All(
        0.5,
        None,
        np.zeros(3, dtype=np.uint32),
        floats,
        np.array([1, -1, 1, 1], dtype=np.int8),
        (inner,) * 2,
    )
    data = payload.encode()
    expected = Content(len(data), scalars=1 + 3 + 2 * 4, integers=3 + 2, bits=4)
    assert payload.content(99, data) == expected
    assert sum_contents([expected, Content(1, 2, 3, 4)]) == Content(len(data) + 1, 14, 8, 8)


PROBLEM, NONE = Problem(), Content()
BLOCKS = PROBLEM.ferret(blocks="tensor", allocation="size", directions=12)
PRO = FedKSeed(**QUICK, candidates=64, steps=7, importance=True)
TENSORS = FedMeZO(**QUICK, steps=3, travel="tensors", personal="loss")
# what a client sends in a round, what its plan holds, and a step with all clients' answers
KNOWN = {
    "ferret": (
        PROBLEM.ferret(seeds="per-client"),
        Content(0, 300, 1),
        NONE,
        Content(0, 300 * 5, 5),
    ),
    "ferret-blocks": (BLOCKS, Content(0, 12, 1), Content(0, 0, 1), Content(0, 12, 1)),
    "fedkseed-pro": (PRO, Content(0, 7, 7), Content(0, 128, 1), NONE),
    "feedsign-votes": (
        FeedSign(**QUICK, votes_per_round=11),
        Content(0, 0, 0, 11),
        NONE,
        Content(0, 0, 0, 11),
    ),
    "zo-own": (ZOFedSGD(**QUICK), Content(0, 1, 1), NONE, Content(0, 5, 5)),
    "zo-shared": (ZOFedSGD(**QUICK, seeds="shared"), Content(0, 1), NONE, Content(0, 1)),
    "mezo": (MeZO(**QUICK, estimates=3), Content(0, 3), NONE, Content(0, 3)),
    "fedavg": (FedAvg(training=PROBLEM.training), Content(0, D), NONE, Content(0, D)),
    "fedsgd": (FedSGD(learning_rate=0.1), Content(0, D, 1), NONE, Content(0, D)),
    "fedmezo-tensors": (TENSORS, Content(0, D + 1), Content(0, 1), Content(0, D)),
    # a step holds each client's number and weight c_i beside its scalars
    "fedmezo-pairs": (FedMeZO(**QUICK, steps=3), Content(0, 3), NONE, Content(0, 5 * 4, 5)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_parameters_exchanged_are_what_the_payloads_declare(name):
    method, update, plan, step = KNOWN[name]
    summary = (
        PROBLEM.federation(method, rounds=ROUNDS, per_round=CLIENTS, evaluate_every=ROUNDS)
        .run()
        .summary
    )
    assert summary["parameters"] == D
    fetched = 1 / 2  # of two rounds with all clients, the second begins with the first one's step
    if method.catch_up.may_drop:
        assert step == Content()
    found = summary["exchanged"]
    for kind in ("scalars", "integers", "bits"):
        assert found[f"{kind}_up"] == getattr(update, kind), kind
        assert found[f"{kind}_down"] == getattr(plan, kind) + fetched * getattr(step, kind), kind
    assert summary["parameters_exchanged"] == found["scalars_up"] + found["scalars_down"]
