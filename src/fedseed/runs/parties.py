"""The data of parties, each of which has its own: in one process (from a folder with a file for each), or of a site."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedseed.errors import RecipeError
from fedseed.runs.recipe import Recipe
from fedseed.runs.roster import check_counts
from fedseed.tasks.data import OwnData, TaskData


def load_parties(recipe: Recipe) -> list[TaskData]:
    """Each party's own data, where all of it lies in a folder here: a simulation of such a federation.

    The data of each is what its site would have of it, whoever else takes part.

    Raises:
        RecipeError: the folder, or a party's data, is missing or malformed; or the recipe is not possible with so many.
    """
    task = recipe.task
    names = recipe.federation.clients
    if names is None:
        names = task.names_here()
        if names is None:
            raise RecipeError(
                'federation.enrolment = "open": task.path is one file; give a folder, a file for each client'
            )
        if not names:  # says what is wrong with the path
            task.load()
            raise RecipeError("task.path: not a folder with a file for each client")
        check_counts(recipe.federation, len(names))
    return [task.load_own(name, OwnData(), alone=False) for name in names]


def load_site(recipe: Recipe, names: Sequence[str], own: OwnData) -> list[TaskData]:
    """The own data of the clients that one process hosts.

    Args:
        recipe: the recipe.
        names: the hosted clients.
        own: where their data lies: a folder with a file for each, or all that belongs to the only one.

    Raises:
        RecipeError: data is missing or malformed.
    """
    if own.evaluation_file is not None and len(names) > 1:
        raise RecipeError("--evaluation-file: for one --client")
    alone = own.path is not None and len(names) == 1
    return [recipe.task.load_own(name, own, alone) for name in names]


def joined(recipe: Recipe, parts: Sequence[TaskData]) -> TaskData:
    """The clients of several parties as one federation's, with what it is evaluated on."""
    clients = [client for part in parts for client in part.clients]
    evaluation: dict[str, Sequence[Any]] = {"": [example for part in parts for example in part.evaluation[""]]}
    if recipe.task.shares_evaluation:
        evaluation = dict(recipe.task.load_shared().evaluation)
    notes = tuple(note for part in parts for note in part.notes)
    validation = [example for part in parts for example in part.validation]
    return replace(parts[0], clients=clients, evaluation=evaluation, validation=validation, notes=notes)


def load_data(recipe: Recipe) -> TaskData:
    """A recipe's data, whoever holds it. Raises RecipeError if it can't be had or does not fit."""
    return joined(recipe, load_parties(recipe)) if recipe.of_parties else recipe.task.load()
