"""The zeroth-order recipes for the small base over several seeds: mean and deviation, as a Markdown
table.

    python benchmarks/zeroth_order.py [--seeds 1 2 3] [--out runs/zeroth-order]

About six minutes a seed on two cores. Runs that are in the folder already are not run again.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedseed.recipe.reading import read_recipe
from fedseed.reports.tables import human_bytes
from fedseed.runs.assembly import build

# label, recipe, further settings
RUNS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("MeZO (centralised)", "small-mezo", ()),
    ("ZO-FedSGD, shared seed", "small-zo-fedsgd", ()),
    ("FeedSign", "small-feedsign", ()),
    ("FedZO, two-point", "small-fedzo", ()),
    ("FedKSeed", "small-fedkseed", ()),
    ("FedKSeed-Pro", "small-fedkseed-pro", ()),
    (
        "ZO-FedSGD, 1 of 5 Byzantine",
        "small-zo-fedsgd",
        ("method.seeds=own", "attack.kind=random", "attack.clients=1"),
    ),
    ("FeedSign, 1 of 5 Byzantine", "small-feedsign", ("attack.kind=sign", "attack.clients=1")),
)


def run(recipe: str, settings: Sequence[str], folder: Path) -> dict[str, Any]:
    """One run's summary, from the folder if it is finished there."""
    if not (folder / "summary.json").exists():
        build(read_recipe(recipe, settings), folder=folder).run()
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and sample deviation."""
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{deviation}"


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/zeroth-order"))
    args = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {label: [] for label, _, _ in RUNS}
    for seed in args.seeds:
        for label, recipe, settings in RUNS:
            name = f"{recipe}-{'attacked-' if settings else ''}{seed}"
            summary = run(
                recipe, [f"seed={seed}", "evaluation.every=1000", *settings], args.out / name
            )
            rows[label].append(summary)
            print(f"{name}: loss {summary['final']['loss']:.3f}", flush=True)
    baseline = rows[RUNS[0][0]][0]["baseline"]
    print(f"\nzero-shot: loss {baseline['loss']:.3f}, Rouge-L {baseline['rouge_l']:.1f}\n")
    print("| method | rounds | loss | Rouge-L | up | down | forward passes | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for label, runs in rows.items():
        first = runs[0]
        print(
            f"| {label} | {first['rounds']} | {spread([r['final']['loss'] for r in runs], 3)} "
            f"| {spread([r['final']['rouge_l'] for r in runs], 1)} | "
            f"{human_bytes(first['payload_bytes_up'])} "
            f"| {human_bytes(first['payload_bytes_down'])} | {first['forward_passes']:,} "
            f"| {mean(r['seconds']['total'] for r in runs):.0f} |"
        )


if __name__ == "__main__":
    main()
