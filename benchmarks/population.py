"""Populations against one direction a batch, at equal forward passes on the small base, rates searched for both.

    python benchmarks/population.py [mezo] [zo-fedsgd] [fedkseed] [feedsign] [--seeds 1 2 3] [--out runs/population]
    python benchmarks/population.py agreement [mezo] ... [--rounds 0 1 3] [--orbit FILE]

The rate of each is the one with the lowest loss on validation examples at the end, by the first seed. Then, on held-out
examples: after how many of the passes a run with a population is where the other one ends, for each seed. Runs that are
in the folder already are not run again, so a stopped search goes on. A run of `mezo` takes about a minute of one core.

`agreement` is what the gain should be by reckoning, after some rounds of FedAvg, or of an orbit. With g_j the parts'
gradients, g their mean, H the Hessian: a step g_hat has the mean g whatever n is, and E g_hat.H g_hat is about
|g|^2 tr H + g.Hg along one direction, mean |g_j|^2 tr H / n + g.Hg along n of them. The best rate lowers the loss by
half of |g|^4 over that, so that a population gains (r + 1) / (r / A + 1), where A = n |g|^2 / mean |g_j|^2 is the
parts' agreement and r = tr H |g|^2 / g.Hg. Seconds a case, and three for each round of FedAvg.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from fedseed.orbit import Orbit
from fedseed.randomness import Basis
from fedseed.runs.assembly import build
from fedseed.runs.recipe import read_recipe

DIRECTIONS = 16  # of signs, for the trace of a batch's Hessian
SCALE = 1e-3  # how far along them, as the recipes look
REACH = 1e-2  # how far along the gradient
COMMON = ("evaluation.rouge=false", "task.unseen=0")


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
    """

    recipe: str
    rounds: int
    evaluations: int
    population: int
    rates: Sequence[float]
    population_rates: Sequence[float]
    more: Sequence[str] = ()

    def settings(self, populated: bool, rate: float, seed: int, choosing: bool) -> list[str]:
        """Of one run."""
        every = max(1, self.rounds // self.evaluations)
        chosen = [f"seed={seed}", f"rounds={self.rounds}", f"evaluation.every={every}", f"method.learning_rate={rate}"]
        if populated:
            chosen += [f"method.population={self.population}", 'method.basis="lowrank"']
        if choosing:
            chosen.append('task.evaluate_on="validation"')
        return [*COMMON, *self.more, *chosen]


CASES = {
    "mezo": Case("small-mezo", 300, 20, 16, (1e-4, 2e-4, 4e-4), (2e-4, 4e-4, 8e-4)),
    "zo-fedsgd": Case("small-zo-fedsgd", 300, 20, 8, (3e-4, 6e-4, 1.2e-3), (6e-4, 1.2e-3, 2.4e-3)),
    "fedkseed": Case("small-fedkseed", 10, 10, 4, (1e-4, 2e-4, 4e-4), (2e-4, 4e-4, 8e-4)),
    "feedsign": Case("small-feedsign", 300, 20, 8, (5e-4, 1e-3, 2e-3), (1.5e-4, 3e-4, 6e-4)),
}


def curve(
    case: Case, populated: bool, rate: float, seed: int, out: Path, choosing: bool = False
) -> list[tuple[int, float]]:
    """(forward passes, loss) along a run, from the folder if it is finished there."""
    name = f"{case.recipe}-{'population' if populated else 'today'}-{rate:g}-{seed}"
    folder = out / (f"{name}-choosing" if choosing else name)
    if not (folder / "summary.json").exists():
        settings = case.settings(populated, rate, seed, choosing)
        build(read_recipe(case.recipe, settings), out=folder).run(resume=folder.exists())
    points, passes = [], 0
    for line in map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()):
        passes += line.get("forward_passes", 0)  # the first line is the base
        if line.get("loss") is not None:
            points.append((passes, line["loss"] if isfinite(line["loss"]) else inf))
    return points


def passes_to(points: Sequence[tuple[int, float]], target: float) -> float:
    """Passes at which a curve first is at the target, between two points in proportion; infinite: never."""
    before = points[0]
    for here in points:
        if here[1] <= target:
            span = before[1] - here[1]
            return here[0] if span <= 0 else before[0] + (here[0] - before[0]) * (before[1] - target) / span
        before = here
    return inf


def compare(name: str, seeds: Sequence[int], out: Path) -> None:
    """Search the rates, run the seeds, print."""
    case, chosen = CASES[name], {}
    for populated, rates in ((False, case.rates), (True, case.population_rates)):
        ends = {}
        for rate in rates:
            points = curve(case, populated, rate, seeds[0], out, choosing=True)
            ends[rate] = points[-1][1]
            print(f"{name}: {'population' if populated else 'today'}, rate {rate:g}: {ends[rate]:.3f}", flush=True)
        chosen[populated] = min(ends, key=lambda rate: ends[rate])
    shares = []
    for seed in seeds:
        today, population = (curve(case, populated, chosen[populated], seed, out) for populated in (False, True))
        target, end = today[-1][1], population[-1][1]
        shares.append(passes_to(population, target) / today[-1][0])
        print(
            f"{name}, seed {seed}: {today[0][1]:.3f} -> today {target:.3f}, population {end:.3f} in {today[-1][0]:,} "
            f"passes; there after {shares[-1]:.0%} of them",
            flush=True,
        )
    print(
        f"{name}: rates {chosen[False]:g} and {chosen[True]:g}, n = {case.population}: {mean(shares):.0%} of the passes"
    )


@dataclass(frozen=True)
class Point:
    """What decides at some weights how much a population can gain; each the mean of some batches.

    Args:
        loss: of the batches.
        size: |g|.
        agreement: n |g|^2 / mean |g_j|^2, from about 1 (the parts have nothing in common) to n (they are alike).
        trace: tr H, over directions of signs.
        along: g.Hg / |g|^2, the curvature along the gradient.
    """

    loss: float
    size: float
    agreement: float
    trace: float
    along: float

    @property
    def gain(self) -> float | None:
        """By how much a population lowers the loss more in a pass; None where the loss bends down."""
        if self.trace <= 0 or self.along <= 0:
            return None
        rank = self.trace / self.along
        return (rank + 1) / (rank / self.agreement + 1)


def measured(run: Any, batches: Sequence[Sequence[Sequence[Any]]]) -> Point:
    """The means of some batches at a run's weights.

    Args:
        run: has the weights, the objective and the basis.
        batches: each the n parts of one.
    """
    space, objective = run.worker.space, run.worker.objective
    basis = Basis("rademacher", 1)
    found: list[tuple[float, ...]] = []

    def gradient(part: Sequence[Any]) -> torch.Tensor:
        space.model.zero_grad()
        (objective.losses(space.model, part).sum() / sum(map(objective.weight, part))).backward()
        return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in space.parameters])

    @torch.no_grad()
    def loss(parts: Sequence[Sequence[Any]]) -> float:
        each = iter(objective.losses(space.model, [item for part in parts for item in part]).tolist())
        return mean(sum(next(each) for _ in part) / sum(map(objective.weight, part)) for part in parts)

    space.model.eval()
    for parts in batches:
        each = torch.stack([gradient(part) for part in parts])
        g, squares = each.mean(0), float(each.square().sum(1).mean())
        square, here = float(g.square().sum()), loss(parts)
        around = []  # z.Hz along directions of signs: its mean is the trace
        for k in range(DIRECTIONS):
            sides = []
            for way in (SCALE, -SCALE):
                with space.perturbed(basis, k, way):
                    sides.append(loss(parts))
            around.append((sum(sides) - 2 * here) / SCALE**2)
        saved = space.snapshot()
        sides = []
        for way in (REACH, -REACH):
            at = 0
            with torch.no_grad():
                for p in space.parameters:
                    p += way * square**-0.5 * g[at : at + p.numel()].view_as(p)
                    at += p.numel()
            sides.append(loss(parts))
            space.restore(saved)
        along = (sum(sides) - 2 * here) / REACH**2
        found.append((here, square**0.5, len(parts) * square / squares, mean(around), along))
    return Point(*map(mean, zip(*found, strict=True)))


def tuned(rounds: int, orbit: Path | None) -> list[torch.Tensor]:
    """The small base's weights after some rounds: of FedAvg, or of an orbit."""
    run = build(read_recipe("small-fedavg", [*COMMON, f"rounds={max(1, rounds)}", "evaluation.every=1000"]))
    if orbit is not None:
        Orbit.open(orbit).replay(run.worker.space.model, upto=rounds)
    elif rounds:
        run.run()
    weights: list[torch.Tensor] = run.worker.space.snapshot()
    return weights


def agreement(name: str, points: Mapping[int, list[torch.Tensor]], batches: int = 4) -> None:
    """What a population can gain at some weights, by the rounds that they were tuned for."""
    case = CASES[name]
    run = build(read_recipe(case.recipe, [*COMMON, *case.more]))
    method: Any = run.settings.method
    joint = [0] if name == "fedkseed" else range(len(run.items))  # clients whose examples share a direction
    chosen = []
    for number in range(batches):
        parts: list[Any] = [[] for _ in range(case.population)]
        for client in joint:
            at = number * method.batch
            for place, item in enumerate(run.items[client][at : at + method.batch]):
                parts[place * case.population // method.batch].append(item)
        chosen.append(parts)
    for count, weights in points.items():
        run.worker.space.restore(weights)
        point = measured(run, chosen)
        print(
            f"{name}, round {count}, loss {point.loss:.2f}: n = {case.population}, parts of {len(chosen[0][0])}: "
            f"|g| {point.size:.2f}, agreement {point.agreement:.1f} (at most {case.population}), tr H {point.trace:.0f}, "
            f"along the gradient {point.along:.0f}, gain {'-' if point.gain is None else format(point.gain, '.1f')}",
            flush=True,
        )


def main() -> None:
    """Run what is missing and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", nargs="*", default=list(CASES), choices=[*CASES, "agreement"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rounds", type=int, nargs="+", default=[0, 1, 3], help="agreement: after so many")
    parser.add_argument("--orbit", type=Path, help="agreement: rounds of this run, in place of FedAvg's")
    parser.add_argument("--out", type=Path, default=Path("runs/population"))
    args = parser.parse_args()
    if "agreement" in args.what:
        points = {count: tuned(count, args.orbit) for count in args.rounds}
        for name in [name for name in args.what if name in CASES] or CASES:
            agreement(name, points)
        return
    for name in args.what:
        compare(name, args.seeds, args.out)


if __name__ == "__main__":
    main()
