"""A thousand orbits on one base in memory: what a swap from one to another takes, and what the
thousand hold.

    python benchmarks/swap.py [--base small] [--orbits 1000] [--steps 100] [--swaps 1000]
    [--exported 100]

The orbits' coefficients are drawn, not trained: a swap costs the same whatever they are. Beside it,
the way without: loading base and orbit anew (`fedseed.from_orbit`). After `--exported` random swaps
the model is compared, bit for bit, with what plain transformers loads from the orbit's exported
folder.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import fedseed
from fedseed import FeedSign, MeZO, Orbit, ParameterSpace, Swapper
from fedseed.methods import Method
from fedseed.methods.feedsign import Votes
from fedseed.methods.mezo import Estimates
from fedseed.models.loading import load_model, quiet
from fedseed.orbit import Header, Record
from fedseed.orbit.card import Facts
from fedseed.orbit.export import export_model
from fedseed.orbit.file import begin, write_orbit
from fedseed.orbit.record import ending, pack_records
from fedseed.weights.digest import base_digest


def payloads(method: Method, steps: int, seed: int) -> list[bytes]:
    """Steps of a method with drawn contents."""
    draw = np.random.default_rng(seed)
    if isinstance(method, FeedSign):
        return [Votes(draw.choice([-1, 1], 1).astype(np.int8)).encode() for _ in range(steps)]
    return [Estimates(draw.normal(size=1).astype(np.float32)).encode() for _ in range(steps)]


def resident() -> int:
    """Bytes of resident memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def timed(act: Callable[[], object]) -> float:
    """Seconds that something takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def main() -> None:
    """Print p50 and p99 of swaps, and memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base", default="small")
    parser.add_argument("--orbits", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--swaps", type=int, default=1000)
    parser.add_argument("--exported", type=int, default=100)
    args = parser.parse_args()
    quiet()
    model, _ = load_model(args.base)
    digest, layout = base_digest(model), ParameterSpace(model).layout
    print(f"{args.base}: {layout.size:,} parameters; {args.orbits:,} orbits of {args.steps} steps")
    methods = {
        "feedsign, rademacher": FeedSign(learning_rate=1e-5),
        "feedsign, hadamard": FeedSign(learning_rate=1e-5, basis="hadamard"),
        "mezo, from-base, hadamard": MeZO(
            learning_rate=1e-5, basis="hadamard", small_steps="from-base"
        ),
    }
    for name, method in methods.items():
        with tempfile.TemporaryDirectory() as folder:
            files = {}
            for seed in range(args.orbits):
                header = Header(args.base, digest, "float32", layout, method, seed)
                records = (
                    Record(i, p) for i, p in enumerate(payloads(method, args.steps, seed), start=1)
                )
                path = files[str(seed)] = Path(folder) / f"{seed}.orbit"
                write_orbit(path, begin(header), ending(pack_records(method, records)))
            print(f"{name}: {measured(args.base, files, args.swaps, args.exported)}")


def alike(swapper: Swapper, name: str, path: Path) -> bool:
    """Whether a swap gives the exported model."""
    orbit = Orbit.open(path)
    model, tokenizer = load_model(orbit.header.base)
    with tempfile.TemporaryDirectory() as folder:
        export_model(
            Path(folder), model, tokenizer, orbit.header, Facts(len(orbit), orbit.replay(model))
        )
        expected = AutoModelForCausalLM.from_pretrained(folder).state_dict()
        found = swapper.to(name).state_dict()
    return found.keys() == expected.keys() and all(
        torch.equal(found[key], expected[key]) for key in expected
    )


def measured(base: str, files: dict[str, Path], swaps: int, exported: int) -> str:
    """What the swaps between some orbits take, and what they hold."""
    swapper = Swapper(base)
    size = sum(path.stat().st_size for path in files.values()) / len(files)
    swapper.add("0", files["0"])
    swapper.to("0")  # the kernels compile, the base is copied
    before = resident()
    for seed, path in files.items():
        swapper.add(seed, path)
    order = np.random.default_rng(1).integers(0, len(files), swaps)
    spent = np.array([timed(partial(swapper.to, str(n))) for n in order]) * 1e3
    held, anew = (resident() - before) / 1e6, timed(partial(fedseed.from_orbit, files["1"])) * 1e3
    same = sum(alike(swapper, str(n), files[str(n)]) for n in order[:exported])
    return (
        f"{size:,.0f} B a file; swap p50 {np.percentile(spent, 50):.1f} ms, p99 "
        f"{np.percentile(spent, 99):.1f} ms; "
        f"{same} of {exported} swaps are the exported models; loaded anew {anew:.0f} ms; all "
        f"orbits hold {held:.0f} MB"
    )


if __name__ == "__main__":
    main()
