"""A canary test: one of N canaries is planted in a client's data.

Who sees the model afterwards guesses which.

The attack knows all but which canary it is: recipe, data, the run's seed. It trains a twin, the
same run without a canary, and guesses the candidate whose loss fell furthest below the twin's for
the length of its gradient: to first order that is how far the weights went its way. A weaker attack
has no twin and goes by the candidates' losses alone.
Half of the runs, the twins, have no canary: there the attack must be at chance.

By the orbit, the attack has every step in place of the last model alone, and needs no twin
(`by_orbit`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedseed.errors import RecipeError, plural
from fedseed.orbit import Orbit
from fedseed.recipe.settings import Recipe
from fedseed.reports.progress import choose_progress
from fedseed.runs.assembly import Federation, build
from fedseed.runs.parties import load_data
from fedseed.tasks.data import TaskData
from fedseed_papers.audits import by_orbit
from fedseed_papers.audits.canaries import Planting, planting
from fedseed_papers.audits.guessing import chance_of_at_least, epsilon_at_least, percentile, rank

Losses = NDArray[np.float64]
Say = Callable[[str], None]
By = Literal["model", "orbit"]
BATCH = 64  # candidates that go through the model at a time
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Game:
    """One pair of runs.

    Args:
        seed: of both runs.
        planted: the number of the canary.
        base: the candidates' losses at the base, shape (N,).
        with_it: after the run with the canary.
        twin: after the run without.
        lengths: of the candidates' gradients at the twin's weights, shape (N,).
        odds: how well each candidate explains the run's orbit, in logs, shape (N,); None: it has
            the model alone.
        odds_twin: the twin's orbit.
    """

    seed: int
    planted: int
    base: Losses
    with_it: Losses
    twin: Losses
    lengths: Losses
    odds: Losses | None = None
    odds_twin: Losses | None = None

    @property
    def scores(self) -> Losses:
        """Return the attack: how well candidates explain the orbit, or how far the weights went
        their way.
        """
        if self.odds is None:
            return self.ways
        return self.odds

    @property
    def ways(self) -> Losses:
        """Return how far the weights went each candidate's way: the attack by the model."""
        return (self.twin - self.with_it) / self.longer

    @property
    def longer(self) -> Losses:
        """Return the lengths, none below a hundredth of the median: what is learnt already has
        next to none.
        """
        return np.maximum(self.lengths, float(np.median(self.lengths)) / 100 or 1.0)

    @property
    def alone(self) -> Losses:
        """Return how far each candidate's loss fell: the attack without a twin."""
        return self.base - self.with_it


@dataclass(frozen=True)
class CanaryTest:
    """What came of it.

    Args:
        games: the pairs of runs.
        client: who had the canary.
        copies: how many examples were the canary.
        spent: the account of a private run ("epsilon" at "delta"); None: it is not private.
    """

    games: Sequence[Game]
    client: str
    copies: int
    spent: dict[str, Any] | None

    @property
    def candidates(self) -> int:
        """Return N."""
        return len(self.games[0].base)

    @property
    def by(self) -> By:
        """Return what the attack has."""
        if self.games[0].odds is None:
            return "model"
        return "orbit"

    @property
    def ranks(self) -> list[int]:
        """Return the canary's place in each run, by the attack: by the orbit, or by the model with
        a twin.
        """
        return [rank(game.scores, game.planted) for game in self.games]

    @property
    def ranks_by_model(self) -> list[int]:
        """Return the same by the last model and a twin, whatever else the attack had."""
        return [rank(game.ways, game.planted) for game in self.games]

    @property
    def ranks_alone(self) -> list[int]:
        """Return the same by the attack without a twin."""
        return [rank(game.alone, game.planted) for game in self.games]

    @property
    def control(self) -> list[Losses]:
        """Return scores of the twins, which had no canary: what there is to be found in nothing.

        By the model each is compared with the next pair's twin; with one pair there is none.
        """
        if self.by == "orbit":
            return [game.odds_twin for game in self.games if game.odds_twin is not None]
        if len(self.games) < 2:
            return []
        next_games = [*self.games[1:], self.games[0]]
        return [
            (next_game.twin - game.twin) / game.longer
            for game, next_game in zip(self.games, next_games, strict=True)
        ]

    @property
    def ranks_control(self) -> list[int]:
        """Return the place of the canary in the runs that did not have it."""
        return [
            rank(scores, game.planted)
            for scores, game in zip(self.control, self.games, strict=False)
        ]

    @property
    def hits(self) -> int:
        """In how many runs the attack guessed right."""
        return self.ranks.count(1)

    @property
    def by_chance(self) -> float:
        """Return the probability that guessing blindly is right as often."""
        return chance_of_at_least(self.hits, len(self.games), 1 / self.candidates)

    @property
    def mean_percentile(self) -> float:
        """Return the mean share of other candidates that score below the canary; 0.5 at chance."""
        return float(np.mean([percentile(game.scores, game.planted) for game in self.games]))

    @property
    def account(self) -> tuple[float, float] | None:
        """Return epsilon and delta of what the attack is about, exchanging the canary.

        None: the account says nothing.

        Where neighbours have an example (or client) more or less, or zeros in its place, an
        exchange is two steps between neighbours: 2 epsilon, (1 + e^epsilon) delta. An account of
        examples says nothing of several copies.
        """
        spent = self.spent or {}
        epsilon, delta = float(spent.get("epsilon", inf)), float(spent.get("delta", 0.0))
        if spent.get("level") == "example" and self.copies > 1:
            return None
        if spent.get("adjacency") != "replace-one":
            epsilon, delta = 2 * epsilon, delta * (1 + exp(min(epsilon, 700.0)))
        if epsilon < inf and delta < 1:
            return (epsilon, delta)
        return None

    @property
    def delta(self) -> float:
        """Return the account's delta, for an exchange."""
        if self.account is None:
            return 0.0
        return self.account[1]

    @property
    def epsilon(self) -> float | None:
        """Return what the account says of an exchange; None: it says nothing."""
        if self.account is None:
            return None
        return self.account[0]

    @property
    def epsilon_at_least(self) -> float:
        """Return what the attack shows, with 95% confidence."""
        return epsilon_at_least(self.hits, len(self.games), self.candidates, self.delta, CONFIDENCE)

    @property
    def contradicts(self) -> bool:
        """Return whether what was shown is more than what was accounted."""
        return self.epsilon is not None and self.epsilon_at_least > self.epsilon


@dataclass(frozen=True)
class Planned:
    """A canary test to be done.

    Args:
        runs: pairs of runs, of different seeds.
        candidates: N.
        copies: examples that the canary replaces.
        client: who gets the canary; None: the first.
        by: what the attack has: the last model, or the orbit, which is every step.
        seed: draws candidates, and in each run the canary.
    """

    runs: int = 10
    candidates: int = 100
    copies: int = 1
    client: str | None = None
    by: By = "model"
    seed: int = 1


def canary_test(recipe: Recipe, planned: Planned, say: Say = lambda text: None) -> CanaryTest:
    """Run a recipe with and without a canary.

    Args:
        recipe: of any method, with any task whose examples have losses.
        planned: what is planted, how often, and what the attack has.
        say: shows a line of progress.

    Raises:
        RecipeError: the recipe has no losses to go by, the data no canary, or the method no odds of
            its steps.
    """
    if recipe.reward is not None:
        raise RecipeError("audit canary: a recipe with [reward] has no losses to go by")
    if planned.by == "orbit":
        by_orbit.check(recipe)
    data = load_data(recipe)
    plan = planting(data, planned.candidates, planned.copies, planned.client, planned.seed)
    bare = replace(data, evaluation={}, validation=())
    generator = np.random.default_rng([planned.seed, 1])
    games: list[Game] = []
    spent = None
    for number in range(planned.runs):
        run_seed = recipe.seed + number
        planted = int(generator.integers(planned.candidates))
        twin = _run(recipe, bare, run_seed, plan, planned.by)
        run = _run(recipe, bare, run_seed, plan, planned.by, planted)
        spent = run.spent
        games.append(
            Game(
                run_seed,
                planted,
                twin.base,
                run.losses,
                twin.losses,
                twin.lengths,
                run.odds,
                twin.odds,
            )
        )
        rank_of_canary = rank(games[-1].scores, planted)
        say(
            f"run {number + 1} of {planned.runs}: the canary is in place {rank_of_canary} of "
            f"{planned.candidates}"
        )
    return CanaryTest(games, data.clients[plan.client].name, planned.copies, spent)


@dataclass(frozen=True)
class _Run:
    """What a run leaves.

    Args:
        base: the candidates' losses before it.
        losses: after it.
        lengths: of their gradients; ones but for a twin.
        spent: the account.
        odds: how well they explain its orbit, in logs; None: the attack has the model alone.
    """

    base: Losses
    losses: Losses
    lengths: Losses
    spent: dict[str, Any] | None
    odds: Losses | None


def _run(
    recipe: Recipe,
    bare: TaskData,
    seed: int,
    plan: Planting,
    attack_by: By,
    planted: int | None = None,
) -> _Run:
    """Return a run with candidate `planted` in the data; None: a twin."""
    data, candidates = bare if planted is None else plan.planted(bare, planted), plan.candidates
    evaluation = recipe.evaluation.model_copy(update={"every": recipe.rounds})
    quiet = {"seed": seed, "tracking": [], "stopping": None, "evaluation": evaluation}
    recipe = recipe.model_copy(update=quiet)
    with TemporaryDirectory() as folder:
        run_folder = None
        if attack_by == "orbit":
            run_folder = Path(folder) / "run"
        federation = build(recipe, run_folder, choose_progress(False), data=data)
        base = _losses(federation, candidates)
        spent = federation.run().summary.get("privacy")
        steps = None
        if run_folder is not None:
            steps = Orbit.open(run_folder / "model.orbit").records
    losses = _losses(federation, candidates)
    lengths = _lengths(federation, candidates) if planted is None else np.ones(len(base))
    odds = None
    if steps is not None:  # the attack knows the data without the canary
        control_run = build(recipe, None, choose_progress(False), data=bare)
        odds = by_orbit.scores(control_run, steps, plan, len(bare.clients[plan.client].examples))
    return _Run(base, losses, lengths, spent, odds)


@torch.no_grad()
def _losses(federation: Federation, candidates: Sequence[Any]) -> Losses:
    """Return each candidate's loss at the weights as they are."""
    items, worker = _items(federation, candidates), federation.worker
    parts = (
        worker.objective.losses(worker.space.model, items[begin : begin + BATCH])
        for begin in range(0, len(items), BATCH)
    )
    return np.concatenate([part.double().cpu().numpy() for part in parts])


def _lengths(federation: Federation, candidates: Sequence[Any]) -> Losses:
    """Return the length of each candidate's gradient."""
    worker, lengths = federation.worker, []
    for item in _items(federation, candidates):
        loss = worker.objective.losses(worker.space.model, [item]).sum()
        parts = torch.autograd.grad(loss, list(worker.space.parameters), allow_unused=True)
        lengths.append(
            sum(float(part.double().square().sum()) for part in parts if part is not None) ** 0.5
        )
    return np.array(lengths)


def _items(federation: Federation, candidates: Sequence[Any]) -> Sequence[Any]:
    """Return the candidates, prepared, and the model as it is evaluated."""
    federation.worker.space.model.eval()
    items = federation.worker.objective.prepare(candidates)
    if len(items) != len(candidates):
        long = plural(len(candidates) - len(items), "canary", "canaries")
        raise RecipeError(f"audit canary: {long} can't be used by the model: too long")
    return items
