"""Finds a learning rate: first from slope and curvature along the method's own direction, then by
successive halving of short runs.

1. A run of a few rounds at a tiny rate r moves the weights by D. The loss on validation examples is
   measured at three points along D, l0 = l(w), l+- = l(w +- eps D / |D|). This gives slope and
   curvature:

       s = (l- - l+) / 2 eps,    c = (l+ + l- - 2 l0) / eps^2,    rate = (s / c) r / |D|

   The slope shows how far the clients' steps also help on examples that no client has; noise adds
   curvature but no slope. For methods whose round is one step, this rate minimises the loss after
   one round. If the curvature is not positive, the search starts at the rate that moves the weights
   by a hundredth of their norm.
2. Short runs try rates that are three times higher and lower, as long as the validation loss
   improves; then the two best rates run three times as long (Jamieson, Talwalkar: "Non-stochastic
   Best Arm Identification", 2016). If a round is one step along a random direction, a few steps
   show only chance, so two runs use all the remaining budget.

   Where a paper's theorem has a condition on the rate, `TunedRate.bound` has it, with curvature and
   slope along the steps in place of the theorem's constants (`fedseed.methods.bounds`). The search
   does not use it.

The search takes about a tenth of the run's passes. With a `share` of 1 or more, that number of
whole runs follows: at the found rate, at three times higher or lower rates as long as the loss
improves, then at rates between. All trials use the run's seeds and batches, so that rates are
compared along the same directions.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf, isfinite
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch

from fedseed.errors import FedseedError, RecipeError, plural
from fedseed.methods import Method
from fedseed.methods.bounds import Landscape, RateBound, rate_bound
from fedseed.models import adapters
from fedseed.objectives.evaluation import mean_loss
from fedseed.objectives.prepared import prepare, with_reference
from fedseed.processes import refuse_torchrun
from fedseed.recipe.settings import Recipe
from fedseed.runs.loop import rate_of
from fedseed.runs.model_setup import Equipment, equip, host_examples
from fedseed.runs.parties import load_data
from fedseed.runs.simulation import Simulation
from fedseed.runs.spec import RunSpec
from fedseed.tasks.data import ClientData, TaskData

SHARE = 0.1  # share of the run's passes that the search may take
STEP = 3.0  # factor from one rate to the next
MOST_TRIALS = 6  # short runs of the first stage
# all trials together take at least this many rounds of one client; if the budget is smaller, local
# steps are cut
WHOLE = 16
# share of the weights' norm: distance over which slope and curvature are measured
FAR = 1e-3
# share of the weights' norm: the most that the first run may move the weights
TINY = 1e-2
# validation examples at most: taken from each client, and in total
JUDGED, HELD = 200, 400
# steps that slope and curvature are averaged over for random directions, and the most attempts at
# such steps
LOOKS, MOST_LOOKS = 10, 16
# share of the loss: a smaller second difference of three losses may be rounding
SEEN = 1e-4
# with fewer rounds of one step than this, a rate can't be judged
FEW = 5
CHANCE = 5.0  # a factor between three and nine, see `_climb`
# times the base's loss: a trial with a higher loss has failed
FAILED = 1e3


@dataclass
class TunedRate:
    """A learning rate, and how it was found."""

    key: str  # the recipe's key of the rate
    rate: float
    start: float | None = None  # the rate from slope and curvature; None: they gave none
    before: float = inf  # the base's loss on the validation examples
    # of each trial: rate, rounds, loss afterwards
    trials: list[tuple[float, int, float]] = field(default_factory=list)
    passes: int = 0  # forward and backward passes of all trials
    whole: float = inf  # passes of the run itself
    # what a paper's theorem asks of the rate; None: the papers have no theorem for the method
    bound: RateBound | None = None


def with_rate(recipe: Recipe, rate: float) -> Recipe:
    """Return the recipe with another learning rate, and without a search for one."""
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
        raise RecipeError(
            f'method.name = "{method.name}": this method has no learning rate to search for'
        )
    return key_and_rate


def restore_rate(recipe: Recipe, folder: Path) -> Recipe:
    """Return a recipe with the rate that the interrupted run in a folder found, if there is one."""
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
    """Runs trials of a recipe, each from the base."""

    def __init__(self, recipe: Recipe, data: TaskData) -> None:
        self.recipe = recipe
        clients, judged = list(data.clients), list(data.validation)
        # hold out a tenth of each client's examples; no trial trains on them
        if not judged:
            draw, shuffled = Random(recipe.seed), [list(client.examples) for client in clients]
            for examples in shuffled:
                draw.shuffle(examples)  # because files are often sorted
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
        self.passes, self.units = 0, 0  # spent so far; units are rounds of one client
        self.start: list[torch.Tensor] = []  # the weights at the start of the last trial
        self._equipment: Equipment | None = None
        self._base: list[torch.Tensor] = []
        self._judged_items: list[Any] = []

    def run(self, method: Method, rounds: int, clients: int, seed_offset: int = 0) -> Simulation:
        """Run some rounds from the base, and return the finished simulation.

        `seed_offset` is added to the run's seed.
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
            raise RecipeError("tune-rate: none of the validation examples is usable")
        return mean_loss(trial.worker.space.model, objective, self._judged_items)

    def _fresh(self, restore: bool = True) -> Equipment:
        """Return the base model. With an adapter it is loaded again each time."""
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
        judged = prepare(objective, "the validation examples of tune-rate", self.judged)
        self._judged_items = with_reference(objective, model, judged).items
        return self._equipment


def _refuse_private(recipe: Recipe) -> None:
    """Raise RecipeError for a recipe whose trials would reveal what it hides."""
    if recipe.privacy is not None or recipe.secure_sums is not None:
        raise RecipeError(
            "tune-rate: trials would reveal what [privacy] and [secure_sums] hide: set a rate "
            "yourself"
        )


def find_rate(
    recipe: Recipe,
    data: TaskData | None = None,
    say: Callable[[str], None] = print,
    share: float = SHARE,
) -> TunedRate:
    """Find a learning rate for a recipe by short runs.

    Args:
        recipe: the recipe. Its own rate is the starting point if slope and curvature give none.
        data: the task's data, if it is loaded already.
        say: called with a line about each trial.
        share: passes of all trials, as a share of the run's. From 1 on: the number of whole runs
            that follow the usual trials.

    Raises:
        RecipeError: the method has no rate, or the run is private, and its epsilon would not
            include the trials.
        FedseedError: no rate lowers the loss.
    """
    refuse_torchrun('learning_rate = "auto"')
    _refuse_private(recipe)
    key, rate = _rate_key(recipe.method)
    trials = _Trials(recipe, load_data(recipe) if data is None else data)
    result, method = TunedRate(key, rate), recipe.method
    # unit: a round of one client
    units = (share if share < 1 else SHARE) * recipe.rounds * trials.per_round
    method, shortening = _shorten(method, key, rate, units)
    units *= shortening

    def shape(count: float) -> tuple[int, int]:
        """Return how many rounds and clients a trial has that costs `count` rounds of one client.

        It uses as many clients as a round has, if the budget allows.
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
    # with random directions, one or two steps show mostly chance
    by_steps = not method.needs_gradients
    clients = trials.per_round if method.stepwise else 1
    looks = max(2, min(LOOKS, int(units / 3 / clients))) if by_steps else 1
    begin = _start(trials, method, rate, looks, *((1, clients) if by_steps else shape(short)))
    result.start, result.before, centre = begin.rate, begin.base_loss, begin.bold
    if begin.landscape is not None:
        result.bound = rate_bound(recipe.method, begin.landscape)
    estimate = "nothing"
    if result.start is not None:
        centre = result.start
        estimate = f"{result.start:.3g}"
    say(
        f"  rate from slope and curvature along the method's steps: {estimate}; the base's loss "
        f"is {result.before:.4f}"
    )
    if method.stepwise and result.start is not None:
        # a larger rate may look better in a short trial although it is worse
        units_left = (units - trials.units) / 2
        rates = [centre, centre / STEP] if units_left >= FEW * trials.per_round else [centre]
        longer = {one: measure(one, max(units_left, trials.per_round)) for one in rates}
    else:
        rates = _climb(centre, result.before, lambda rate: measure(rate, short))
        longer = {one: measure(one, 3 * short, 1) for one in rates}
    best = min(longer, key=lambda one: longer[one])
    # if the loss rose in all trials, perhaps by chance, take the first rate
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
            f"  no rate lowered the loss of {result.before:.4f} in so few rounds: use this rate "
            "with caution"
        )
    result.passes = trials.passes
    return result


def _shorten(method: Method, key: str, rate: float, units: float) -> tuple[Method, float]:
    """Return the method for trials: without a schedule, and with fewer local steps if needed.

    Args:
        method: the recipe's method.
        key: the key of its learning rate.
        rate: the learning rate to set.
        units: rounds of one client that the trials may take.

    Returns:
        The method, and the factor by which local steps were cut.
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
    """Try whole runs, and return their losses by rate: first at three times higher or lower rates
    while the loss improves, then at rates between.
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
    """Try higher and lower rates while the loss improves, and return the two best, the better one
    first.
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
        # If a third of the rate gives a third of the loss increase, the direction leads uphill by
        # chance, and smaller rates show nothing new. (If the rate is too large, a third of it gives
        # a ninth of the increase.)
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


class _Start(NamedTuple):
    """What slope and curvature along some steps give.

    Args:
        rate: the rate; None: they give none.
        base_loss: the base's loss.
        bold: a rate that moves the weights by a hundredth of their norm.
        landscape: what was measured of the loss; None: no step could be measured.
    """

    rate: float | None
    base_loss: float
    bold: float
    landscape: Landscape | None


def _start(
    trials: _Trials, method: Method, rate: float, steps: int, rounds: int, clients: int
) -> _Start:
    """Measure slope and curvature along some steps."""
    # The bold rate moves the weights by a hundredth of their norm in such a step; without positive
    # curvature there is no other scale. With random directions each step is a separate run: the
    # curvature along all of them together would be that of what they have in common. If the slope
    # is not downhill even so, it is noise, and its absolute value is used.
    slopes, curvatures, base_loss, looks, far, bold = 0.0, 0.0, inf, 0, 0.0, rate
    # the same by unit of length, and the number of trained values
    fall, bend_of_length, size = 0.0, 0.0, 0
    for attempt in range(MOST_LOOKS):
        try:
            trial = trials.run(_with_learning_rate(method, rate), rounds, clients, attempt)
        except FedseedError:
            rate /= 100
            continue
        end_weights, start = trial.worker.space.snapshot(), trials.start
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
            sides = _losses_along(trials, trial, end_weights, far / distance)
            base_loss, bend = sides[0], sides[1] + sides[2] - 2 * sides[0]
            if looks or not isfinite(bend) or far > norm:
                break
        slopes += (sides[2] - sides[1]) / (2 * far) * distance / rate
        curvatures += bend / far**2 * (distance / rate) ** 2
        fall += (sides[2] - sides[1]) / (2 * far)
        bend_of_length += bend / far**2
        size = sum(tensor.numel() for tensor in start)
        looks += 1
        if looks == steps:
            break
    usable = isfinite(slopes) and slopes and curvatures > 0
    landscape = _mean_landscape(size, trials.per_round, fall, bend_of_length, looks)
    return _Start(abs(slopes) / curvatures if usable else None, base_loss, bold, landscape)


def _losses_along(
    trials: _Trials, trial: Simulation, end_weights: Sequence[torch.Tensor], step: float
) -> list[float]:
    """Return the losses at the start, and a step from it towards and away from a trial's end.

    Args:
        trials: measure losses.
        trial: the trial, whose model is moved.
        end_weights: its weights after its rounds.
        step: the length of the step, in units of the way from the start to the end.
    """
    losses = []
    for factor in (0.0, step, -step):
        trial.worker.space.restore(
            [b + (a - b) * factor for a, b in zip(end_weights, trials.start, strict=True)]
        )
        losses.append(trials.loss(trial))
    return losses


def _mean_landscape(
    size: int, per_round: int, fall: float, bend: float, looks: int
) -> Landscape | None:
    """Return the mean slope and curvature of some looks; None if there are none, or no numbers."""
    if not looks or not isfinite(fall) or not isfinite(bend):
        return None
    return Landscape(size, per_round, fall / looks, bend / looks)


def _length(tensors: Sequence[torch.Tensor]) -> float:
    return float(sum(float(tensor.double().square().sum()) for tensor in tensors)) ** 0.5
