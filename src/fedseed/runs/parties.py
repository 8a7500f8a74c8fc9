"""The parties of a federation: their names, how many a run needs, and each party's data.

The names come from the recipe, from the clients that enrol before the start, or from the task, if
it divides its data among clients that it names. Each party's data is a file in one folder, or is at
the party's site. This module does not need torch.
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
from fedseed.text import listed

# file in the folder of a run whose clients enrolled
ROSTER_FILE = "clients.json"
SHOWN_NAMES = 12  # how many names a note has


def names_beforehand(recipe: Recipe) -> list[str] | None:
    """Return the clients' names if the coordinator can know them before any client connects.

    Returns:
        The names in the order of the clients' numbers. None: clients enrol, or the first client
        sends the names, because all clients load the same data.

    Raises:
        RecipeError: each client has its own data but the recipe does not name the clients, or there
            are too few of them.
    """
    settings, task = recipe.federation, recipe.task
    if settings.names_parties:
        return settings.clients
    names = task.names_here()
    if names is None:
        return None
    if len(names) < 2:
        raise RecipeError(
            f'task.name = "{task.name}": the recipe does not say which clients take part, and a '
            "site can't see other sites' files: name the clients in the recipe "
            '(federation.clients = ["north", "south"]), or let them enrol (federation.enrolment = '
            '"open" with federation.start_with)'
        )
    settings.check(len(names))
    return names


def read_names(path: Path) -> list[str]:
    """Return the list of names in a file. Raises RecipeError if it can't be read."""
    try:
        names = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RecipeError(f"{path}: can't be read: {error}") from error
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise RecipeError(f"{path}: expected a list of names")
    return names


def load_parties(recipe: Recipe) -> list[TaskData]:
    """Load each party's own data from one folder, to simulate such a federation.

    Each party gets the data that its own site would load, no matter which other parties take part.

    Raises:
        RecipeError: the folder or a party's data is missing or malformed, or the recipe does not
            fit that number of parties.
    """
    task = recipe.task
    names = recipe.federation.clients
    if names is None:
        names = task.names_here()
        if names is None:
            raise RecipeError(
                'federation.enrolment = "open": task.path is a single file; give a folder with a '
                "file for each client"
            )
        if not names:  # raises an error about the path
            task.load()
            raise RecipeError("task.path: expected a folder with a file for each client")
        recipe.federation.check(len(names))
    return [task.load_own(name, OwnData(), alone=False) for name in names]


def join_parties(recipe: Recipe, parts: Sequence[TaskData]) -> TaskData:
    """Join the clients of several parties into one federation's data, with its evaluation sets."""
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
    """Return a recipe's data, from the task or from each party's own files.

    Raises RecipeError if it can't be loaded or does not fit the recipe.
    """
    if recipe.of_parties:
        return join_parties(recipe, load_parties(recipe))
    return recipe.task.load()


def load_present(recipe: Recipe) -> TaskData:
    """Return a recipe's data as far as it is on this machine, to measure a model or to look at it.

    Of parties with their own data these are the parties whose files are there. Each holds out what
    it holds out in the run.

    Raises:
        RecipeError: the data is missing or can't be loaded.
    """
    task = recipe.task
    if not recipe.of_parties or task.shares_evaluation:
        return task.load()
    names_there = task.names_here()
    names = recipe.federation.clients or names_there or []
    path = str(getattr(task, "path", ""))
    if names_there is None:
        name = Path(path).stem
        if name not in names:
            return task.load()
        return join_parties(recipe, [task.load_own(name, OwnData(path=Path(path)))])
    present = [name for name in names if name in names_there]
    if not present:
        return load_data(recipe)  # raises an error about the path
    data = join_parties(recipe, [task.load_own(name, OwnData(), alone=False) for name in present])
    if len(present) < len(names):
        absent = listed([name for name in names if name not in names_there], SHOWN_NAMES)
        note = (
            f'the data of {absent} is not in "{path}": only {listed(present, SHOWN_NAMES)} counts'
        )
        return replace(data, notes=(*data.notes, note))
    return data
