"""From a recipe to a federation: model, data, objective and evaluation, put together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedseed.attacks.labels import flip_labels
from fedseed.errors import RecipeError
from fedseed.reports.progress import Progress
from fedseed.runs.recipe import Recipe, read_recipe
from fedseed.runs.simulation import Simulation


class Federation(Simulation):
    """A simulated federation (`Simulation` has the arguments), also from a recipe."""

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        overrides: Sequence[str] = (),
        out: Path | str | None = None,
        progress: Progress | None = None,
    ) -> "Federation":
        """A federation from a recipe: a TOML file, or the name of one that comes with fedseed.

        Args:
            path: the file or name.
            overrides: "key=value" pairs that replace values of the recipe, such as "method.directions=1000".
            out: folder for the run's files; None: nothing is written.
            progress: shows the run going on.

        Raises:
            RecipeError: the recipe is wrong; names key, value and what is allowed.
        """
        return build(read_recipe(path, overrides), out=out, progress=progress)


def build(recipe: Recipe, out: Path | str | None = None, progress: "Progress | None" = None) -> Federation:
    """Load model and data of a recipe and put the federation together.

    Raises:
        RecipeError: the model or the data can't be had, or do not fit the method.
    """
    from fedseed.models import adapters
    from fedseed.runs.stopping import VALIDATION_LOSS
    from fedseed.models.heads import Head, head_parameters
    from fedseed.models.loading import choose_trainable, load_model
    from fedseed.objectives.evaluation import longest_input, mean_loss
    from fedseed.objectives.kinds import kind_of, short_answers, usable_sets

    data = recipe.task.load()
    per_round = recipe.federation.count(len(data.clients))
    if per_round > len(data.clients):
        raise RecipeError(f"federation.per_round = {per_round}: at most the number of clients, {len(data.clients)}")
    settings = recipe.model
    try:
        kind = kind_of(data)
    except ValueError as error:
        raise RecipeError(f'task.name = "{recipe.task.name}": {error}') from error
    head = Head(data.classes, recipe.seed) if data.classes else None
    model, tokenizer = load_model(settings.base, settings.dtype, settings.trust_remote_code, kind.architecture, head)
    trainable = head_parameters(model, settings.base) if settings.trainable == "head" else settings.trainable
    adapter = adapters.chosen(settings.adapter, recipe.method.adapter, recipe.method.name)
    if adapter is None:  # with an adapter, once that is there
        choose_trainable(model, trainable)
    elif settings.trainable == "head":
        raise RecipeError(
            'model.trainable = "head": with an adapter give name patterns, such as ["*lora*", "*classifier*"] for both'
        )
    measured, limit = recipe.evaluation, f"evaluation.max_length = {recipe.evaluation.max_length:,} tokens"
    positions = longest_input(model)
    if positions is not None:
        positions -= adapters.virtual_tokens(adapter)
    if positions is not None and positions < measured.max_length:
        measured, limit = measured.model_copy(update={"max_length": positions}), f"the model's {positions:,} positions"
    try:
        objective = kind.objective(tokenizer, measured)
    except ValueError as error:
        raise RecipeError(f'model.base = "{settings.base}": {error}') from error
    measure = kind.measure(objective, data, measured)
    if recipe.stopping is not None and not data.validation:
        raise RecipeError(f'stopping: task.name = "{recipe.task.name}" has no validation examples to stop by')
    try:
        sets, notes = usable_sets(objective, data.evaluation, limit)
        kept, more = usable_sets(objective, {"validation_": data.validation} if recipe.stopping else {}, limit)
    except ValueError as error:
        raise RecipeError(f'task.name = "{recipe.task.name}" with model.base = "{settings.base}": {error}') from error
    notes += more + short_answers(objective, sets, model, measured)
    validation = objective.prepare(kept.get("validation_", []))

    def evaluate(model: Any) -> dict[str, float]:
        found = ((prefix, measure(model, examples)) for prefix, examples in sets.items())
        metrics = {prefix + name: value for prefix, named in found for name, value in named.items()}
        if validation:
            metrics[VALIDATION_LOSS] = mean_loss(model, objective, validation)
        return metrics

    clients, attackers = list(data.clients), []
    if recipe.attack is not None:
        if recipe.attack.clients > len(clients):
            raise RecipeError(f"attack.clients = {recipe.attack.clients}: there are {len(clients)} clients")
        attackers = list(range(len(clients) - recipe.attack.clients, len(clients)))
        if recipe.attack.kind == "labels":
            for number in attackers:
                clients[number] = flip_labels(clients[number], recipe.seed, number, len(data.classes))

    federation = Federation(
        model=model,
        clients=clients,
        method=recipe.method,
        objective=objective,
        rounds=recipe.rounds,
        per_round=per_round,
        seed=recipe.seed,
        evaluation=evaluate,
        evaluate_every=recipe.evaluation.every,
        out=out,
        base=settings.base,
        trainable=trainable,
        classes=data.classes,
        adapter=settings.adapter,
        patience=None if recipe.stopping is None else recipe.stopping.patience,
        attack=None if recipe.attack is None else recipe.attack.kind,
        attackers=attackers,
        recipe_text=recipe.to_toml(),
        notes=(*data.notes, *notes),
        spill_base=settings.spill_base,
        progress=progress,
        joint=recipe.federation.joint,
    )
    if objective.dropped:
        federation.notes += (f"{objective.dropped:,} of the clients' examples left out (over {limit})",)
    return federation
