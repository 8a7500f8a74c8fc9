"""Byzantine clients against FeedSign and ZO-FedSGD, trained until they level off: mean and deviation over seeds.

    python benchmarks/byzantine.py [--seeds 1 2 3] [--out runs/byzantine.json]

All parameters of a small network on scikit-learn's handwritten digits, clients IID; half a minute a run on one core.
Byzantine clients send random projections: N(0, 100^2) to ZO-FedSGD, a coin toss to FeedSign, which hears only signs.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from fedseed import Federation
from fedseed.methods import FeedSign, Method, ZOFedSGD
from fedseed.randomness import Domain, permutation
from fedseed.tasks.data import ClientData
from fedseed.training.objectives import Supervised

TEST, HIDDEN, BATCH = 360, 32, 16
METHODS: dict[str, tuple[Method, dict[int, int]]] = {  # and how many steps, by the number of clients
    "ZO-FedSGD": (ZOFedSGD(seeds="shared", basis="rademacher", rate=3e-3, batch=BATCH), {5: 8000, 25: 8000}),
    "FeedSign": (FeedSign(basis="rademacher", rate=2e-3, batch=BATCH), {5: 24_000, 25: 8000}),
}
FEDERATIONS = ((5, 0), (5, 1), (25, 0), (25, 3))  # clients, of them Byzantine


def accuracy_after(method: Method, clients: int, byzantine: int, seed: int, steps: int) -> float:
    """Test accuracy in percent."""
    images, digits = load_digits(return_X_y=True)
    order = permutation(0, Domain.PARTITION, len(images))
    inputs = torch.tensor(images[order] / 8 - 0.6, dtype=torch.float32)
    targets = torch.tensor(digits[order])
    torch.manual_seed(0)  # the base: everybody starts from it, whatever the run's seed
    model = nn.Sequential(nn.Linear(64, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 10))

    def evaluate(module: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            right = module(inputs[:TEST]).argmax(1) == targets[:TEST]
        return {"accuracy": 100 * float(right.float().mean())}

    run = Federation(
        model,
        [
            ClientData(f"client-{c}", [(inputs[i], targets[i]) for i in range(TEST + c, len(inputs), clients)])
            for c in range(clients)
        ],
        method,
        Supervised(lambda output, target: cross_entropy(output, target, reduction="none")),
        rounds=steps,
        seed=seed,
        evaluation=evaluate,
        evaluate_every=steps,
        attack="random" if byzantine else None,
        attackers=range(clients - byzantine, clients) if byzantine else (),
    ).run()
    final: float = run.summary["final"]["accuracy"]
    return final


def spread(values: Sequence[float]) -> str:
    """Mean and sample deviation."""
    return f"{mean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def main() -> None:
    """Run what is missing in the file and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/byzantine.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)  # the network is tiny
    found: dict[str, float] = json.loads(args.out.read_text()) if args.out.exists() else {}
    for seed in args.seeds:
        for clients, byzantine in FEDERATIONS:
            for name, (method, steps) in METHODS.items():
                key = f"{name}, {byzantine} of {clients}, seed {seed}, {steps[clients]} steps"
                if key not in found:
                    found[key] = accuracy_after(method, clients, byzantine, seed, steps[clients])
                    args.out.parent.mkdir(parents=True, exist_ok=True)
                    args.out.write_text(json.dumps(found, indent=1))
                    print(f"{key}: {found[key]:.1f}%", flush=True)
    print(f"\nTest accuracy in percent, {len(args.seeds)} seeds:\n")
    print("| Byzantine clients | " + " | ".join(METHODS) + " |")
    print("|---|" + "---|" * len(METHODS))
    for clients, byzantine in FEDERATIONS:
        cells = [
            spread([found[f"{name}, {byzantine} of {clients}, seed {s}, {steps[clients]} steps"] for s in args.seeds])
            + f" after {steps[clients]:,} steps"
            for name, (_, steps) in METHODS.items()
        ]
        print(f"| {byzantine} of {clients} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
