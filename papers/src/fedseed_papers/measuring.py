"""What small figures measure without a sweep: the time to rebuild a model, and the projections of
batches.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedseed.models.loading import locate
from fedseed.randomness import Basis, kernels
from fedseed.randomness.kernels.reference import Part
from fedseed.reports.charts import Axis, Panel, Series
from fedseed.reports.tables import Sheet
from fedseed_papers.findings import Finding
from fedseed_papers.reconstruction import over_seeds, slope
from fedseed_papers.statistics import BySeed, at_least, at_most, concluded

if TYPE_CHECKING:
    from fedseed.federation.client.worker import Worker

SMALL = 1_195_392  # parameters of the small base
SMALL_WORDS = 78_656  # of the words base
SEEDS = tuple(range(11, 21))
TIMED = "Times are this machine's, in seconds of a core: other work on it hardly changes them."


def seconds_to_move(basis: str, coefficients: NDArray[np.float32], length: int, seed: int) -> float:
    """Return seconds of a core to add K directions, by their coefficients (K,), to float32 weights
    in one pass.
    """
    kernel, weights = kernels.current(), np.zeros(length, dtype=np.float32)
    started = time.process_time()  # of all threads: what else the machine does is left out
    prepared = kernel.prepare(
        [Part(Basis(basis, seed, len(coefficients)).spec, 0, coefficients)], length
    )
    kernel.move(weights, weights, "float32", prepared, -1e-6, 0)
    return time.process_time() - started


def _steps(count: int) -> NDArray[np.float32]:
    """Return scalars of so many steps."""
    return np.random.default_rng(count).normal(size=count).astype(np.float32)


def _pool(steps: int, candidates: int) -> NDArray[np.float32]:
    """Return a pool's accumulator after so many steps, each along a candidate that was drawn."""
    seeds_drawn = np.random.default_rng(steps).integers(0, candidates, steps)
    return np.bincount(seeds_drawn, weights=_steps(steps), minlength=candidates).astype(np.float32)


def _sheet_by_seed(columns: Mapping[str, BySeed]) -> Sheet:
    """Return each seed's numbers, from which the verdicts can be reckoned again."""
    rows = []
    for seed in next(iter(columns.values())):
        rows.append([str(seed), *(f"{line[seed]:.4g}" for line in columns.values())])
    return Sheet("Each seed", ("seed", *columns), rows, "")


def _series_by_seed(columns: Mapping[str, BySeed]) -> list[Series]:
    """Return a series for each column, with a point for each seed."""
    series = []
    for number, (name, line) in enumerate(columns.items()):
        points = [(float(seed), value) for seed, value in line.items()]
        series.append(Series(name, points, number=number))
    return series


def rebuild_steps(seeds: Sequence[int]) -> Finding:
    """FedKSeed's Figure 2: repeating all steps, and rebuilding from a pool's accumulator."""
    steps, candidates = (16, 64, 256, 1024, 4096), 1024
    seconds_to_move("normal", _steps(16), SMALL, 0)  # compiles
    repeated, rebuilt = {}, {}
    for seed in seeds:
        repeated[seed] = {
            float(n): seconds_to_move("normal", _steps(n), SMALL, seed) for n in steps
        }
    for seed in seeds:
        rebuilt[seed] = {
            float(n): seconds_to_move("normal", _pool(n, candidates), SMALL, seed) for n in steps
        }
    rate = {
        seed: slope(list(seconds_by_steps.items())) for seed, seconds_by_steps in repeated.items()
    }
    full = {seed: seconds_to_move("normal", _steps(candidates), SMALL, seed) for seed in seeds}
    ratio = {
        seed: max(seconds_by_steps.values()) / full[seed]
        for seed, seconds_by_steps in rebuilt.items()
    }
    lines = [
        over_seeds("repeating all steps", list(repeated.values()), 0),
        over_seeds(f"FedKSeed, K = {candidates:,}", list(rebuilt.values()), 1),
    ]
    (_, lowest), *_, (_, highest) = lines[0].points
    return Finding(
        concluded(
            [
                (
                    "The time to obtain the newest model by repeating its steps grows with their "
                    "number.",
                    f"{lowest:.3g} s for {steps[0]:,} steps, {highest:.3g} s for {steps[-1]:,}; "
                    "slope in the logarithms (0.7 at least):",
                    at_least(rate, 0.7),
                ),
                (
                    "With FedKSeed's pool it does not grow without end, however many steps there "
                    "were.",
                    f"A pool of {candidates:,} candidates: "
                    f"{max(y for _, y in lines[1].points):.3g} s at most, after up to "
                    f"{steps[-1]:,}; over the time of repeating {candidates:,} (1.2 at most):",
                    at_most(ratio, 1.2),
                ),
            ]
        ),
        "Each step adds a direction of length d, which is generated anew; a pool's accumulator has "
        "K of them: its time grows until all candidates were drawn.",
        [
            Panel(
                "Time to the newest model",
                lines,
                Axis("steps", log=True),
                Axis("seconds of a core", True, "s"),
            )
        ],
        [_sheet_by_seed({"slope of repeating": rate, "longest rebuilding over K steps": ratio})],
        tuple(seeds),
        [
            f"{SMALL:,} parameters, the small base's, on a processor; LLaMA-3B has 3.4 billion.",
            TIMED,
        ],
    )


def rebuild_candidates(seeds: Sequence[int]) -> Finding:
    """FedKSeed's Figure 8: the time to calculate the newest model over K."""
    candidates, lines, rates = (64, 256, 1024, 4096), [], {}
    for number, basis in enumerate(("normal", "hadamard")):
        seconds_to_move(basis, _steps(16), SMALL, 0)  # compiles
        seconds = {}
        for s in seeds:
            seconds[s] = {float(k): seconds_to_move(basis, _steps(k), SMALL, s) for k in candidates}
        lines.append(over_seeds(f"{basis} directions", list(seconds.values()), number))
        rates[f"slope, {basis}"] = {
            seed: slope(list(points.items())) for seed, points in seconds.items()
        }
    (_, lowest), *_, (_, highest) = lines[0].points
    structured = lines[1].points
    return Finding(
        concluded(
            [
                (
                    "The time to calculate the newest model grows with K.",
                    f"Normal directions, as published: {lowest:.3g} s at K = {candidates[0]:,}, "
                    f"{highest:.3g} s at {candidates[-1]:,}; slope in the logarithms (0.7 at "
                    "least):",
                    at_least(rates["slope, normal"], 0.7),
                ),
            ]
        ),
        f"Not so with hadamard directions, the default here: {1000 * structured[0][1]:.2g} and "
        f"{1000 * structured[-1][1]:.2g} thousandths of a second, because all of them together "
        "cost one transform.",
        [
            Panel(
                "Time to the newest model",
                lines,
                Axis("K", log=True),
                Axis("seconds of a core", log=True, unit="s"),
            )
        ],
        [_sheet_by_seed(rates)],
        tuple(seeds),
        [
            f"{SMALL:,} parameters, the small base's, on a processor; LLaMA-3B has 3.4 billion.",
            TIMED,
        ],
    )


def batch_projections(seeds: Sequence[int]) -> Finding:
    """FeedSign's Figures 8 and 9: how often a batch's projection has another sign than the whole
    set's, and its shape.

    Looked at along `directions` in each run, after some steps of FeedSign, each with many batches
    drawn.
    """
    from fedseed.recipe.reading import read_recipe
    from fedseed.runs.assembly import build  # torch from here on

    examples, steps, directions, batches, batch = 512, (0, 400), 20, 10_000, 64
    random = np.random.default_rng(1)
    # (|projection|, reversed)
    projections: dict[int, list[list[tuple[float, float]]]] = {seed: [] for seed in seeds}
    skews: dict[int, list[float]] = {seed: [] for seed in seeds}
    scatter, shapes = list[Series](), list[Series]()
    for number, step in enumerate(steps):
        for seed in seeds:
            rounds = max(1, step)
            common = [
                "task.clients=1",
                "federation.per_round=1",
                f"task.examples={examples}",
                'task.families=["feeling"]',
                "task.evaluation=1",
                f"evaluation.every={rounds}",
                f"rounds={rounds}",
                f"seed={seed}",
            ]
            run = build(read_recipe("words-feedsign", common))
            items = list(run.items[0])
            if step:
                run.run()
            points = []
            for k in range(directions):
                values, weights = _projections(run.worker, items, k)
                batches_drawn = random.integers(0, len(items), (batches, batch))
                means = values[batches_drawn].sum(axis=1) / weights[batches_drawn].sum(axis=1)
                whole = float(values.sum() / weights.sum())
                points.append((abs(whole), float((means * whole < 0).mean())))
                skews[seed].append(
                    abs(float(((means - means.mean()) ** 3).mean() / means.std() ** 3))
                )
                if k == 0 and seed == seeds[0]:
                    counts, edges = np.histogram(means - whole, bins=40)
                    middle = (edges[1:] + edges[:-1]) / 2
                    shape = list(zip(middle.tolist(), counts / batches, strict=True))
                    shapes.append(Series(f"after {step} steps", shape, number=number))
            projections[seed].append(sorted(points))
    # means of neighbours, as a line through single points could not be read
    for i, step in enumerate(steps):
        means = (
            np.array(sorted(chain.from_iterable(stages[i] for stages in projections.values())))
            .reshape(-1, directions, 2)
            .mean(axis=1)
        )
        scatter.append(
            Series(f"after {step} steps", [(float(x), float(y)) for x, y in means], number=i)
        )
    worst = {}
    for seed, stages in projections.items():
        worst[seed] = max(y for _, y in chain.from_iterable(stages))
    beyond = (max(worst.values()) - 0.5) / (0.5 / batches**0.5)
    ranks = {seed: _ranks(stages) for seed, stages in projections.items()}
    typical = {seed: float(np.median(values)) for seed, values in skews.items()}
    return Finding(
        concluded(
            [
                (
                    "The sign-reversing probability is below one half (0.4968 at most in the "
                    "paper), in the mean of runs' largest.",
                    f"A run's largest over {directions} directions at each of {len(steps)} "
                    f"points, {max(worst.values()):.4f} in one ({beyond:+.1f} standard errors of "
                    f"{batches:,} batches from one half); its mean (below 0.5):",
                    at_most(worst, 0.5),
                ),
                (
                    "The larger the projection, the less often the sign is reversed.",
                    "A run's rank correlation (below -0.5):",
                    at_most(ranks, -0.5),
                ),
                (
                    "Projections of batches are distributed symmetrically.",
                    "A run's skewness in the median of its directions (below 0.3; a normal "
                    "distribution has 0, an exponential one 2; "
                    f"{max(map(max, skews.values())):.2f} at most in any):",
                    at_most(typical, 0.3),
                ),
            ]
        ),
        "A batch's projection is a mean over its examples: nearly normal, and nearly symmetric, "
        "whatever those of single examples look like.",
        [
            Panel(
                "Figure 8: sign reversal",
                scatter,
                Axis("projection of the whole set"),
                Axis("mean probability"),
            ),
            Panel(
                "Figure 9: batches, first direction",
                shapes,
                Axis("batch minus whole set"),
                Axis("share"),
            ),
        ],
        [
            _sheet_by_seed(
                {"largest reversal": worst, "rank correlation": ranks, "median skewness": typical}
            )
        ],
        tuple(seeds),
        [
            f"The words base (an OPT of 78,656 parameters) and {examples} reviews asked about "
            "their feeling in place of OPT-125M and 5,000 of SST-2; after "
            f"{' and '.join(map(str, steps))} steps in place of every 4,000.",
            "Figure 9: the first of five directions, at two points in place of five.",
        ],
    )


def _projections(
    worker: "Worker", items: Sequence[Any], k: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return each example's projection along direction k, as a sum over its terms, and their
    number.
    """
    import torch

    method: Any = worker.method
    basis, scale, pairs = method.directions(worker.seed), method.scale, []
    for sign in (1, -1):
        losses = []
        with worker.space.perturbed(basis, k, sign * scale), torch.no_grad():
            for first in range(0, len(items), 64):
                losses.append(
                    worker.objective.losses(worker.space.model, items[first : first + 64]).double()
                )
        pairs.append(torch.cat(losses).numpy())
    weights = np.array([worker.objective.weight(item) for item in items], dtype=np.float64)
    return (pairs[0] - pairs[1]) / (2 * scale), weights


def effective_rank(seeds: Sequence[int]) -> Finding:
    """FeedSign's Lemma 3.9 on a model: its effective rank, and the descent that follows from it.

    The Hessian of 64 reviews' loss, at the base and after some steps of FeedSign: its trace by
    Hutchinson's probes, its largest eigenvalue by power iteration.
    """
    from fedseed.recipe.reading import read_recipe
    from fedseed.runs.assembly import build  # torch from here on
    from fedseed_papers.curvature import Curvature

    steps, ranks, ratios = (0, 200), dict[str, BySeed](), dict[str, BySeed]()
    size = 0
    for step_count in steps:
        rank, ratio = dict[int, float](), dict[int, float]()
        for seed in seeds:
            rounds = max(1, step_count)
            settings = [
                'model.attention="eager"',
                "task.clients=1",
                "federation.per_round=1",
                "task.examples=64",
                "task.evaluation=1",
                f"evaluation.every={rounds}",
                f"rounds={rounds}",
                f"seed={seed}",
            ]
            run = build(read_recipe("words-feedsign", settings))
            if step_count:
                run.run()
            size = run.worker.space.size
            curvature = Curvature.measure(run.worker, list(run.items[0]), seed)
            rank[seed] = curvature.rank
            ratio[seed] = curvature.descent_over_bound(directions=256)
        ranks[f"after {step_count} steps"], ratios[f"after {step_count} steps"] = rank, ratio
    largest, least = {}, {}
    for seed in seeds:
        largest[seed] = max(rank_by_seed[seed] for rank_by_seed in ranks.values())
        least[seed] = min(ratio_by_seed[seed] for ratio_by_seed in ratios.values())
    growth_text = ", ".join(
        f"{np.mean(list(rank_by_seed.values())):.0f} {name}" for name, rank_by_seed in ranks.items()
    )
    factor = np.mean(list(largest.values())) + 2
    bound = Series("bound", [(float(s), 1.0) for s in seeds], number=len(ratios))
    return Finding(
        concluded(
            [
                (
                    "The effective rank is small beside the number of parameters (the paper gives "
                    "no number: a hundredth of d).",
                    f"{growth_text}; d = {size:,}. A run's larger one (at most {size / 100:.0f}):",
                    at_most(largest, size / 100),
                ),
                (
                    "A step at the rate 1 / (L zeta) lowers the loss by |grad|^2 / (2 L zeta) or "
                    "more.",
                    "The fall over 256 directions, over what is promised; a run's smaller one (at "
                    "least 1):",
                    at_least(least, 1.0),
                ),
            ]
        ),
        f"The lemma allows rates a {factor:.0f}th of first-order ones here, where one without a "
        f"rank allows an {size:,}th: it says much at this size.",
        [
            Panel(
                "Effective rank",
                _series_by_seed(ranks),
                Axis("seed", whole=True),
                Axis("tr H / largest eigenvalue", log=True),
            ),
            Panel(
                "Fall of the loss over the bound's",
                [*_series_by_seed(ratios), bound],
                Axis("seed", whole=True),
                Axis("measured over promised"),
            ),
        ],
        [
            _sheet_by_seed(
                {f"rank {name}": rank_by_seed for name, rank_by_seed in ranks.items()}
                | {f"fall over bound {name}": rank_by_seed for name, rank_by_seed in ratios.items()}
            )
        ],
        tuple(seeds),
        [
            f"The words base (an OPT of {size:,} parameters) and 64 reviews in place of the "
            "paper's models, of which it cites others' measurements.",
            "The trace counts negative eigenvalues, too, which the lemma's bound on the Hessian "
            "would not.",
        ],
    )


def snapshot_ensemble(seeds: Sequence[int]) -> Finding:
    """FedKSeed's Appendix J.3: snapshots of a run, each a few scalars, and an ensemble of them.

    An ensemble's probability of an answer is the mean of its snapshots'.
    """
    import torch

    from fedseed.orbit.file import Orbit
    from fedseed.recipe.reading import read_recipe
    from fedseed.runs.assembly import build

    rounds, snapshot_rounds, candidates = 10, (4, 6, 8, 10), 128
    last, ensemble, mean = dict[int, float](), dict[int, float](), dict[int, float]()
    alone: list[dict[float, float]] = []
    bytes_each = 0
    for seed in seeds:
        settings = [
            f"rounds={rounds}",
            f"method.candidates={candidates}",
            "method.steps=10",
            f"evaluation.every={rounds}",
            f"seed={seed}",
        ]
        with TemporaryDirectory() as folder:
            recipe = read_recipe("words-fedkseed", settings)
            run = build(recipe, Path(folder) / "run")
            evaluation_sets = recipe.task.load().evaluation.values()
            tested = run.worker.objective.prepare(list(chain.from_iterable(evaluation_sets)))
            base = run.worker.space.snapshot()
            run.run()
            orbit = Orbit.open(Path(folder) / "run" / "model.orbit")
            bytes_each = len(orbit.records[-1].payload)
            losses = []
            for number in snapshot_rounds:
                run.worker.space.restore(base)
                orbit.replay(run.worker.space.model, number)
                with torch.no_grad():
                    example_losses = run.worker.objective.losses(run.worker.space.model, tested)
                losses.append(example_losses.double().numpy())
        table = np.stack(losses)
        together = -np.log(np.exp(-table).mean(axis=0))
        last[seed], mean[seed] = float(table[-1].mean()), float(table.mean())
        ensemble[seed] = float(together.mean())
        alone.append(
            dict(zip(map(float, snapshot_rounds), table.mean(axis=1).tolist(), strict=True))
        )
    gained = {seed: last[seed] - ensemble[seed] for seed in seeds}
    whole = 4 * SMALL_WORDS
    return Finding(
        concluded(
            [
                (
                    "A snapshot is an array of 2 K scalars (K of them, where one integer names "
                    f"the seeds): at most a hundredth of a checkpoint, with K = {candidates}.",
                    f"{bytes_each:,} bytes of a round's record, {whole:,} of float32 weights; "
                    "their ratio (at least 100):",
                    at_least(dict.fromkeys(seeds, whole / bytes_each), 100.0),
                ),
                (
                    "Snapshots may contribute to an ensemble: it has a lower loss than the last "
                    "snapshot.",
                    f"{np.mean(list(ensemble.values())):.4f} and "
                    f"{np.mean(list(last.values())):.4f}, the mean of single ones "
                    f"{np.mean(list(mean.values())):.4f}; the difference (above 0):",
                    at_least(gained, 0.0),
                ),
            ]
        ),
        "Each snapshot is rebuilt from the base and its round's accumulator alone. An ensemble "
        "is never worse than its members' mean; whether it beats the last one depends on how far "
        "training has come.",
        [
            Panel(
                "Loss of snapshots and of their ensemble",
                [
                    over_seeds("single snapshots", alone, 0),
                    Series(
                        "ensemble of all",
                        [
                            (float(t), float(np.mean(list(ensemble.values()))))
                            for t in snapshot_rounds
                        ],
                        number=1,
                    ),
                ],
                Axis("round", whole=True),
                Axis("held-out loss"),
            )
        ],
        [_sheet_by_seed({"last": last, "ensemble": ensemble, "mean of single ones": mean})],
        tuple(seeds),
        [
            "A made-up world of words (78,656 parameters, a prompt that half works); the paper "
            "measures nothing here.",
        ],
    )


def lora_ranks(seeds: Sequence[int]) -> Finding:
    """FedMeZO's Conjecture 3.8: the best rank of LoRA beside the Hessian's effective rank."""
    from fedseed_papers.lora_rank import compared  # torch from here on

    return compared(seeds)


def _ranks(stages: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Spearman's correlation of y and x over all points, ranked within each stage."""
    x_ranks, y_ranks = [], []
    for stage in stages:
        x_values, y_values = zip(*stage, strict=True)
        x_ranks.append(np.argsort(np.argsort(x_values)))
        y_ranks.append(np.argsort(np.argsort(y_values)))
    x, y = np.concatenate(x_ranks), np.concatenate(y_ranks)
    return float(np.corrcoef(x, y)[0, 1])


def opt_125m(target: Path) -> Path:
    """Return the folder of a base in OPT-125M's shapes: random float32 weights, the small base's
    tokenizer.
    """
    from transformers import AutoTokenizer, OPTConfig, OPTForCausalLM

    folder, small = target.resolve() / "opt-125m", locate("small")
    if not (folder / "config.json").exists():
        tokenizer = AutoTokenizer.from_pretrained(small)
        names = {
            f"{name}_token_id": getattr(tokenizer, f"{name}_token_id")
            for name in ("bos", "eos", "pad")
        }
        tokenizer.save_pretrained(folder)
        OPTForCausalLM(OPTConfig(**names)).save_pretrained(folder)
    return folder


SMALL_MAKERS: dict[str, Callable[..., Finding]] = {
    "rebuild-steps": rebuild_steps,
    "rebuild-candidates": rebuild_candidates,
    "batch-projections": batch_projections,
    "effective-rank": effective_rank,
    "snapshot-ensemble": snapshot_ensemble,
    "lora-rank": lora_ranks,
}


@cache
def made_small(maker: str, seeds: tuple[int, ...]) -> Finding:
    """Return what a maker of `SMALL_MAKERS` found, which figures of one command share."""
    return SMALL_MAKERS[maker](seeds)
