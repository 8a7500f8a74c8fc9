"""Who takes part in a run over a network, and how many of them it needs. Free of torch.

The list comes from the recipe, from the folder that `fedseed keys` made, from whoever enrols before the start, or,
where the task deals its data to clients that it names itself, from any of them.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from fedseed.durable import write_whole
from fedseed.errors import RecipeError
from fedseed.federation.protocol import listed
from fedseed.runs.keys import explain
from fedseed.runs.recipe import Recipe
from fedseed.runs.tables import FederationSettings
from fedseed.transport.subjects import RESERVED

ROSTER_FILE = "clients.json"  # in the folder of `fedseed keys`, and in that of a run whose clients enrolled
WHO = (
    "who takes part is not said, and no site sees the others' files: name the clients in the recipe "
    '(federation.clients = ["north", "south"]), take them from the keys (serve --clients-from KEYS), or let them enrol '
    '(federation.enrolment = "open" with federation.start_with)'
)


def check_counts(settings: FederationSettings, clients: int) -> None:
    """Whether a run with so many clients can be as the recipe says. Raises RecipeError."""
    if problem := settings.too_many(clients):
        raise RecipeError(problem)


def with_keys(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with the clients that there are keys for.

    Args:
        recipe: the recipe.
        folder: what `fedseed keys` made.

    Raises:
        RecipeError: there is no list, or the recipe does not go with it.
    """
    settings, task = recipe.federation, recipe.task
    if settings.enrolment == "open":
        raise RecipeError('--clients-from: federation.enrolment = "open" lets anybody enrol; leave one of them out')
    if not task.own_data:
        raise RecipeError(f'--clients-from: task.name = "{task.name}" names its clients itself; leave it out')
    found = clients_of_keys(folder)
    if settings.clients is not None:
        if sorted(settings.clients) != sorted(found):
            there = f"federation.clients has {listed(settings.clients)}"
            raise RecipeError(f"--clients-from {folder}: {listed(found)} there, {there}")
        return recipe
    try:
        made = FederationSettings.model_validate({**settings.model_dump(), "clients": found})
    except ValidationError as error:
        raise RecipeError(explain(error, {}, FederationSettings)) from error
    return recipe.model_copy(update={"federation": made})


def names_beforehand(recipe: Recipe) -> list[str] | None:
    """The clients, as far as the coordinator can know them before anybody comes.

    Returns:
        Their names in the order of their numbers; None: they enrol, or the first to come says, as all see the same.

    Raises:
        RecipeError: each has data of its own and nothing says who they are, or they are too few for the recipe.
    """
    settings, task = recipe.federation, recipe.task
    if settings.names_parties:
        return settings.clients
    names = task.names_here()
    if names is None:
        return None
    if len(names) < 2:
        raise RecipeError(f'task.name = "{task.name}": {WHO}')
    check_counts(settings, len(names))
    return names


def clients_of_keys(folder: Path) -> list[str]:
    """The names that `fedseed keys` has made keys for, in its order.

    Raises:
        RecipeError: there is no such list.
    """
    if (folder / ROSTER_FILE).is_file():
        return read_names(folder / ROSTER_FILE)
    path = folder / "keys.json"  # of an earlier fedseed
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return [str(name) for name in found.values() if name not in RESERVED]
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise RecipeError(f"--clients-from {folder}: no {ROSTER_FILE} there that `fedseed keys` has made") from error


def read_names(path: Path) -> list[str]:
    """A list of names in a file. Raises RecipeError."""
    try:
        names = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RecipeError(f"{path}: can't be read: {error}") from error
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise RecipeError(f"{path}: a list of names is expected")
    return names


def write_names(path: Path, names: Sequence[str]) -> None:
    """The inverse of `read_names`."""
    write_whole(path, (json.dumps(list(names), indent=1) + "\n").encode())
