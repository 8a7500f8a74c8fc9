"""What a run will cost on this machine: memory by the shapes of its base, and one round of it with few local steps."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich import box
from rich.table import Table

from fedseed.experiments.reckoning import Reckoned
from fedseed.federation.messages import FRAME_BYTES
from fedseed.methods import Method
from fedseed.reports.memory import available_memory
from fedseed.reports.tables import human_bytes, human_seconds
from fedseed.runs.assembly import build
from fedseed.runs.learner import peak_memory
from fedseed.runs.recipe import Recipe

FEW_STEPS = 3  # local steps that are timed; the recipe's number is reckoned from them
Shown = list[Table | str]  # what a terminal shows, from top to bottom


@dataclass(frozen=True)
class Measured:
    """What one round has shown.

    Args:
        parameters: d.
        dtype: of the weights.
        threads: torch's.
        round: phases of a round with all its clients, and their seconds, for the recipe's number of local steps.
        clients: clients in a round.
        rounds: rounds of the recipe.
        evaluations: how often the recipe evaluates.
        evaluation: seconds of one evaluation.
        bytes_up: payload bytes of an update.
        bytes_down: payload bytes of a plan and a step.
        peak_memory: bytes of this process, or on its GPUs, with the answers of all clients of a round.
    """

    parameters: int
    dtype: str
    threads: int
    round: dict[str, float]
    clients: int
    rounds: int
    evaluations: int
    evaluation: float
    bytes_up: int
    bytes_down: int
    peak_memory: int

    @property
    def total(self) -> float:
        """Returns seconds of the whole run."""
        return self.rounds * sum(self.round.values()) + self.evaluations * self.evaluation


def shortened(method: Method) -> tuple[Method, float]:
    """Returns the method with few local steps, and how many times more the recipe asks for."""
    steps = getattr(method, "steps", None)
    if isinstance(steps, int) and steps > FEW_STEPS:
        return method.model_copy(update={"steps": FEW_STEPS}), steps / FEW_STEPS
    training = getattr(method, "training", None)
    if training is not None and training.epochs is None and training.steps > FEW_STEPS:
        few = training.model_copy(update={"steps": FEW_STEPS})
        return method.model_copy(update={"training": few}), training.steps / FEW_STEPS
    return method, 1.0


def measure(recipe: Recipe) -> Measured:
    """Run one round of a recipe, shortened, twice (the first warms up), and reckon what the whole will cost.

    Args:
        recipe: nothing of it is changed; no files are written.

    Raises:
        RecipeError: the recipe's model or data can't be had.
    """
    method, factor = shortened(recipe.method)
    federation = build(recipe.model_copy(update={"method": method}))
    coordinator, worker = federation.coordinator, federation.worker
    worker.private = False  # seconds of a private run's clients are told to nobody else than who has their data
    space = worker.space
    together = worker.method.together == "losses"
    phases: dict[str, float] = {}
    up, down, waiting = 0, 0, 0
    for number in (1, 2):
        opened = coordinator.open(number)
        picked = opened if together else opened[:1]  # the others cost the same
        plans = [coordinator.plan(c) for c in picked]
        answers = worker.train_all(plans, picked, [federation.items[c] for c in picked])
        phases = {}
        for answer in answers:
            for phase, seconds in answer.cost.seconds.items():
                phases[phase] = phases.get(phase, 0.0) + seconds * coordinator.per_round / len(picked)
        phases["local"] = phases.get("local", 0.0) * factor
        for answer, client in zip(answers, picked, strict=True):
            if answer.message is not None:
                coordinator.receive(answer.message, client)
                up = len(answer.message) - FRAME_BYTES
                waiting = len(answer.message) * (coordinator.per_round - len(picked))
        phases["aggregation"], step = _timed(coordinator.close)
        phases["rebuild"], _ = _timed(partial(worker.apply, step))
        phases["digest"], _ = _timed(space.digest)
        down = len(plans[0]) + len(step) - 2 * FRAME_BYTES
    every, digest_every = recipe.evaluation.every, recipe.evaluation.digest_every
    phases["digest"] /= every if worker.method.stepwise else min(every, digest_every)  # hashed where a line is logged
    if hasattr(worker.method, "steps"):  # an update carries a pair for each local step
        up = round(up * factor)
    evaluation, _ = _timed(lambda: federation.evaluate(space.model))
    return Measured(
        parameters=space.size,
        dtype=recipe.model.dtype,
        threads=torch.get_num_threads(),
        round=phases,
        clients=coordinator.per_round,
        rounds=recipe.rounds,
        evaluations=recipe.rounds // recipe.evaluation.every + 1,
        evaluation=evaluation,
        bytes_up=up,
        bytes_down=down,
        peak_memory=peak_memory(space.devices) + waiting,
    )


def _timed(act: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = act()
    return time.perf_counter() - begin, result


def fits(found: Reckoned, device: str) -> tuple[bool, str]:
    """Returns whether what was reckoned is free on this machine, and a line that says so; what can't be told fits.

    Args:
        found: a recipe's memory.
        device: where its model lies, as `model.device` has it.
    """
    on_gpu = device != "cpu" and torch.cuda.is_available()
    free = torch.cuda.mem_get_info()[0] if on_gpu else (available_memory() or (0, None))[1]
    takes = f"That is {human_bytes(found.total)}, and more with activations, messages and libraries"
    if free is None:
        return True, f"{takes}."
    where = "of the GPU's memory" if on_gpu else "of memory"
    enough = found.total <= free
    return enough, f"{takes}; {human_bytes(free)} {where} are free: it {'may fit' if enough else 'does not fit'}."


def memory_table(found: Reckoned) -> Shown:
    """Returns what was reckoned of a recipe's memory, part by part."""
    some = "" if found.trained == found.parameters else f", {found.trained:,} of them trained"
    title = f"memory by the base's shapes: {found.parameters:,} parameters in {found.dtype}{some}"
    return [title, _table([(name, human_bytes(size)) for name, size in found.parts])]


def cost_table(cost: Measured) -> Shown:
    """Returns what a run will cost."""
    title = (
        f"a round with {cost.clients} clients, {cost.parameters:,} parameters in {cost.dtype}, {cost.threads} threads"
    )
    per_round = sum(cost.round.values())
    rows = [(phase, f"{human_seconds(s)}  {s / per_round:5.1%}") for phase, s in cost.round.items()]
    return [
        title,
        _table([*rows, ("together", f"{human_seconds(per_round)} 100.0%")]),
        f"{cost.rounds:,} rounds and {cost.evaluations:,} evaluations of {human_seconds(cost.evaluation)}: about "
        f"{human_seconds(cost.total)}. A client sends {human_bytes(cost.bytes_up)} a round and receives "
        f"{human_bytes(cost.bytes_down)}. Peak memory: {human_bytes(cost.peak_memory)}.",
    ]


def _table(rows: Sequence[tuple[str, str]]) -> Table:
    made = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    made.add_column(no_wrap=True)
    made.add_column(justify="right", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    return made
