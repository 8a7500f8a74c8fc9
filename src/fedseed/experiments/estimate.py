"""What a run will cost on this machine, from one round of it with few local steps."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from rich import box
from rich.table import Table

from fedseed.federation.messages import FRAME_BYTES
from fedseed.methods import Method
from fedseed.randomness import Basis
from fedseed.reports.tables import human_bytes, human_seconds
from fedseed.runs.assembly import build
from fedseed.runs.recipe import Recipe

FEW_STEPS = 3  # local steps that are timed; the recipe's number is reckoned from them


@dataclass(frozen=True)
class Estimate:
    """What was measured.

    Args:
        parameters: d.
        dtype: of the weights.
        threads: torch's.
        operations: what is done with all weights, and its seconds.
        round: phases of a round with all its clients, and their seconds, for the recipe's number of local steps.
        clients: clients in a round.
        rounds: rounds of the recipe.
        evaluations: how often the recipe evaluates.
        evaluation: seconds of one evaluation.
        bytes_up: payload bytes of an update.
        bytes_down: payload bytes of a plan and a step.
    """

    parameters: int
    dtype: str
    threads: int
    operations: dict[str, float]
    round: dict[str, float]
    clients: int
    rounds: int
    evaluations: int
    evaluation: float
    bytes_up: int
    bytes_down: int

    @property
    def total(self) -> float:
        """Seconds of the whole run."""
        return self.rounds * sum(self.round.values()) + self.evaluations * self.evaluation


def shortened(method: Method) -> tuple[Method, float]:
    """The method with few local steps, and how many times more the recipe asks for."""
    steps = getattr(method, "steps", None)
    if isinstance(steps, int) and steps > FEW_STEPS:
        return method.model_copy(update={"steps": FEW_STEPS}), steps / FEW_STEPS
    training = getattr(method, "training", None)
    if training is not None and training.epochs is None and training.steps > FEW_STEPS:
        few = training.model_copy(update={"steps": FEW_STEPS})
        return method.model_copy(update={"training": few}), training.steps / FEW_STEPS
    return method, 1.0


def measure(recipe: Recipe) -> Estimate:
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
    phases: dict[str, float] = {}
    clients, up, down = 0, 0, 0
    for number in (1, 2):
        picked = coordinator.open(number)
        if worker.method.together != "losses":
            picked = picked[:1]  # the others cost the same
        clients = coordinator.per_round
        plans = [coordinator.plan(c) for c in picked]
        answers = worker.train_all(plans, picked, [federation.items[c] for c in picked])
        phases = {}
        for answer in answers:
            for phase, seconds in answer.cost.seconds.items():
                phases[phase] = phases.get(phase, 0.0) + seconds
        if worker.method.together != "losses":
            phases = {phase: seconds * clients for phase, seconds in phases.items()}
        phases["local"] = phases.get("local", 0.0) * factor
        for answer, client in zip(answers, picked, strict=True):
            if answer.message is not None:
                coordinator.receive(answer.message, client)
                up = len(answer.message) - FRAME_BYTES
        phases["aggregation"], step = _timed(coordinator.close)
        phases["rebuild"], _ = _timed(partial(worker.apply, step))
        phases["digest"], _ = _timed(space.digest)
        down = len(plans[0]) + len(step) - 2 * FRAME_BYTES
    every, digest_every = recipe.evaluation.every, recipe.evaluation.digest_every
    if worker.method.stepwise:  # hashed only where a line is logged
        phases["digest"] /= every
    else:
        phases["digest"] /= min(every, digest_every)
    if hasattr(worker.method, "steps"):  # an update carries a pair for each local step
        up = round(up * factor)
    evaluation, _ = _timed(lambda: federation.evaluate(space.model))
    basis = Basis(str(getattr(method, "basis", "rademacher")), 1)
    few = np.full(1, 1e-12, dtype=np.float32)
    operations = {
        "one pass over the weights (w += 1)": _median(lambda: [p.data.add_(1.0) for p in space.parameters]),
        f"one {basis.name} direction added": _median(lambda: space.add(basis, few)),
        "4,096 hadamard directions added": _median(
            lambda: space.add(Basis("hadamard", 1), np.full(4096, 1e-12, dtype=np.float32))
        ),
    }
    return Estimate(
        parameters=space.size,
        dtype=recipe.model.dtype,
        threads=torch.get_num_threads(),
        operations=operations,
        round=phases,
        clients=clients,
        rounds=recipe.rounds,
        evaluations=recipe.rounds // recipe.evaluation.every + 1,
        evaluation=evaluation,
        bytes_up=up,
        bytes_down=down,
    )


def _timed(act: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = act()
    return time.perf_counter() - begin, result


def _median(act: Callable[[], Any], runs: int = 5) -> float:
    act()
    return median(_timed(act)[0] for _ in range(runs))


def cost_table(cost: Estimate) -> list[Table | str]:
    """What a run will cost: what a terminal shows, from top to bottom."""

    def table(title: str, rows: Sequence[tuple[str, str]]) -> Table:
        made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
        made.add_column(no_wrap=True)
        made.add_column(justify="right", no_wrap=True)
        for row in rows:
            made.add_row(*row)
        return made

    title = f"{cost.parameters:,} parameters in {cost.dtype}, {cost.threads} threads"
    per_round = sum(cost.round.values())
    rows = [(phase, f"{human_seconds(s)}  {s / per_round:5.1%}") for phase, s in cost.round.items()]
    return [
        table(title, [(name, human_seconds(seconds)) for name, seconds in cost.operations.items()]),
        table(f"a round with {cost.clients} clients", [*rows, ("together", f"{human_seconds(per_round)} 100.0%")]),
        f"{cost.rounds:,} rounds and {cost.evaluations:,} evaluations of {human_seconds(cost.evaluation)}: about "
        f"{human_seconds(cost.total)}. A client sends {human_bytes(cost.bytes_up)} a round and receives "
        f"{human_bytes(cost.bytes_down)}.",
    ]
