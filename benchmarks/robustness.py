"""Rules against attacks, method by method: test accuracy on handwritten digits, mean over seeds.

    python benchmarks/robustness.py [--seeds 1 2 3] [--methods FedAvg ...] [--rules mean ...]
        [--attacks none ...] [--out runs/robustness.json] [--table]

A layer from 64 pixels to 10 classes (650 parameters) on scikit-learn's digits; ten clients, two of
them Byzantine (the last ones). Half of a client's images are dealt at random, half are of two
digits of its own. A run takes less than a second of a core; what is in the file already is taken
up, so it can be stopped. --table prints what is there.
"""

import argparse
import gc
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from fedseed import Federation
from fedseed.aggregation import (
    AggregationRule,
    CentredClipping,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MultiKrum,
    NormBound,
    TrimmedMean,
)
from fedseed.attacks.updates import AttackKind, flip_labels
from fedseed.methods import FedAvg, FedKSeed, FeedSign, Ferret, Method, ZOFedSGD
from fedseed.objectives.losses import Supervised
from fedseed.randomness import Domain, permutation
from fedseed.tasks.data import ClientData
from fedseed.training.settings import LocalTraining

CLIENTS, LIARS, TEST = 10, 2, 360
LOCAL = LocalTraining(optimizer="sgd", learning_rate=0.2, steps=5, batch=32, accumulation=1)
METHODS: dict[str, tuple[Method, int]] = {  # and how many rounds
    "FeedSign": (FeedSign(basis="rademacher", learning_rate=1e-2, batch=64, population=16), 50),
    "ZO-FedSGD": (
        ZOFedSGD(seeds="shared", basis="rademacher", learning_rate=3e-2, batch=32, population=16),
        50,
    ),
    "FedKSeed": (
        FedKSeed(basis="rademacher", candidates=128, steps=25, learning_rate=2e-2, batch=16),
        6,
    ),
    "Ferret": (
        Ferret(seeds="shared", directions=400, blocks="one", weighting="examples", training=LOCAL),
        6,
    ),
    "FedAvg": (FedAvg(training=LOCAL), 6),
}
RULES: dict[str, AggregationRule] = {
    "mean": Mean(),
    "median": Median(liars=LIARS),
    "trimmed-mean": TrimmedMean(liars=LIARS),
    "krum": Krum(liars=LIARS),
    "multi-krum": MultiKrum(liars=LIARS),
    "geometric-median": GeometricMedian(liars=LIARS),
    "centred-clipping": CentredClipping(liars=LIARS),
    "norm-bound": NormBound(liars=LIARS),
    "neighbours + trimmed-mean": TrimmedMean(liars=LIARS, before=["nearest-neighbours"]),
}
ATTACKS = (
    "none",
    "sign",
    "random",
    "labels",
    "alie",
    "inner-product",
    "mimic",
    "largest",
    "claims",
)


@cache
def task() -> tuple[torch.Tensor, torch.Tensor, list[ClientData]]:
    """All inputs and targets, of which the first TEST are for the test, and the clients' shares of
    the others.
    """
    images, digits = load_digits(return_X_y=True)
    order = permutation(0, Domain.PARTITION, len(images))
    inputs = torch.tensor(images[order] / 8 - 0.6, dtype=torch.float32)
    targets = torch.tensor(digits[order])
    held: list[list[int]] = [[] for _ in range(CLIENTS)]
    for i in range(TEST, len(inputs)):  # half by chance, half to those whose digit it is
        held[
            i % CLIENTS if i % 2 else (int(targets[i]) + CLIENTS // 2 * (i // 2 % 2)) % CLIENTS
        ].append(i)
    clients = [
        ClientData(f"client-{c}", [(inputs[i], targets[i]) for i in mine])
        for c, mine in enumerate(held)
    ]
    return inputs, targets, clients


def accuracy_after(name: str, rule: AggregationRule, attack: AttackKind | None, seed: int) -> float:
    """Test accuracy in percent."""
    method, rounds = METHODS[name]
    inputs, targets, clients = task()
    liars = range(CLIENTS - LIARS, CLIENTS)
    if attack == "labels":
        clients = [
            flip_labels(client, seed, c) if c in liars else client
            for c, client in enumerate(clients)
        ]
    torch.manual_seed(0)  # the base: everybody starts from it, whatever the run's seed
    model = nn.Linear(64, 10)

    def evaluate(module: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            right = module(inputs[:TEST]).argmax(1) == targets[:TEST]
        return {"accuracy": 100 * float(right.float().mean())}

    run = Federation(
        model,
        clients,
        method,
        Supervised(lambda output, target: cross_entropy(output, target, reduction="none")),
        rounds=rounds,
        seed=seed,
        evaluation=evaluate,
        evaluate_every=rounds,
        aggregation=rule,
        attack=attack,
        attackers=liars if attack else (),
        progress=False,
    ).run()
    final: float = run.summary["final"]["accuracy"]
    return final


def same_as(method: str, rule: str, attack: str) -> str:
    """The attack that does the same: claimed examples are no weight but for the mean, where a
    method weighs by them.
    """
    weighs = rule == "mean" and METHODS[method][0].weighting == "examples"
    return "sign" if attack == "claims" and not weighs else attack


def cells(args: argparse.Namespace) -> Iterator[tuple[str, str, str, int]]:
    """Method, rule, attack and seed of all runs, a seed after the other."""
    for seed in args.seeds:
        for method in args.methods:
            for rule in args.rules:
                for attack in args.attacks:
                    yield method, rule, attack, seed


def table(found: dict[str, float], args: argparse.Namespace) -> None:
    """Print what is there, as Markdown; a deviation where there are several seeds."""
    seeds, heads = args.seeds, args.attacks
    for method in args.methods:
        print(f"\n| {method} | " + " | ".join(heads) + " |\n|---|" + "---|" * len(heads))
        for rule in args.rules:
            row = []
            for attack in heads:
                values = [
                    found[k] for s in seeds if (k := f"{method}/{rule}/{attack}/{s}") in found
                ]
                spread = f" ± {stdev(values):.0f}" if len(values) > 1 else ""
                row.append(f"{mean(values):.0f}{spread}" if values else "-")
            print(f"| {rule} | " + " | ".join(row) + " |")


def main() -> None:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--out", type=Path, default=Path("runs/robustness.json"))
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    args = parser.parse_args()
    found: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    gc.freeze()  # what was imported is not looked through again and again
    for method, rule, attack, seed in () if args.table else cells(args):
        key = f"{method}/{rule}/{attack}/{seed}"
        same = f"{method}/{rule}/{same_as(method, rule, attack)}/{seed}"
        if key not in found:
            kind: Any = None if attack == "none" else attack
            found[key] = (
                found[same] if same in found else accuracy_after(method, RULES[rule], kind, seed)
            )
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(found, indent=0))
            print(f"{key}: {found[key]:.1f}", flush=True)
    table(found, args)


if __name__ == "__main__":
    main()
