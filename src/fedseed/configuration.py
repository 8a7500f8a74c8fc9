"""Recipes: TOML files that say everything about a run, checked before anything is loaded."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tomli_w
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    model_validator,
)

from fedseed.errors import RecipeError
from fedseed.methods import METHODS, FedAvg, FedKSeed, FedZO, FeedSign, Ferret, MeZO, ZOFedSGD
from fedseed.robustness import flip_labels
from fedseed.tasks import TASKS, InstructionsTask, NaturalInstructionsTask, SST2Task
from fedseed.tasks.data import Choice, TaskData

if TYPE_CHECKING:
    from fedseed.federation.engine import Evaluation, Federation
    from fedseed.reports.progress import Progress
    from fedseed.training.objectives import CausalLM, Choices

DEFAULT_TASK = "instructions"


def _with_task_name(value: Any) -> Any:
    """A `[task]` without a name is the project's own."""
    return {"name": DEFAULT_TASK, **value} if isinstance(value, Mapping) else value


AnyTask = Annotated[
    InstructionsTask | NaturalInstructionsTask | SST2Task, Field(discriminator="name"), BeforeValidator(_with_task_name)
]
AnyMethod = Annotated[Ferret | FedKSeed | FeedSign | ZOFedSGD | MeZO | FedZO | FedAvg, Field(discriminator="name")]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ModelSettings(_Table):
    """The base: "small", a local folder or a hub name; its dtype; which parameters train (name patterns)."""

    base: str = "small"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    trainable: list[str] | None = None
    trust_remote_code: bool = False


class FederationSettings(_Table):
    """How many clients take part in a round: a number, or a fraction of all."""

    per_round: PositiveInt | None = None
    fraction: Annotated[float, Field(gt=0, le=1)] | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> "FederationSettings":
        if self.per_round is not None and self.fraction is not None:
            raise ValueError("give per_round or fraction, not both")
        return self

    def count(self, clients: int) -> int:
        """Clients in a round."""
        if self.per_round is not None:
            return self.per_round
        return clients if self.fraction is None else max(1, round(self.fraction * clients))


class AttackSettings(_Table):
    """Byzantine clients: what they do and how many there are (the last ones)."""

    kind: Literal["sign", "random", "noise", "labels"]
    clients: PositiveInt


class EvaluationSettings(_Table):
    """When and how to evaluate; round 0 (zero-shot) and the last round always are."""

    every: PositiveInt = 5
    rouge: bool = True
    max_new_tokens: PositiveInt = 32
    max_length: PositiveInt = 1024


class Recipe(_Table):
    """A whole run."""

    title: str = ""
    seed: NonNegativeInt = 1
    rounds: PositiveInt
    model: ModelSettings = ModelSettings()
    task: AnyTask = InstructionsTask()
    federation: FederationSettings = FederationSettings()
    method: AnyMethod
    attack: AttackSettings | None = None
    evaluation: EvaluationSettings = EvaluationSettings()

    def to_toml(self) -> str:
        """The complete recipe, defaults included."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


def packaged_recipes() -> dict[str, Path]:
    """Recipes that come with fedseed, by name."""
    folder = Path(str(files("fedseed") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_recipe(source: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a TOML file or the name of a packaged one.

    Args:
        source: path or name.
        overrides: "key=value" pairs; keys are dotted, values TOML (or bare text).

    Raises:
        RecipeError: missing, not TOML, or wrong; one line that names the key, the value and what is allowed.
    """
    path = Path(source)
    if not path.is_file():
        packaged = packaged_recipes()
        if str(source) not in packaged:
            raise RecipeError(f"{source}: no such recipe file, and no packaged recipe of this name "
                              f"(there are {', '.join(packaged)})")  # fmt: skip
        path = packaged[str(source)]
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"{path}: can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not valid TOML: {error}") from error
    for pair in overrides:
        _override(data, pair)
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise RecipeError(f"{path}: {explain(error, data)}") from error


def _override(data: dict[str, Any], pair: str) -> None:
    key, equals, text = pair.partition("=")
    keys = [k.strip() for k in key.split(".")]
    if not equals or not all(keys):
        raise RecipeError(f'--set {pair}: write key=value, such as "method.directions=1000"')
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # bare text needs no quotes on a command line
    table = data
    for k in keys[:-1]:
        table = table.setdefault(k, {})
        if not isinstance(table, dict):
            raise RecipeError(f"--set {pair}: {k} is a value, not a table")
    table[keys[-1]] = value


def explain(error: ValidationError, data: Mapping[str, Any]) -> str:
    """The first thing that is wrong, in one line: key, value, what is allowed."""
    problems = error.errors(include_url=False)
    first = problems[0]
    # a discriminated union puts the method's or task's name into the path: leave out what is no key of the data
    path: list[str] = []
    here: Any = data
    for part in first["loc"]:
        last = part == first["loc"][-1]
        if isinstance(here, Mapping) and (part in here or last):
            path.append(str(part))
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            path.append(str(part))
            here = here[part]
    key = ".".join(path) or "recipe"
    kind = first["type"]
    message = first["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden":
        text = f"{key} = {first['input']!r}: unknown key; allowed here: {', '.join(_allowed(path[:-1], data))}"
    elif kind == "missing":
        text = f"{key}: missing"
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        names = ", ".join(_kinds(path[0]))
        given = first["input"].get("name") if isinstance(first["input"], Mapping) else first["input"]
        text = f"{key}.name = {given!r}: choose one of {names}" if given is not None else f"{key}.name: missing"
    else:
        text = f"{key} = {first['input']!r}: {message[0].lower()}{message[1:]}"
    rest = len({p["loc"] for p in problems}) - 1
    return " ".join(text.split()) + (f" (and {rest} more)" if rest > 0 else "")


def _kinds(table: str) -> dict[str, type[BaseModel]]:
    """The models that a table of the recipe may be, by name; none for a table that is always the same."""
    kinds: Sequence[type[BaseModel]] = {"method": METHODS, "task": TASKS}.get(table, ())
    return {str(kind.model_fields["name"].default): kind for kind in kinds}


def _allowed(path: Sequence[str], data: Mapping[str, Any]) -> list[str]:
    """The keys a table of the recipe may have."""
    model: type[BaseModel] = Recipe
    here: Any = data
    for part in path:
        here = here.get(part, {}) if isinstance(here, Mapping) else {}
        if model is Recipe and _kinds(part):
            model = _kinds(part)[here.get("name", DEFAULT_TASK)]
        else:
            annotation = model.model_fields[part].annotation
            assert isinstance(annotation, type) and issubclass(annotation, BaseModel)
            model = annotation
    return list(model.model_fields)


def build(recipe: Recipe, out: Path | str | None = None, progress: "Progress | None" = None) -> "Federation":
    """Load model and data of a recipe and put the federation together.

    Raises:
        RecipeError: the model or the data can't be had, or do not fit the method.
    """
    from fedseed.federation.engine import Federation
    from fedseed.models import choose_trainable, load_model

    data = recipe.task.load()
    per_round = recipe.federation.count(len(data.clients))
    if per_round > len(data.clients):
        raise RecipeError(f"federation.per_round = {per_round}: at most the number of clients, {len(data.clients)}")
    settings = recipe.model
    model, tokenizer = load_model(settings.base, settings.dtype, settings.trust_remote_code)
    choose_trainable(model, settings.trainable)
    objective, evaluate = _objective(recipe.evaluation, data, tokenizer)
    clients, attackers = list(data.clients), []
    if recipe.attack is not None:
        if recipe.attack.clients > len(clients):
            raise RecipeError(f"attack.clients = {recipe.attack.clients}: there are {len(clients)} clients")
        attackers = list(range(len(clients) - recipe.attack.clients, len(clients)))
        if recipe.attack.kind == "labels":
            for number in attackers:
                clients[number] = flip_labels(clients[number], recipe.seed, number)

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
        trainable=settings.trainable,
        attack=None if recipe.attack is None else recipe.attack.kind,
        attackers=attackers,
        recipe_text=recipe.to_toml(),
        notes=data.notes,
        progress=progress,
    )
    if objective.dropped:
        limit = f"evaluation.max_length = {objective.max_length:,} tokens"
        federation.notes += (f"{objective.dropped:,} of the clients' examples left out (over {limit})",)
    return federation


def _objective(settings: EvaluationSettings, data: TaskData, tokenizer: Any) -> "tuple[CausalLM | Choices, Evaluation]":
    """The objective and the evaluation that go with what the task hands over."""
    from fedseed.training.evaluation import choice_metrics, language_metrics
    from fedseed.training.objectives import CausalLM, Choices

    def over_sets(measure: "Callable[[Any, Sequence[Any]], dict[str, float]]") -> "Evaluation":
        def evaluate(model: Any) -> dict[str, float]:
            sets = ((prefix, measure(model, examples)) for prefix, examples in data.evaluation.items())
            return {prefix + name: value for prefix, metrics in sets for name, value in metrics.items()}

        return evaluate

    first = next((example for client in data.clients for example in client.examples), None)
    if isinstance(first, Choice):
        choices = Choices(tokenizer, settings.max_length)
        return choices, over_sets(lambda model, examples: choice_metrics(model, choices, examples))
    language = CausalLM(tokenizer, settings.max_length)
    new, rouge = settings.max_new_tokens, settings.rouge
    return language, over_sets(lambda model, examples: language_metrics(model, language, examples, new, rouge))
