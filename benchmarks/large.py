"""Tunes bases of billions of parameters on this machine: what a run takes beside its passes, and
what `bench` reckons.

    python benchmarks/large.py [--shapes tinyllama-1.1b llama-3b] [--out /tmp/large]

Bases of random weights, bfloat16; one client, examples of 24 tokens. Each run is `fedseed run` in a
process of its own, whose peak is the kernel's count of resident memory; `fedseed bench --memory`
reckons it from the shapes. Seconds are those that the summary counts, of wall clocks; "passes" are
two forward passes of the same batch in the same process.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parents[1] / "scripts"
METHODS = {  # settings; what one line of the table is
    "FeedSign, a step": ("rounds = 3", 'name = "feedsign"\nbatch = 1\nlearning_rate = 1e-6'),
    "FedKSeed, 2 steps": (
        "rounds = 2",
        'name = "fedkseed"\ncandidates = 64\nsteps = 2\nbasis = "hadamard"',
    ),
    "Ferret, streaming, 2 steps": (
        "rounds = 1",
        'name = "ferret"\ndirections = 4096\nbasis = "hadamard"\nstreaming = true\nallocation = '
        '"size"\n'
        "[method.training]\nsteps = 2\nbatch = 1\naccumulation = 1\nlearning_rate = 1e-4",
    ),
}
TOKENS = 24


def recipe(base: Path, rounds: str, method: str) -> str:
    """Returns a recipe's text."""
    return (
        f'seed = 1\n{rounds}\n[model]\nbase = "{base}"\ndtype = "bfloat16"\n'
        f'digest = "blake2b-tree"\n[task]\nname = "files"\n'
        f'path = "{base.parent}/data"\n[federation]\nper_round = 1\n[evaluation]\nevery = '
        f"3\nmax_length = {TOKENS}\n"
        f"rouge = false\ndigest_every = 3\n[method]\n{method}\n"
    )


def fedseed(*arguments: Any) -> tuple[str, float, int]:
    """Runs the command line.

    Returns what it prints, its processor seconds, and its peak in bytes.
    """
    return ran(sys.executable, "-m", "fedseed", *map(str, arguments))


def ran(*command: str) -> tuple[str, float, int]:
    """The same of any command."""
    begin = time.time()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(
            f"{' '.join(command)}: ended with {status} after {time.time() - begin:.0f} s"
        )
    return said, used.ru_utime + used.ru_stime, used.ru_maxrss << 10


def two_passes(base: Path) -> None:
    """Prints what two forward passes of an example take, in seconds: the least of three."""
    import torch

    from fedseed.models.loading import load_model

    model, _ = load_model(str(base), "bfloat16")
    ids, spent = torch.arange(TOKENS)[None], []
    with torch.no_grad():
        for _ in range(4):
            begin = time.perf_counter()
            model(input_ids=ids, use_cache=False)
            spent.append(time.perf_counter() - begin)
    print(2 * min(spent[1:]))


def main() -> None:
    """Prints a row for each run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=["tinyllama-1.1b", "llama-3b"])
    parser.add_argument("--out", type=Path, default=Path("/tmp/large"))
    parser.add_argument("--passes", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.passes:
        two_passes(args.passes)
        return
    print(
        "| base | run | a round: local, s | rebuild, s | processor s | peak, GB | reckoned, GB | "
        "off by |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for shape in args.shapes:
        base = args.out / shape
        (args.out / "data").mkdir(parents=True, exist_ok=True)
        text = "".join(
            json.dumps({"prompt": f"Say {i}", "response": f"It is {i}."}) + "\n" for i in range(8)
        )
        (args.out / "data" / "a.jsonl").write_text(text)
        if not base.exists():
            subprocess.run(
                [sys.executable, SCRIPTS / "make_random_base.py", shape, "--out", base], check=True
            )
        spent = float(ran(sys.executable, __file__, "--passes", str(base))[0])
        print(f"| {shape} | two forward passes | {spent:.1f} | | | | | |", flush=True)
        for name, (rounds, method) in METHODS.items():
            file, folder = args.out / "recipe.toml", args.out / f"run-{shape}-{name.split(',')[0]}"
            file.write_text(recipe(base, rounds, method))
            reckoned = json.loads(
                fedseed("bench", file, "--memory", "--json", "--tokens", TOKENS)[0]
            )
            subprocess.run(["rm", "-rf", folder], check=True)
            _, spent, peak = fedseed("run", file, "--out", folder, "-q")
            seconds = json.loads((folder / "summary.json").read_text())["seconds_per_client"]
            total = reckoned["memory"]["total"] + reckoned["memory"]["libraries"]
            row = (
                f"{seconds['local']:.1f} | {seconds.get('rebuild', 0):.1f} | {spent:.0f} | "
                f"{peak / 1e9:.2f}"
            )
            print(
                f"| {shape} | {name} | {row} | {total / 1e9:.2f} | {peak / total - 1:+.0%} |",
                flush=True,
            )
            _, spent, peak = fedseed("orbit", "replay", folder, "--out", folder / "model")
            print(
                f"| {shape} | replay of it | | | {spent:.0f} | {peak / 1e9:.2f} | | |", flush=True
            )


if __name__ == "__main__":
    main()
