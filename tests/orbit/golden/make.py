"""Golden orbits, one per method and way of packing: python tests/orbit/golden/make.py writes those that are missing.

None is ever written anew: files of older formats must be read for good. Nothing here depends on a machine: the base's
weights and the steps' numbers are made of exact arithmetic, no training takes place.
"""

import json
from pathlib import Path

import numpy as np
import torch

from fedseed import FedKSeed, FedMeZO, FeedSign, Ferret, MeZO, Orbit, ParameterSpace, Sign, TopK, ZOFedSGD
from fedseed.methods.blockwise import BitCoefficients, BitStep, one_bit
from fedseed.methods.fedkseed import Accumulated
from fedseed.methods.feedsign import Votes
from fedseed.methods.ferret import Coefficients, CoefficientStep
from fedseed.methods.mezo import Estimates
from fedseed.methods.sign import Signs, SignStep, Weighted
from fedseed.methods.topk import Combined, Scattered, nothing
from fedseed.methods.traces import Branch, Branches, Trace
from fedseed.methods.zofedsgd import Projections
from fedseed.orbit import NO_DIGEST, Header, OrbitWriter, Record
from fedseed.weights.digest import base_digest

FOLDER = Path(__file__).parent
DIGESTS = FOLDER / "digests.json"


def model(dtype):
    """The base: 29 weights, multiples of 1/64."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3), torch.nn.LayerNorm(1)).to(dtype)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(((torch.arange(p.numel()) * 37 % 101) / 64 - 0.75).reshape(p.shape))
    return net


def numbers(step, count):
    """Fractions that float32 holds exactly."""
    return ((np.arange(count) * 29 + step * 17) % 83 / 32 - 1.25).astype(np.float32)


def ferret(step, parts=1):
    if step == 3:
        return CoefficientStep(())  # a round that nobody answered
    seeds = [2**64 - step - i for i in range(parts)]
    return CoefficientStep(tuple(Coefficients(s, (numbers(step, 3), numbers(step + 1, 2))) for s in seeds))


def bits(step, parts=1):
    made = ferret(step, parts).parts
    return BitStep(tuple(BitCoefficients(p.seed, tuple(map(one_bit, p.gammas))).times(0.75) for p in made))


def pro(step):
    return Accumulated(numbers(step, 8), np.abs(numbers(step, 8)), np.arange(8, dtype=np.uint32) + step)


def feedsign(step, votes=1):
    return Votes(np.where(numbers(step, votes if step != 5 else 0) > 0, 1, -1).astype(np.int8))


def measured(method, step):
    """What losses that have been normalised leave of a step's estimates; these losses' means and sums are exact."""
    losses = numbers(step, 3 * method.per_step)
    if step == 5:
        losses[:] = 1.5  # all alike: nothing to go by
    plus, minus, here = np.split(losses.astype(np.float64), 3)
    one_point = getattr(method, "estimator", "two-point") == "one-point"
    found = method.quotients(plus.tolist(), here[:1].tolist() if one_point else minus.tolist(), 0.125)
    return np.array([one.rho for one in found], dtype=np.float32)


def own(step, each=1):
    first = np.array([step, (2**32 - step * each) // each], dtype=np.uint32) * np.uint32(each)
    return Projections(numbers(step, 2 * each), indices=first)


def decaying(step):
    return Accumulated(numbers(step, 8) * np.float32(0.5))


def fedmezo(step, loss=None, count=3):
    clients = () if step == 3 else (0, 5)  # a round that nobody answered
    return Branches(tuple(Branch(c, 0.25 + c / 10, Trace(loss, numbers(step + c, count))) for c in clients))


def topk(step):
    if step == 3:
        return Combined(nothing())  # a round that nobody answered
    places = np.array([step, 9, 20 + step], dtype=np.uint16)
    return Combined(Scattered(np.array([3], dtype=np.uint16), places, numbers(step, 3)))


def sign(step):
    clients = () if step == 3 else (0, 5)
    bits = np.array([37, 200, 91, 22], dtype=np.uint8)
    scales = np.array([step / 8], dtype=np.float32)
    return SignStep(tuple(Weighted(0.25 + c / 10, Signs(0, scales, bits ^ (c * 3 & 31), 29)) for c in clients))


METHODS = {
    "ferret-shared": (Ferret(directions=5, blocks=2, basis="truncated_normal", allocation="size", seeds="shared"),
                      ferret, 4),
    "ferret-own": (Ferret(directions=5, blocks=2, basis="hadamard", allocation="previous", seeds="per-client"),
                   lambda step: ferret(step, 2), 4),
    "fedkseed": (FedKSeed(candidates=8, learning_rate=0.0625, basis="normal"),
                 lambda step: Accumulated(numbers(step, 8)), 4),
    "fedkseed-pro": (FedKSeed(candidates=8, learning_rate=0.0625, basis="rademacher", importance=True), pro, 4),
    "feedsign": (FeedSign(learning_rate=0.0625, basis="normal"), feedsign, 21),
    "feedsign-votes": (FeedSign(learning_rate=0.0625, basis="rademacher", votes_per_round=11, optimizer="momentum"),
                       lambda step: feedsign(step, 11), 8),
    "dp-feedsign": (FeedSign(learning_rate=0.0625, basis="hadamard", epsilon=0.5, small_steps="from-base"),
                    feedsign, 8),
    "zo-fedsgd-own": (ZOFedSGD(learning_rate=0.0625, basis="rademacher", small_steps="stochastic"), own, 8),
    "zo-fedsgd-shared": (ZOFedSGD(learning_rate=0.0625, seeds="shared"), lambda step: Projections(numbers(step, 1)), 8),
    "fedmezo": (FedMeZO(learning_rate=0.0625, steps=3, basis="normal", weighting="examples"), fedmezo, 4),
    "fedmezo-exact": (FedMeZO(learning_rate=0.0625, steps=3, combine="exact", personal="loss-5", weighting="examples"),
                      lambda step: fedmezo(step, loss=1.5 + step), 4),
    "mezo-rebuilt": (MeZO(learning_rate=0.0625, estimates=2, basis="normal", optimizer="adam-rebuilt", horizon=3),
                     lambda step: Estimates(numbers(step, 2 if step != 4 else 0)), 6),
    "zo-fedsgd-rebuilt": (ZOFedSGD(learning_rate=0.0625, optimizer="adam-rebuilt", horizon=2, small_steps="stochastic"),
                          own, 5),
    "mezo-hiso": (MeZO(learning_rate=0.0625, estimates=2, basis="normal", optimizer="hiso", beta2=0.75),
                  lambda step: Estimates(numbers(step, 2)), 8),
    "zo-fedsgd-hiso": (ZOFedSGD(learning_rate=0.0625, optimizer="hiso", beta2=0.75), own, 8),
    "topk": (TopK(share=0.25, global_rate=0.75), topk, 4),
    "sign": (Sign(global_rate=0.75), sign, 4),
    "mezo": (MeZO(learning_rate=0.0625, estimates=3, optimizer="adam"), lambda step: Estimates(numbers(step, 3)), 8),
    # -- bases, step rules and populations that came later
    "mezo-population": (MeZO(learning_rate=0.0625, basis="lowrank", estimates=2, population=4, estimator="one-point",
                             divide_by="deviation"), lambda step: Estimates(numbers(step, 8)), 8),
    "mezo-scalar": (MeZO(learning_rate=0.0625, divide_by="scalar", beta2=0.875, optimizer="nesterov",
                         basis="lowrank", basis_rank=3, small_steps="stochastic"),
                    lambda step: Estimates(numbers(step, 1 if step != 5 else 0)), 8),
    "zo-fedsgd-own-population": (ZOFedSGD(learning_rate=0.0625, basis="lowrank", population=4, divide_by="deviation",
                                          optimizer="nesterov"), lambda step: own(step, 4), 8),
    "zo-fedsgd-shared-population": (ZOFedSGD(learning_rate=0.0625, seeds="shared", population=2, divide_by="scalar",
                                             small_steps="from-base", decay=0.25),
                                    lambda step: Projections(numbers(step, 2)), 8),
    "feedsign-population": (FeedSign(learning_rate=0.0625, basis="lowrank", basis_rank=2, votes_per_round=3,
                                     population=4, small_steps="from-base", decay=0.25),
                            lambda step: feedsign(step, 12), 8),
    "dp-feedsign-population": (FeedSign(learning_rate=0.0625, basis="hadamard", population=8, epsilon=0.5),
                               lambda step: feedsign(step, 8), 8),
    "fedkseed-population": (FedKSeed(learning_rate=0.0625, candidates=8, basis="lowrank", population=4, batch=4,
                                     decay=0.5), decaying, 4),
    "fedmezo-population": (FedMeZO(learning_rate=0.0625, steps=2, basis="lowrank", population=2, batch=2,
                                   combine="exact", weighting="examples"), lambda step: fedmezo(step, count=4), 4),
    "fedmezo-sum-population": (FedMeZO(learning_rate=0.0625, steps=2, basis="normal", population=2, batch=2,
                                       weighting="examples"),
                               lambda step: fedmezo(step, count=4), 4),
    "ferret-lowrank": (Ferret(directions=5, blocks=2, basis="lowrank", basis_rank=2, allocation="previous",
                              seeds="fixed", training={"small_steps": "stochastic"}, server="nesterov"), ferret, 4),
    "ferret-adagrad": (Ferret(directions=5, blocks=2, basis="rademacher", allocation="size", seeds="shared",
                              server="momentum", block_rate="adagrad"), ferret, 4),
    "ferret-rms": (Ferret(directions=5, blocks=2, basis="lowrank", allocation="size", seeds="per-client",
                          block_rate="rms", server_beta2=0.875, server_eps=0.0625), lambda step: ferret(step, 2), 4),
    "ferret-adam": (Ferret(directions=5, blocks=2, basis="hadamard", allocation="size", seeds="fixed", server="adam",
                           server_eps=0.0625, global_rate=0.125), ferret, 4),
    # -- a bit a coefficient
    "ferret-bit": (Ferret(directions=5, blocks=2, basis="hadamard", allocation="size", seeds="shared", scalars="bit",
                          server="momentum"), bits, 4),
    "ferret-bit-own": (Ferret(directions=5, blocks=2, basis="lowrank", allocation="previous", seeds="per-client",
                              scalars="bit", training={"small_steps": "stochastic"}), lambda step: bits(step, 2), 4),
    # -- losses without their scale: what a client measured shows in the coefficients
    "mezo-ranks": (RANKS := MeZO(learning_rate=0.0625, estimates=2, population=4, basis="lowrank", normalize="ranks",
                                 estimator="one-point"), lambda step: Estimates(measured(RANKS, step) / 8), 8),
    "zo-fedsgd-z-score": (SCORES := ZOFedSGD(learning_rate=0.0625, seeds="shared", population=4, normalize="z-score",
                                             optimizer="momentum"),
                          lambda step: Projections(measured(SCORES, step) / 4), 8),
    "fedkseed-z-score": (FedKSeed(learning_rate=0.0625, candidates=8, normalize="z-score"), decaying, 4),
    # -- format 3: settings that are as by default are left out
    "ferret-format-3": (Ferret(directions=5, blocks="one", seeds="shared",
                               training={"learning_rate": 0.25, "schedule": "cosine"}),
                        lambda step: CoefficientStep((Coefficients(step, (numbers(step, 5),)),)), 4),
}  # fmt: skip
DTYPES = {
    "zo-fedsgd-own": torch.bfloat16, "zo-fedsgd-rebuilt": torch.bfloat16, "ferret-own": torch.float16,
    "sign": torch.bfloat16, "mezo-scalar": torch.bfloat16, "feedsign-population": torch.float16,
    "ferret-lowrank": torch.bfloat16, "zo-fedsgd-z-score": torch.bfloat16,
    "ferret-bit-own": torch.bfloat16,
}  # fmt: skip


def dtype_of(name):
    """The dtype of a golden orbit's base."""
    return DTYPES.get(name, torch.float32)


def write(name, path, start=None):
    """Write one as a run does, step by step.

    Args:
        name: which.
        path: the file.
        start: bytes to begin with instead of the header as it is encoded here: compressors differ.

    Returns:
        The digest after each step, that of the base first.
    """
    method, make, steps = METHODS[name]
    net = model(dtype_of(name))
    digest = base_digest(net)
    space = ParameterSpace(net, method.blocks)
    header = Header("golden", digest, str(dtype_of(name)).removeprefix("torch."), space.layout, method, 7)
    if start is not None:
        path.write_bytes(start)
    writer = OrbitWriter(path, header, resume=start is not None)
    if method.from_base:
        space.keep_base()
    state = method.start(space.layout, 7)
    digests = [space.digest()]
    for number in range(1, steps + 1):
        step = method.decode_step(state, make(number).encode())
        space.apply(method.change(state, step))
        state = method.advance(state, step)
        digests.append(space.digest())
        known = not method.stepwise or number == steps
        writer.append(Record(number, step.encode(), digests[-1] if known else NO_DIGEST))
    writer.close()
    return digests


if __name__ == "__main__":
    digests = json.loads(DIGESTS.read_text())
    for name in METHODS:
        path = FOLDER / f"{name}.orbit"
        if not path.exists():
            digests[name] = write(name, path)
            Orbit.open(path)
            print(f"{path.name}: {path.stat().st_size} bytes")
    DIGESTS.write_text(json.dumps(digests, indent=1) + "\n")
