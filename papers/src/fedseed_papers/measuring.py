"""What small figures measure without a sweep: the time to rebuild a model, and the projections of batches."""

import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedseed.models.loading import locate
from fedseed.randomness import Basis, kernels
from fedseed.randomness.kernels.reference import Part
from fedseed.reports.charts import Axis, Panel, Series
from fedseed_papers.findings import Claim, Finding, judged
from fedseed_papers.reconstruction import slope

if TYPE_CHECKING:
    from fedseed.federation.worker import Worker

SMALL = 1_195_392  # parameters of the small base
TIMED = "Times are this machine's, medians of three, in seconds of a core: other work on it hardly changes them."


def seconds_to_move(basis: str, coefficients: NDArray[np.float32], length: int, repeats: int = 3) -> float:
    """Returns seconds of a core to add directions to `length` float32 weights in one pass.

    Args:
        basis: the directions' kind.
        coefficients: (K,), one for each direction.
        length: of the weights.
        repeats: of which the median is taken.
    """
    kernel, weights = kernels.current(), np.zeros(length, dtype=np.float32)
    spent = []
    for repeat in range(repeats):
        before = time.process_time()  # of all threads: what else the machine does is left out
        prepared = kernel.prepare([Part(Basis(basis, repeat, len(coefficients)).spec, 0, coefficients)], length)
        kernel.move(weights, weights, "float32", prepared, -1e-6, 0)
        spent.append(time.process_time() - before)
    return median(spent)


def _steps(count: int) -> NDArray[np.float32]:
    """Returns scalars of so many steps."""
    return np.random.default_rng(count).normal(size=count).astype(np.float32)


def _pool(steps: int, candidates: int) -> NDArray[np.float32]:
    """Returns a pool's accumulator after so many steps, each along a candidate that was drawn."""
    drawn = np.random.default_rng(steps).integers(0, candidates, steps)
    return np.bincount(drawn, weights=_steps(steps), minlength=candidates).astype(np.float32)


def rebuild_steps(
    length: int = SMALL, steps: Sequence[int] = (16, 64, 256, 1024, 4096), candidates: int = 1024
) -> Finding:
    """FedKSeed's Figure 2: repeating all steps, and rebuilding from a pool's accumulator."""
    seconds_to_move("normal", _steps(1), 4096)  # compiles
    repeated = [(float(n), seconds_to_move("normal", _steps(n), length)) for n in steps]
    rebuilt = [(float(n), seconds_to_move("normal", _pool(n, candidates), length)) for n in steps]
    rate, full = slope(repeated), seconds_to_move("normal", _steps(candidates), length)
    slowest = max(y for _, y in rebuilt)
    return Finding(
        [
            Claim("The time to obtain the newest model by repeating its steps grows with their number.",
                  f"{repeated[0][1]:.3g} s for {steps[0]:,} steps, {repeated[-1][1]:.3g} s for {steps[-1]:,}; slope "
                  f"{rate:.2f} in the logarithms.", judged(rate > 0.7, kind=True)),
            Claim("With FedKSeed's pool it does not grow without end, however many steps there were.",
                  f"A pool of {candidates:,} candidates: {slowest:.3g} s at most, after up to {steps[-1]:,} steps; "
                  f"repeating {candidates:,} steps takes {full:.3g} s. It grows until all candidates were drawn: "
                  f"{rebuilt[0][1]:.3g} s after {steps[0]:,} steps.",
                  judged(slowest < 1.2 * full and slowest < repeated[-1][1], kind=True)),
        ],
        "Each step adds a direction of length d, which is generated anew; a pool's accumulator has K of them.",
        [Panel("Time to the newest model", [Series("repeating all steps", repeated),
                                            Series(f"FedKSeed, K = {candidates:,}", rebuilt, number=1)],
               Axis("steps", log=True), Axis("seconds of a core", log=True, unit="s"))],
        [],
        (0, 1, 2),
        [f"{length:,} parameters, the small base's, on a processor; LLaMA-3B has 3.4 billion.", TIMED],
    )  # fmt: skip


def rebuild_candidates(length: int = SMALL, candidates: Sequence[int] = (64, 256, 1024, 4096)) -> Finding:
    """FedKSeed's Figure 8: the time to calculate the newest model over K."""
    lines = []
    for number, basis in enumerate(("normal", "hadamard")):
        seconds_to_move(basis, _steps(4), 4096)  # compiles
        points = [(float(k), seconds_to_move(basis, _steps(k), length)) for k in candidates]
        lines.append(Series(f"{basis} directions", points, number=number))
    normal, structured = (line.points for line in lines)
    rate = slope(normal)
    return Finding(
        [
            Claim("The time to calculate the newest model grows with K.",
                  f"Normal directions, as published: {normal[0][1]:.3g} s at K = {candidates[0]:,}, "
                  f"{normal[-1][1]:.3g} s "
                  f"at {candidates[-1]:,}; slope {rate:.2f}.", judged(rate > 0.7, kind=True)),
        ],
        f"Not so with hadamard directions, the default here: {1000 * structured[0][1]:.2g} and "
        f"{1000 * structured[-1][1]:.2g} thousandths of a second, because all of them together cost one transform.",
        [Panel("Time to the newest model", lines, Axis("K", log=True), Axis("seconds of a core", log=True, unit="s"))],
        [],
        (0, 1, 2),
        [f"{length:,} parameters, the small base's, on a processor; LLaMA-3B has 3.4 billion.", TIMED],
    )  # fmt: skip


def batch_projections(
    examples: int = 512,
    directions: int = 20,
    batches: int = 10_000,
    batch: int = 64,
    steps: Sequence[int] = (0, 400),
    seeds: Sequence[int] = (1, 2, 3),
    settings: Sequence[str] = (),
) -> Finding:
    """FeedSign's Figures 8 and 9: how often a batch's projection has another sign than the whole set's, and its shape.

    Args:
        examples: of the training set.
        directions: that are looked along at each point of a run.
        batches: drawn for each direction.
        batch: examples in each.
        steps: of FeedSign, after which it is measured.
        seeds: of the runs, which decide their directions.
        settings: of the recipe words-feedsign.
    """
    from fedseed.runs.assembly import build  # torch from here on
    from fedseed.runs.recipe import read_recipe

    random = np.random.default_rng(1)
    scatter: list[Series] = []
    shapes: list[Series] = []
    worst, skews = 0.0, []
    for number, done in enumerate(steps):
        found = []
        for seed in seeds:
            rounds = max(1, done)
            common = [
                "task.clients=1", "federation.per_round=1", f"task.examples={examples}", 'task.families=["feeling"]',
                "task.evaluation=1", f"evaluation.every={rounds}", f"rounds={rounds}", f"seed={seed}",
            ]  # fmt: skip
            run = build(read_recipe("words-feedsign", [*common, *settings]))
            items = list(run.items[0])
            if done:
                run.run()
            for k in range(directions):
                values, weights = _projections(run.worker, items, k)
                drawn = random.integers(0, len(items), (batches, batch))
                means = values[drawn].sum(axis=1) / weights[drawn].sum(axis=1)
                whole = float(values.sum() / weights.sum())
                found.append((whole, float((means * whole < 0).mean())))
                skews.append(float(((means - means.mean()) ** 3).mean() / means.std() ** 3))
                if k == 0 and seed == seeds[0]:
                    counts, edges = np.histogram(means - whole, bins=40)
                    middle = (edges[1:] + edges[:-1]) / 2
                    points = list(zip(middle.tolist(), counts / batches, strict=True))
                    shapes.append(Series(f"after {done} steps", points, number=number))
        worst = max(worst, *(p for _, p in found))
        scatter.append(Series(f"after {done} steps", sorted((abs(x), p) for x, p in found), number=number))
    typical = float(np.median(np.abs(skews)))
    return Finding(
        [
            Claim("The sign-reversing probability is below one half everywhere (0.4968 at most in the paper).",
                  f"At most {worst:.4f} over {directions} directions at each of {len(steps)} points of {len(seeds)} "
                  "runs.",
                  judged(worst < 0.5 + 2 / batches**0.5, kind=True)),
            Claim("The larger the projection, the less often the sign is reversed.",
                  f"Rank correlation {_ranks(scatter):.2f}.", judged(_ranks(scatter) < -0.5, kind=True)),
            Claim("Projections of batches are distributed symmetrically.",
                  f"Skewness {typical:.2f} in the median of directions, {max(map(abs, skews)):.2f} at most (a normal "
                  "distribution has 0, an exponential one 2).", judged(typical < 0.3, kind=True)),
        ],
        "A batch's projection is a mean over its examples, so it is nearly normal, and nearly symmetric, "
        "whatever those of "
        "single examples look like.",
        [Panel("Figure 8: sign reversal", scatter, Axis("projection of the whole set"), Axis("probability")),
         Panel("Figure 9: projections of batches, first "
               "direction", shapes, Axis("batch minus whole set"), Axis("share"))],
        [],
        tuple(seeds),
        [f"The words base (an OPT of 78,656 parameters) and {examples} reviews asked about their feeling in place of "
         f"OPT-125M and 5,000 of SST-2; after {' and '.join(map(str, steps))} steps in place of every 4,000."],
    )  # fmt: skip


def _projections(at: "Worker", items: Sequence[Any], k: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns each example's projection along direction k, as a sum over its terms, and their number."""
    import torch

    method: Any = at.method
    basis, scale, both = method.directions(at.seed), method.scale, []
    for sign in (1, -1):
        losses = []
        with at.space.perturbed(basis, k, sign * scale), torch.no_grad():
            for first in range(0, len(items), 64):
                losses.append(at.objective.losses(at.space.model, items[first : first + 64]).double())
        both.append(torch.cat(losses).numpy())
    weights = np.array([at.objective.weight(item) for item in items], dtype=np.float64)
    return (both[0] - both[1]) / (2 * scale), weights


def _ranks(lines: Sequence[Series]) -> float:
    """Spearman's correlation of y and x over all lines, ranked within each."""
    x = np.concatenate([np.argsort(np.argsort([p[0] for p in line.points])) for line in lines])
    y = np.concatenate([np.argsort(np.argsort([p[1] for p in line.points])) for line in lines])
    return float(np.corrcoef(x, y)[0, 1])


def opt_125m(out: Path) -> Path:
    """Returns the folder of a base in OPT-125M's shapes: random float32 weights, the small base's tokenizer."""
    from transformers import AutoTokenizer, OPTConfig, OPTForCausalLM

    folder, small = out.resolve() / "opt-125m", locate("small")
    if not (folder / "config.json").exists():
        tokenizer = AutoTokenizer.from_pretrained(small)
        names = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
        tokenizer.save_pretrained(folder)
        OPTForCausalLM(OPTConfig(**names)).save_pretrained(folder)
    return folder


SMALL_MAKERS: dict[str, Callable[..., Finding]] = {
    "rebuild-steps": rebuild_steps,
    "rebuild-candidates": rebuild_candidates,
    "batch-projections": batch_projections,
}


@cache
def made_small(maker: str) -> Finding:
    """Returns what a maker of `SMALL_MAKERS` found, which figures of one command share."""
    return SMALL_MAKERS[maker]()
