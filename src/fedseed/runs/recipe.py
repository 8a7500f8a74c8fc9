"""Recipes: TOML files that say everything about a run, checked before anything is loaded."""

import logging
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tomli_w
from pydantic import Field, PositiveInt, ValidationError, model_validator

from fedseed import aggregation, methods, tasks, tracking
from fedseed.aggregation import AggregationRule, Mean
from fedseed.attacks.updates import AttackSettings, attack_problem
from fedseed.errors import RecipeError, closest
from fedseed.federation.bounds import Bounds
from fedseed.federation.unfit import unfit
from fedseed.methods import Method, without_gradients
from fedseed.methods.base import too_few
from fedseed.objectives.settings import EvaluationSettings
from fedseed.optimizers.schedule import lasting
from fedseed.privacy import PrivacySettings, mechanism_of, misfit, protected
from fedseed.privacy.secure.settings import SecureSums
from fedseed.randomness.seed import Seed
from fedseed.registry import INCIDENTAL, is_loaded, load_plugin, resolve
from fedseed.runs.keys import ByName, Key, explain, keys_of, told
from fedseed.runs.tables import FederationSettings, ModelSettings, StoppingSettings, Table
from fedseed.tasks import InstructionsTask, Task, metrics
from fedseed.tasks.rewards import RewardSettings, placed
from fedseed.tracking import Tracker

MOST_BYTES = 1 << 20  # of a file: what takes hours to read is longer
MOST_DEEP = 32  # tables and lists in each other, and parts of a key
LONG_KEY = re.compile(rf"""(?<![\w"'.-])(?:[\w"'-]+[ \t]*\.[ \t]*){{{MOST_DEEP}}}[\w"']""".encode())


def read_toml(path: Path, what: str = "") -> dict[str, Any]:
    """A file's tables.

    Args:
        path: the file.
        what: stands before its name in errors, such as "--local ".

    Raises:
        RecipeError: it can't be read, is no TOML, or larger than anybody writes one.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise RecipeError(f"{what}{path}: can't be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise RecipeError(f"{what}{path}: more than {MOST_BYTES:,} bytes: this is no recipe")
    long = LONG_KEY.search(data)  # tomllib would take memory by the square of its parts
    if long:
        line = data.count(10, 0, long.start()) + 1
        raise RecipeError(f"{what}{path} line {line}: a key of more than {MOST_DEEP} parts: this is no recipe")
    try:
        found = tomllib.loads(data.decode())
    except RecursionError as error:
        raise RecipeError(f"{what}{path}: not valid TOML: nested too deeply") from error
    except ValueError as error:  # of the text, its encoding, or a number of thousands of digits
        raise RecipeError(f"{what}{path}: not valid TOML: {error}") from error
    level: list[Any] = [found]
    for _ in range(MOST_DEEP):
        tables = [one.values() if isinstance(one, dict) else one for one in level]
        level = [inner for values in tables for inner in values if isinstance(inner, dict | list)]
        if not level:
            return found
    raise RecipeError(f"{what}{path}: tables and lists are nested more than {MOST_DEEP} deep: this is no recipe")


class Setting(NamedTuple):
    """A value that replaces one of a recipe's: what was given, the parts of its key, and the value."""

    pair: str
    keys: list[str]
    value: Any


def setting(pair: str) -> Setting:
    """An override such as "method.directions=1000". Raises RecipeError."""
    key, equals, text = pair.partition("=")
    keys = [k.strip() for k in key.split(".")]
    if not equals or not all(keys):
        raise RecipeError(f'--set {pair}: write key=value, such as "method.directions=1000"')
    try:
        return Setting(pair, keys, tomllib.loads(f"value = {text}")["value"])
    except tomllib.TOMLDecodeError:
        return Setting(pair, keys, text.strip())  # bare text needs no quotes on a command line


def overridden(data: dict[str, Any], settings: Sequence[Setting]) -> None:
    """Put the values of overrides into a recipe's tables. Raises RecipeError."""
    for pair, keys, value in settings:
        table = data
        for k in keys[:-1]:
            table = table.setdefault(k, {})
            if not isinstance(table, dict):
                raise RecipeError(f"--set {pair}: {k} is a value, not a table")
        table[keys[-1]] = value


def load_plugins(data: dict[str, Any], path: Path, given: Sequence[str | Path], trust: bool) -> None:
    """Load the plug-ins given, and the recipe's if that is allowed; note all of them in `data`.

    Args:
        data: the recipe, as it was read.
        path: its file.
        given: plug-ins that were asked for apart from it.
        trust: load what the recipe names, too.

    Raises:
        RecipeError: a plug-in can't be loaded, or may not be.
    """
    names = [load_plugin(source) for source in given]
    own = data.get("plugins", [])
    if not isinstance(own, list) or not all(isinstance(source, str) for source in own):
        return  # said when the recipe is checked
    for source in own:
        name = resolve(source, path.parent)
        if not trust and not is_loaded(name):
            raise RecipeError(
                f'{path}: plugins = ["{source}"]: a plug-in is code, and a recipe must not run somebody\'s code '
                f"unasked: read it, then give --trust-plugins (or --plugin {name}; in Python trust_plugins=True)"
            )
        names.append(load_plugin(name, f"{path}: plugins:"))
    if names:
        data["plugins"] = list(dict.fromkeys(names))


def place_reward(data: dict[str, Any], path: Path, trust: bool, folder: Path | None) -> None:
    """Give the recipe's reward function the place of its file, if it may be run.

    Args:
        data: the recipe, as it was read.
        path: its file.
        trust: whether it may be run.
        folder: where a relative path begins; None: where we work.

    Raises:
        RecipeError: it may not be run.
    """
    table = data.get("reward")
    function = table.get("function") if isinstance(table, dict) else None
    if not isinstance(table, dict) or not isinstance(function, str) or ":" not in function:
        return  # what is wrong is said when the recipe is checked
    place = placed(function, folder)
    if not trust and not is_loaded(place.rpartition(":")[0]):
        raise RecipeError(
            f'{path}: reward.function = "{function}" is code, and a recipe must not run somebody\'s code unasked: '
            "read it, then give --trust-plugins (in Python trust_plugins=True)"
        )
    table["function"] = place


logger = logging.getLogger(__name__)

AnyTask = Annotated[Task, ByName(tasks.REGISTRY, Task, "instructions")]  # without a name: the project's own
AnyMethod = Annotated[Method, ByName(methods.REGISTRY, Method)]
AnyRule = Annotated[AggregationRule, ByName(aggregation.REGISTRY, AggregationRule, "mean")]
AnyTracker = Annotated[Tracker, ByName(tracking.REGISTRY, Tracker)]

LARGEST = 2**32 - 1  # whole number but for seeds: messages and orbits have 32 bits for rounds, counts and indices


class Recipe(Table):
    """A whole run.

    Args:
        title: what the run is, for people.
        plugins: files (beside the recipe, if the path is relative) and modules with methods, tasks, ... of others. They
            are code, so whoever runs the recipe has to agree (`--trust-plugins`).
        seed: decides client sampling, data order and directions.
        rounds: how many rounds.
        model: the base.
        task: the data: which of the tasks.
        federation: who takes part in a round, and the network.
        method: which of the methods; the other keys are its settings.
        aggregation: how the answers of a round are combined.
        bounds: how far from the others a client, or a step, may be.
        privacy: differential privacy of what clients send; without this table there is none but DP-FeedSign's.
        secure_sums: the coordinator learns the sum of a round's answers alone; without this table it reads each.
        attack: Byzantine clients.
        reward: what generated answers are rewarded for, in place of a loss.
        evaluation: when and how to evaluate.
        stopping: early stopping; without this table there is none.
        tracking: where else metrics go: which of the trackers.
    """

    title: str = ""
    plugins: Annotated[list[str], INCIDENTAL] = Field(default_factory=list)
    seed: Seed = 1
    rounds: PositiveInt
    model: ModelSettings = ModelSettings()
    task: AnyTask = InstructionsTask()
    federation: FederationSettings = FederationSettings()
    method: AnyMethod
    aggregation: AnyRule = Mean()
    bounds: Bounds = Bounds()
    privacy: PrivacySettings | None = None
    secure_sums: SecureSums | None = None
    attack: AttackSettings | None = None
    reward: RewardSettings | None = None
    evaluation: EvaluationSettings = EvaluationSettings()
    stopping: StoppingSettings | None = None
    tracking: Annotated[list[AnyTracker], INCIDENTAL] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits_together(self) -> "Recipe":
        """Check what one table alone does not show, and give the method what other tables say of it."""
        if self.privacy is not None:
            self = self.model_copy(update={"method": self._protected(self.privacy)})
        for name in self.evaluation.metrics:
            if metrics.REGISTRY.find(name) is None:
                raise told(
                    f"evaluation.metrics = {self.evaluation.metrics}: {name!r}: {metrics.REGISTRY.unknown(name)}"
                )
        per_round, clients = self.federation.per_round, self.federation.clients
        known = per_round or (None if clients is None else self.federation.count(len(clients)))
        few = None if known is None else too_few(self.aggregation, known)
        if problem := misfit(self.method, self.aggregation) or few:
            raise told(problem)
        if self.attack is not None and (problem := attack_problem(self.method, self.attack.kind)):
            raise told(problem)
        if self.secure_sums is not None and (
            problem := unfit(self.secure_sums, self.method, self.aggregation, self.federation.per_round)
        ):
            raise told(problem)
        if self.secure_sums is not None and (problem := self.secure_sums.unknown(self.federation.clients or ())):
            raise told(problem)
        if self.reward is not None and (problem := self.reward.problem() or without_gradients(self.method)):
            raise told(problem)
        if self.federation.names_parties and not self.task.own_data:
            key = "clients" if self.federation.clients is not None else "enrolment"
            raise told(
                f'federation.{key}: task.name = "{self.task.name}" names its clients itself, and deals them its data; '
                'leave it out, or take task.name = "files", of which each client has data of its own'
            )
        for key, value in _whole_numbers(self.model_dump()):
            if value > LARGEST and key.rpartition(".")[2] != "seed":
                raise told(f"{key} = {value}: at most {LARGEST:,}")
        if self.stopping is not None and not self.evaluates:
            whose = self.method.name if self.secure_sums is None else "what single clients hold out"
            raise told(
                f"stopping: {whose} is private here, and nothing is evaluated; leave it out, or let the "
                "validation loss be told with evaluation.disclose = true, which no epsilon counts"
            )
        quantization, adapter = self.model.quantization, self.model.adapter or self.method.adapter
        if quantization is not None and adapter is None:
            raise told(
                f'model.quantization = "{quantization}": {self.method.name} would tune all parameters, and quantised '
                'ones do not move; add an adapter (model.adapter.kind = "lora"), or take method.name = "fedit"'
            )
        if quantization is not None and self.model.device == "map":
            raise told(f'model.device = "map" with model.quantization = "{quantization}": name one device')
        try:
            method = lasting(self.method, self.rounds)
        except ValueError as error:
            raise told(str(error)) from error
        return self if method is self.method else self.model_copy(update={"method": method})

    def _protected(self, privacy: PrivacySettings) -> Method:
        """The method with `[privacy]`. Raises PydanticCustomError."""
        if self.evaluation.disclose and self.of_parties and not self.task.shares_evaluation:
            raise told(
                "evaluation.disclose = true with [privacy]: each client would tell what it measures on held-out data "
                "of its own; leave it out"
            )
        if privacy.level == "example" and self.evaluation.truncate == "split":
            raise told(
                'evaluation.truncate = "split" with privacy.level = "example": a text would be several examples, of '
                'which epsilon counts one; take "left" or "right"'
            )
        try:
            return protected(self.method, privacy)
        except ValueError as error:
            raise told(str(error)) from error

    @property
    def of_parties(self) -> bool:
        """Whether each client names its own data, so that only the coordinator knows who else takes part."""
        return self.federation.names_parties or self.task.each_its_own

    @property
    def evaluates(self) -> bool:
        """Whether anything is evaluated: of a private run only what the recipe discloses.

        With secure sums examples that are nobody's are evaluated on; those that clients hold out are told apart.
        """
        theirs = self.secure_sums is not None and self.of_parties and not self.task.shares_evaluation
        return (mechanism_of(self.method) is None and not theirs) or self.evaluation.disclose

    def to_toml(self) -> str:
        """The complete recipe, defaults included."""
        return tomli_w.dumps(self.model_dump(exclude_none=True, exclude={"method": {"private"}}))


def packaged_recipes() -> dict[str, Path]:
    """Recipes that come with fedseed, by name."""
    folder = Path(str(files("fedseed") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def _whole_numbers(table: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    """The whole numbers of a table and of those in it, with their dotted keys."""
    if isinstance(table, Mapping):
        for key, value in table.items():
            yield from _whole_numbers(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(table, list | tuple):
        for number, value in enumerate(table):
            yield from _whole_numbers(value, f"{prefix}.{number}")
    elif isinstance(table, int):
        yield prefix, table


def read_recipe(
    source: str | Path, overrides: Sequence[str] = (), plugins: Sequence[str | Path] = (), trust_plugins: bool = False
) -> Recipe:
    """A recipe from a TOML file or the name of a packaged one.

    Args:
        source: path or name.
        overrides: "key=value" pairs; keys are dotted, values TOML (or bare text).
        plugins: files and modules to load first; they are noted in the recipe, as absolute paths.
        trust_plugins: load what the recipe itself names as plug-ins, too: that is running code of whoever wrote it.

    Raises:
        RecipeError: missing, not TOML, or wrong; one line that names the key, the value and what is allowed.
    """
    path = Path(source)
    if not path.is_file():
        packaged = packaged_recipes()
        if str(source) not in packaged:
            raise RecipeError(f"{source}: no such recipe file, and no packaged recipe of this name; {_instead(path)}")
        path = packaged[str(source)]
    data = read_toml(path)
    settings = [setting(pair) for pair in overrides]
    overridden(data, [one for one in settings if one.keys == ["plugins"]])  # they decide what else there can be
    load_plugins(data, path, plugins, trust_plugins)
    overridden(data, [one for one in settings if one.keys != ["plugins"]])
    typed = any(one.keys == ["reward", "function"] for one in settings)
    place_reward(data, path, typed or trust_plugins, None if typed else path.parent)
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        raise RecipeError(f"{path}: {explain(error, data, Recipe)}") from error
    if recipe.reward is not None:
        recipe.reward.load()  # what is wrong with it is said before anything is loaded
    logger.info("recipe %s: %s on %s, rounds: %d", path, recipe.method.name, recipe.task.name, recipe.rounds)
    logger.debug("the complete recipe:\n%s", recipe.to_toml())
    return recipe


def recipe_keys() -> list[Key]:
    """All keys that a recipe may have, those of plug-ins included."""
    return keys_of(Recipe)


def _instead(path: Path) -> str:
    """What to give in place of a recipe that is not there: a file beside it, or a packaged one."""
    try:
        beside = {file.name: str(path.parent / file.name) for file in path.parent.glob("*.toml")}
    except OSError:
        beside = {}
    near = closest(path.name, beside) or closest(f"{path.name}.toml", beside)
    found = beside[near] if near else closest(str(path), packaged_recipes())
    hint = "" if found is None else f"did you mean {found}? "
    return f"{hint}`fedseed list recipes` shows those that come along, such as quickstart-ferret"


def stored_recipe(text: str) -> Recipe:
    """A recipe as another process of the same run has it, from its `to_toml`; its plug-ins are loaded first.

    They have been agreed to there. Raises RecipeError if one is not to be had any more.
    """
    data = tomllib.loads(text)
    for name in data.get("plugins", []):
        load_plugin(name)
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise RecipeError(f"a worker process does not understand the recipe: {explain(error, data, Recipe)}") from error
