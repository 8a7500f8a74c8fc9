"""The parties of a federation: their names, the number that a run needs, and the data of each.

The list comes from the recipe, from the clients that enrol before the start, or from the task, if
it deals its data to clients that it names itself. The data of each lies in one process (a folder
with a file for each), or at its site. This module does not need torch.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from fedseed.errors import RecipeError
from fedseed.recipe.settings import Recipe
from fedseed.tasks.data import OwnData, TaskData

# in the folder of a run whose clients enrolled
ROSTER_FILE = "clients.json"


def names_beforehand(recipe: Recipe) -> list[str] | None:
    """Return the clients, as far as the coordinator can know them before anybody comes.

    Returns:
        Their names in the order of their numbers; None: they enrol, or the first client sends
        them, as all have the same.

    Raises:
        RecipeError: each has data of its own and nothing says who they are, or they are too few for
            the recipe.
    """
    settings, task = recipe.federation, recipe.task
    if settings.names_parties:
        return settings.clients
    names = task.names_here()
    if names is None:
        return None
    if len(names) < 2:
        raise RecipeError(
            f'task.name = "{task.name}": who takes part is not said, and no site sees the others\' '
            'files: name the clients in the recipe (federation.clients = ["north", "south"]), or '
            'let them enrol (federation.enrolment = "open" with federation.start_with)'
        )
    settings.check(len(names))
    return names


def read_names(path: Path) -> list[str]:
    """Return a list of names in a file. Raises RecipeError."""
    try:
        names = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RecipeError(f"{path}: can't be read: {error}") from error
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise RecipeError(f"{path}: a list of names is expected")
    return names


def load_parties(recipe: Recipe) -> list[TaskData]:
    """Load each party's own data from one folder here, to simulate such a federation.

    Each party gets the data that its site would have, whichever others take part.

    Raises:
        RecipeError: the folder, or a party's data, is missing or malformed; or the recipe is not
            possible with that number of parties.
    """
    task = recipe.task
    names = recipe.federation.clients
    if names is None:
        names = task.names_here()
        if names is None:
            raise RecipeError(
                'federation.enrolment = "open": task.path is one file; give a folder, a file for '
                "each client"
            )
        if not names:  # raises an error about the path
            task.load()
            raise RecipeError("task.path: not a folder with a file for each client")
        recipe.federation.check(len(names))
    return [task.load_own(name, OwnData(), alone=False) for name in names]


def join_parties(recipe: Recipe, parts: Sequence[TaskData]) -> TaskData:
    """Return the clients of several parties as one federation's, with what it is evaluated on."""
    clients = list(chain.from_iterable(part.clients for part in parts))
    evaluation: dict[str, Sequence[Any]] = {
        "": list(chain.from_iterable(part.evaluation[""] for part in parts))
    }
    if recipe.task.shares_evaluation:
        evaluation = dict(recipe.task.load_shared().evaluation)
    notes = tuple(chain.from_iterable(part.notes for part in parts))
    validation = list(chain.from_iterable(part.validation for part in parts))
    return replace(
        parts[0], clients=clients, evaluation=evaluation, validation=validation, notes=notes
    )


def load_data(recipe: Recipe) -> TaskData:
    """Return a recipe's data, whoever holds it.

    Raises RecipeError if it can't be had or does not fit.
    """
    if recipe.of_parties:
        return join_parties(recipe, load_parties(recipe))
    return recipe.task.load()
