"""How much faster a simulation is whose clients are dealt to local processes.

    python benchmarks/workers.py [RECIPE] [--workers 2] [--threads 1] [--repeats 3] [--set KEY=VALUE
    ...]

The command `fedseed run` without workers and with them, in turn, each in processes of its own with
the same number of threads; medians. The runs must end with the same digest, metrics and orbit.
"Rounds" is what the summary calls total: rounds and evaluations without loading; "command" is all
of it, from the shell and back; "processor" is what all of its processes together kept cores busy
for, which a busy machine does not change much.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

COMMAND = [sys.executable, "-c", "from fedseed.cli import main; main()"]


def run(recipe: str, folder: Path, settings: list[str], options: list[str]) -> dict[str, Any]:
    """One run; its seconds, and what must be the same."""
    words = [word for setting in settings for word in ("--set", setting)]
    before, start = _processor(), time.perf_counter()
    subprocess.run(
        [*COMMAND, "run", recipe, "--out", folder, *words, *options],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - start
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    orbit = folder / "model.orbit"
    return {
        "command": seconds,
        "processor": _processor() - before,
        "rounds": summary["seconds"]["total"],
        "memory": (summary["peak_memory_bytes"], summary.get("worker_peak_memory_bytes")),
        "same": (summary["weights_digest"], lines, orbit.read_bytes() if orbit.exists() else None),
    }


def _processor() -> float:
    """Processor seconds of all processes that were started from here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print seconds both ways, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipe", nargs="?", default="quickstart-ferret")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--set", action="append", default=[], help="replaces a value of the recipe, repeatable"
    )
    args = parser.parse_args()
    threads = ["--threads", str(args.threads)]
    ways = {
        "one process": threads,
        f"{args.workers} workers": [*threads, "--workers", str(args.workers)],
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    loads = []
    for number in range(args.repeats):
        for name, options in ways.items():
            loads.append(os.getloadavg()[0])
            with tempfile.TemporaryDirectory() as folder:
                one = run(args.recipe, Path(folder) / "run", args.set, options)
            found[name].append(one)
            print(
                f"{number + 1} {name}: rounds {one['rounds']:.1f} s, command {one['command']:.1f} "
                f"s, processor {one['processor']:.1f} s, load before {loads[-1]:.1f}",
                flush=True,
            )
            assert one["same"] == found["one process"][0]["same"], "the runs differ"
    print(
        f"\n| {args.recipe}, {args.threads} thread(s) each | rounds | command | processor | peak "
        "memory, MB |"
    )
    print("|---|---|---|---|---|")
    medians: dict[str, list[float]] = {}
    for name, runs in found.items():
        medians[name] = [
            median(one[what] for one in runs) for what in ("rounds", "command", "processor")
        ]
        own, workers = runs[0]["memory"]
        memory = f"{own / 1e6:.0f}" + (
            "" if workers is None else f", and {workers / 1e6:.0f} a worker"
        )
        print(
            f"| {name} | "
            + " | ".join(f"{seconds:.1f} s" for seconds in medians[name])
            + f" | {memory} |"
        )
    alone, shared = medians.values()
    print(f"| times faster | {alone[0] / shared[0]:.2f} | {alone[1] / shared[1]:.2f} | | |")
    print(
        f"\nSame digest, metrics and orbit. Load before the runs: {min(loads):.1f} to "
        f"{max(loads):.1f}."
    )


if __name__ == "__main__":
    main()
