"""From a recipe to a federation: model, data, objective and evaluation, put together."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedseed.attacks.labels import flip_labels
from fedseed.errors import RecipeError
from fedseed.federation.hosted import Hosted
from fedseed.processes import warm
from fedseed.reports.progress import Progress, shown_by
from fedseed.runs.equipment import Equipment, Evaluation, equip, evaluation_of
from fedseed.runs.learner import hosted_of
from fedseed.runs.parties import check_counts, joined, load_data, load_parties
from fedseed.runs.recipe import Recipe, read_recipe, stored_recipe
from fedseed.runs.simulation import Simulation
from fedseed.runs.spec import RunSpec
from fedseed.runs.workers import Team, Workers
from fedseed.tasks.data import ClientData, TaskData

logger = logging.getLogger(__name__)


class Federation(Simulation):
    """A simulated federation (`Simulation` has the arguments), also from a recipe."""

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        overrides: Sequence[str] = (),
        out: Path | str | None = None,
        progress: Progress | bool | None = None,
        plugins: Sequence[str | Path] = (),
        trust_plugins: bool = False,
        workers: int | None = None,
        threads: int | None = None,
    ) -> "Federation":
        """A federation from a recipe: a TOML file, or the name of one that comes with fedseed.

        Args:
            path: the file or name.
            overrides: "key=value" pairs that replace values of the recipe, such as "method.directions=1000".
            out: folder for the run's files; None: nothing is written.
            progress: shows the run going on; True: on standard error, False: not at all, None: there if it is a
                terminal.
            plugins: files and modules with methods, tasks, ... of others, to be loaded first.
            trust_plugins: load what the recipe itself names as plug-ins, too: that is running code of its author.
            workers: local processes that the clients are dealt to; None: all is done in this one.
            threads: that each process computes with while it runs; by default torch's own choice, shared out among the
                workers.

        Raises:
            RecipeError: the recipe is wrong; names key, value and what is allowed.
        """
        recipe = read_recipe(path, overrides, plugins, trust_plugins)
        return build(recipe, out, shown_by(progress), workers, threads)


def attackers_of(recipe: Recipe, clients: int) -> list[int]:
    """The numbers of a recipe's Byzantine clients. Raises RecipeError if there are too few clients."""
    if recipe.attack is None:
        return []
    if recipe.attack.clients > clients:
        raise RecipeError(f"attack.clients = {recipe.attack.clients}: there are {clients} clients")
    return list(range(clients - recipe.attack.clients, clients))


def as_attacked(client: ClientData, number: int, recipe: Recipe, attackers: Sequence[int], classes: int) -> ClientData:
    """A client's data, changed if the client is a Byzantine one whose labels are flipped."""
    flipped = recipe.attack is not None and recipe.attack.kind == "labels" and number in attackers
    return flip_labels(client, recipe.seed, number, classes) if flipped else client


def build(
    recipe: Recipe,
    out: Path | str | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
    threads: int | None = None,
    data: TaskData | None = None,
) -> Federation:
    """Load model and data of a recipe and put the federation together.

    Args:
        recipe: the recipe.
        out: folder for the run's files; None: nothing is written.
        progress: shows the run going on.
        workers: local processes that the clients are dealt to; None: all is done in this one.
        threads: that each process computes with while it runs.
        data: all clients' examples, in place of the task's, and what is evaluated; workers would load the task's.

    Raises:
        RecipeError: the model or the data can't be had, or do not fit the method.
    """
    from fedseed.models.loading import PACKAGED

    for tracker in recipe.tracking:
        tracker.check()
    if workers is not None:
        warm()
    began = time.perf_counter()
    parts = load_parties(recipe) if recipe.of_parties and data is None else None
    if data is None:
        data = recipe.task.load() if parts is None else joined(recipe, parts)
    count = len(data.clients)
    logger.info("data of %s loaded in %.1f s: %d clients", recipe.task.name, time.perf_counter() - began, count)
    check_counts(recipe.federation, count)
    per_round = recipe.federation.count(count)
    team = None
    if workers is not None:
        team = Team(Workers(partial(load_for_worker, recipe.to_toml()), workers, threads), per_round)
        if recipe.method.together != "gradients":  # most likely it will have something to do
            team.load()  # while this process does the same
    try:
        began, attackers = time.perf_counter(), attackers_of(recipe, count)
        equipment = equip(recipe, data)
        logger.info("base %s loaded in %.1f s", recipe.model.base, time.perf_counter() - began)
        evaluate, notes = None, ["a private run: nothing is evaluated (evaluation.disclose is not set)"]
        if recipe.evaluates:
            evaluate, notes = evaluation_of(recipe, equipment, data, parts)
        more: dict[str, Any] = {"per_round": per_round, "attackers": attackers, "threads": threads}
        more["chat_template"] = data.chat_template
        base = Path(recipe.model.base).expanduser()
        if recipe.model.base not in PACKAGED and not base.is_absolute() and base.is_dir():
            more["base_folder"] = str(base.resolve())  # the path means another place from elsewhere
        spec = spec_of(recipe, equipment, out, notes=(*data.notes, *notes), **more)
        known = recipe, attackers, len(data.classes)
        held = [as_attacked(client, number, *known) for number, client in enumerate(data.clients)]
        return Federation(equipment.model, held, spec, equipment.objective, 1, evaluate, progress, team)
    except BaseException:
        if team is not None:
            team.close()
        raise


def spec_of(recipe: Recipe, equipment: Equipment, out: Path | str | None = None, **more: Any) -> RunSpec:
    """A recipe's run with a model that is loaded; `RunSpec.of` has the arguments."""
    return RunSpec.of(
        recipe, out, base_digest=equipment.base_digest, trainable=equipment.trainable, classes=equipment.classes,
        limit=equipment.limit, **more,
    )  # fmt: skip


def host(
    recipe: Recipe, data: TaskData, names: Sequence[str], evaluate_with: Callable[[Equipment], Evaluation],
    party: bool = False,
) -> Hosted:  # fmt: skip
    """A recipe's model at its base with some clients' examples, for a process that hosts these clients.

    Args:
        recipe: the recipe.
        data: the examples of those that are hosted.
        names: all clients of the run, in the order of their numbers, as far as they are known here.
        evaluate_with: returns what measures the model.
        party: they have data of their own, and the coordinator alone knows who else takes part.

    Raises:
        RecipeError: the model can't be had, or does not fit the data or the method.
    """
    equipment = equip(recipe, data)
    numbers = {name: number for number, name in enumerate(names)}
    attackers = attackers_of(recipe, len(names))
    held = [as_attacked(client, numbers[client.name], recipe, attackers, len(data.classes)) for client in data.clients]
    spec = spec_of(recipe, equipment, notes=data.notes, attackers=attackers)
    hosted = hosted_of(spec, equipment.model, equipment.objective, held, names, evaluate_with(equipment))
    return replace(hosted, party=party, processor=equipment.processor)


def load_for_worker(text: str) -> Hosted:
    """What a local worker process of a simulation loads: the model, and the examples of all clients.

    Args:
        text: the recipe, as `Recipe.to_toml` has it.
    """
    from fedseed.models.loading import quiet

    quiet()  # the run's own process has shown how the base loads
    recipe = stored_recipe(text)
    data = load_data(recipe)

    def evaluate(model: Any) -> dict[str, float]:
        return {}  # the run's own process does

    return host(recipe, data, [client.name for client in data.clients], lambda equipment: evaluate)
