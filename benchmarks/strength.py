"""How large must a lie be? A mean and a vote against random updates of 1, 4, 15 and 100 times the
honest size.

    python benchmarks/strength.py [--seeds 1 2 3 4 5] [--strengths 1 4 15 100] [--table] [--out
    FILE.csv]

The federation of benchmarks/robustness.py: digits, ten clients of which two lie, the mean
(FeedSign: the majority). A liar sends N(0, (s r)^2) in place of each number, r the root mean square
of its own honest ones; FeedSign's sends coin tosses. In the last column liars reverse what they
would send, the worst a bit can do. About a second of a core a run.
"""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from robustness import METHODS, RULES, accuracy_after

from fedseed.attacks import updates

HEAD = ("method", "lie", "seed", "accuracy")


def of_strength(strength: float, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `updates.scalars` with lies of so many times the honest root mean square."""

    def scalars(kind: Any, honest: Any, drawn: Any, deviation: float = 0.0) -> Any:
        return plain(
            kind,
            honest,
            drawn,
            strength * float(np.sqrt(np.mean(np.square(honest, dtype=np.float64)))),
        )

    return scalars


def main() -> None:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--strengths", type=float, nargs="+", default=[1, 4, 15, 100])
    parser.add_argument("--out", type=Path, default=Path("docs/figures/strength.csv"))
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    args = parser.parse_args()
    found: dict[tuple[str, str, str], float] = {}
    if args.out.exists():
        found = {
            (row[0], row[1], row[2]): float(row[3]) for row in list(csv.reader(args.out.open()))[1:]
        }
    lies = ["none", *(f"random x {s:g}" for s in args.strengths), "sign"]
    plain: Callable[..., Any] = updates.false_scalars
    for seed in () if args.table else args.seeds:
        for method in METHODS:
            for lie, strength in zip(lies, (0.0, *args.strengths, 0.0), strict=True):
                if (method, lie, str(seed)) not in found:
                    updates.false_scalars = of_strength(strength, plain) if strength else plain
                    kind: Any = None if lie == "none" else lie.partition(" ")[0]
                    found[method, lie, str(seed)] = accuracy_after(
                        method, RULES["mean"], kind, seed
                    )
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with args.out.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(
                [HEAD, *((*key, f"{x:.4g}") for key, x in found.items())]
            )
    print("| | " + " | ".join(lies) + " |\n|---|" + "---|" * len(lies))
    for method in METHODS:
        values = [
            [found[k] for s in args.seeds if (k := (method, lie, str(s))) in found] for lie in lies
        ]
        row = [f"{mean(v):.1f} ± {stdev(v):.1f}" if len(v) > 1 else "-" for v in values]
        print(f"| {method} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
