"""Replaying 10,000 FeedSign steps on the small base: many steps in one pass over the weights, or
one at a time.

    python benchmarks/replay.py [--steps 10000] [--dtype float32]

The votes are coin tosses: a replay costs the same whatever they are. Both ways in one process, same
bits.
"""

import argparse
import time
from typing import Any

import numpy as np
import torch

from fedseed import FeedSign, ParameterSpace
from fedseed.methods.feedsign import Votes
from fedseed.models.loading import load_model
from fedseed.orbit.replay import Pending


def replayed(
    method: FeedSign, space: ParameterSpace, signs: np.ndarray[Any, Any], together: bool
) -> float:
    """Seconds for all steps."""
    state, pending = method.start(space.layout, 1), Pending(space)
    take = pending.add if together else space.apply
    begin = time.perf_counter()
    for sign in signs:
        step = Votes(np.array([sign], dtype=np.int8))
        take(method.change(state, step))
        state = method.advance(state, step)
    pending.flush()
    return time.perf_counter() - begin


def main() -> None:
    """Print seconds both ways, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    args = parser.parse_args()
    signs = np.random.default_rng(0).choice([-1, 1], args.steps)
    print(f"{args.steps:,} steps, {args.dtype}, {torch.get_num_threads()} threads")
    for basis in ("rademacher", "hadamard", "normal"):
        method = FeedSign(basis=basis, learning_rate=1e-5)
        spent, digests = [], []
        for together in (False, True):
            space = ParameterSpace(load_model("small", args.dtype)[0])
            replayed(method, space, signs[:2], together)  # compile
            spent.append(replayed(method, space, signs, together))
            digests.append(space.digest())
        assert digests[0] == digests[1], "the bits differ"
        each = spent[1] / args.steps / space.size * 1e9
        print(
            f"{basis}: one at a time {spent[0]:.2f} s, together {spent[1]:.2f} s: "
            f"{spent[0] / spent[1]:.1f} times "
            f"faster, {each:.4f} ns a step and parameter"
        )


if __name__ == "__main__":
    main()
