"""Peaks of memory of a run whose weights two processes hold in shards, beside those of one process
that holds all.

    python benchmarks/sharded.py                    # TinyLlama's shapes (1.1 billion parameters),
    bfloat16
    python benchmarks/sharded.py --shape opt-125m

Each run is `fedseed run`, or the same under torchrun with two processes on this machine: one round
of one client, two local steps of SGD on one example of 128 tokens each, no evaluation but of two
examples. The base has random weights.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from memory import CASES, FIRST, SGD, prepare

GROUP = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
METHODS = {
    "FeedSign": [*CASES["FeedSign"], "method.batch=1"],
    "Ferret": [*CASES["Ferret"], "method.training.batch=1"],
    "Ferret, streaming": [*CASES["Ferret, streaming"], "method.training.batch=1"],
    "FedAvg, SGD": ["method.name=fedavg", *FIRST, *SGD, "method.training.batch=1"],
}
ONCE = [
    "rounds=1",
    "federation.per_round=1",
    "model.digest=blake2b-tree",
    "evaluation.max_new_tokens=1",
]


def one(words: list[str]) -> None:
    """A process of a run, which says its peak at the end."""
    from fedseed.cli import main
    from fedseed.reports.machine import resident_memory

    sys.argv = ["fedseed", *words]
    try:
        main()
    finally:
        print(f"\nPEAK {resident_memory(peak=True)}", flush=True)


def peaks(folder: Path, name: str, group: list[str]) -> tuple[list[int], dict[str, object]]:
    """The peaks of a run's processes in bytes, the largest first, and the run's summary."""
    out = folder / f"{name}-{len(group)}"
    sets = [f"model.base={folder / 'base'}", *ONCE, *METHODS[name]]
    words = ["run", str(folder / "recipe.toml"), "--out", str(out)]
    words += [word for value in sets for word in ("--set", value)]
    done = subprocess.run(
        [sys.executable, *group, __file__, "--one", *words], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    found = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("PEAK")]
    return sorted(found, reverse=True), json.loads(
        (out / "summary.json").read_text(encoding="utf-8")
    )


def main() -> None:
    """Print the table."""
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="beginnings of the cases' names")
    parser.add_argument(
        "--shape", default="tinyllama-1.1b", help="as scripts/make_random_base.py knows it"
    )
    args = parser.parse_args()
    print(
        "| GB | one process | each of two | same digest | seconds of the round, one and two "
        "|\n|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(folder, args.shape, "bfloat16")
        for name in [
            n for n in METHODS if not args.names or any(n.startswith(given) for given in args.names)
        ]:
            (alone, first), (shared, second) = peaks(folder, name, []), peaks(folder, name, GROUP)
            same = "yes" if first["weights_digest"] == second["weights_digest"] else "no"
            both = " and ".join(f"{peak / 1e9:.2f}" for peak in shared)
            seconds = " and ".join(
                f"{summary['seconds']['total']:.0f}" for summary in (first, second)
            )
            print(f"| {name} | {alone[0] / 1e9:.2f} | {both} | {same} | {seconds} |", flush=True)


if __name__ == "__main__":
    main()
