"""Finds a learning rate: what a step along the method's own direction says, then successive halving
of short runs.

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
from math import inf, isfinite
from pathlib import Path
from random import Random
from typing import Any

import torch

from fedseed.errors import FedseedError, RecipeError
from fedseed.methods import Method
from fedseed.models import adapters
from fedseed.objectives.evaluation import mean_loss
from fedseed.objectives.prepared import prepare, with_reference
from fedseed.processes import alone
from fedseed.recipe.settings import Recipe
from fedseed.runs.loop import rate_of
from fedseed.runs.model_setup import Equipment, equip, hosted_of
from fedseed.runs.simulation import Simulation
from fedseed.runs.spec import RunSpec
from fedseed.tasks.data import ClientData, TaskData

SHARE = 0.1  # of the run's passes
STEP = 3.0  # from a rate to the next
MOST_TRIALS = 6  # of the first rung
# rounds of one client that all trials together take at least; below that, their local steps are cut
WHOLE = 16
# of the weights' norm: how far slope and curvature look
FAR = 1e-3
# of the weights' norm: what the first run may move them by
TINY = 1e-2
# most examples for validation, and of each client
JUDGED, HELD = 200, 400
# steps along which slope and curvature are taken where directions are drawn, and at most
LOOKS, MOST_LOOKS = 10, 16
# of the loss: what the bend between three points must be to be more than rounding
SEEN = 1e-4
# rounds of one step each in which nothing is to be seen of a rate
FEW = 5
CHANCE = 5.0  # of nine times and three
# times the base's loss: a rate beyond which a trial has failed
FAILED = 1e3


@dataclass
class Found:
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
    """Returns the recipe with another learning rate, which nobody is to look for any more."""
    return recipe.model_copy(update={"method": _at(recipe.method, rate), "tune_rate": False})


def _at(method: Method, rate: float, **more: Any) -> Method:
    """Returns the method with another learning rate."""
    key, _ = _key(method)
    training: Any = getattr(method, "training", None)
    if key == "method.learning_rate":
        return method.model_copy(update={"learning_rate": rate, **more})
    return method.model_copy(
        update={"training": training.model_copy(update={"learning_rate": rate, **more})}
    )


def _key(method: Method) -> tuple[str, float]:
    found = rate_of(method)
    if found is None:
        raise RecipeError(f'method.name = "{method.name}": it has no learning rate to look for')
    return found


def settled(recipe: Recipe, folder: Path) -> Recipe:
    """Returns a recipe with the rate that an interrupted run in a folder has found, if there is
    one.
    """
    file = folder / "recipe.toml"
    if not recipe.tune_rate or not file.is_file():
        return recipe
    written: Any = tomllib.loads(file.read_text(encoding="utf-8"))
    for part in _key(recipe.method)[0].split("."):
        written = written.get(part, {})
    return with_rate(recipe, float(written)) if isinstance(written, float | int) else recipe


class _Trials:
    """Short runs of a recipe, each from the base."""

    def __init__(self, recipe: Recipe, data: TaskData) -> None:
        self.recipe = recipe
        clients, judged = list(data.clients), list(data.validation)
        # take a tenth of each client's examples, on which no trial trains
        if not judged:
            draw, dealt = Random(recipe.seed), [list(client.examples) for client in clients]
            for own in dealt:
                draw.shuffle(own)  # files are often sorted
            judged = [example for own in dealt for example in own[: -(-len(own) // 10)]]
            rest = [own[-(-len(own) // 10) :] for own in dealt]
            clients = [replace(c, examples=own) for c, own in zip(clients, rest, strict=True)]
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

    def run(self, method: Method, rounds: int, clients: int, other: int = 0) -> Simulation:
        """Run some rounds from the base, and return the finished simulation.

        `other`: another seed than the run's.
        """
        equipment = self._fresh()
        spec = RunSpec(
            method,
            rounds,
            self.recipe.seed + other,
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
        hosted = hosted_of(
            spec, equipment.model, equipment.objective, self.clients, names, lambda model: {}
        )
        trial = Simulation(spec, hosted, progress=False)
        self.start = trial.worker.space.snapshot()
        summary = trial.run().summary
        self.units += rounds * clients
        self.passes += summary["forward_passes"] + summary["backward_passes"]
        return trial

    def loss(self, trial: Simulation) -> float:
        """Returns the loss on the validation examples."""
        objective = self._fresh(restore=False).objective
        if not self._judged_items:
            raise RecipeError("tune-rate: no example to judge a rate by is usable")
        return mean_loss(trial.worker.space.model, objective, self._judged_items)

    def _fresh(self, restore: bool = True) -> Equipment:
        """Returns the model at its base; an adapter is put into another one each time."""
        if self._equipment is not None and not restore:
            return self._equipment
        adapter = adapters.choose_adapter(
            self.recipe.model.adapter, self.recipe.method.adapter, self.recipe.method.name
        )
        if self._equipment is None or adapter is not None:
            self._equipment = equip(self.recipe, self.data)
            self._base = (
                []
                if adapter
                else [tensor.clone() for tensor in self._equipment.model.state_dict().values()]
            )
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
) -> Found:
    """Returns a learning rate for a recipe, by short runs.

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
    key, rate = _key(recipe.method)
    trials = _Trials(recipe, recipe.task.load() if data is None else data)
    found, method = Found(key, rate), recipe.method
    # rounds of one client
    units = (share if share < 1 else SHARE) * recipe.rounds * trials.per_round
    steps: int = getattr(getattr(method, "training", method), "steps", 1)
    cut = max(1, min(steps, round(steps * units / WHOLE)))
    method = method.model_copy(
        update={"schedule": None} if getattr(method, "schedule", None) else {}
    )
    if cut < steps or getattr(getattr(method, "training", None), "epochs", None) is not None:
        shorter = (
            {"steps": cut, "epochs": None} if key != "method.learning_rate" else {"steps": cut}
        )
        method = _at(method, rate, **shorter)
        units *= steps / cut

    def shape(count: float) -> tuple[int, int]:
        """Return rounds and clients of a trial that costs `count` rounds of one client.

        It has all clients of a round, if that is possible.
        """
        clients = max(1, min(trials.per_round, round(count)))
        return max(1, min(recipe.rounds, round(count / clients))), clients

    def measure(rate: float, count: float, other: int = 0, method: Method = method) -> float:
        rounds, clients = shape(count)
        try:
            loss = trials.loss(trials.run(_at(method, rate), rounds, clients, other))
        except FedseedError:
            loss = inf
        loss = loss if isfinite(loss) and loss < FAILED * max(1.0, found.before) else inf
        found.trials.append((rate, rounds, loss))
        say(
            f"  {key} = {rate:.3g}: loss {loss:.4f} after {rounds} round{'s' * (rounds > 1)} of "
            f"{clients}"
        )
        return loss

    short = max(1.0, units / WHOLE)
    # directions are drawn: what a step or two do is mostly chance
    by_steps = not method.needs_gradients
    clients = trials.per_round if method.stepwise else 1
    looks = max(2, min(LOOKS, int(units / 3 / clients))) if by_steps else 1
    found.start, found.before, bold = _start(
        trials, method, rate, looks, *((1, clients) if by_steps else shape(short))
    )
    centre = bold if found.start is None else found.start
    said = "nothing" if found.start is None else f"{found.start:.3g}"
    say(
        f"  slope and curvature along the method's steps say {said}; the base's loss is "
        f"{found.before:.4f}"
    )
    if method.stepwise and found.start is not None:
        # a larger rate may look better for a while, and is not
        left = (units - trials.units) / 2
        rates = [centre, centre / STEP] if left >= FEW * trials.per_round else [centre]
        longer = {one: measure(one, max(left, trials.per_round)) for one in rates}
    else:
        rates = _climb(centre, found.before, lambda rate: measure(rate, short))
        longer = {one: measure(one, 3 * short, 1) for one in rates}
    best = min(longer, key=lambda one: longer[one])
    # by chance all may go uphill
    found.rate = _told(best if longer[best] < found.before else rates[0])
    found.whole = trials.passes / trials.units * recipe.rounds * trials.per_round * steps / cut
    if share >= 1:
        whole = recipe.rounds * trials.per_round
        longer = _whole_runs(
            found.rate, int(share), lambda rate: measure(rate, whole, method=recipe.method)
        )
        found.rate = min(longer, key=lambda one: longer[one])
    if not min(longer.values()) < found.before:
        say(
            f"  no rate lowered the loss of {found.before:.4f} in so few rounds: take this one "
            "with care"
        )
    found.passes = trials.passes
    return found


def _whole_runs(centre: float, most: int, measure: Callable[[float], float]) -> dict[float, float]:
    """Return the loss of each whole run that is tried, by rate: at three times more, or less, while
    that helps, then between.
    """
    losses = {centre: measure(centre)}
    for edge, step in ((max, STEP), (min, 1 / STEP)):
        while len(losses) < most and min(losses, key=lambda one: losses[one]) == edge(losses):
            rate = _told(edge(losses) * step)
            losses[rate] = measure(rate)
    between = [
        _told(min(losses, key=lambda one: losses[one]) * by) for by in (STEP**0.5, STEP**-0.5)
    ]
    return losses | {rate: measure(rate) for rate in between[: most - len(losses)]}


def _told(rate: float) -> float:
    """Returns a rate in the two digits in which it is told."""
    return float(f"{rate:.2g}")


def _climb(centre: float, before: float, measure: Callable[[float], float]) -> list[float]:
    """Returns the two rates to try for longer, the better one first: upwards and downwards as long
    as it helps.
    """
    losses = {centre: measure(centre)}
    while len(losses) < MOST_TRIALS and losses[max(losses)] < before:
        edge = max(losses)
        losses[edge * STEP] = measure(edge * STEP)
        if losses[edge * STEP] >= losses[edge]:
            break
    while len(losses) < MOST_TRIALS:
        edge = min(losses)
        smaller, excess = edge / STEP, losses[edge] - before
        losses[smaller] = measure(smaller)
        # where a third of a rate raises the loss by a third as much (too large a rate: by a ninth),
        # it is directions that lead uphill, by chance: nothing is to be learnt from smaller ones
        if excess > 0 and losses[smaller] > before and excess < CHANCE * (losses[smaller] - before):
            return [edge, smaller]
        if losses[smaller] >= losses[edge] or (
            excess < 0 and losses[smaller] > min(losses.values())
        ):
            break
    return sorted(losses, key=lambda one: losses[one])[:2]


def _start(
    trials: _Trials, method: Method, rate: float, wanted: int, rounds: int, clients: int
) -> tuple[float | None, float, float]:
    """Returns the rate that slope and curvature say along some steps (None: nothing), the base's
    loss, a bold rate.
    """
    # a bold rate moves the weights by a hundredth in such a step: without an upward bend there is
    # no other scale; of drawn directions each step is a run of its own, for the curvature along all
    # at once is that of what they have in common; a slope that is not downhill even so is noise,
    # and its size is taken
    slopes, curvatures, here, looks, far, bold = 0.0, 0.0, inf, 0, 0.0, rate
    for attempt in range(MOST_LOOKS):
        try:
            trial = trials.run(_at(method, rate), rounds, clients, attempt)
        except FedseedError:
            rate /= 100
            continue
        now, start, space = trial.worker.space.snapshot(), trials.start, trial.worker.space
        moved, norm = _length([a - b for a, b in zip(now, start, strict=True)]), _length(start)
        if not (isfinite(moved) and 0 < moved <= TINY * norm):
            rate *= 100.0 if moved == 0 else 0.01
            continue
        bold = TINY * norm / moved * rate
        sides, far, bend = [0.0, 0.0, 0.0], far or FAR * norm / 4, 0.0
        while abs(bend) < SEEN * abs(sides[0]) or not sides[0]:
            far *= 4 if looks == 0 else 1
            for number, side in enumerate((0.0, far, -far)):
                space.restore(
                    [b + (a - b) * (side / moved) for a, b in zip(now, start, strict=True)]
                )
                sides[number] = trials.loss(trial)
            here, bend = sides[0], sides[1] + sides[2] - 2 * sides[0]
            if looks or not isfinite(bend) or far > norm:
                break
        slopes += (sides[2] - sides[1]) / (2 * far) * moved / rate
        curvatures += bend / far**2 * (moved / rate) ** 2
        looks += 1
        if looks == wanted:
            break
    usable = isfinite(slopes) and slopes and curvatures > 0
    return abs(slopes) / curvatures if usable else None, here, bold


def _length(tensors: Sequence[torch.Tensor]) -> float:
    return float(sum(float(tensor.double().square().sum()) for tensor in tensors)) ** 0.5
