"""FedMeZO's Conjecture 3.8: the best rank of LoRA beside the effective rank of the Hessian.

Models are two layers, y = W2 tanh(W1 x), tuned towards a teacher W + Delta. The variances of the
inputs and the weights of the outputs set the Hessian's effective rank at the start, which
`Curvature` measures on all weights. Two further models have a change Delta of low rank.

The rule, which was written before the first run with these seeds:

- For each seed, model and rank of LoRA, of four rates the one with the lowest loss on validation
  inputs after the last step is taken. The best rank is the one with the lowest loss on other
  inputs at its rate.
- The conjecture is judged on the models whose Delta has full rank. "Positively proportional": the
  slope of the best rank over the effective rank, in the logarithms, is at least one half (1 in the
  paper's words, 0 without a relation). "Lower-bounded": the best rank is at least the effective
  rank, for the model where it falls short most. "A proxy": over the models the two are within a
  factor of two, in the mean of |log2|.
- Ten seeds, one number of each, by `statistics`. The models of low rank are shown, not judged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2, sqrt
from statistics import fmean, stdev

import numpy as np
import torch

from fedseed import FeedSign
from fedseed.federation.client.worker import Worker
from fedseed.objectives.losses import Supervised
from fedseed.reports.charts import Axis, Panel, Series
from fedseed.reports.tables import Sheet, mean_and_deviation
from fedseed_papers.curvature import Curvature
from fedseed_papers.findings import Finding
from fedseed_papers.reconstruction import over_seeds
from fedseed_papers.statistics import at_least, at_most, concluded

INPUTS, HIDDEN, OUTPUTS = 32, 32, 16
LORA_RANKS = (1, 2, 4, 8, 16, 32)
ALPHA = 16
# shares of 1 / tr H of the factors at the start; FeedSign's Lemma 3.9 allows about 2
RATES = (0.1, 0.2, 0.4, 0.8)
STEPS, BATCH, SCALE = 600, 64, 1e-3
MEASURED, VALIDATION, TEST = 256, 256, 1024  # inputs
PROBES = 64  # directions that estimate the trace of the factors' Hessian
MOVE = 0.5  # |Delta| over |W|, of each layer


@dataclass(frozen=True)
class Setting:
    """One kind of model.

    Args:
        name: of its line.
        decay: input i has a variance in proportion to i^-decay, output i such a weight in the loss;
            their means are 1.
        change_rank: rank of Delta in each layer; None: full.
    """

    name: str
    decay: float
    change_rank: int | None = None


SETTINGS = (
    Setting("decay 0.7", 0.7),
    Setting("decay 1", 1.0),
    Setting("decay 1.3", 1.3),
    Setting("decay 1.7", 1.7),
)
LOW = (Setting("decay 1, Delta of rank 1", 1.0, 1), Setting("decay 1, Delta of rank 4", 1.0, 4))


class Problem:
    """The models of one kind for some seeds, side by side: first dimension n, a model for each
    seed.

    Args:
        setting: the kind.
        seeds: of weights, teachers and inputs.
    """

    def __init__(self, setting: Setting, seeds: Sequence[int]) -> None:
        self.deviation = decaying(INPUTS, setting.decay).sqrt()
        self.weights = decaying(OUTPUTS, setting.decay)
        self.random = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.first = self.draw(HIDDEN, INPUTS) / sqrt(INPUTS)
        self.second = self.draw(OUTPUTS, HIDDEN) / sqrt(HIDDEN)
        self.teacher = (
            self.first + self._change(self.first, setting.change_rank),
            self.second + self._change(self.second, setting.change_rank),
        )

    def draw(self, *shape: int) -> torch.Tensor:
        """Return normal numbers of each seed's own generator, shape (n, *shape)."""
        return torch.stack([torch.randn(shape, generator=random) for random in self.random])

    def inputs(self, count: int) -> torch.Tensor:
        """Return fresh inputs, shape (n, count, INPUTS)."""
        return self.draw(count, INPUTS) * self.deviation

    def targets(self, x: torch.Tensor) -> torch.Tensor:
        """Return the teachers' outputs, shape (n, count, OUTPUTS)."""
        return outputs(x, *self.teacher)

    def effective_ranks(self) -> list[float]:
        """Return tr H / |H| of each seed's loss at its base, over all weights."""
        x = self.inputs(MEASURED)
        y, ranks = self.targets(x), []
        objective = Supervised(
            lambda out, target: (self.weights * (out - target) ** 2).sum(dim=1) / 2
        )
        for n in range(len(x)):
            first = torch.nn.Linear(INPUTS, HIDDEN, bias=False)
            second = torch.nn.Linear(HIDDEN, OUTPUTS, bias=False)
            with torch.no_grad():
                first.weight.copy_(self.first[n])
                second.weight.copy_(self.second[n])
            model = torch.nn.Sequential(first, torch.nn.Tanh(), second)
            worker = Worker(model, FeedSign(learning_rate=1e-3), objective, 0)
            ranks.append(Curvature.measure(worker, list(zip(x[n], y[n], strict=True)), n).rank)
        return ranks

    def _change(self, weights: torch.Tensor, rank: int | None) -> torch.Tensor:
        rows, columns = weights.shape[1:]
        change = self.draw(rows, columns)
        if rank is not None:
            change = self.draw(rows, rank) @ self.draw(rank, columns)
        return change * (MOVE * weights.norm(dim=(1, 2)) / change.norm(dim=(1, 2)))[:, None, None]


def decaying(count: int, decay: float) -> torch.Tensor:
    """Return numbers in proportion to i^-decay with a mean of 1, shape (count,)."""
    values = torch.arange(1, count + 1, dtype=torch.float32) ** -decay
    return values / values.mean()


def outputs(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return W2 tanh(W1 x), shape (..., count, OUTPUTS)."""
    return torch.tanh(x @ first.transpose(-1, -2)) @ second.transpose(-1, -2)


Factors = list[torch.Tensor]  # B1, A1, B2, A2, each of shape (n, rates, rows, columns)


class Tuned:
    """Models with LoRA on both layers, a copy for each rate.

    Args:
        problem: the models.
        rank: of the factors.
        copies: how many copies of each model.
    """

    def __init__(self, problem: Problem, rank: int, copies: int) -> None:
        self.problem, self.rank = problem, rank
        # as in the product: B is zero, A uniform on +-1 / sqrt(fan-in)
        factors = []
        for rows, columns in ((HIDDEN, INPUTS), (OUTPUTS, HIDDEN)):
            uniform = torch.stack(
                [torch.rand((rank, columns), generator=random) for random in problem.random]
            )
            factors += [
                torch.zeros(len(problem.random), rows, rank),
                (2 * uniform - 1) / sqrt(columns),
            ]
        self.factors = [factor[:, None].expand(-1, copies, -1, -1).clone() for factor in factors]

    def direction(self) -> Factors:
        """Return a direction, the same for all copies of a seed."""
        return [self.problem.draw(*factor.shape[2:])[:, None] for factor in self.factors]

    def losses(
        self, x: torch.Tensor, y: torch.Tensor, z: Factors | None = None, scale: float = 0.0
    ) -> torch.Tensor:
        """Return the mean losses at the factors plus scale z, shape (n, copies)."""
        factors = self.factors
        if z is not None:
            factors = [factor + scale * part for factor, part in zip(factors, z, strict=True)]
        b1, a1, b2, a2 = factors
        first = self.problem.first[:, None] + ALPHA / self.rank * (b1 @ a1)
        second = self.problem.second[:, None] + ALPHA / self.rank * (b2 @ a2)
        residual = outputs(x[:, None], first, second) - y[:, None]
        return (self.problem.weights * residual**2).sum(dim=-1).mean(dim=-1) / 2

    def trace(self) -> torch.Tensor:
        """Return an estimate of tr H of the factors, shape (n, 1)."""
        x = self.problem.inputs(MEASURED)
        y, total = self.problem.targets(x), torch.zeros(len(x), 1)
        scale = 0.01
        for _ in range(PROBES):
            z = self.direction()
            bend = self.losses(x, y, z, scale) + self.losses(x, y, z, -scale)
            total += (bend - 2 * self.losses(x, y))[:, :1] / scale**2
        return total / PROBES

    def train(self, rates: torch.Tensor) -> None:
        """Take `STEPS` steps of MeZO, each with a fresh batch.

        Args:
            rates: eta, shape (n, copies).
        """
        for _ in range(STEPS):
            x, z = self.problem.inputs(BATCH), self.direction()
            y = self.problem.targets(x)
            along = (self.losses(x, y, z, SCALE) - self.losses(x, y, z, -SCALE)) / (2 * SCALE)
            step = (rates * along)[:, :, None, None]
            for factor, part in zip(self.factors, z, strict=True):
                factor -= step * part


def losses_of_rank(problem: Problem, rank: int) -> tuple[list[float], list[float]]:
    """Return each seed's test loss with LoRA of a rank at its best rate, and that rate's share of
    1 / tr H.
    """
    tuned = Tuned(problem, rank, len(RATES))
    shares = torch.tensor(RATES)
    tuned.train(shares / tuned.trace())
    held = problem.inputs(VALIDATION + TEST)
    y = problem.targets(held)
    validation = tuned.losses(held[:, :VALIDATION], y[:, :VALIDATION]).nan_to_num(nan=torch.inf)
    test = tuned.losses(held[:, VALIDATION:], y[:, VALIDATION:])
    chosen = validation.argmin(dim=1)
    return (
        test.gather(1, chosen[:, None])[:, 0].tolist(),
        [RATES[number] for number in chosen.tolist()],
    )


@dataclass(frozen=True)
class Measured:
    """What was measured of one kind of model.

    Args:
        ranks: effective ranks, by seed.
        losses: test losses over the start's, by rank of LoRA and seed.
        shares: the rates that were chosen, by rank of LoRA and seed.
    """

    ranks: Mapping[int, float]
    losses: Mapping[int, Mapping[int, float]]
    shares: Mapping[int, Mapping[int, float]]

    def best(self, seed: int) -> int:
        """Return the rank of LoRA with the lowest loss."""
        return min(self.losses, key=lambda rank: self.losses[rank][seed])


def measure(setting: Setting, seeds: Sequence[int]) -> Measured:
    """Measure one kind of model."""
    problem = Problem(setting, seeds)
    ranks = dict(zip(seeds, problem.effective_ranks(), strict=True))
    with torch.no_grad():
        x = problem.inputs(TEST)
        before = Tuned(problem, 1, 1).losses(x, problem.targets(x))[:, 0].tolist()
        losses, shares = {}, {}
        for rank in LORA_RANKS:
            after, chosen = losses_of_rank(problem, rank)
            losses[rank] = {
                seed: end / start for seed, end, start in zip(seeds, after, before, strict=True)
            }
            shares[rank] = dict(zip(seeds, chosen, strict=True))
    return Measured(ranks, losses, shares)


def compared(seeds: Sequence[int]) -> Finding:
    """FedMeZO's Conjecture 3.8: LoRA's best rank over the effective rank."""
    found = {setting.name: measure(setting, seeds) for setting in (*SETTINGS, *LOW)}
    judged = [found[setting.name] for setting in SETTINGS]
    slopes, shortest, apart = {}, {}, {}
    for seed in seeds:
        effective = [log2(one.ranks[seed]) for one in judged]
        best = [log2(one.best(seed)) for one in judged]
        slopes[seed] = float(np.polyfit(effective, best, 1)[0])
        gaps = [b - r for b, r in zip(best, effective, strict=True)]
        shortest[seed] = 2 ** min(gaps)
        apart[seed] = fmean(map(abs, gaps))
    text = "; ".join(
        f"effective rank {fmean(found[s.name].ranks.values()):.3g}: "
        f"{mean_and_deviation([float(found[s.name].best(seed)) for seed in seeds], 1)}"
        for s in SETTINGS
    )
    low = " and ".join(
        f"{fmean(found[s.name].best(seed) for seed in seeds):.3g} with a Delta of rank "
        f"{s.change_rank}"
        for s in LOW
    )
    within = {}
    for seed in seeds:
        within[seed] = min(
            one.best(seed) / one.ranks[seed] for one in judged if fmean(one.ranks.values()) < INPUTS
        )
    claims = concluded(
        [
            (
                "The optimal rank of LoRA is positively proportional to the Hessian's effective "
                "rank.",
                f"Best rank of LoRA by {text}; slope in the logarithms (1/2 at least):",
                at_least(slopes, 0.5),
            ),
            (
                "It is lower-bounded by the effective rank.",
                "Best rank over effective rank, the smallest of a seed's models (1 at least):",
                at_least(shortest, 1.0),
            ),
            (
                "It can serve as a proxy of it (the paper gives no number: within a factor of "
                "two).",
                "|log2| of their ratio, a seed's mean (1 at most):",
                at_most(apart, 1.0),
            ),
        ]
    )
    by_model = {}
    for name, one in found.items():
        best = [float(one.best(seed)) for seed in seeds]
        by_model[name] = fmean(one.ranks.values()), fmean(best), stdev(best)
    full = sorted(by_model[setting.name] for setting in SETTINGS)
    ranks_of_low = [
        Series(f"Delta of rank {setting.change_rank}", [by_model[setting.name][:2]], number=number)
        for number, setting in enumerate(LOW, start=2)
    ]
    curves = []
    for number, (name, one) in enumerate(found.items()):
        tables = [{float(rank): one.losses[rank][seed] for rank in LORA_RANKS} for seed in seeds]
        curves.append(over_seeds(name, tables, number))
    middle = found[SETTINGS[1].name]
    edge = fmean(
        share in (RATES[0], RATES[-1])
        for one in found.values()
        for by_seed in one.shares.values()
        for share in by_seed.values()
    )
    return Finding(
        claims,
        f"No rank of LoRA can exceed a layer's width, {INPUTS} here, so that an effective rank "
        "above it can't be a lower bound. In the models below it the smallest ratio of a seed is "
        f"{fmean(within.values()):.2f} on average (looked at after the run). At one decay "
        f"(effective rank {fmean(middle.ranks.values()):.3g}) the best rank is "
        f"{fmean(middle.best(seed) for seed in seeds):.3g} for a full Delta, and {low}: the rank "
        "of the change counts, too, which the Hessian at the start does not have (not judged).",
        [
            Panel(
                "Conjecture 3.8: best rank of LoRA",
                [
                    Series(
                        "Delta of full rank",
                        [(effective, mean) for effective, mean, _ in full],
                        [(effective, mean - d, mean + d) for effective, mean, d in full],
                        number=0,
                    ),
                    Series(
                        "the conjecture's bound",
                        [(effective, effective) for effective, *_ in full],
                        number=1,
                    ),
                    *ranks_of_low,
                ],
                Axis("effective rank, tr H / largest eigenvalue", log=True),
                Axis("best rank of LoRA, mean over seeds", log=True),
            ),
            Panel(
                "Loss after tuning, over the start's",
                curves,
                Axis("rank of LoRA", log=True),
                Axis("share of the loss that is left", log=True),
            ),
        ],
        [
            Sheet(
                "Means over seeds",
                ("model", "effective rank", "best rank", *(f"loss, rank {r}" for r in LORA_RANKS)),
                [
                    [
                        name,
                        f"{fmean(one.ranks.values()):.3g}",
                        f"{fmean(one.best(seed) for seed in seeds):.3g}",
                        *(f"{fmean(one.losses[r].values()):.3f}" for r in LORA_RANKS),
                    ]
                    for name, one in found.items()
                ],
                "Losses are shares of the loss before tuning.",
            ),
            Sheet(
                "Each seed",
                ("seed", "slope", "smallest best rank over effective rank", "mean |log2|"),
                [
                    [f"{s}", f"{slopes[s]:.3g}", f"{shortest[s]:.3g}", f"{apart[s]:.3g}"]
                    for s in seeds
                ],
                "",
            ),
        ],
        tuple(seeds),
        [
            f"Two layers, {INPUTS} to {HIDDEN} to {OUTPUTS}, in place of a language model: its "
            "Hessian's effective rank can be set by the variances of inputs and the weights of "
            "outputs in the loss, where the bases here have one each (3 on words).",
            f"One client, {STEPS:,} steps of MeZO on the factors with {BATCH} fresh inputs each, "
            f"alpha = {ALPHA}; rates {', '.join(f'{r:g}' for r in RATES)} over the trace of the "
            f"factors' Hessian. The best one was the smallest or the largest in {edge:.0%} of the "
            "cases.",
        ],
    )
