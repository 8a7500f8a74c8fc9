"""Byzantine clients against FeedSign and ZO-FedSGD: mean and deviation over seeds.

    python benchmarks/byzantine.py [--seeds 1 2 3 4 5] [--clients 5 25] [--out runs/byzantine.json]

A small network on scikit-learn's handwritten digits, clients IID; all its parameters, or a last layer alone (on the
pixels), as FeedSign's vision experiments train it. Byzantine clients do what the paper's do (Section 4.3): they send a
random projection to ZO-FedSGD (N(0, 100^2): the paper gives no size; benchmarks/strength.py has others), and always the
reversed sign to FeedSign. Seeds of ZO-FedSGD are the clients'
own, as there. 15 to 30 seconds a run on one core.
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
from fedseed.attacks.updates import AttackKind
from fedseed.methods import FeedSign, Method, ZOFedSGD
from fedseed.objectives.losses import Supervised
from fedseed.randomness import Domain, permutation
from fedseed.tasks.data import ClientData

TEST, HIDDEN, BATCH = 360, 32, 16
METHODS: dict[str, Method] = {
    "ZO-FedSGD": ZOFedSGD(seeds="own", basis="rademacher", learning_rate=3e-3, batch=BATCH),
    "FeedSign": FeedSign(basis="rademacher", learning_rate=2e-3, batch=BATCH),
}
STEPS = {"all parameters": 8000, "last layer": 4000}
LIES: dict[str, AttackKind] = {"ZO-FedSGD": "random", "FeedSign": "sign"}
FEDERATIONS = (  # what is trained, clients, of them Byzantine
    ("all parameters", 5, 0),
    ("all parameters", 5, 1),
    ("all parameters", 25, 0),
    ("all parameters", 25, 3),
    ("last layer", 5, 0),
    ("last layer", 5, 1),
)


def accuracy_after(name: str, trained: str, clients: int, byzantine: int, seed: int) -> float:
    """Test accuracy in percent."""
    steps, method = STEPS[trained], METHODS[name]
    images, digits = load_digits(return_X_y=True)
    order = permutation(0, Domain.PARTITION, len(images))
    inputs = torch.tensor(images[order] / 8 - 0.6, dtype=torch.float32)
    targets = torch.tensor(digits[order])
    torch.manual_seed(0)  # the base: everybody starts from it, whatever the run's seed
    model: nn.Module = nn.Linear(64, 10)
    if trained == "all parameters":
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
        attack=LIES[name] if byzantine else None,
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
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 25], help="federations of so many")
    parser.add_argument("--out", type=Path, default=Path("runs/byzantine.json"))
    args = parser.parse_args()
    federations = [one for one in FEDERATIONS if one[1] in args.clients]
    torch.set_num_threads(1)  # the network is tiny
    found: dict[str, float] = json.loads(args.out.read_text()) if args.out.exists() else {}
    for seed in args.seeds:
        for trained, clients, byzantine in federations:
            for name in METHODS:
                key = f"{name}, {trained}, {byzantine} of {clients}, seed {seed}"
                if key not in found:
                    found[key] = accuracy_after(name, trained, clients, byzantine, seed)
                    args.out.parent.mkdir(parents=True, exist_ok=True)
                    args.out.write_text(json.dumps(found, indent=1))
                    print(f"{key}: {found[key]:.1f}%", flush=True)
    print(f"\nTest accuracy in percent, {len(args.seeds)} seeds:\n")
    print("| trained, steps | Byzantine clients | " + " | ".join(METHODS) + " |\n|---|---|" + "---|" * len(METHODS))
    for trained, clients, byzantine in federations:
        cells = [spread([found[f"{name}, {trained}, {byzantine} of {clients}, seed {s}"] for s in args.seeds])
                 for name in METHODS]  # fmt: skip
        print(f"| {trained}, {STEPS[trained]:,} | {byzantine} of {clients} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
