"""How many copies of the model a round holds: peaks of memory side by side, in bfloat16.

    python benchmarks/copies.py --bench                  # both shapes; half an hour on two cores
    python benchmarks/copies.py --shape opt-125m FedSGD  # one shape, lines that begin so

Each line is a process of its own: a round with examples of 128 tokens, one at a time.
"peak" is what Linux says of the second round alone; loading and the first one, for which kernels
are compiled, are not in it, and inference comes after a round of FeedSign. "of inference" divides
it by a plain forward pass of the same batch. "bench" is what `fedseed bench` says of the same
recipe, with `--memory` (shapes) and without it (a round that it runs; the peak before its
evaluation). The base has random weights (scripts/make_random_base.py).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from memory import prepare, resident, settle

SHAPES = ("opt-125m", "tinyllama-1.1b")
CLIENTS = 8
ONE = "federation.per_round=1"
FEDSGD = ["method.name=fedsgd", "method.batch=1", "method.micro_batch=1"]
INFERENCE = "inference"
LINES = {
    INFERENCE: [ONE, "method.name=feedsign", "method.batch=1"],
    "FeedSign": [ONE, "method.name=feedsign", "method.batch=1"],
    "FedKSeed": [ONE, "method.name=fedkseed", "method.steps=2", "method.batch=1"],
    "FedSGD of 1 client": [ONE, *FEDSGD],
    f"FedSGD of {CLIENTS} clients": FEDSGD,
    f"FedSGD of {CLIENTS} clients, summed": [*FEDSGD, "method.summed=true"],
}


def measure_rounds(recipe_file: Path, settings: list[str], passes_only: bool) -> dict[str, int]:
    """Return the bytes of this process before and at the peak of a second round."""
    import torch

    from fedseed.recipe.reading import read_recipe
    from fedseed.reports.results import RoundLine
    from fedseed.runs.assembly import build
    from fedseed.weights.heap import release_free_memory

    settle()
    federation = build(read_recipe(recipe_file, settings))
    worker = federation.worker

    def run_round(number: int) -> None:
        federation.gather(number)
        federation.apply(federation.coordinator.close(), RoundLine(number), False)

    # compilers, libraries and tables have come then, of whichever line: a plain forward pass is
    # compared with the others
    run_round(1)
    release_free_memory()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    if passes_only:
        with torch.no_grad():
            worker.objective.losses(worker.space.model, federation.items[0][:1])
    else:
        run_round(2)
    return {
        "before": before,
        "peak": resident("VmHWM"),
        "weights": worker.space.layout.dense_bytes,
        "base": worker.space.base_bytes,
    }


def measure_bench(recipe_file: Path, settings: list[str], tokens: int) -> dict[str, int]:
    """Return what `fedseed bench` says: by the shapes, with libraries, and of a round."""
    from fedseed.experiments.bench import measure, reckon
    from fedseed.recipe.reading import read_recipe

    settle()
    recipe = read_recipe(recipe_file, settings)
    reckoned = reckon(recipe, tokens)
    return {
        "reckoned": reckoned.total + reckoned.libraries,
        "benched": measure(recipe).training_memory,
    }


def run_child(folder: Path, line: str, part: str, tokens: int) -> dict[str, int]:
    """Return one measurement of a line, made in a process of its own."""
    command = [sys.executable, __file__, "--folder", str(folder), "--child", part, line]
    command += ["--tokens", str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{line}: {done.stderr[-2000:]}")
    figures: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return figures


def print_table(folder: Path, shape: str, names: list[str], with_bench: bool, tokens: int) -> None:
    """Print the lines of one shape."""
    place = folder / f"{shape}-{tokens}"
    if not (place / "recipe.toml").exists():
        place.mkdir(parents=True, exist_ok=True)
        prepare(place, shape, "bfloat16", [f"client-{number}" for number in range(CLIENTS)], tokens)
    print(
        f"\n| {shape}, {tokens} tokens, MB | weights | kept base | before | peak | of inference |",
        end="",
    )
    print(" bench --memory | bench |\n|---|---|---|---|---|---|---|---|", flush=True)
    inference = 0
    for line in LINES:
        if line != INFERENCE and names and not any(line.startswith(name) for name in names):
            continue
        found = run_child(place, line, "rounds", tokens)
        inference = inference or found["peak"]
        cells = [f"{found[name] / 1e6:,.0f}" for name in ("weights", "base", "before", "peak")]
        cells.append(f"{found['peak'] / inference:.3f}")
        cells += ["", ""]
        if with_bench and line != INFERENCE:
            bench = run_child(place, line, "bench", tokens)
            cells[-2:] = [f"{bench[name] / 1e6:,.0f}" for name in ("reckoned", "benched")]
        print(f"| {line} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="beginnings of the lines' names")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="by default both")
    parser.add_argument("--folder", type=Path, help="where bases and data are, or are to be")
    parser.add_argument("--tokens", type=int, default=128, help="of an example")
    parser.add_argument("--bench", action="store_true", help="also what `fedseed bench` says")
    parser.add_argument("--child", choices=("rounds", "bench"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        (line,) = args.names
        recipe_file, settings = args.folder / "recipe.toml", LINES[line]
        settings = [f"model.base={args.folder / 'base'}", *settings]
        if args.child == "bench":
            figures = measure_bench(recipe_file, settings, args.tokens)
        else:
            figures = measure_rounds(recipe_file, settings, line == INFERENCE)
        print(json.dumps(figures))
        return
    with tempfile.TemporaryDirectory() as temporary:
        for shape in args.shape or SHAPES:
            print_table(args.folder or Path(temporary), shape, args.names, args.bench, args.tokens)


if __name__ == "__main__":
    main()
