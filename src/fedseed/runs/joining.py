"""A recipe's part that one process has which takes part for some clients: what `fedseed join` does.

No data of other clients is opened where the data of each lies by itself, and evaluation data only by a process that is
asked to evaluate.
"""

from collections.abc import Sequence
from typing import Any

import torch

from fedseed.errors import RecipeError
from fedseed.federation.hosted import Hosted, matching
from fedseed.federation.network_client import NetworkClient
from fedseed.reports.progress import Progress, Silent
from fedseed.runs.assembly import Equipment, check_per_round, evaluation_of, host
from fedseed.runs.recipe import Recipe
from fedseed.runs.simulation import Evaluation, Simulation
from fedseed.tasks.data import ClientData, TaskData
from fedseed.transport.base import Transport


def joining(
    recipe: Recipe,
    run: str,
    transport: Transport,
    clients: Sequence[str],
    examples: Sequence[Any] | None = None,
    progress: Progress | None = None,
) -> NetworkClient:
    """A process that takes part in a recipe's run.

    Args:
        recipe: the recipe, as the coordinator has it.
        run: the run's name on the transport.
        transport: how to reach the coordinator.
        clients: the names of the clients it hosts, or patterns.
        examples: the one client's own examples, in place of those of the recipe's task.
        progress: shows the run going on.

    Raises:
        RecipeError: the recipe has no client of this name, or its model or data can't be had.
    """
    load = Loading(recipe, clients, examples, progress)
    return NetworkClient(transport, run, load, recipe.rounds, progress)


class Loading:
    """Loads the recipe's model each time it is called; the hosted clients' data once.

    Args:
        recipe: the recipe.
        clients: names or patterns of the hosted clients.
        examples: the one client's own, in place of the task's.
        progress: is told about the evaluation data when that is loaded.

    Raises:
        RecipeError: the recipe has no client of such a name, or its data can't be had.
    """

    def __init__(
        self, recipe: Recipe, clients: Sequence[str], examples: Sequence[Any] | None = None,
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        self.recipe = recipe
        self.progress = progress or Silent()
        names, whole = recipe.task.client_names(), None
        if names is None:  # only the data says
            whole = recipe.task.load()
            names = [client.name for client in whole.clients]
        self.names = names
        self.hosted = matching(clients, names)
        check_per_round(recipe, len(names))
        self._evaluation: TaskData | None = None
        if examples is not None:
            if len(self.hosted) != 1:
                raise RecipeError("--data FILE: for one --client")
            self.data = TaskData([ClientData(self.hosted[0], examples)])
        elif whole is not None:
            self.data = whole.only(self.hosted)
        else:
            self.data = recipe.task.load_clients(self.hosted)

    def __call__(self) -> Hosted:
        """The model at its base, and the hosted clients' examples."""
        return host(self.recipe, self.data, self.names, self._evaluate_with)

    def _evaluate_with(self, equipment: Equipment) -> Evaluation:
        """What measures the model; it loads its data when it is first called."""
        made: list[Evaluation] = []

        def evaluate(model: torch.nn.Module) -> dict[str, float]:
            if not made:
                first = self._evaluation is None
                if self._evaluation is None:
                    self._evaluation = self.recipe.task.load_evaluation(self.hosted)
                measure, notes = evaluation_of(self.recipe, equipment, self._evaluation)
                made.append(measure)
                for note in (*self._evaluation.notes, *notes) if first else ():
                    self.progress.note(note)
            return made[0](model)

        return evaluate


def part_of(simulation: Simulation, clients: Sequence[str]) -> Hosted:
    """The part of a federation in one process that has not run, as a process over a network would have it.

    Args:
        simulation: the federation.
        clients: names or patterns of the hosted clients.
    """
    hosted = matching(clients, simulation.names)
    items = {name: simulation.items[simulation.names.index(name)] for name in hosted}
    attack = None if simulation.attack == "labels" else simulation.attack  # flipped labels act through the data
    return Hosted(
        simulation.names, items, simulation.worker, simulation.header, simulation.evaluate, attack,
        simulation.settings.attackers, simulation.notes,
    )  # fmt: skip
