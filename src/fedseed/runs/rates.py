"""Finds a learning rate: slope and curvature along the method's own direction, then successive
halving of short runs.

1. A run of a few rounds at a tiny rate r moves the weights by D. Along D the loss on validation
   examples is measured at three points, l0 = l(w), l+- = l(w +- eps D / |D|), which gives slope and
   curvature:

       s = (l- - l+) / 2 eps,    c = (l+ + l- - 2 l0) / eps^2,    rate = (s / c) r / |D|

   The slope is what the clients' steps agree on with examples that none of them has; noise that
   they do not share has curvature only. For methods whose round is one step, that is the rate after
   which a round of its own gains most. Where the loss does not bend upwards, the search starts at
   the rate that moves the weights by a hundredth.
2. Short runs at three times more and less, on as long as it gets better, then the two best for
   three times as long; the loss on the validation examples decides (Jamieson, Talwalkar:
   "Non-stochastic Best Arm Identification", 2016). Where a round is one step along a drawn
   direction, two runs as long as there is room for: a few steps show chance alone.

All of it takes about a tenth of the run's passes. With a `share` of 1 or more, as many whole runs
follow: at that rate, at three times more or less, on as long as it gets better, and between.
Seeds and batches are those of the run, so that two rates are compared along the same directions.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf, isfinite
from pathlib import Path
from random import Random
from typing import Any

import torch

from fedseed.errors import FedseedError, RecipeError, plural
from fedseed.methods import Method
from fedseed.models import adapters
from fedseed.objectives.evaluation import mean_loss
from fedseed.objectives.prepared import prepare, with_reference
from fedseed.processes import alone
from fedseed.recipe.settings import Recipe
from fedseed.runs.loop import rate_of
from fedseed.runs.model_setup import Equipment, equip, host_examples
from fedseed.runs.simulation import Simulation
from fedseed.runs.spec import RunSpec
from fedseed.tasks.data import ClientData, TaskData

SHARE = 0.1  # of the run's passes
STEP = 3.0  # from a rate to the next
MOST_TRIALS = 6  # of the first rung
# rounds of one client that all trials together take at least; below that, their local steps are cut
WHOLE = 16
# share of the weights' norm: the distance over which slope and curvature are measured
FAR = 1e-3
# share of the weights' norm: the most that the first run may move the weights
TINY = 1e-2
# most examples for validation, and of each client
JUDGED, HELD = 200, 400
# steps along which slope and curvature are taken where directions are drawn, and at most
LOOKS, MOST_LOOKS = 10, 16
# share of the loss: a bend between three points that is smaller may be rounding
SEEN = 1e-4
# fewer rounds of one step than this are too few to judge a rate
FEW = 5
CHANCE = 5.0  # of nine times and three
# times the base's loss: a rate beyond which a trial has failed
FAILED = 1e3


@dataclass
class TunedRate:
    """A rate, and how it was found."""

    key: str  # the recipe's
    rate: float
    start: float | None = None  # what slope and curvature say; None: nothing
    before: float = inf  # the base's loss on the validation examples
    # rate, rounds, loss afterwards, in turn
    trials: list[tuple[float, int, float]] = field(default_factory=list)
    passes: int = 0  # forward and backward, of all trials
    whole: float = inf  # those of the run itself


def with_rate(recipe: Recipe, rate: float) -> Recipe:
    """Return the recipe with another learning rate, which nobody is to look for any more."""
    return recipe.model_copy(
        update={"method": _with_learning_rate(recipe.method, rate), "tune_rate": False}
    )


def _with_learning_rate(method: Method, rate: float, **changes: Any) -> Method:
    """Return the method with another learning rate."""
    key, _ = _rate_key(method)
    training: Any = getattr(method, "training", None)
    if key == "method.learning_rate":
        return method.model_copy(update={"learning_rate": rate, **changes})
    return method.model_copy(
        update={"training": training.model_copy(update={"learning_rate": rate, **changes})}
    )


def _rate_key(method: Method) -> tuple[str, float]:
    key_and_rate = rate_of(method)
    if key_and_rate is None:
        raise RecipeError(f'method.name = "{method.name}": it has no learning rate to look for')
    return key_and_rate


def restore_rate(recipe: Recipe, folder: Path) -> Recipe:
    """Return a recipe with the rate that an interrupted run in a folder has found, if there is
    one.
    """
    file = folder / "recipe.toml"
    if not recipe.tune_rate or not file.is_file():
        return recipe
    value: Any = tomllib.loads(file.read_text(encoding="utf-8"))
    for part in _rate_key(recipe.method)[0].split("."):
        value = value.get(part, {})
    if isinstance(value, float | int):
        return with_rate(recipe, float(value))
    return recipe


class _Trials:
    """Short runs of a recipe, each from the base."""

    def __init__(self, recipe: Recipe, data: TaskData) -> None:
        self.recipe = recipe
        clients, judged = list(data.clients), list(data.validation)
        # take a tenth of each client's examples, on which no trial trains
        if not judged:
            draw, shuffled = Random(recipe.seed), [list(client.examples) for client in clients]
            for examples in shuffled:
                draw.shuffle(examples)  # files are often sorted
            judged = list(
                chain.from_iterable(examples[: -(-len(examples) // 10)] for examples in shuffled)
            )
            rest = [examples[-(-len(examples) // 10) :] for examples in shuffled]
            clients = [
                replace(c, examples=examples) for c, examples in zip(clients, rest, strict=True)
            ]
        self.clients: Sequence[ClientData] = [
            replace(c, examples=c.examples[:HELD]) for c in clients
        ]
        step = max(1, len(judged) // JUDGED)
        self.data, self.judged = data, judged[::step]
        self.per_round = recipe.federation.count(len(clients))
        self.passes, self.units = 0, 0  # spent so far; in rounds of one client
        self.start: list[torch.Tensor] = []  # the weights with which the last trial began
        self._equipment: Equipment | None = None
        self._base: list[torch.Tensor] = []
        self._judged_items: list[Any] = []

    def run(self, method: Method, rounds: int, clients: int, seed_offset: int = 0) -> Simulation:
        """Run some rounds from the base, and return the finished simulation.

        `seed_offset`: another seed than the run's.
        """
        equipment = self._fresh()
        spec = RunSpec(
            method,
            rounds,
            self.recipe.seed + seed_offset,
            per_round=clients,
            evaluate_every=rounds,
            digest_every=rounds,
            base=self.recipe.model.base,
            base_digest="00" * 16,
            trainable=equipment.trainable,
            adapter=self.recipe.model.adapter,
            joint=self.recipe.federation.joint,
        )
        names = [client.name for client in self.clients]
        hosted = host_examples(
            spec, equipment.model, equipment.objective, self.clients, names, lambda model: {}
        )
        trial = Simulation(spec, hosted, progress=False)
        self.start = trial.worker.space.snapshot()
        summary = trial.run().summary
        self.units += rounds * clients
        self.passes += summary["forward_passes"] + summary["backward_passes"]
        return trial

    def loss(self, trial: Simulation) -> float:
        """Return the loss on the validation examples."""
        objective = self._fresh(restore=False).objective
        if not self._judged_items:
            raise RecipeError("tune-rate: no example to judge a rate by is usable")
        return mean_loss(trial.worker.space.model, objective, self._judged_items)

    def _fresh(self, restore: bool = True) -> Equipment:
        """Return the model at its base; an adapter is put into another one each time."""
        if self._equipment is not None and not restore:
            return self._equipment
        adapter = adapters.choose_adapter(
            self.recipe.model.adapter, self.recipe.method.adapter, self.recipe.method.name
        )
        if self._equipment is None or adapter is not None:
            self._equipment = equip(self.recipe, self.data)
            if adapter:
                self._base = []
            else:
                self._base = [
                    tensor.clone() for tensor in self._equipment.model.state_dict().values()
                ]
        with torch.no_grad():
            for tensor, saved in zip(
                self._equipment.model.state_dict().values(), self._base, strict=False
            ):
                tensor.copy_(saved)
        model, objective = self._equipment.model, self._equipment.objective
        judged = prepare(objective, "the examples that a rate is judged by", self.judged)
        self._judged_items = with_reference(objective, model, judged).items
        return self._equipment


def find_rate(
    recipe: Recipe,
    data: TaskData | None = None,
    say: Callable[[str], None] = print,
    share: float = SHARE,
) -> TunedRate:
    """Return a learning rate for a recipe, by short runs.

    Args:
        recipe: the recipe; its own rate is where the search starts if nothing else can be said.
        data: its task's, if it is loaded.
        say: told of each trial.
        share: how much the trials may take, in passes of the run; from 1 on, that number of
            whole runs follows them.

    Raises:
        RecipeError: the method has no rate; or the run is private, and trials would not count in
            its epsilon.
        FedseedError: no rate lowers the loss.
    """
    alone('learning_rate = "auto"')
    if recipe.privacy is not None or recipe.secure_sums is not None:
        raise RecipeError(
            "tune-rate: trials would show what [privacy] and [secure_sums] keep to clients: set a "
            "rate"
        )
    key, rate = _rate_key(recipe.method)
    trials = _Trials(recipe, recipe.task.load() if data is None else data)
    result, method = TunedRate(key, rate), recipe.method
    # rounds of one client
    units = (share if share < 1 else SHARE) * recipe.rounds * trials.per_round
    method, shortening = _shorten(method, key, rate, units)
    units *= shortening

    def shape(count: float) -> tuple[int, int]:
        """Return rounds and clients of a trial that costs `count` rounds of one client.

        It has all clients of a round, if that is possible.
        """
        clients = max(1, min(trials.per_round, round(count)))
        return max(1, min(recipe.rounds, round(count / clients))), clients

    def measure(rate: float, count: float, seed_offset: int = 0, method: Method = method) -> float:
        rounds, clients = shape(count)
        try:
            loss = trials.loss(
                trials.run(_with_learning_rate(method, rate), rounds, clients, seed_offset)
            )
        except FedseedError:
            loss = inf
        loss = loss if isfinite(loss) and loss < FAILED * max(1.0, result.before) else inf
        result.trials.append((rate, rounds, loss))
        say(f"  {key} = {rate:.3g}: loss {loss:.4f} after {plural(rounds, 'round')} of {clients}")
        return loss

    short = max(1.0, units / WHOLE)
    # directions are drawn: what a step or two do is mostly chance
    by_steps = not method.needs_gradients
    clients = 1
    if method.stepwise:
        clients = trials.per_round
    looks = 1
    if by_steps:
        looks = max(2, min(LOOKS, int(units / 3 / clients)))
    result.start, result.before, bold = _start(
        trials, method, rate, looks, *((1, clients) if by_steps else shape(short))
    )
    centre = bold
    estimate = "nothing"
    if result.start is not None:
        centre = result.start
        estimate = f"{result.start:.3g}"
    say(
        f"  slope and curvature along the method's steps say {estimate}; the base's loss is "
        f"{result.before:.4f}"
    )
    if method.stepwise and result.start is not None:
        # a larger rate may look better for a while, and is not
        units_left = (units - trials.units) / 2
        rates = [centre, centre / STEP] if units_left >= FEW * trials.per_round else [centre]
        longer = {one: measure(one, max(units_left, trials.per_round)) for one in rates}
    else:
        rates = _climb(centre, result.before, lambda rate: measure(rate, short))
        longer = {one: measure(one, 3 * short, 1) for one in rates}
    best = min(longer, key=lambda one: longer[one])
    # by chance the loss may have risen in all trials: then take the first rate
    result.rate = _round_rate(best if longer[best] < result.before else rates[0])
    result.whole = trials.passes / trials.units * recipe.rounds * trials.per_round * shortening
    if share >= 1:
        whole = recipe.rounds * trials.per_round
        longer = _whole_runs(
            result.rate, int(share), lambda rate: measure(rate, whole, method=recipe.method)
        )
        result.rate = min(longer, key=lambda one: longer[one])
    if not min(longer.values()) < result.before:
        say(
            f"  no rate lowered the loss of {result.before:.4f} in so few rounds: take this one "
            "with care"
        )
    result.passes = trials.passes
    return result


def _shorten(method: Method, key: str, rate: float, units: float) -> tuple[Method, float]:
    """Return the method as trials use it: without a schedule, with fewer local steps if needed.

    Args:
        method: the recipe's.
        key: the key of its learning rate.
        rate: its learning rate.
        units: rounds of one client that the trials may take.

    Returns:
        The method, and how many times as many local steps the run itself has.
    """
    steps: int = getattr(getattr(method, "training", method), "steps", 1)
    cut = max(1, min(steps, round(steps * units / WHOLE)))
    if getattr(method, "schedule", None):
        method = method.model_copy(update={"schedule": None})
    else:
        method = method.model_copy()
    has_epochs = getattr(getattr(method, "training", None), "epochs", None) is not None
    if cut == steps and not has_epochs:
        return method, 1.0
    changes: dict[str, Any] = {"steps": cut}
    if key != "method.learning_rate":
        changes["epochs"] = None
    return _with_learning_rate(method, rate, **changes), steps / cut


def _whole_runs(
    centre: float, most_runs: int, measure: Callable[[float], float]
) -> dict[float, float]:
    """Return the loss of each whole run that is tried, by rate: at three times more, or less, while
    that helps, then between.
    """
    losses = {centre: measure(centre)}
    for edge, step in ((max, STEP), (min, 1 / STEP)):
        while len(losses) < most_runs and min(losses, key=lambda one: losses[one]) == edge(losses):
            rate = _round_rate(edge(losses) * step)
            losses[rate] = measure(rate)
    rates_between = [
        _round_rate(min(losses, key=lambda one: losses[one]) * factor)
        for factor in (STEP**0.5, STEP**-0.5)
    ]
    return losses | {rate: measure(rate) for rate in rates_between[: most_runs - len(losses)]}


def _round_rate(rate: float) -> float:
    """Return a rate rounded to two significant digits."""
    return float(f"{rate:.2g}")


def _climb(centre: float, base_loss: float, measure: Callable[[float], float]) -> list[float]:
    """Return the two rates to try for longer, the better one first: upwards and downwards as long
    as it helps.
    """
    losses = {centre: measure(centre)}
    while len(losses) < MOST_TRIALS and losses[max(losses)] < base_loss:
        edge = max(losses)
        losses[edge * STEP] = measure(edge * STEP)
        if losses[edge * STEP] >= losses[edge]:
            break
    while len(losses) < MOST_TRIALS:
        edge = min(losses)
        smaller, excess = edge / STEP, losses[edge] - base_loss
        losses[smaller] = measure(smaller)
        # where a third of a rate raises the loss by a third as much (too large a rate: by a ninth),
        # the directions lead uphill by chance, and smaller rates show nothing new
        if (
            excess > 0
            and losses[smaller] > base_loss
            and excess < CHANCE * (losses[smaller] - base_loss)
        ):
            return [edge, smaller]
        if losses[smaller] >= losses[edge] or (
            excess < 0 and losses[smaller] > min(losses.values())
        ):
            break
    return sorted(losses, key=lambda one: losses[one])[:2]


def _start(
    trials: _Trials, method: Method, rate: float, steps: int, rounds: int, clients: int
) -> tuple[float | None, float, float]:
    """Return the rate that slope and curvature say along some steps (None: nothing), the base's
    loss, a bold rate.
    """
    # a bold rate moves the weights by a hundredth in such a step: without an upward bend there is
    # no other scale; of drawn directions each step is a run of its own, for the curvature along all
    # at once is that of what they have in common; a slope that is not downhill even so is noise,
    # and its size is taken
    slopes, curvatures, base_loss, looks, far, bold = 0.0, 0.0, inf, 0, 0.0, rate
    for attempt in range(MOST_LOOKS):
        try:
            trial = trials.run(_with_learning_rate(method, rate), rounds, clients, attempt)
        except FedseedError:
            rate /= 100
            continue
        end_weights, start, space = trial.worker.space.snapshot(), trials.start, trial.worker.space
        distance, norm = (
            _length([a - b for a, b in zip(end_weights, start, strict=True)]),
            _length(start),
        )
        if not (isfinite(distance) and 0 < distance <= TINY * norm):
            rate *= 100.0 if distance == 0 else 0.01
            continue
        bold = TINY * norm / distance * rate
        sides, far, bend = [0.0, 0.0, 0.0], far or FAR * norm / 4, 0.0
        while abs(bend) < SEEN * abs(sides[0]) or not sides[0]:
            far *= 4 if looks == 0 else 1
            for number, side in enumerate((0.0, far, -far)):
                space.restore(
                    [
                        b + (a - b) * (side / distance)
                        for a, b in zip(end_weights, start, strict=True)
                    ]
                )
                sides[number] = trials.loss(trial)
            base_loss, bend = sides[0], sides[1] + sides[2] - 2 * sides[0]
            if looks or not isfinite(bend) or far > norm:
                break
        slopes += (sides[2] - sides[1]) / (2 * far) * distance / rate
        curvatures += bend / far**2 * (distance / rate) ** 2
        looks += 1
        if looks == steps:
            break
    usable = isfinite(slopes) and slopes and curvatures > 0
    return abs(slopes) / curvatures if usable else None, base_loss, bold


def _length(tensors: Sequence[torch.Tensor]) -> float:
    return float(sum(float(tensor.double().square().sum()) for tensor in tensors)) ** 0.5
