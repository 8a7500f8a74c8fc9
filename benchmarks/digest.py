"""What a digest of weights costs: python benchmarks/digest.py [--gigabytes 1] [--threads 1 2]
[--dtype bfloat16].

Both kinds of digest over the same tensors (a decoder's shapes, made up), in turn, so that all see
the same machine; a median of runs.
"""

import argparse
import os
import time
from collections.abc import Callable
from statistics import median

import torch

from fedseed.weights.digest import hash_tensors

WIDTH = 2560


def weights(count: int, dtype: torch.dtype) -> torch.nn.Module:
    """A module of about so many elements: matrices, and small vectors as norms have them."""
    model = torch.nn.Module()
    layers = max(1, round(count / (12 * WIDTH**2)))
    for layer in range(layers):
        for name, rows in (("q", 1), ("k", 1), ("v", 1), ("o", 1), ("up", 4), ("down", 4)):
            matrix = torch.empty(rows * WIDTH, WIDTH, dtype=dtype).uniform_(-0.02, 0.02)
            model.register_parameter(f"{name}_{layer}", torch.nn.Parameter(matrix))
        model.register_parameter(
            f"norm_{layer}", torch.nn.Parameter(torch.ones(WIDTH, dtype=dtype))
        )
    return model


def seconds(act: Callable[[], object]) -> float:
    """How long it takes."""
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def kinds(model: torch.nn.Module, threads: list[int], runs: int) -> None:
    """Both kinds of digest, in turn."""
    named = list(model.named_parameters())
    size = sum(p.nbytes for _, p in named)
    ways: dict[str, Callable[[], object]] = {"blake2b": lambda: hash_tensors(named)}
    for count in threads:
        ways[f"blake2b-tree, {count} threads"] = lambda n=count: hash_tensors(
            named, "blake2b-tree", n
        )
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(runs):
        for name, act in ways.items():
            spent[name].append(seconds(act))
    print(
        f"\n{size / 1e9:.2f} GB in {len(named)} tensors, {runs} runs in turn, load "
        f"{os.getloadavg()[0]:.1f}\n"
    )
    print("| digest | seconds | GB/s | times faster | lowest and highest |\n|---|---|---|---|---|")
    for name, found in spent.items():
        ratio = median(a / b for a, b in zip(spent["blake2b"], found, strict=True))
        range_ = f"{min(found):.3f} to {max(found):.3f}"
        print(
            f"| {name} | {median(found):.3f} | {size / median(found) / 1e9:.2f} | {ratio:.2f} | "
            f"{range_} |"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--runs", type=int, default=7)
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    made = weights(round(args.gigabytes * 1e9 / dtype.itemsize), dtype)
    kinds(made, args.threads, args.runs)
