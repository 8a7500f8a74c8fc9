"""Loads a tuned model from a run's folder, an orbit, a run's weights, an exported folder or a
base's name.

`fedseed export`, `evaluate`, `generate` and `RunResult.model` use it. If the run has an orbit, the
orbit is replayed. If the method's steps are whole weights, the newest weights are loaded into the
base.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fedseed.errors import RecipeError
from fedseed.models import PACKAGED
from fedseed.models.heads import Head
from fedseed.objectives.tokens import longest_input
from fedseed.orbit import Header, Orbit, Record
from fedseed.orbit.card import Facts
from fedseed.orbit.header import MAGIC
from fedseed.orbit.replay import equip, replay
from fedseed.recipe.reading import read_recipe
from fedseed.recipe.settings import Recipe
from fedseed.reports.results import best_rounds, read_lines, read_summary
from fedseed.runs.ending import read_ending
from fedseed.runs.folder import CHAT_TEMPLATE
from fedseed.runs.model_setup import assemble_equipment, choose_kind, make_evaluation
from fedseed.runs.model_setup import equip as equip_recipe
from fedseed.runs.parties import load_present
from fedseed.runs.store import read_weights
from fedseed.tasks import REGISTRY

DTYPES = ("float32", "bfloat16", "float16")
# called after each applied step, with its number and the total number of steps
OnStep = Callable[[int, int], None]


class Source(NamedTuple):
    """Where a tuned model comes from."""

    name: str  # as the user gave it
    orbit: Path | None = None  # the orbit's file, if the model is replayed from it
    # the file of a run's weights, if the model is loaded from it
    weights: Path | None = None
    # a folder or hub name of the model itself
    model: str | None = None
    # the run's folder, with metrics and recipe, if the model comes from a run
    folder: Path | None = None

    def file(self, name: str) -> Path | None:
        """Return the path of a file in the run's folder; None if there is no such file."""
        path = None
        if self.folder is not None:
            path = self.folder / name
        if path is not None and path.is_file():
            return path
        return None

    @property
    def chat_template(self) -> str | None:
        """Return the run's chat template, if it differed from the base's own."""
        path = self.file(CHAT_TEMPLATE)
        if path is None:
            return None
        return path.read_text(encoding="utf-8")


class Tuned(NamedTuple):
    """A tuned model."""

    # a `transformers` model, or the `peft` model around one; in evaluation mode
    model: Any
    processor: Any  # its tokenizer or image processor
    # the run's header; None: not known, because the model was loaded as it is
    header: Header | None
    facts: Facts | None  # results of the run; None if `header` is None
    # loads the base again, for evaluations that compare with it; None: load the base that the
    # recipe names
    load_base: Callable[[], Any] | None = None


def find_source(name: str) -> Source:
    """Find the model that a name on the command line stands for.

    Args:
        name: a run's folder, an orbit file, a run's `model.safetensors`, a folder with a model, a
            base's name.

    Raises:
        RecipeError: there is no such file or folder, or it holds no model.
    """
    path = Path(name).expanduser()
    if path.is_file():
        with open(path, "rb") as file:
            start = file.read(len(MAGIC))
        folder = run_folder_of(path)
        if start == MAGIC:
            return Source(name, orbit=path, folder=folder)
        if path.suffix == ".safetensors":
            return Source(name, weights=path, folder=folder)
        raise RecipeError(f"{name}: not an orbit and not a run's model.safetensors")
    if path.is_dir():
        if (path / "model.orbit").is_file():
            return Source(name, orbit=path / "model.orbit", folder=path)
        if (path / "config.json").is_file() or (path / "adapter_config.json").is_file():
            return Source(name, model=str(path))
        if (path / "model.safetensors").is_file():
            return Source(name, weights=path / "model.safetensors", folder=path)
        raise RecipeError(
            f"{name}: this folder holds no run (model.orbit, model.safetensors) and no model "
            "(config.json)"
        )
    if (
        path.suffix in (".orbit", ".safetensors", ".toml")
        or name.startswith((".", "/", "~"))
        or name.count("/") > 1
        or ("/" in name and path.parent.is_dir())  # a path such as runs/mine, not a name on the hub
    ):
        raise RecipeError(f"{name}: there is no such folder or file")
    return Source(name, model=name)


def run_folder_of(path: Path) -> Path | None:
    """Return the folder of the run that wrote an orbit or weights; None if the file's folder has no
    other files of a run.
    """
    beside = (path.parent / name for name in ("recipe.toml", "summary.json"))
    is_a_runs = path.stem == "model" and any(file.is_file() for file in beside)
    if is_a_runs:
        return path.parent
    return None


def open_tuned(
    source: Source,
    base: str | None = None,
    upto: int | None = None,
    device: str = "cpu",
    progress: OnStep | None = None,
    check_all: bool = False,
) -> Tuned:
    """Load a tuned model.

    Args:
        source: where the model comes from.
        base: the base's name or folder; None: the one that the run used.
        upto: number of the last step to apply; None: all.
        device: where to load the model.
        progress: called after each step of a replay.
        check_all: compare the weights with every digest in the orbit, not only with the last one.

    Raises:
        RecipeError: the base is not found, or the round's weights are not available.
        OrbitError: the file is damaged, belongs to another base, or, without `upto`, does not end
            where its run ended.
    """
    if source.model is not None:
        if upto is not None or base is not None:
            option = "--upto" if upto is not None else "--base"
            raise RecipeError(f"{option}: {source.name} is a plain model, not a run or an orbit")
        return Tuned(*_as_it_is(source.model, device), None, None)
    complete, ending = True, read_ending(source.folder)
    if source.orbit is not None:
        path, orbit = source.orbit, Orbit.open(source.orbit)
        complete = orbit.complete
        orbit_facts: tuple[int, str, int | None] = orbit.last, path.name, orbit.size
        header, count = orbit.header, orbit.check_upto(upto)
        steps: Iterable[Record] = orbit.steps(count)
    else:
        assert source.weights is not None
        path, stored = source.weights, read_weights(source.weights)
        header, count, orbit_facts = stored.header, stored.round, (stored.round, "", None)
        steps = [Record(max(1, stored.changed), stored.data, stored.digest)]
        if upto not in (None, count):
            raise RecipeError(
                f"round {upto} of {source.name}: a run of {header.method.name} keeps only its "
                f"newest weights, which are those of round {count}"
            )
    if ending is not None and upto is None:
        ending.check(path, header, count, None)
    model, processor = base_of(header, path, base, device)
    model = equip(header, model)
    digest = replay(
        header, steps, model, progress and (lambda number: progress(number, count)), check_all
    )
    if ending is not None and upto is None:
        ending.check(path, header, count, digest)
    if source.chat_template is not None:
        processor.chat_template = source.chat_template
    facts = Facts(count, digest, *orbit_facts, complete=complete, **_measured(source, count))
    return Tuned(model, processor, header, facts, lambda: base_of(header, path, base, device)[0])


def best_round(source: Source, metric: str) -> int:
    """Return the round with the best value of a metric.

    Raises:
        RecipeError: there is no metrics.jsonl beside the model, or it does not have this metric.
    """
    path = source.file("metrics.jsonl")
    if path is None:
        raise RecipeError(
            f"--best {metric}: there is no metrics.jsonl beside it: give the run's folder"
        )
    best = best_rounds(read_lines(path.parent))
    if metric not in best:
        raise RecipeError(f"--best {metric}: the run has measured {', '.join(best) or 'nothing'}")
    return int(best[metric]["round"])


def base_of(
    header: Header, path: Path, base: str | None = None, device: str = "cpu"
) -> tuple[Any, Any]:
    """Return the base model that a header names, and its tokenizer or image processor.

    Args:
        header: the orbit's.
        path: the orbit's file. A base with a relative path is also searched for from this file's
            folder.
        base: the base's name or folder; None: the one that the run used.
        device: where to load the model.

    Raises:
        RecipeError: the base is not found.
    """
    # imported late, because it imports transformers
    from fedseed.models.loading import load_model

    head = None
    if header.classes:
        head = Head(header.classes, header.seed)
    quantization: Any = header.quantization or None
    if base is not None:
        return load_model(base, header.dtype, head=head, device=device, quantization=quantization)
    # try in turn: the recipe's path, its absolute path at the time of the run, and the recipe's
    # path relative to this file
    place, base_path = header.base, Path(header.base).expanduser()
    if place and place not in PACKAGED:
        candidates = [base_path]
        if header.base_folder:
            candidates.append(Path(header.base_folder))
        if not base_path.is_absolute():
            candidates += [folder / base_path for folder in path.resolve().parents]
        with_model = (str(one) for one in candidates if (one / "config.json").is_file())
        place = next(with_model, place)
    try:
        return load_model(place, header.dtype, head=head, device=device, quantization=quantization)
    except RecipeError as error:
        raise RecipeError(f"{path}: its base: {error}; or give its path with --base") from error


def _as_it_is(place: str, device: str) -> tuple[Any, Any]:
    """Load a model by folder or name. For an adapter's folder, also load the base that it names."""
    from fedseed.models.loading import load_model

    dtype, folder = "float32", Path(place).expanduser()
    if not (folder / "adapter_config.json").is_file():
        with suppress(OSError, ValueError, AttributeError):
            saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            # if the adapter's folder has a tokenizer
            dtype = saved.get("dtype", saved.get("torch_dtype"))
    return load_model(place, dtype if dtype in DTYPES else "float32", device=device)


def _measured(source: Source, number: int) -> dict[str, Any]:
    """Return a round's metrics from the run's files, for `Facts`."""
    path = source.file("metrics.jsonl")
    if path is None:
        return {}
    lines = {line.round: line.metrics for line in read_lines(path.parent)}
    base, figures = lines.get(0, {}), lines.get(number, {})
    final = {name: figures[name] for name in base if name in figures}
    facts: dict[str, Any] = {"baseline": {name: base[name] for name in final}, "final": final}
    if source.file("summary.json") is not None:
        facts["clients"] = read_summary(path.parent)["clients"]
    return facts


def recipe_for(
    source: Source,
    recipe: str | None = None,
    task: str | None = None,
    overrides: Sequence[str] = (),
    plugins: Sequence[str] = (),
    trust_plugins: bool = False,
) -> Recipe:
    """Return the recipe whose task and evaluation a model is measured by.

    Args:
        source: where the model comes from; a run's folder has its recipe.
        recipe: another recipe instead: a file, or the name of a packaged one.
        task: the name of a task that replaces the recipe's, with default settings.
        overrides: "key=value" pairs.
        plugins: files and modules to load first.
        trust_plugins: also load the plug-ins that the recipe names.

    Raises:
        RecipeError: there is no recipe and no task, or they are invalid.
    """
    recipe_source: str | Path | None = recipe or source.file("recipe.toml")
    if recipe_source is None and task is None:
        raise RecipeError(
            f"{source.name}: it has no recipe to choose the evaluation data: give --recipe, or "
            "--task NAME"
        )
    if task is not None and REGISTRY.find(task) is None:
        raise RecipeError(f"--task {task}: {REGISTRY.unknown(task)}")
    changes = []
    if task is not None:
        changes = ["task={}", f'task.name="{task}"']
    return read_recipe(
        recipe_source or "quickstart-ferret", [*changes, *overrides], plugins, trust_plugins
    )


def evaluate(tuned: Tuned, recipe: Recipe) -> tuple[dict[str, float], list[str]]:
    """Return a model's metrics on a recipe's evaluation sets, and notes about the data.

    Raises:
        RecipeError: the data can't be loaded, or do not fit the model.
    """
    from fedseed.models.architectures import LOADERS, hears_besides
    from fedseed.models.traits import traits_of

    data, (model, processor, *_) = load_present(recipe), tuned
    whole = model
    if hasattr(model, "peft_config"):
        whole = model.get_base_model()
    kind, _ = choose_kind(recipe, data, whole.config.to_dict())
    loader = LOADERS[kind.architecture]
    name = type(whole).__name__
    hears = hears_besides({**whole.config.to_dict(), "architectures": [name]})
    if name not in loader.classes() and not (kind.architecture == "causal" and hears):
        raise RecipeError(
            f'task.name = "{recipe.task.name}" needs {loader.description}; this is a '
            f"{type(whole).__name__}"
        )
    equipment = assemble_equipment(recipe, data, kind, model, processor, longest_input(model))
    load_base = tuned.load_base or (lambda: equip_recipe(recipe, data).model)
    measure, notes = make_evaluation(recipe, equipment, data, base=load_base)
    return measure(model), [*data.notes, *traits_of(model).notes, *notes]
