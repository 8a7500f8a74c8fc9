"""FeedSign and ZO-FedSGD on handwritten digits, last layer only: test accuracy over seeds.

    python benchmarks/digits.py [--seeds 1 2 3] [--out runs/digits]
    python benchmarks/digits.py --byzantine [--seeds 1 2 3 4 5]

The recipes digits-feedsign and digits-zo-fedsgd, five clients, IID and Dirichlet over the class. A
seed decides the run's directions and new head as well as who holds what. One to two minutes a run
on one core; what is there already is taken up. With --byzantine: the same recipes, IID, as they are
and with one Byzantine client of five, as in the paper: a random projection to ZO-FedSGD (N(0,
100^2): the paper gives no size), always the reversed sign to FeedSign.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

import torch
from matplotlib import pyplot as plt

from fedseed import Federation
from fedseed.models.loading import quiet
from fedseed.reports.plots import COLOURS
from fedseed.reports.results import read_metrics

RECIPES = {"FeedSign": "digits-feedsign", "ZO-FedSGD": "digits-zo-fedsgd"}
PARTITIONS = {
    "IID": ["task.partition.kind=iid"],
    "Dirichlet(0.5)": ["task.partition.kind=dirichlet", "task.partition.alpha=0.5"],
}
ATTACK = {
    name: ["task.partition.kind=iid", f"attack.kind={kind}", "attack.clients=1"]
    for name, kind in (("FeedSign", "sign"), ("ZO-FedSGD", "random"))
}


def folder(out: Path, name: str, partition: str, seed: int) -> Path:
    """Where a run's files are."""
    return out / f"{name}-{list(PARTITIONS).index(partition)}-{seed}".lower()


def spread(values: Sequence[float]) -> str:
    """Mean and sample deviation."""
    return f"{mean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def draw(out: Path, seeds: Sequence[int], path: Path) -> None:
    """Accuracy over steps: means over the seeds, and from the lowest to the highest."""
    figure, grid = plt.subplots(
        1, len(PARTITIONS), figsize=(4.2 * len(PARTITIONS), 3.4), sharey=True
    )
    for axes, partition in zip(grid, PARTITIONS, strict=True):
        for colour, name in zip(COLOURS, RECIPES, strict=False):
            runs = [read_metrics(folder(out, name, partition, seed)) for seed in seeds]
            steps = [line["round"] for line in runs[0]]
            at = list(zip(*([line["accuracy"] for line in run] for run in runs), strict=True))
            axes.plot(
                steps, [mean(a) for a in at], color=colour, marker="o", markersize=3.5, label=name
            )
            axes.fill_between(
                steps,
                [min(a) for a in at],
                [max(a) for a in at],
                color=colour,
                alpha=0.2,
                linewidth=0,
            )
        axes.axhline(90, color="0.6", linewidth=0.8, linestyle=":")
        axes.set_title(partition, fontsize=10)
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    grid[0].set_ylabel("test accuracy, %")
    grid[0].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def byzantine(out: Path, seeds: Sequence[int]) -> None:
    """The table with and without an attacker."""
    print("| | no Byzantine client | one of five |\n|---|---|---|")
    for name, recipe in RECIPES.items():
        cells = []
        for label, settings in (("iid", PARTITIONS["IID"]), ("attacked", ATTACK[name])):
            finals = []
            for seed in seeds:
                overrides = [*settings, f"seed={seed}", f"task.seed={seed}"]
                run = Federation.from_file(
                    recipe, overrides, out=out / f"{name}-{label}-{seed}".lower()
                )
                finals.append(run.run(resume=True).summary["final"]["accuracy"])
            cells.append(spread(finals))
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument(
        "--byzantine", action="store_true", help="with and without an attacker, five seeds"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/digits"))
    args = parser.parse_args()
    torch.set_num_threads(1)  # the network is tiny
    quiet()
    args.seeds = args.seeds or ([1, 2, 3, 4, 5] if args.byzantine else [1, 2, 3])
    if args.byzantine:
        byzantine(args.out, args.seeds)
        return
    finals: dict[tuple[str, str], list[float]] = {}
    for partition, settings in PARTITIONS.items():
        for name, recipe in RECIPES.items():
            for seed in args.seeds:
                overrides = [*settings, f"seed={seed}", f"task.seed={seed}"]
                run = Federation.from_file(
                    recipe, overrides, out=folder(args.out, name, partition, seed)
                )
                summary = run.run(resume=True).summary
                finals.setdefault((name, partition), []).append(summary["final"]["accuracy"])
                shown = (
                    f"{summary['final']['accuracy']:.1f}% in {summary['seconds']['total']:.0f} s"
                )
                print(
                    f"{name}, {partition}, seed {seed}: {shown}; {summary['data_notes'][1]}",
                    flush=True,
                )
    print(f"\nTest accuracy in percent, {len(args.seeds)} seeds:\n")
    print("| | " + " | ".join(PARTITIONS) + " |\n|---|" + "---|" * len(PARTITIONS))
    for name in RECIPES:
        print(
            f"| {name} | "
            + " | ".join(spread(finals[name, partition]) for partition in PARTITIONS)
            + " |"
        )
    draw(args.out, args.seeds, args.out / "accuracy.png")


if __name__ == "__main__":
    main()
