"""A tuned model measured on a task's held-out examples: as a run measures it, or by the harness for language models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedseed.errors import FedseedError, RecipeError, to_install
from fedseed.runs.equipment import equipped, evaluation_of
from fedseed.runs.recipe import Recipe, read_recipe
from fedseed.runs.tuned import Source, Tuned
from fedseed.tasks import REGISTRY


def recipe_for(
    source: Source,
    recipe: str | None = None,
    task: str | None = None,
    overrides: Sequence[str] = (),
    plugins: Sequence[str] = (),
    trust_plugins: bool = False,
) -> Recipe:
    """The recipe whose task and evaluation a model is measured by.

    Args:
        source: the model's; a run has its recipe beside it.
        recipe: another one: a file, or a packaged recipe's name.
        task: the name of a task in place of the recipe's, with its settings as by default.
        overrides: "key=value" pairs.
        plugins: files and modules to load first.
        trust_plugins: load what the recipe names, too.

    Raises:
        RecipeError: there is neither recipe nor task, or they are wrong.
    """
    found: str | Path | None = recipe or source.recipe
    if found is None and task is None:
        raise RecipeError(
            f"{source.name}: no recipe beside it says what to measure it on: give --recipe, or --task NAME"
        )
    if task is not None and REGISTRY.find(task) is None:
        raise RecipeError(f"--task {task}: {REGISTRY.unknown(task)}")
    if found is None:
        return read_recipe("quickstart-ferret", ["task={}", f'task.name="{task}"', *overrides], plugins, trust_plugins)
    changes = [] if task is None else ["task={}", f'task.name="{task}"']
    return read_recipe(found, [*changes, *overrides], plugins, trust_plugins)


def evaluate(tuned: Tuned, recipe: Recipe) -> tuple[dict[str, float], list[str]]:
    """A model's metrics on a recipe's evaluation sets, and notes about the data.

    Raises:
        RecipeError: the data can't be had, or do not fit the model.
    """
    data = recipe.task.load()
    equipment = equipped(recipe, data, tuned.model, tuned.processor)
    measure, notes = evaluation_of(recipe, equipment, data)
    return measure(tuned.model), [*data.notes, *notes]


def evaluate_by_harness(
    tuned: Tuned, tasks: Sequence[str], include: Path | None = None, limit: int | None = None
) -> dict[str, dict[str, float]]:
    """A language model's results on tasks of `lm-evaluation-harness`.

    Args:
        tuned: the model.
        tasks: the harness' names of tasks.
        include: a folder with tasks of one's own, in the harness' form.
        limit: examples of each task; None: all.

    Returns:
        Numbers by metric, by task.

    Raises:
        FedseedError: the harness is not installed; it knows no such task, or fails.
    """
    try:
        import lm_eval
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise FedseedError(f"--lm-eval needs lm-evaluation-harness ({error}): {to_install('lm-eval')}") from error
    manager = TaskManager(include_path=None if include is None else str(include))
    unknown = [name for name in tasks if not manager.match_tasks([name])]
    if unknown:
        raise RecipeError(f"--lm-eval {','.join(tasks)}: the harness knows no task {', '.join(unknown)}")
    try:
        model: Any = HFLM(pretrained=tuned.model, tokenizer=tuned.processor)
        found = lm_eval.simple_evaluate(model=model, tasks=list(tasks), task_manager=manager, limit=limit)
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise FedseedError(
            f"lm-evaluation-harness: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
        ) from error
    return {
        task: {name: float(value) for name, value in numbers.items() if isinstance(value, int | float)}
        for task, numbers in found["results"].items()
    }
