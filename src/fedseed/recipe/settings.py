"""The tables of a recipe, and checks that they fit together."""

from collections.abc import Iterator
from math import floor
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from fedseed import aggregation, methods, tasks, tracking
from fedseed.aggregation import AggregationRule, Mean
from fedseed.attacks.updates import AttackSettings, attack_problem
from fedseed.errors import RecipeError
from fedseed.federation.coordinator.bounds import Bounds
from fedseed.methods import Method, without_gradients
from fedseed.models.adapters import AnyAdapter
from fedseed.models.quantization import Quantization, is_adapter_folder, settings_problem
from fedseed.objectives.settings import EvaluationSettings
from fedseed.optimizers.schedule import lasting
from fedseed.privacy import PrivacySettings, find_misfit, mechanism_of, protect
from fedseed.privacy.secure.settings import SecureSums, secure_problem
from fedseed.randomness.stream import Seed
from fedseed.recipe.keys import ByName, plain_error
from fedseed.registry import INCIDENTAL
from fedseed.tasks import InstructionsTask, Task, metrics
from fedseed.tasks.rewards import RewardSettings
from fedseed.tracking import Tracker
from fedseed.transport.base import Access
from fedseed.transport.subjects import name_problem
from fedseed.weights.layout import DigestKind

Digest = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


class Table(BaseModel):
    """Base class of the tables: frozen, strictly typed, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ModelSettings(Table):
    """The base: "small", "words", "digits", a local folder or a hub name; its dtype.

    Which parameters train.

    Args:
        base: "small", "words" or "digits" (the project's own), a folder, or a name on the hub;
            `fedseed list models`.
        architecture: the kind of model that is loaded: "causal", "seq2seq", "masked",
            "classification" or "image"; by default chosen by the task and the base's configuration
            (docs/models.md).
        prefix: text before every prompt of an encoder-decoder, such as T5's "summarize: ".
        device: the device of the model: "auto" (a GPU if there is one, else the CPU), "cpu",
            "cuda", "cuda:1", ..., or "map" (layers over all GPUs, the rest on the CPU). Directions,
            steps and replays have the same bits on every device; losses and gradients differ
            between devices in their last bits.
        dtype: the dtype in which the base is loaded.
        quantization: how its linear layers are quantised when it is loaded: "int4" or "int8", on
            any machine; "nf4", "fp4" or "llm-int8", with bitsandbytes; "torchao-int8", with
            torchao. Then an adapter is tuned, or the scales (docs/models.md).
        trainable: name patterns of the parameters that are trained; with an adapter, of the
            adapter's or the base's. "head": the parameters outside of the model's backbone, such as
            a classifier's last layer. "scales": the scales of a base quantised as "int4" or "int8".
        adapter: train an adapter in place of the base (`fedseed.models.adapters`).
        activation_checkpointing: first-order training keeps only the inputs of the model's layers,
            and computes their other activations again in the backward pass: less memory, more time,
            the same gradients.
        attention: how transformers computes attention; by default transformers chooses. Losses
            differ in their last bits.
        trust_remote_code: run code that comes with the base.
        digest: how base and weights are hashed: "blake2b", with one thread, or "blake2b-tree", with
            as many threads as torch uses (`fedseed.weights.digest`). All sites need the same
            choice, as the orbit has these digests.
    """

    base: str = "small"
    architecture: Literal["causal", "masked", "seq2seq", "classification", "image"] | None = None
    prefix: str = ""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|map|cuda(:\d+)?)$"), INCIDENTAL] = "auto"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    quantization: Quantization | None = None
    trainable: list[str] | Literal["head", "scales"] | None = None
    adapter: AnyAdapter | None = None
    activation_checkpointing: Annotated[bool, INCIDENTAL] = False
    attention: (
        Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"] | None
    ) = None
    trust_remote_code: bool = False
    digest: DigestKind = "blake2b"


class FederationSettings(Table):
    """The number of clients in a round, and settings for a run over a network.

    Args:
        per_round: clients in a round.
        fraction: the same as a fraction of all clients, rounded down (one at least). All, if
            neither is given.
        clients: the names of the clients, each with data of its own (`Task.own_data`); the
            coordinator holds this list. Clients are numbered in this order.
        enrolment: "open": every client that joins before the start takes part; `start_with` sets
            the number of clients at which the run starts.
        joint: clients that measure the same directions (FeedSign) share forward passes if one
            process has them all. False: each client's losses are computed alone, so that the result
            does not depend on how clients are spread over processes (another batch size changes the
            last bits).
        answers: keep each client's answers in the run's folder, so that a party can check its own
            with `fedseed verify`. Everybody who gets the folder can then see each client's scalars.
        nats: the server's address, such as "tls://host:4222".
        key: file with the NKEY seed; "{name}" stands for the user of the key (the client, or
            "coordinator").
        ca: file with the certificates to trust; encryption is required then.
        run: the run's name on the server; the recipe's name by default.
        replicas: number of copies of the run's stream in a cluster of servers.
        deadline: seconds to wait for clients. Afterwards a round closes without the missing
            answers, a line of metrics is written without the missing reports, and another client is
            asked to evaluate.
        patience: seconds in total that the others wait for a client which takes more than three
            times as long as the slowest of them, if its answer is not needed; each answer in time
            adds to its seconds.
        minimum: number of answers that a round needs; with fewer it is repeated.
        start_with: number of clients that must have joined before the first round; by default all.
        dead_after: seconds of silence after which a client counts as dead.
        base_digest: digest that the clients' base must have; by default the digest that most
            clients have.
        weights_digest: for methods that send weights: digest that the trained tensors must have
            before the first round; by default the digest that most clients have.
    """

    per_round: PositiveInt | None = None
    fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    clients: list[str] | None = None
    enrolment: Literal["closed", "open"] = "closed"
    joint: bool = True
    answers: Annotated[bool, INCIDENTAL] = False
    nats: Annotated[str | None, INCIDENTAL] = None
    key: Annotated[str | None, INCIDENTAL] = None
    ca: Annotated[str | None, INCIDENTAL] = None
    run: Annotated[str | None, INCIDENTAL] = None
    replicas: Annotated[int, Field(ge=1, le=5), INCIDENTAL] = 1
    deadline: Annotated[PositiveFloat, INCIDENTAL] = 600.0
    patience: Annotated[PositiveFloat, INCIDENTAL] = 20.0
    minimum: Annotated[PositiveInt, INCIDENTAL] = 1
    start_with: Annotated[PositiveInt | None, INCIDENTAL] = None
    dead_after: Annotated[PositiveFloat, INCIDENTAL] = 6.0
    base_digest: Annotated[Digest | None, INCIDENTAL] = None
    weights_digest: Annotated[Digest | None, INCIDENTAL] = None

    @model_validator(mode="after")
    def _one_of_them(self) -> "FederationSettings":
        if self.per_round is not None and self.fraction is not None:
            raise ValueError("give per_round or fraction, not both")
        names, open_ = self.clients, self.enrolment == "open"
        if open_ and names is not None:
            raise plain_error(
                'federation.enrolment = "open": federation.clients already lists who takes part; '
                "leave one of them out"
            )
        if open_ and self.start_with is None:
            raise plain_error(
                'federation.enrolment = "open": federation.start_with is not set; set it to the '
                "number of clients that must join before the first round"
            )
        if names == []:
            raise plain_error("federation.clients = []: name at least one client")
        for name in names or []:
            problem = name_problem(name)
            if problem:
                raise plain_error(f"federation.clients: {name!r}: {problem}")
            if (names or []).count(name) > 1:
                raise plain_error(f"federation.clients: {name!r} is listed twice")
        if open_:
            client_count = self.start_with
        elif names is None:
            client_count = None
        else:
            client_count = len(names)
        if client_count is not None:
            problem = self._too_many(client_count)
            if problem:
                raise plain_error(problem)
        return self

    def access(
        self, name: str, nats: str | None = None, key: Path | None = None, ca: Path | None = None
    ) -> Access:
        """Return the settings for reaching the server; arguments override the recipe.

        Args:
            name: who: a client, or "coordinator".
            nats: the server's address.
            key: file with the NKEY seed.
            ca: file with the certificates to trust.

        Raises:
            RecipeError: no address of the server is given.
        """
        url = nats or self.nats
        if url is None:
            raise RecipeError(
                "the server's address is missing: give --nats URL, or federation.nats in the recipe"
            )
        if key is None and self.key is not None:
            key = Path(self.key.replace("{name}", name)).expanduser()
        if ca is None and self.ca is not None:
            ca = Path(self.ca).expanduser()
        return Access(url, key, ca)

    def check(self, clients: int) -> None:
        """Check that the recipe can run with this number of clients.

        Raises RecipeError, which names the key, if they can't.
        """
        problem = self._too_many(clients)
        if problem:
            raise RecipeError(problem)

    def _too_many(self, clients: int) -> str | None:
        count = "there is 1 client"
        if clients != 1:
            count = f"there are {clients} clients"
        available = count
        if self.enrolment == "open":
            available = f"the run may start with {clients} (federation.start_with)"
        per_round = self.count(clients)
        if (self.start_with or 0) > clients:
            return f"federation.start_with = {self.start_with}: {available}"
        if per_round > clients:
            return f"federation.per_round = {per_round}: {available}"
        if self.minimum > per_round:
            sampling = ""
            if per_round < clients:
                sampling = f", and a round asks {per_round} of them"
            return f"federation.minimum = {self.minimum}: {available}{sampling}"
        return None

    def count(self, clients: int) -> int:
        """Return the number of clients that take part in a round."""
        if self.per_round is not None:
            return self.per_round
        # rounded down, as the papers' code does: 5% of 738 are 36; the small addition is for 0.29 *
        # 100, which is below 29 in floating point
        if self.fraction is None:
            return clients
        return max(1, floor(self.fraction * clients + 1e-9))

    @property
    def names_parties(self) -> bool:
        """Return whether the recipe names the parties, or lets them enrol."""
        return self.clients is not None or self.enrolment == "open"


class StoppingSettings(Table):
    """Early stopping, by the loss on the task's validation examples, which every evaluation
    measures.

    Args:
        patience: the run ends after this number of evaluations in a row without a better validation
            loss. It counts evaluations, not rounds, as in FederatedScope: with evaluation.every =
            10 and a patience of 3, the run ends 30 rounds after the best.
    """

    patience: PositiveInt = 30


# a task without a name is the project's own
AnyTask = Annotated[Task, ByName(tasks.REGISTRY, Task, "instructions")]
AnyMethod = Annotated[Method, ByName(methods.REGISTRY, Method)]
AnyRule = Annotated[AggregationRule, ByName(aggregation.REGISTRY, AggregationRule, "mean")]
AnyTracker = Annotated[Tracker, ByName(tracking.REGISTRY, Tracker)]

# largest whole number, except for seeds: messages and orbits have 32 bits for rounds, counts and
# indices
LARGEST = 2**32 - 1


class Recipe(Table):
    """A whole run.

    Args:
        title: what the run is, for people.
        plugins: files (beside the recipe, if the path is relative) and modules with methods, tasks,
            ... of others. They are code, so whoever runs the recipe has to agree
            (`--trust-plugins`).
        seed: decides client sampling, data order and directions.
        rounds: how many rounds.
        model: the base.
        task: the data: one of the tasks.
        federation: who takes part in a round, and the network.
        method: one of the methods; the other keys are its settings.
        tune_rate: look for the method's learning rate by short runs before the first round
            (docs/choosing.md); so does learning_rate = "auto" in [method] or [method.training].
        aggregation: how the answers of a round are combined.
        bounds: how far a client's update, or a step, may differ from the others.
        privacy: differential privacy of what clients send; without this table only DP-FeedSign is
            private.
        secure_sums: the coordinator learns only the sum of a round's answers; without this table it
            reads each answer.
        attack: Byzantine clients.
        reward: what generated answers are rewarded for, in place of a loss.
        evaluation: when and how to evaluate.
        stopping: early stopping; without this table there is none.
        tracking: further places for metrics: one or more trackers.
    """

    title: str = ""
    plugins: Annotated[list[str], INCIDENTAL] = Field(default_factory=list)
    seed: Seed = 1
    rounds: PositiveInt
    model: ModelSettings = ModelSettings()
    task: AnyTask = InstructionsTask()
    federation: FederationSettings = FederationSettings()
    method: AnyMethod
    tune_rate: Annotated[bool, INCIDENTAL] = False
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
        """Check that the tables fit together, and pass other tables' settings on to the method."""
        if self.privacy is not None:
            self = self.model_copy(update={"method": self._protected(self.privacy)})
        for name in self.evaluation.metrics:
            if metrics.REGISTRY.find(name) is None:
                raise plain_error(
                    f"evaluation.metrics = {self.evaluation.metrics}: {name!r}: "
                    f"{metrics.REGISTRY.unknown(name)}"
                )
        problem = next(filter(None, self._problems()), None)
        if problem:
            raise plain_error(problem)
        if self.federation.names_parties and not self.task.own_data:
            key = "clients" if self.federation.clients is not None else "enrolment"
            raise plain_error(
                f'federation.{key}: task.name = "{self.task.name}" names its clients, and '
                'divides its data among them; leave the key out, or take task.name = "files", for '
                "which each "
                "client has data of its own"
            )
        for key, value in _whole_numbers(self.model_dump()):
            if value > LARGEST and key.rpartition(".")[2] != "seed":
                raise plain_error(f"{key} = {value}: at most {LARGEST:,}")
        if self.stopping is not None and not self.evaluates:
            whose = "what single clients hold out"
            if self.secure_sums is None:
                whose = self.method.name
            raise plain_error(
                f"stopping: {whose} is private, so nothing is evaluated; leave the table out, or "
                "disclose the validation loss with evaluation.disclose = true, which epsilon does "
                "not count"
            )
        try:
            method = lasting(self.method, self.rounds)
        except ValueError as error:
            raise plain_error(str(error)) from error
        if method is self.method:
            return self
        return self.model_copy(update={"method": method})

    def _problems(self) -> Iterator[str | None]:
        """Yield a description of each fault between tables; None if there is none."""
        method, rule, clients = self.method, self.aggregation, self.federation.clients
        per_round = self.federation.per_round
        yield settings_problem(
            self.model.quantization,
            self.model.trainable,
            (self.model.adapter or method.adapter) is not None
            or is_adapter_folder(self.model.base),
            self.model.device,
            method.name,
        )
        answers = per_round
        if per_round is None and clients is not None:
            answers = self.federation.count(len(clients))
        yield find_misfit(method, rule, answers)
        if self.attack is not None:
            yield attack_problem(method, self.attack.kind)
        if self.secure_sums is not None:
            yield secure_problem(self.secure_sums, method, rule, per_round)
            yield self.secure_sums.missing_key(clients or ())
        if self.reward is not None:
            yield self.reward.problem() or without_gradients(method)

    def _protected(self, privacy: PrivacySettings) -> Method:
        """Return the method with `[privacy]`. Raises PydanticCustomError."""
        if self.evaluation.disclose and self.of_parties and not self.task.shares_evaluation:
            raise plain_error(
                "evaluation.disclose = true with [privacy]: each client would disclose figures "
                "that it measures on its own held-out data; leave the key out"
            )
        if privacy.level == "example" and self.evaluation.truncate == "split":
            raise plain_error(
                'evaluation.truncate = "split" with privacy.level = "example": a text would become '
                'several examples, but epsilon counts one; take "left" or "right"'
            )
        try:
            return protect(self.method, privacy)
        except ValueError as error:
            raise plain_error(str(error)) from error

    @property
    def of_parties(self) -> bool:
        """Return whether each client has its own data, so that only the coordinator knows all
        parties.
        """
        return self.federation.names_parties or self.task.each_its_own

    @property
    def evaluates(self) -> bool:
        """Return whether anything is evaluated; in a private run, only the metrics that the recipe
        discloses.

        With secure sums, only examples that belong to no client may be used. Figures on the
        clients' held-out examples would show differences between clients.
        """
        held_out_by_clients = (
            self.secure_sums is not None and self.of_parties and not self.task.shares_evaluation
        )
        return (
            mechanism_of(self.method) is None and not held_out_by_clients
        ) or self.evaluation.disclose

    def to_toml(self) -> str:
        """Return the complete recipe, defaults included."""
        return tomli_w.dumps(self.model_dump(exclude_none=True, exclude={"method": {"private"}}))


def _whole_numbers(value: Any, key: str = "") -> Iterator[tuple[str, int]]:
    """Return the whole numbers of a table and of those in it, with their dotted keys."""
    if isinstance(value, int):
        yield key, value
    elif isinstance(value, dict | list | tuple):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _whole_numbers(part, f"{key}.{name}" if key else str(name))
