"""Do normal, rademacher and hadamard directions tune equally well? Ferret and FedKSeed on the small
base.

    python benchmarks/bases.py [--seeds 1 2 3] [--out runs/bases.json]

Held-out loss after the same rounds with the same settings; only the basis, the number of directions
and the run's seed change. About twenty minutes on one core. What is in the file already is not run
again.
"""

import argparse
import json
from pathlib import Path
from statistics import mean, stdev

from fedseed.recipe.reading import read_recipe
from fedseed.runs.assembly import build

BASES = ("normal", "rademacher", "hadamard")
COMMON = ("evaluation.rouge=false", "evaluation.every=1000", "task.unseen=0")
FERRET = ("rounds=8", "federation.per_round=4")
# method and number of directions: recipe and settings; few directions bear a low rate only
STUDIES: dict[tuple[str, int], tuple[str, tuple[str, ...]]] = {
    ("Ferret", 500): (
        "quickstart-ferret",
        (*FERRET, "method.directions=500", "method.training.learning_rate=0.01"),
    ),
    ("Ferret", 2000): (
        "quickstart-ferret",
        (*FERRET, "method.directions=2000", "method.training.learning_rate=0.03"),
    ),
    ("FedKSeed", 64): (
        "small-fedkseed",
        ("rounds=2", "method.candidates=64", "method.basis_size=64"),
    ),
    ("FedKSeed", 1024): (
        "small-fedkseed",
        ("rounds=2", "method.candidates=1024", "method.basis_size=1024"),
    ),
}


def final_loss(recipe: str, settings: tuple[str, ...]) -> tuple[float, float]:
    """Held-out loss before and after."""
    summary = build(read_recipe(recipe, settings)).run().summary
    return summary["baseline"]["loss"], summary["final"]["loss"]


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/bases.json"))
    args = parser.parse_args()
    found: dict[str, list[float]] = json.loads(args.out.read_text()) if args.out.exists() else {}
    for seed in args.seeds:
        for (method, count), (recipe, settings) in STUDIES.items():
            for basis in BASES:
                name = f"{method}, K = {count}, {basis}, seed {seed}"
                if name not in found:
                    found[name] = list(
                        final_loss(
                            recipe, (*COMMON, *settings, f"seed={seed}", f"method.basis={basis}")
                        )
                    )
                    args.out.parent.mkdir(parents=True, exist_ok=True)
                    args.out.write_text(json.dumps(found, indent=1))
                    print(f"{name}: {found[name][0]:.3f} -> {found[name][1]:.3f}", flush=True)
    print(
        f"\nHeld-out loss, {len(args.seeds)} seeds; zero-shot {next(iter(found.values()))[0]:.3f}\n"
    )
    print("| method, directions | " + " | ".join(BASES) + " |\n|---|" + "---|" * len(BASES))
    for method, count in STUDIES:
        cells = []
        for basis in BASES:
            losses = [found[f"{method}, K = {count}, {basis}, seed {s}"][1] for s in args.seeds]
            cells.append(
                f"{mean(losses):.3f}" + (f" ± {stdev(losses):.3f}" if len(losses) > 1 else "")
            )
        print(f"| {method}, {count:,} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
