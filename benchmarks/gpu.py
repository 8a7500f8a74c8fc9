"""Shared randomness on a GPU, at LLaMA-3B's shapes with random bfloat16 weights.

    python benchmarks/gpu.py [--layers 26] [--runs 5]

Needs about 30 GB of GPU memory with all layers. Rebuilding weights from 4,096 directions (FedKSeed), one perturbation
beside a bare copy of the weights, projecting a change on 8,000 directions and applying the result (Ferret), and whether
a piece of every tensor gets the bits that the CPU gives it. Times are medians, taken with CUDA events; they include
what the host prepares. Bases whose cost grows with the number of directions are timed with few and scaled.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from fedseed import Basis, ParameterSpace
from fedseed.randomness import BASES
from fedseed.randomness.kernels import load
from fedseed.randomness.kernels.reference import Part
from fedseed.weights.change import Rebuild, Term
from fedseed.weights.perturbation import Perturbation

HIDDEN, INNER, VOCABULARY, LAYERS = 3200, 8640, 32_000, 26  # openlm-research/open_llama_3b
REBUILT, PROJECTED = 4096, 8000  # directions: FedKSeed's pool, Ferret's K
TIMED = 64  # of those, where the cost grows with their number
PIECE = 5001  # elements of each tensor compared with the CPU


def shapes(layers: int) -> list[tuple[int, ...]]:
    """The shapes of LLaMA-3B's parameters, with so many layers."""
    attention = [(HIDDEN, HIDDEN)] * 4
    feed_forward = [(INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)]
    layer = [*attention, *feed_forward, (HIDDEN,), (HIDDEN,)]
    return [(VOCABULARY, HIDDEN), *layer * layers, (HIDDEN,), (VOCABULARY, HIDDEN)]


class Weights(torch.nn.Module):
    """Random bfloat16 parameters.

    Args:
        sizes: their shapes.
        device: where they are.
    """

    def __init__(self, sizes: Sequence[tuple[int, ...]], device: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.each = torch.nn.ParameterList(
            torch.nn.Parameter(torch.empty(size, dtype=torch.bfloat16, device=device).normal_(0, 0.02))
            for size in sizes
        )


def timed(act: Callable[[], Any], runs: int) -> float:
    """Median milliseconds, after a run that compiles."""
    act()
    spent = []
    for _ in range(runs):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        act()
        end.record()
        torch.cuda.synchronize()
        spent.append(begin.elapsed_time(end))
    return median(spent)


def row(what: str, milliseconds: float, note: str = "") -> None:
    """Print a line of the table."""
    print(f"{what:<58} {milliseconds:>12,.1f} ms  {note}".rstrip(), flush=True)


def rebuild(space: ParameterSpace, runs: int) -> None:
    """w = w0 + a sum of directions."""
    rng = np.random.default_rng(0)
    space.keep_base()
    for name in ("hadamard", "rademacher", "normal"):
        count = REBUILT if name == "hadamard" else TIMED
        terms = [Term(Basis(name, 1, size=REBUILT), rng.normal(size=count).astype(np.float32))]
        spent = timed(lambda t=terms: space.apply(Rebuild(t, 1e-5)), runs) * REBUILT / count
        row(f"rebuild from {REBUILT:,} directions, {name}", spent, "" if count == REBUILT else f"scaled from {count}")
    space.release_base()


def perturb(space: ParameterSpace, runs: int) -> None:
    """Perturbed copies of all tensors, one after the other in the same memory."""
    buffer = torch.empty(
        max(p.numel() for p in space.parameters), dtype=torch.bfloat16, device=space.parameters[0].device
    )

    def bare() -> None:
        for p in space.parameters:
            buffer[: p.numel()].copy_(p.detach().view(-1))

    def perturbed(perturbation: Perturbation) -> None:
        for p in space.parameters:
            perturbation.copy(p, 0, p.numel(), buffer[: p.numel()])

    limit = timed(bare, runs)
    row("a bare copy of the weights", limit)
    for name in BASES:
        one = Perturbation(space.vector, Term(Basis(name, 2), np.ones(1, dtype=np.float32), 7), 1e-3)
        spent = timed(lambda p=one: perturbed(p), runs)
        row(f"one perturbed copy, {name}", spent, f"{spent / limit:.1f} times a bare copy")


def ferret(space: ParameterSpace, runs: int) -> None:
    """Inner products with a change, and the change rebuilt from them."""
    delta = torch.empty(space.size, dtype=torch.float32, device=space.parameters[0].device).normal_(0, 1e-4)
    for name in ("hadamard", "rademacher", "truncated_normal"):
        count = PROJECTED if name == "hadamard" else 2 * TIMED
        note = "" if count == PROJECTED else f"scaled from {count}"
        basis = Basis(name, 3, size=PROJECTED)
        found: list[Any] = []
        spent = timed(lambda b=basis, c=count, f=found: f.append(space.project(delta, b, c)), runs)
        row(f"projection on {PROJECTED:,} directions, {name}", spent * PROJECTED / count, note)
        spent = timed(lambda b=basis, f=found: space.add(b, f[-1], scale=-1e-12), runs)
        row(f"its reconstruction, {name}", spent * PROJECTED / count, note)


def different(space: ParameterSpace) -> int:
    """In how many tensors a piece gets other bits than on the CPU, for some basis."""
    here, there = load("triton"), load("cpu")
    c = np.random.default_rng(1).normal(size=16).astype(np.float32)
    start = wrong = 0
    for number, p in enumerate(space.parameters):
        size = p.numel()
        lo = number * 7919 % max(1, size - PIECE)
        flat = p.detach().view(-1)[lo : lo + PIECE]
        before = flat.view(torch.int16).cpu().numpy().view(np.uint16)
        same = True
        for name in BASES:
            parts = [Part(Basis(name, 5, size=16).spec, 3, c)]
            out, expected = torch.empty_like(flat), np.empty_like(before)
            here.move(out, flat, "bfloat16", here.prepare(parts, space.size), 1e-2, start + lo)
            there.move(expected, before, "bfloat16", there.prepare(parts, space.size), 1e-2, start + lo)
            same &= bool((out.view(torch.int16).cpu().numpy().view(np.uint16) == expected).all())
        wrong += not same
        start += size
    return wrong


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--layers", type=int, default=LAYERS, help="fewer for a smaller GPU")
    parser.add_argument("--runs", type=int, default=5, help="medians are over so many")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("No GPU here: nothing to measure.")
        sys.exit(0)
    space = ParameterSpace(Weights(shapes(args.layers), "cuda"))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; d = {space.size:,} in bfloat16")
    wrong = different(space)
    print(f"same bits as the CPU: {len(space.parameters) - wrong} of {len(space.parameters)} tensors")
    rebuild(space, args.runs)
    perturb(space, args.runs)
    ferret(space, args.runs)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
