"""Make a federation from a recipe: load the model and the data, and join them with the
evaluation.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedseed.actors import Cluster
from fedseed.attacks.updates import flip_labels
from fedseed.errors import RecipeError
from fedseed.federation.client.state import Hosted
from fedseed.methods import Method
from fedseed.models import PACKAGED
from fedseed.objectives.evaluation import measure
from fedseed.objectives.losses import Objective
from fedseed.objectives.prepared import prepare_sets, with_reference
from fedseed.objectives.settings import EvaluationSettings
from fedseed.objectives.tokens import longest_input
from fedseed.processes import warm
from fedseed.recipe.reading import parse_stored_recipe, read_recipe
from fedseed.recipe.settings import Recipe
from fedseed.reports.progress import Progress, choose_progress
from fedseed.runs.model_setup import (
    Equipment,
    Evaluation,
    equip,
    examine_base,
    fingerprint_of,
    host_examples,
    limit_settings,
    make_evaluation,
    make_loss_evaluation,
)
from fedseed.runs.parties import join_parties, load_data, load_parties
from fedseed.runs.rates import find_rate, restore_rate, with_rate
from fedseed.runs.simulation import Simulation, check_processes
from fedseed.runs.spec import RunSpec
from fedseed.runs.workers import Workers
from fedseed.tasks.data import BETA, ClientData, TaskData
from fedseed.tasks.files import FileRow, dataset_rows, is_dataset
from fedseed.tasks.forms import examples_in
from fedseed.tasks.record import clients_record, held_out_record, record_of


def _client_data(datasets: Sequence[Any]) -> list[ClientData]:
    """Return the clients' data with their names.

    Raises:
        RecipeError: `datasets` or one of its entries is a mapping or a text, whose keys or
            characters would pass for clients or examples.
    """
    if isinstance(datasets, (Mapping, str, bytes)):
        raise RecipeError(
            f"Federation: datasets is a {type(datasets).__name__}; give a list with each client's "
            "rows, such as [rows, rows] (ClientData(name, rows) gives a client a name)"
        )
    clients = []
    for number, rows in enumerate(datasets):
        if isinstance(rows, (Mapping, str, bytes)):
            raise RecipeError(
                f"Federation: datasets[{number}] is a {type(rows).__name__}; give a list of rows"
            )
        named = isinstance(rows, ClientData)
        clients.append(rows if named else ClientData(f"client-{number}", rows))
    return clients


class Federation(Simulation):
    """A federation on this machine, from a model and data in memory or from a recipe (`from_file`).

    Args:
        model: the base: a transformers model, or any torch module if `objective` is given. It is
            tuned in place.
        datasets: one entry for each client: a `datasets.Dataset`, a list of rows, or a list of
            examples that the objective takes. A row is a text, or a dict as in a data file
            ("prompt" and "completion", "messages", "text" and "label", ...). Use `ClientData` to
            name a client.
        method: the method with its settings, or a whole `RunSpec`, which replaces `rounds` and
            `settings`.
        objective: computes losses of examples; None: chosen to fit the rows and the model.
        rounds: the number of rounds.
        evaluation: held-out rows, a dict of several such sets with the prefix of their metrics'
            names as keys, or a function that takes the model. It is measured at round 0, every
            `evaluate_every` rounds and at the end.
        progress: shows progress. True: on standard error; False: not at all; None: on standard
            error if it is a terminal.
        tokenizer: the model's; rows need it.
        settings: other settings of `RunSpec`, such as `per_round=2, seed=1, out="runs/mine"`. Also
            `workers`, and `beta` for preferences (rows with "chosen" and "rejected").

    Raises:
        RecipeError: a setting is invalid; the message names it.
    """

    def __init__(
        self,
        model: Any,
        datasets: Sequence[Any],
        method: Method | RunSpec,
        objective: Objective | None = None,
        rounds: int = 1,
        evaluation: Any = None,
        progress: Progress | bool | None = None,
        tokenizer: Any = None,
        **settings: Any,
    ) -> None:
        workers: Workers | None = settings.pop("workers", None)
        beta: float = settings.pop("beta", BETA)
        clients = _client_data(datasets)
        measure = None
        if callable(evaluation):
            measure = evaluation
        held_out = evaluation
        if callable(evaluation) or evaluation is None:
            held_out = {}
        if not isinstance(held_out, Mapping):
            held_out = {"": held_out}
        if tokenizer is not None:
            sets = {client.name: client.examples for client in clients}
            fitting, clients, fits, model_settings = _learning(
                model, tokenizer, sets, held_out, beta
            )
            objective, measure = objective or fitting, measure or fits
            settings = {
                "base": str(getattr(model, "name_or_path", "")),
                **model_settings,
                **settings,
            }
        if objective is None:
            raise RecipeError(
                "Federation: give the model's tokenizer, or an objective (fedseed.objectives)"
            )
        spec = RunSpec(method, rounds, **settings) if isinstance(method, Method) else method
        if spec.folder is not None:
            record = {**clients_record(clients), **held_out_record(held_out)}
            spec = replace(spec, data_record=record, fingerprint=fingerprint_of(tokenizer))
        measure, names = (
            measure or make_loss_evaluation(objective, held_out, model),
            [client.name for client in clients],
        )
        super().__init__(
            spec, host_examples(spec, model, objective, clients, names, measure), progress, workers
        )

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
        """Return a federation from a recipe: a TOML file, or the name of one that comes with
        fedseed.

        Args:
            path: the file or the name.
            overrides: "key=value" pairs that replace values of the recipe, such as
                "method.directions=1000".
            out: folder for the run's files; None: nothing is written.
            progress: shows progress. True: on standard error; False: not at all; None: on standard
                error if it is a terminal.
            plugins: plug-ins to load first: files or modules with further methods, tasks and so on.
            trust_plugins: also load the plug-ins that the recipe itself names. This runs code of
                the recipe's author.
            workers: number of local processes that share the clients' work; None: this process does
                all.
            threads: number of threads of each process; None: torch's own number, divided among the
                workers.

        Raises:
            RecipeError: the recipe is invalid; the message names the key, its value and what is
                allowed.
        """
        return build(
            read_recipe(path, overrides, plugins, trust_plugins),
            out,
            choose_progress(progress),
            workers,
            threads,
        )


class _RecipeFederation(Federation):
    """A federation whose model and clients come from a recipe (`build`)."""

    def __init__(
        self, spec: RunSpec, hosted: Hosted, progress: Progress | None, workers: Workers | None
    ) -> None:
        Simulation.__init__(self, spec, hosted, progress, workers)


def _learning(
    model: Any,
    tokenizer: Any,
    sets: Mapping[str, Iterable[Any]],
    held_out: Mapping[str, Iterable[Any]],
    beta: float,
) -> tuple[Objective, list[ClientData], Evaluation, dict[str, Any]]:
    """Return the objective for the caller's model, the clients, the evaluation, and settings of
    `RunSpec`.
    """
    from fedseed.models.architectures import architecture_of
    from fedseed.models.traits import settle
    from fedseed.objectives.kinds import kind_of

    whole = model
    if hasattr(model, "peft_config"):
        whole = model.get_base_model()
    architecture = architecture_of(
        {**whole.config.to_dict(), "architectures": [type(whole).__name__]}
    )
    class_names, labels = tuple(map(str, whole.config.id2label.values())), tuple[str, ...]()
    score_field = None
    if architecture == "classification" and len(class_names) == 1:
        score_field = _score_field([*sets.values(), *held_out.values()])
    elif architecture == "classification":
        labels = _class_labels(class_names, [*sets.values(), *held_out.values()])
    names = {prefix: f"evaluation {prefix}".strip() for prefix in held_out}
    examples_by_set, notes = examples_in(
        {**sets, **{names[prefix]: rows for prefix, rows in held_out.items()}},
        labels,
        score_field,
    )
    clients = [ClientData(name, examples_by_set[name]) for name in sets]
    data = TaskData(
        clients, {prefix: examples_by_set[name] for prefix, name in names.items()}, beta=beta
    )
    settings, limit = limit_settings(EvaluationSettings(rouge=False), longest_input(model))
    try:
        kind, _ = kind_of(data, architecture)
        objective = kind.objective(tokenizer, settings)
        traits = settle(model, str(getattr(model, "name_or_path", "")) or type(model).__name__)
        examine_base(model, objective)
        prepared, left_out = prepare_sets(objective, data.evaluation, limit)
        prepared = {
            prefix: with_reference(objective, model, one) for prefix, one in prepared.items()
        }
    except ValueError as error:
        raise RecipeError(f"Federation: {error}") from error

    def evaluate(model: Any) -> dict[str, float]:
        figures: dict[str, float] = {}
        for prefix, examples in prepared.items():
            metrics = measure(model, objective, examples, data.scores, settings)
            figures |= {prefix + name: value for name, value in metrics.items()}
        return figures

    model_settings = {
        "notes": (*notes, *traits.notes, *left_out),
        "limit": limit,
        "classes": class_names if labels or score_field else (),
    }
    return objective, clients, evaluate, model_settings


def _score_field(sets: Iterable[Iterable[Any]]) -> str:
    """Return the rows' field with the number to predict, for a model with one output."""
    for rows in sets:
        first = next(iter(rows), None)
        if isinstance(first, Mapping):
            if "score" in first and "label" not in first:
                return "score"
            return "label"
    return "label"


def _class_labels(class_names: Sequence[str], sets: Iterable[Iterable[Any]]) -> tuple[str, ...]:
    """Return the labels that rows use for a classifier's classes, in the order of its outputs.

    Rows give a class by the model's name for it, or by its number. If a data set declares class
    names, they are matched to the model's regardless of case. If they do not match but are equally
    many, they are taken in the data set's order.

    Args:
        class_names: the model's names of its classes.
        sets: the clients' rows and the held-out rows.
    """
    used_labels, declared = set[str](), set[tuple[str, ...]]()
    for rows in sets:
        if is_dataset(rows):
            records = [row for row in dataset_rows("", rows) if isinstance(row, FileRow)]
        else:
            records = [FileRow("", row) for row in rows if isinstance(row, Mapping)]
        for record in records:
            declared.add(record.class_names.get("label", ()))
            label = record.values.get("label")
            if label is not None:
                used_labels.add(str(label))
    names: tuple[str, ...] = ()
    if len(declared) == 1:
        names = declared.pop()
    if names:
        alike = {name.casefold(): name for name in names}
        if all(name.casefold() in alike for name in class_names):
            return tuple(alike[name.casefold()] for name in class_names)
        if len(names) == len(class_names):
            return names
        return tuple(class_names)
    numbers = tuple(map(str, range(len(class_names))))
    if used_labels.issubset(numbers):
        return numbers
    return tuple(class_names)


def check_apart(recipe: Recipe, out: Path) -> None:
    """Check that a run's files do not go into the folder of its data.

    Raises:
        RecipeError: they do. The next run would read them as a client's data.
    """
    place = getattr(recipe.task, "path", None)
    if not place or not Path(place).expanduser().is_dir():
        return
    if Path(place).expanduser().resolve() == out.expanduser().resolve():
        raise RecipeError(
            f"--out {out}: this is the folder of the data (task.path), so the next run would read "
            "this run's files as a client's data; choose another folder"
        )


def build(
    recipe: Recipe,
    folder: Path | str | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
    threads: int | None = None,
    data: TaskData | None = None,
    resume: bool = False,
    ray: str | None = None,
) -> Federation:
    """Load a recipe's model and data, and make the federation.

    Args:
        recipe: the recipe.
        folder: folder for the run's files; None: nothing is written.
        progress: shows progress.
        workers: number of processes that share the clients' work; None: this process does all.
        threads: number of threads of each process; None: torch's own number, divided among the
            workers.
        data: all clients' examples and the evaluation sets, in place of the task's. Leave `workers`
            None then, because worker processes load the task's data.
        resume: use the learning rate that the interrupted run in the folder found, without a new
            search.
        ray: the address of a Ray cluster on which the workers live; None: they are on this machine.

    Raises:
        RecipeError: the model or the data can't be loaded, or do not fit the method.
    """
    for tracker in recipe.tracking:
        tracker.check()
    if folder is not None:
        check_apart(recipe, Path(folder))
    check_processes(recipe.method, workers)
    if workers is not None and ray is None:
        warm()
    parts = None
    if data is None and recipe.of_parties:
        parts = load_parties(recipe)
        data = join_parties(recipe, parts)
    elif data is None:
        data = recipe.task.load()
    count = len(data.clients)
    recipe.federation.check(count)
    if resume and folder is not None:
        recipe = restore_rate(recipe, Path(folder))
    if recipe.tune_rate:
        say = (progress or Progress()).note
        tuning = find_rate(recipe, data, say)
        say(
            f"{tuning.key} = {tuning.rate:g}, found with as many passes as "
            f"{tuning.passes / tuning.whole:.0%} of the run"
        )
        recipe = with_rate(recipe, tuning.rate)
    per_round = recipe.federation.count(count)
    team = None
    if workers is not None:
        team = _start_workers(recipe, per_round, workers, threads, ray, progress or Progress())
    try:

        def evaluate_with(equipment: Equipment) -> tuple[Evaluation, list[str]]:
            if recipe.evaluates:
                return make_evaluation(recipe, equipment, data, parts)
            return _nothing, [
                "the run is private, so nothing is evaluated (evaluation.disclose is not set)"
            ]

        options: dict[str, Any] = {
            "per_round": per_round,
            "threads": threads,
            "chat_template": data.chat_template,
            # without files a run can't resume, so its recipe need not be kept
            "data_record": {} if folder is None else record_of(data),
            "base_folder": _relative_base(recipe),
        }
        spec, hosted = host(
            recipe, data, [one.name for one in data.clients], evaluate_with, folder, **options
        )
        return _RecipeFederation(spec, hosted, progress, team)
    except BaseException:
        if team is not None:
            team.close()
        raise


def _relative_base(recipe: Recipe) -> str:
    """Return the absolute path of a base whose path is relative; "" for any other base.

    A relative path points elsewhere when the current folder changes.
    """
    base = Path(recipe.model.base).expanduser()
    if recipe.model.base in PACKAGED or base.is_absolute() or not base.is_dir():
        return ""
    return str(base.resolve())


def _start_workers(
    recipe: Recipe,
    per_round: int,
    workers: int,
    threads: int | None,
    ray: str | None,
    progress: Progress,
) -> Workers:
    """Start worker processes that load a recipe's model and data at the same time as this
    process.
    """
    cluster = None
    if ray is not None:
        cluster = Cluster(ray, workers, threads, progress.note)
    team = Workers(partial(_load_for_worker, recipe.to_toml()), workers, threads, cluster)
    team.limit(per_round)
    team.load()
    return team


def host(
    recipe: Recipe,
    data: TaskData,
    names: Sequence[str],
    evaluate_with: Callable[[Equipment], tuple[Evaluation, list[str]]],
    folder: Path | str | None = None,
    **options: Any,
) -> tuple[RunSpec, Hosted]:
    """Return the specification of a recipe's run, and the base model with some clients' examples.

    Args:
        recipe: the recipe.
        data: the examples of the hosted clients.
        names: the clients of the run that this process knows, in the order of their numbers.
        evaluate_with: returns the evaluation function, and notes about the evaluation's data.
        folder: folder for the run's files; None: nothing is written.
        options: other settings of `RunSpec`.

    Raises:
        RecipeError: the model can't be loaded, or does not fit the data or the method; or there are
            too few clients.
    """
    if recipe.tune_rate:
        raise RecipeError(
            'learning_rate = "auto" works in a simulation only: find a rate with fedseed '
            "tune-rate and set it here"
        )
    attack, attackers = recipe.attack, list[int]()
    if attack is not None:
        if attack.clients > len(names):
            raise RecipeError(f"attack.clients = {attack.clients}: there are {len(names)} clients")
        attackers = list(range(len(names) - attack.clients, len(names)))
    equipment = equip(recipe, data)
    evaluate, notes = evaluate_with(equipment)
    spec = RunSpec.from_recipe(
        recipe,
        folder,
        trainable=equipment.trainable,
        classes=equipment.classes,
        limit=equipment.limit,
        notes=(*data.notes, *equipment.notes, *notes),
        attackers=attackers,
        **options,
    )
    hosted_clients = data.clients
    if attack is not None and attack.kind == "labels":
        lying, classes = {names[number]: number for number in attackers}, len(data.classes)
        hosted_clients = [
            flip_labels(one, recipe.seed, lying[one.name], classes) if one.name in lying else one
            for one in hosted_clients
        ]
    hosted = host_examples(
        spec, equipment.model, equipment.objective, hosted_clients, names, evaluate
    )
    fingerprint = fingerprint_of(equipment.processor)
    spec = replace(spec, fingerprint=fingerprint)
    return spec, replace(hosted, processor=equipment.processor, fingerprint=fingerprint)


def _nothing(model: Any) -> dict[str, float]:
    """Measure nothing: for private runs, which disclose nothing, and for workers, which do not
    evaluate.
    """
    return {}


def _load_for_worker(text: str) -> Hosted:
    """Return the model and all clients' examples from a recipe's text (`Recipe.to_toml`), for a
    worker process of a simulation.
    """
    from fedseed.models.loading import quiet

    # the main process has already shown how the base loads
    quiet()
    recipe = parse_stored_recipe(text)
    data = load_data(recipe)
    return host(
        recipe, data, [client.name for client in data.clients], lambda equipment: (_nothing, [])
    )[1]
