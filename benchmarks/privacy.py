"""Accuracy against epsilon at delta = 1e-5, of each method with `[privacy]`, on handwritten digits: last layer only.

    python benchmarks/privacy.py [--seeds 1 2 3] [--epsilons 1 4 8] [--only NAME ...]

The task and the base of the recipe digits-zo-fedsgd. As the layers below stay as they are, what they make of each
picture is computed once, and the last layer is tuned on that: the same runs, in seconds. At example level five clients
have 139 or 140 pictures each (MeZO: one has all 697), at client level 100 clients have 6 or 7. Noise is what all rounds
need to spend epsilon; rates and clips are the same for all epsilons. DP-FeedSign's epsilon a vote is searched likewise.
"""

import argparse
from statistics import mean, stdev
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from fedseed import Federation, FedKSeed, FedMeZO, FeedSign, Ferret, MeZO, ZOFedSGD
from fedseed.methods import Method, protected
from fedseed.models.loading import quiet
from fedseed.objectives.losses import Supervised
from fedseed.privacy import PrivacySettings, PrivateSign, noise_for
from fedseed.runs.recipe import read_recipe
from fedseed.training.settings import LocalTraining

OBJECTIVE = Supervised(lambda out, labels: cross_entropy(out, labels, reduction="none"))
EXAMPLE = {"level": "example", "clip": 0.01, "noise": 1.0, "sampling": "poisson"}
PAIR: dict[str, Any] = {"seeds": "shared", "scale": 1e-3}
# name -> (clients, rounds, method, privacy)
RUNS: dict[str, tuple[int, int, Method, dict[str, Any]]] = {
    "ZO-FedSGD, examples": (5, 300, ZOFedSGD(batch=32, learning_rate=1e-2, **PAIR), {**EXAMPLE, "examples": 139}),
    "MeZO, examples": (1, 300, MeZO(batch=64, learning_rate=1e-2), {**EXAMPLE, "examples": 697}),
    "FedKSeed, examples": (
        5, 15, FedKSeed(batch=32, steps=20, candidates=1024, learning_rate=1e-2, scale=1e-3, weighting="equal"),
        {**EXAMPLE, "examples": 139},
    ),
    "FedMeZO, examples": (5, 15, FedMeZO(batch=32, steps=20, learning_rate=1e-2), {**EXAMPLE, "examples": 139}),
    "ZO-FedSGD, clients": (
        100, 100, ZOFedSGD(batch=8, learning_rate=1e-2, **PAIR), {"level": "client", "clip": 3.0, "noise": 1.0},
    ),
    "FedKSeed, clients": (
        100, 10,
        FedKSeed(batch=8, steps=10, candidates=64, learning_rate=1e-2, scale=1e-3, weighting="equal"),
        {"level": "client", "clip": 10.0, "noise": 1.0},
    ),
    "FedMeZO, clients": (
        100, 10, FedMeZO(batch=8, steps=10, learning_rate=1e-2), {"level": "client", "clip": 10.0, "noise": 1.0},
    ),
    "Ferret, clients": (
        100, 10,
        Ferret(
            directions=64, seeds="shared", allocation="size", basis="rademacher", blocks="one",
            training=LocalTraining(learning_rate=0.02, steps=5, batch=8, accumulation=1),
        ),
        {"level": "client", "clip": 0.05, "noise": 1.0},
    ),
    "DP-FeedSign": (100, 100, FeedSign(batch=8, learning_rate=5e-3, basis="normal"), {}),
}  # fmt: skip


def features(clients: int, seed: int) -> tuple[torch.nn.Module, list[list[Any]], list[Any]]:
    """A new last layer, what the layers below it make of the clients' pictures, and of the test pictures."""
    settings = [f"task.clients={clients}", f"federation.per_round={clients}", f"seed={seed}", "rounds=1"]
    whole = Federation.from_file("digits-zo-fedsgd", settings, progress=False)
    model, objective = whole.worker.space.model.eval(), whole.worker.objective
    layer = next(m for m in model.modules() if isinstance(m, torch.nn.Linear) and m.out_features == 10)
    seen: list[torch.Tensor] = []
    layer.register_forward_hook(lambda module, given, out: seen.append(given[0].detach().clone()))

    def made(pictures: Any) -> list[Any]:
        seen.clear()
        with torch.no_grad():
            objective.losses(model, pictures)
        return [(row, torch.tensor(p.label)) for row, p in zip(seen[0], pictures, strict=True)]

    test = read_recipe("digits-zo-fedsgd", settings).task.load().evaluation[""]
    held = [made(items) for items in whole.items]
    tested = made(test)
    fresh = torch.nn.Linear(layer.in_features, 10)
    fresh.load_state_dict(layer.state_dict())
    return fresh, held, tested


def private(name: str, epsilon: float | None) -> tuple[Method, PrivacySettings | None]:
    """A line's method, and its privacy with the noise that epsilon takes."""
    _, rounds, method, table = RUNS[name]
    if epsilon is None:
        return method, None
    if not table:
        low, high = 1e-4, 10.0
        for _ in range(12):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if PrivateSign(middle).spent(rounds)["epsilon"] <= epsilon else (low, middle)
        return FeedSign.model_validate({**method.model_dump(), "epsilon": low}), None
    settings = PrivacySettings(**table)
    releases = protected(method, settings).releases if settings.level == "example" else (1, 1)
    noise = noise_for(epsilon, rounds, settings, *releases)
    return method, settings.model_copy(update={"noise": noise, "budget": epsilon})


def accuracy(name: str, epsilon: float | None, seed: int, made: Any) -> float:
    """Of one run, in percent of the test pictures."""
    layer, held, test = made
    fresh = torch.nn.Linear(layer.in_features, layer.out_features)
    fresh.load_state_dict(layer.state_dict())
    xs, ys = torch.stack([x for x, _ in test]), torch.stack([y for _, y in test])
    method, privacy = private(name, epsilon)
    run = Federation(
        fresh, held, method, OBJECTIVE, RUNS[name][1], seed=seed, evaluate_every=10**6, progress=False, privacy=privacy,
        evaluation=lambda model: {"accuracy": float((model(xs).argmax(1) == ys).float().mean()) * 100},
    )  # fmt: skip
    summary = run.run().summary
    spent = summary["privacy"]
    assert epsilon is None or (spent["epsilon"] <= epsilon and summary["rounds"] == RUNS[name][1])
    with torch.no_grad():
        return float((run.worker.space.model(xs).argmax(1) == ys).float().mean()) * 100


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0, 8.0])
    parser.add_argument("--only", nargs="+", default=list(RUNS))
    given = parser.parse_args()
    quiet()
    torch.set_num_threads(1)
    made: dict[tuple[int, int], Any] = {}
    for name in given.only:
        for epsilon in [*given.epsilons, None]:
            found = []
            for seed in given.seeds:
                key = RUNS[name][0], seed
                made[key] = made.get(key) or features(*key)
                found.append(accuracy(name, epsilon, seed, made[key]))
            spread = f" ± {stdev(found):.1f}" if len(found) > 1 else ""
            label = "not private" if epsilon is None else f"epsilon {epsilon:g}"
            each = ", ".join(f"{one:.1f}" for one in found)
            print(f"{name:<20} {label:<12} {mean(found):5.1f}{spread}   ({each})", flush=True)


if __name__ == "__main__":
    main()
