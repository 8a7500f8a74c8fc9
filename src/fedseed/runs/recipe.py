"""Recipes: TOML files that say everything about a run, checked before anything is loaded."""

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args

import tomli_w
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from fedseed.errors import RecipeError
from fedseed.methods import METHODS, Method
from fedseed.models.adapters import AnyAdapter
from fedseed.tasks import TASKS, InstructionsTask, Task
from fedseed.training.settings import EvaluationSettings

DEFAULT_TASK = "instructions"


def _with_task_name(value: Any) -> Any:
    """A `[task]` without a name is the project's own."""
    return {"name": DEFAULT_TASK, **value} if isinstance(value, Mapping) else value


if TYPE_CHECKING:  # a checker can't read a union made from a list
    AnyTask = Task
    AnyMethod = Method
else:
    AnyTask = Annotated[Union[TASKS], Field(discriminator="name"), BeforeValidator(_with_task_name)]  # noqa: UP007
    AnyMethod = Annotated[Union[METHODS], Field(discriminator="name")]  # noqa: UP007


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ModelSettings(_Table):
    """The base: "small", "digits", a local folder or a hub name; its dtype; which parameters train.

    Args:
        base: the base.
        dtype: what it is loaded in.
        trainable: name patterns of the parameters that train; with an adapter, of its own or the base's. "head": what
            stands outside of the model's backbone, such as a classifier's last layer.
        adapter: train an adapter in place of the base (`fedseed.models.adapters`).
        spill_base: methods that need a second copy of the base (FedKSeed, small_steps = "from-base") keep it in a
            temporary file: half the memory for a file's reading time a round.
        trust_remote_code: run code that comes with the base.
    """

    base: str = "small"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    trainable: list[str] | Literal["head"] | None = None
    adapter: AnyAdapter | None = None
    spill_base: bool = False
    trust_remote_code: bool = False


class FederationSettings(_Table):
    """How many clients take part in a round, and what a run over a network needs to know besides.

    Args:
        per_round: clients in a round.
        fraction: the same as a fraction of all clients. All, if neither is given.
        joint: clients that look along common directions (FeedSign) share forward passes where one process has them
            all. False: each client's losses are computed alone, so that the result does not depend (by the float noise
            of another batch size) on how clients are spread over processes.
        nats: the server's address, such as "tls://host:4222".
        key: file with the NKEY seed; "{name}" stands for who uses it (the client, or "coordinator").
        ca: file with the certificates to trust; encryption is compulsory then.
        run: the run's name on the server; the recipe's name by default.
        replicas: of the run's stream, in a cluster of servers.
        deadline: seconds after which a round does without those that have not answered.
        minimum: answers that a round needs; with fewer it is begun again.
        start_with: clients that must be there before the first round; all by default.
        dead_after: seconds of silence after which a client is taken for dead.
        base_digest: digest that the clients' base must have; by default that of the first client to come.
    """

    per_round: PositiveInt | None = None
    fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    joint: bool = True
    nats: str | None = None
    key: str | None = None
    ca: str | None = None
    run: str | None = None
    replicas: Annotated[int, Field(ge=1, le=5)] = 1
    deadline: PositiveFloat = 600.0
    minimum: PositiveInt = 1
    start_with: PositiveInt | None = None
    dead_after: PositiveFloat = 6.0
    base_digest: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | None = None

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


class StoppingSettings(_Table):
    """Early stopping: after `patience` rounds without a better loss on the task's validation examples."""

    patience: PositiveInt = 30


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
    stopping: StoppingSettings | None = None

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


def explain(error: ValidationError, data: Mapping[str, Any], model: type[BaseModel] | None = None) -> str:
    """The first thing that is wrong, in one line: key, value, what is allowed.

    Args:
        error: what pydantic says.
        data: what was read.
        model: what it should be; None: a recipe.
    """
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
        allowed = ", ".join(_allowed(path[:-1], data, model or Recipe))
        text = f"{key} = {first['input']!r}: unknown key; allowed here: {allowed}"
    elif kind == "missing":
        text = f"{key}: missing"
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = first["ctx"]["discriminator"].strip("'")  # "name" of a method or task, "kind" of a partition
        names = ", ".join(_tags(_models(path, data, model or Recipe), tag))
        given = first["input"].get(tag) if isinstance(first["input"], Mapping) else first["input"]
        found = f"{key}.{tag} = {given!r}" if given is not None else f"{key}.{tag}: missing"
        text = f"{found}: choose one of {names}" if given is not None else f"{found}; choose one of {names}"
    else:
        text = f"{key} = {first['input']!r}: {message[0].lower()}{message[1:]}"
    rest = len({p["loc"] for p in problems}) - 1
    return " ".join(text.split()) + (f" (and {rest} more)" if rest > 0 else "")


def _models(path: Sequence[str], data: Mapping[str, Any], whole: type[BaseModel]) -> list[type[BaseModel]]:
    """The models that a table inside one of the type `whole` may be; several where a name or kind in it decides."""
    models: list[type[BaseModel]] = [whole]
    here: Any = data
    for part in path:
        if isinstance(here, list):  # one of several tables, by its number
            here = here[int(part)]
            continue
        fields = _chosen(models, here).model_fields.items()
        models = _within(next(field.annotation for name, field in fields if part in (name, field.alias)))
        here = here.get(part, {}) if isinstance(here, Mapping) else {}
    return models


def _within(annotation: Any) -> list[type[BaseModel]]:
    """The models that an annotation names: itself, or a union's."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _within(part)]


def _tags(models: Sequence[type[BaseModel]], tag: str) -> dict[str, type[BaseModel]]:
    return {str(model.model_fields[tag].default): model for model in models if tag in model.model_fields}


def _chosen(models: Sequence[type[BaseModel]], table: Any) -> type[BaseModel]:
    """The one that a table's name or kind says; a task without a name is the project's own."""
    for tag in ("name", "kind"):
        named = _tags(models, tag) if isinstance(table, Mapping) else {}
        if len(models) > 1 and (model := named.get(table.get(tag))) is not None:
            return model
    return InstructionsTask if InstructionsTask in models else models[0]


def _allowed(path: Sequence[str], data: Mapping[str, Any], whole: type[BaseModel]) -> list[str]:
    """The keys a table may have."""
    table: Any = data
    for part in path:
        table = table[int(part)] if isinstance(table, list) else table.get(part)
    fields = _chosen(_models(path, data, whole), table).model_fields.items()
    return [field.alias or name for name, field in fields]
