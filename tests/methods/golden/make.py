"""Golden messages: python tests/methods/golden/make.py writes the payload bytes of every method to
messages.json anew.

Only do so together with a new version of the messages: whoever runs another version is to be
refused, not misread."""

import json
from pathlib import Path

import numpy as np

from fedseed import (
    FedAvg,
    FedKSeed,
    FedMeZO,
    FedSGD,
    FedZO,
    FeedSign,
    Ferret,
    MeZO,
    Sign,
    Subspace,
    TopK,
    ZOFedSGD,
)
from fedseed.aggregation import Mean
from fedseed.methods import FedIT, FedPrompt, FedPTuning
from fedseed.methods.base import Answers, Round
from fedseed.methods.dense import Weights
from fedseed.methods.fedkseed import Accumulated, Pairs, Pool
from fedseed.methods.fedmezo import Rate, Trace, Traces
from fedseed.methods.fedsgd import Gradient
from fedseed.methods.feedsign import Votes
from fedseed.methods.ferret import BitStep, Coefficients, CoefficientStep, FerretPlan
from fedseed.methods.mezo import Estimates
from fedseed.methods.payload import Nothing, Small
from fedseed.methods.sign import Signed, SignStep
from fedseed.methods.subspace import CodedEntries, CodedStep, CodedSum, FloatEntries, FloatStep
from fedseed.methods.topk import Combined, KeptEntries
from fedseed.methods.zofedsgd import ByteProjections, Projections
from fedseed.weights.layout import Layout, TensorEntry

MESSAGES = Path(__file__).with_name("messages.json")
TENSORS = (
    TensorEntry("a", (2,), "float32"),
    TensorEntry("b", (3,), "bfloat16"),
    TensorEntry("c", (1,), "float16"),
)
LAYOUT = Layout(TENSORS, (0, 2, 6))
ROUND, SEED = 4, 7
DATA = (
    np.array([-0.5, 3.0], dtype="<f4").tobytes()
    + bytes.fromhex("803f00c0003e")
    + bytes.fromhex("00bc")
)
INDICES = np.array([2**32 - 1, 258], dtype=np.uint32)


def numbers(count, first=0):
    """Fractions that float32 holds exactly."""
    return ((np.arange(first, first + count) * 29) % 83 / 32 - 1.25).astype(np.float32)


def signs(count):
    return np.where(numbers(count) > 0, 1, -1).astype(np.int8)


def gammas(first=0):
    return numbers(3, first), numbers(2, first + 3)


BITS = Ferret(directions=5, blocks=2, allocation="size", seeds="shared", scalars="bit")


def signed(weight=None):
    return Signed(
        0, np.array([0.625], dtype=np.float32), np.int8([1, -1, 1, 1, -1, 1]), weight=weight
    )


USES = np.arange(8, dtype=np.uint32) * 1000
SHARED = Ferret(directions=5, blocks=2, allocation="size", seeds="shared")
PLANNED = SHARED.plan(SHARED.start(LAYOUT, SEED), Round(ROUND, 0, (0,)))
DENSE = (Nothing(), Weights(DATA), Weights(DATA))

IN_BITS = Subspace(rank=2)
IN_FLOATS = Subspace(rank=2, up_bits=32, down_bits=32)
PLANNED_SUBSPACE = IN_BITS.subspace_seed(IN_BITS.start(LAYOUT, SEED), ROUND)
# magnitudes that a bfloat16 has
MAGNITUDES = np.array([0.625, 0.0, 3.0], dtype=np.float32)
# the method, and what is sent in one round: plan, update, step
CASES = {
    "ferret": (
        Ferret(directions=5, blocks=2, allocation="size"),
        FerretPlan(None),
        Coefficients(2**63 + 5, gammas()),
        CoefficientStep((Coefficients(2**64 - 1, gammas()), Coefficients(3, gammas(9)))),
    ),
    "ferret-shared": (
        SHARED,
        PLANNED,
        Coefficients(PLANNED.seed, gammas()),
        CoefficientStep((Coefficients(PLANNED.seed, gammas(4)),)),
    ),
    "ferret-bit": (
        BITS,
        PLANNED,
        BITS.update_type(PLANNED.seed, tuple(gammas())),
        BitStep((BITS.update_type(PLANNED.seed, tuple(gammas(4))),)),
    ),
    "fedkseed": (
        FedKSeed(candidates=8),
        Pool(2**32 - 2, numbers(8), None),
        Pairs(np.array([0, 7, 3], dtype=np.uint32), numbers(3)),
        Accumulated(numbers(8)),
    ),
    "fedkseed-pro": (
        FedKSeed(candidates=8, importance=True),
        Pool(258, numbers(8), numbers(8, 5)),
        Pairs(np.array([1], dtype=np.uint32), numbers(1)),
        Accumulated(numbers(8), numbers(8, 5), USES),
    ),
    "subspace": (
        IN_BITS,
        Nothing(),
        CodedEntries(
            PLANNED_SUBSPACE, MAGNITUDES, Small(np.array([1, 0, 1, 1, 0, 1], np.uint16), 1)
        ),
        CodedStep(
            (
                CodedSum(
                    PLANNED_SUBSPACE, MAGNITUDES, Small(np.array([0, 14, 7, 7, 7, 3], np.uint16), 4)
                ),
            )
        ),
    ),
    "subspace-floats": (
        IN_FLOATS,
        Nothing(),
        FloatEntries(PLANNED_SUBSPACE, numbers(6)),
        FloatStep((FloatEntries(PLANNED_SUBSPACE, numbers(6, 6)),)),
    ),
    "feedsign": (FeedSign(), Nothing(), Votes(signs(1)), Votes(-signs(1))),
    "feedsign-votes": (
        FeedSign(votes_per_round=11),
        Nothing(),
        Votes(signs(11)),
        Votes(-signs(11)),
    ),
    "zo-fedsgd": (
        ZOFedSGD(),
        Nothing(),
        Projections(numbers(1), indices=INDICES[:1]),
        Projections(numbers(2), indices=INDICES),
    ),
    "zo-fedsgd-byte": (
        ZOFedSGD(scalars="byte"),
        Nothing(),
        ByteProjections(numbers(1), indices=INDICES[:1]),
        Projections(numbers(2), indices=INDICES),
    ),
    "zo-fedsgd-shared": (
        ZOFedSGD(seeds="shared"),
        Nothing(),
        Projections(numbers(1)),
        Projections(numbers(1, 2)),
    ),
    "zo-fedsgd-shared-byte": (
        ZOFedSGD(seeds="shared", scalars="byte"),
        Nothing(),
        ByteProjections(numbers(1, 1)),
        Projections(numbers(1, 2)),
    ),
    "mezo": (MeZO(estimates=3), Nothing(), Estimates(numbers(3)), Estimates(numbers(3, 2))),
    "fedmezo": (
        FedMeZO(steps=3),
        Rate(),
        Trace(numbers(3) / 2**20),
        Traces(
            (Trace(numbers(3), client=0, weight=0.25), Trace(numbers(3, 3), client=5, weight=0.75))
        ),
    ),
    "fedmezo-loss": (
        FedMeZO(steps=3, learning_rate=0.25, personal="loss"),
        Rate(0.3125),
        Trace(numbers(3), loss=1.5),
        Traces((Trace(numbers(3), client=2, weight=1.0, loss=-0.75),)),
    ),
    "fedmezo-tensors": (FedMeZO(travel="tensors"), Rate(), Weights(DATA), Weights(DATA)),
    "fedmezo-tensors-loss": (
        FedMeZO(travel="tensors", learning_rate=0.25, personal="loss-5"),
        Rate(0.1875),
        Weights(DATA, loss=2.25),
        Weights(DATA),
    ),
    "mezo-population": (
        MeZO(estimates=2, population=2),
        Nothing(),
        Estimates(numbers(4)),
        Estimates(numbers(4, 2)),
    ),
    "zo-fedsgd-population": (
        ZOFedSGD(population=4),
        Nothing(),
        Projections(numbers(4), indices=INDICES[1:] * 4),
        Projections(numbers(8), indices=INDICES - INDICES % 4),
    ),
    "zo-fedsgd-population-byte": (
        ZOFedSGD(population=4, scalars="byte"),
        Nothing(),
        ByteProjections(numbers(4), indices=INDICES[1:] * 4),
        Projections(numbers(8), indices=INDICES - INDICES % 4),
    ),
    "zo-fedsgd-shared-population": (
        ZOFedSGD(seeds="shared", population=4),
        Nothing(),
        Projections(numbers(4)),
        Projections(numbers(4, 2)),
    ),
    "feedsign-population": (
        FeedSign(votes_per_round=3, population=4),
        Nothing(),
        Votes(signs(12)),
        Votes(-signs(12)),
    ),
    "fedkseed-population": (
        FedKSeed(candidates=8, population=2, batch=2, steps=2),
        Pool(2**32 - 2, numbers(8), None),
        Pairs(np.array([0, 7, 3, 3], dtype=np.uint32), numbers(4)),
        Accumulated(numbers(8)),
    ),
    "fedmezo-population": (
        FedMeZO(steps=2, population=2, batch=2),
        Rate(),
        Trace(numbers(4) / 2**20),
        Traces((Trace(numbers(4), client=0, weight=0.25),)),
    ),
    "fedsgd": (FedSGD(), Nothing(), Gradient(66_051, DATA), Weights(DATA)),
    "topk": (
        TopK(share=0.5, bits=3),
        Nothing(),
        KeptEntries(
            np.array([0.75], dtype=np.float32),
            Small(np.array([0, 2, 5], dtype=np.uint16), 12),
            Small(np.array([3, 7, 0], dtype=np.uint16), 3),
        ),
        Combined(
            np.array([2], dtype=np.uint16),
            Small(np.array([1, 4], dtype=np.uint16), 12),
            np.array([-0.5, 3], dtype=np.float32),
        ),
    ),
    "sign": (Sign(), Nothing(), signed(), SignStep((signed(0.25), signed(0.75)))),
    "fedavg": (FedAvg(), *DENSE),
    "fedzo": (FedZO(), *DENSE),
    "fedit": (FedIT(), *DENSE),
    "fedptuning": (FedPTuning(), *DENSE),
    "fedprompt": (FedPrompt(), *DENSE),
}


def messages(name):
    """The payloads' bytes as hexadecimal digits, by what they are.

    "nobody": the step of a round without an answer.
    """
    method, plan, update, step = CASES[name]
    nobody = method.aggregate(method.start(LAYOUT, SEED), Answers(ROUND, (), Mean()))
    payloads = {"plan": plan, "update": update, "step": step, "nobody": nobody}
    return {what: payload.encode().hex() for what, payload in payloads.items()}


if __name__ == "__main__":
    MESSAGES.write_text(json.dumps({name: messages(name) for name in CASES}, indent=1) + "\n")
