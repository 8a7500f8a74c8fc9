"""Populations against one direction a batch, on the small base and on `words`, rates searched for
both.

    python benchmarks/population.py [mezo] [words-zo-fedsgd] ... [--seeds 1 2 3] [--out
    runs/population] python benchmarks/population.py agreement [mezo] ... [--rounds 0 1 3] [--orbit
    FILE]

The rate of each is the one with the lowest loss on validation examples at the end, by the first
seed. Then, on held-out examples: after how many of the passes a run with a population is where the
other one ends, for each seed. On `words` rates fall to nothing over a run, so one with a population
has half the rounds: what it ends at took half the passes. Runs that are in the folder already are
not run again, so a stopped search goes on. A run of `mezo` takes about a minute of one core, one on
`words` half of that.

`agreement` is what the gain should be by reckoning: A = n |g|^2 / mean |g_j|^2 of the parts'
gradients g_j and their mean g, after some rounds of FedAvg, or of an orbit. Estimates along one
direction have a variance of about d |g|^2, along n of them one of (d / n) mean |g_j|^2, A times
less. Some seconds.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import torch

from fedseed.orbit import Orbit
from fedseed.recipe.reading import read_recipe
from fedseed.runs.assembly import build

COMMON = ("evaluation.rouge=false",)
ONE_CLIENT = ("task.clients=1", "federation.per_round=1")
SMALL = ("task.unseen=0",)  # the small base's task has families that no client holds


@dataclass(frozen=True)
class Case:
    """A method and its two ways.

    Args:
        recipe: the packaged recipe, which has today's settings.
        rounds: of both.
        evaluations: how often the loss is looked at.
        population: n, the recipe's batch.
        rates: to choose from, for today's way.
        population_rates: likewise, with a population.
        more: settings of both.
        population_rounds: with a population, where that is another number: a schedule has to end
            there.
        rank: of the population's directions.
    """

    recipe: str
    rounds: int
    evaluations: int
    population: int
    rates: Sequence[float]
    population_rates: Sequence[float]
    more: Sequence[str] = SMALL
    population_rounds: int | None = None
    rank: int = 1

    def settings(self, populated: bool, rate: float, seed: int, choosing: bool) -> list[str]:
        """Of one run."""
        rounds = self.population_rounds if populated and self.population_rounds else self.rounds
        every = max(1, rounds // self.evaluations)
        chosen = [
            f"seed={seed}",
            f"rounds={rounds}",
            f"evaluation.every={every}",
            f"method.learning_rate={rate}",
        ]
        if populated:
            chosen += [
                f"method.population={self.population}",
                'method.basis="lowrank"',
                f"method.basis_rank={self.rank}",
            ]
        if choosing:
            chosen.append('task.evaluate_on="validation"')
        return [*COMMON, *self.more, *chosen]


CASES = {
    "mezo": Case("small-mezo", 300, 20, 16, (1e-4, 2e-4, 4e-4), (2e-4, 4e-4, 8e-4)),
    "zo-fedsgd": Case("small-zo-fedsgd", 300, 20, 8, (3e-4, 6e-4, 1.2e-3), (6e-4, 1.2e-3, 2.4e-3)),
    "fedkseed": Case("small-fedkseed", 10, 10, 4, (1e-4, 2e-4, 4e-4), (2e-4, 4e-4, 8e-4)),
    "feedsign": Case("small-feedsign", 300, 20, 8, (5e-4, 1e-3, 2e-3), (1.5e-4, 3e-4, 6e-4)),
    "words-mezo": Case(
        "words-zo-fedsgd",
        1000,
        10,
        16,
        (5e-4, 1e-3, 2e-3),
        (1e-3, 2e-3, 4e-3),
        (
            'method={name="mezo", basis="rademacher", scale=1e-3, schedule="cosine", batch=16}',
            *ONE_CLIENT,
        ),
        500,
        8,
    ),
    "words-zo-fedsgd": Case(
        "words-zo-fedsgd",
        300,
        10,
        16,
        (4e-3, 8e-3, 1.6e-2),
        (4e-3, 8e-3, 1.6e-2),
        ("method.batch=16",),
        150,
        8,
    ),
    "words-zo-fedsgd-shared": Case(
        "words-zo-fedsgd",
        240,
        10,
        16,
        (2e-3, 4e-3, 8e-3),
        (4e-3, 8e-3, 1.6e-2),
        ("method.batch=16", 'method.seeds="shared"'),
        120,
        8,
    ),
    "words-fedkseed": Case(
        "words-fedkseed",
        16,
        8,
        16,
        (2e-3, 4e-3, 8e-3),
        (4e-3, 8e-3, 1.6e-2),
        ("method.batch=16",),
        8,
        8,
    ),
    "words-feedsign": Case(
        "words-feedsign",
        600,
        10,
        16,
        (2e-3, 4e-3, 8e-3),
        (1e-3, 2e-3, 4e-3),
        ("method.batch=16",),
        300,
        8,
    ),
}


def curve(
    case: str, populated: bool, rate: float, seed: int, out: Path, choosing: bool = False
) -> list[tuple[int, float]]:
    """(forward passes, loss) along a run, from the folder if it is finished there."""
    name = f"{case}-{'population' if populated else 'today'}-{rate:g}-{seed}"
    folder = out / (f"{name}-choosing" if choosing else name)
    if not (folder / "summary.json").exists():
        settings = CASES[case].settings(populated, rate, seed, choosing)
        build(read_recipe(CASES[case].recipe, settings), folder=folder).run(resume=folder.exists())
    points, passes = [], 0
    for line in map(
        json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ):
        passes += line.get("forward_passes", 0)  # the first line is the base
        if line.get("loss") is not None:
            points.append((passes, line["loss"] if isfinite(line["loss"]) else inf))
    return points


def passes_to(points: Sequence[tuple[int, float]], target: float) -> float:
    """Passes at which a curve first is at the target, between two points in proportion.

    Infinite: never.
    """
    before = points[0]
    for here in points:
        if here[1] <= target:
            span = before[1] - here[1]
            return (
                here[0]
                if span <= 0
                else before[0] + (here[0] - before[0]) * (before[1] - target) / span
            )
        before = here
    return inf


def compare(name: str, seeds: Sequence[int], out: Path) -> None:
    """Search the rates, run the seeds, print."""
    case, chosen = CASES[name], {}
    for populated, rates in ((False, case.rates), (True, case.population_rates)):
        ends = {}
        for rate in rates:
            points = curve(name, populated, rate, seeds[0], out, choosing=True)
            ends[rate] = points[-1][1]
            print(
                f"{name}: {'population' if populated else 'today'}, rate {rate:g}: "
                f"{ends[rate]:.3f}",
                flush=True,
            )
        chosen[populated] = min(ends, key=lambda rate: ends[rate])
    there, ends = [], []
    for seed in seeds:
        today, population = (
            curve(name, populated, chosen[populated], seed, out) for populated in (False, True)
        )
        target, end, passes = today[-1][1], population[-1][1], today[-1][0]
        ends.append((target, end))
        there.append(passes_to(population, target) / passes)
        when = "never there" if there[-1] == inf else f"there after {there[-1]:.0%} of the other's"
        print(
            f"{name}, seed {seed}: {today[0][1]:.3f} -> today {target:.3f} in {passes:,} passes, "
            f"population {end:.3f} in {population[-1][0]:,}; {when}",
            flush=True,
        )
    print(
        f"{name}: rates {chosen[False]:g} and {chosen[True]:g}, n = {case.population}: "
        + " and ".join(f"{mean(column):.3f}" for column in zip(*ends, strict=True))
        + f"; {sum(share <= 0.5 for share in there)} of {len(there)} seeds are there after "
        "half of the passes"
    )


def tuned(base: str, rounds: int, orbit: Path | None) -> list[torch.Tensor]:
    """A base's weights after some rounds: of FedAvg, or of an orbit."""
    more = SMALL if base == "small" else ()
    settings = [*COMMON, *more, f"rounds={max(1, rounds)}", "evaluation.every=1000"]
    run = build(read_recipe(f"{base}-fedavg", settings))
    if orbit is not None:
        Orbit.open(orbit).replay(run.worker.space.model, upto=rounds)
    elif rounds:
        run.run()
    weights: list[torch.Tensor] = run.worker.space.snapshot()
    return weights


def agreement(name: str, points: Mapping[int, list[torch.Tensor]], batches: int = 8) -> None:
    """n |g|^2 / mean |g_j|^2 at some weights, by the rounds that they were tuned for.

    The mean of some batches.
    """
    case = CASES[name]
    run = build(read_recipe(case.recipe, [*COMMON, *case.more]))
    space, objective = run.worker.space, run.worker.objective
    method: Any = run.spec.method
    alone = name.endswith("fedkseed") or getattr(method, "seeds", "") == "own"
    joint = [0] if alone else range(len(run.items))  # clients whose examples share a direction
    for rounds, weights in points.items():
        space.restore(weights)
        found, losses = [], []
        for number in range(batches):
            draw = Random(number)  # families follow each other in what a client holds
            parts: list[Any] = [[] for _ in range(case.population)]
            for client in joint:
                for place, item in enumerate(draw.sample(run.items[client], method.batch)):
                    parts[place * case.population // method.batch].append(item)
            gradients = []
            for part in parts:
                space.model.zero_grad()
                loss = objective.losses(space.model, part).sum() / sum(map(objective.weight, part))
                loss.backward()
                losses.append(float(loss.detach()))
                gradients.append(
                    torch.cat([p.grad.reshape(-1) for p in space.parameters if p.grad is not None])
                )
            stacked = torch.stack(gradients)
            square, each = (
                float(stacked.mean(0).square().sum()),
                float(stacked.square().sum(1).mean()),
            )
            found.append((square**0.5, len(parts) * square / each))
        size, gain = (mean(values) for values in zip(*found, strict=True))
        print(
            f"{name}, round {rounds}, loss {mean(losses):.2f}: n = {case.population}, parts of "
            f"{len(parts[0])}: agreement {gain:.1f} (at most {case.population}), |g| {size:.2f}",
            flush=True,
        )


def main() -> None:
    """Run what is missing and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", nargs="*", default=list(CASES), choices=[*CASES, "agreement"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--rounds", type=int, nargs="+", default=[0, 1, 3], help="agreement: after so many"
    )
    parser.add_argument(
        "--orbit", type=Path, help="agreement: rounds of this run, in place of FedAvg's"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/population"))
    args = parser.parse_args()
    if "agreement" in args.what:
        names = [name for name in args.what if name in CASES] or list(CASES)
        for base in dict.fromkeys(CASES[name].recipe.split("-")[0] for name in names):
            points = {count: tuned(base, count, args.orbit) for count in args.rounds}
            for name in names:
                if CASES[name].recipe.startswith(base):
                    agreement(name, points)
        return
    for name in args.what:
        compare(name, args.seeds, args.out)


if __name__ == "__main__":
    main()
