"""Tables of a recipe that are of no other room: the model, the federation, early stopping."""

from math import floor
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from fedseed.models.adapters import AnyAdapter
from fedseed.registry import INCIDENTAL
from fedseed.runs.keys import told
from fedseed.transport.subjects import name_problem
from fedseed.weights.layout import DigestKind

Digest = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


class Table(BaseModel):
    """Base of the tables: frozen, of the types that are said, of known keys only."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ModelSettings(Table):
    """The base: "small", "words", "digits", a local folder or a hub name; its dtype; which parameters train.

    Args:
        base: "small", "words" or "digits" (the project's own), a folder, or a name on the hub; `fedseed list models`.
        architecture: what it is taken for: "causal", "seq2seq", "masked", "classification" or "image"; by default what
            the task and the base's configuration say (docs/models.md).
        prefix: stands before every prompt that an encoder-decoder reads, such as T5's "summarize: ".
        device: where it lies: "auto" (a GPU if there is one, else the CPU), "cpu", "cuda", "cuda:1", ..., or "map"
            (layers over all GPUs, the rest on the CPU). Directions, steps and replays have the same bits on every
            device; losses and gradients are the device's own, and differ in the last ones.
        dtype: what the base is loaded in.
        quantization: "4bit" or "8bit": the base's linear layers are quantised, and stay as they are; an adapter is
            tuned. Needs the extra "quantized" (`fedseed.models.quantized`).
        trainable: name patterns of the parameters that train; with an adapter, of its own or the base's. "head": what
            stands outside of the model's backbone, such as a classifier's last layer.
        adapter: train an adapter in place of the base (`fedseed.models.adapters`).
        offload_base: methods that need a second copy of the base (FedKSeed, small_steps = "from-base") keep it out of
            the way: in a temporary file (where TMPDIR says), beside a GPU in the host's memory. "auto": where that
            costs next to nothing, which is for large models with temporary files on a disk.
        activation_checkpointing: first-order training keeps the inputs of the model's layers alone and makes the rest
            of their activations anew in the backward pass: less memory, more time, the same gradients.
        attention: how transformers computes attention; by default what it chooses. Losses differ in their last bits.
        trust_remote_code: run code that comes with the base.
        digest: how base and weights are hashed: "blake2b", by one thread, or "blake2b-tree", by as many as torch has
            (`fedseed.weights.digest`); the same choice everywhere, for the orbit holds these digests.
    """

    base: str = "small"
    architecture: Literal["causal", "masked", "seq2seq", "classification", "image"] | None = None
    prefix: str = ""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|map|cuda(:\d+)?)$"), INCIDENTAL] = "auto"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    quantization: Literal["4bit", "8bit"] | None = None
    trainable: list[str] | Literal["head"] | None = None
    adapter: AnyAdapter | None = None
    offload_base: Annotated[bool | Literal["auto"], INCIDENTAL] = "auto"
    activation_checkpointing: Annotated[bool, INCIDENTAL] = False
    attention: Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"] | None = None
    trust_remote_code: bool = False
    digest: DigestKind = "blake2b"


class FederationSettings(Table):
    """How many clients take part in a round, and what a run over a network needs to know besides.

    Args:
        per_round: clients in a round.
        fraction: the same as a fraction of all clients, rounded down (one at least). All, if neither is given.
        clients: the names of those who take part, each with data of its own (`Task.own_data`); the coordinator holds
            this list. Their order is that of their numbers.
        enrolment: "open": whoever comes before the start takes part; `start_with` says when that is.
        joint: clients that look along common directions (FeedSign) share forward passes where one process has them
            all. False: each client's losses are computed alone, so that the result does not depend (by the float noise
            of another batch size) on how clients are spread over processes.
        nats: the server's address, such as "tls://host:4222".
        key: file with the NKEY seed; "{name}" stands for who uses it (the client, or "coordinator").
        ca: file with the certificates to trust; encryption is compulsory then.
        run: the run's name on the server; the recipe's name by default.
        replicas: of the run's stream, in a cluster of servers.
        deadline: seconds after which a round does without those that have not answered, a line of metrics without those
            that have not reported, and another client is asked to evaluate.
        minimum: answers that a round needs; with fewer it is begun again.
        start_with: clients that must be there before the first round; all by default.
        dead_after: seconds of silence after which a client is taken for dead.
        base_digest: digest that the clients' base must have; by default that of most clients.
        weights_digest: of methods that send weights: digest that the trained tensors must begin with; by default that
            of most clients.
    """

    per_round: PositiveInt | None = None
    fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    clients: list[str] | None = None
    enrolment: Literal["closed", "open"] = "closed"
    joint: bool = True
    nats: Annotated[str | None, INCIDENTAL] = None
    key: Annotated[str | None, INCIDENTAL] = None
    ca: Annotated[str | None, INCIDENTAL] = None
    run: Annotated[str | None, INCIDENTAL] = None
    replicas: Annotated[int, Field(ge=1, le=5), INCIDENTAL] = 1
    deadline: Annotated[PositiveFloat, INCIDENTAL] = 600.0
    minimum: Annotated[PositiveInt, INCIDENTAL] = 1
    start_with: Annotated[PositiveInt | None, INCIDENTAL] = None
    dead_after: Annotated[PositiveFloat, INCIDENTAL] = 6.0
    base_digest: Annotated[Digest | None, INCIDENTAL] = None
    weights_digest: Annotated[Digest | None, INCIDENTAL] = None

    @model_validator(mode="after")
    def _one_of_them(self) -> "FederationSettings":
        if self.per_round is not None and self.fraction is not None:
            raise ValueError("give per_round or fraction, not both")
        if problem := self._roster_problem():
            raise told(problem)
        return self

    def _roster_problem(self) -> str | None:
        """What is wrong with the list of clients, or with what is asked of it; names the key."""
        names, open_ = self.clients, self.enrolment == "open"
        if open_ and names is not None:
            return (
                'federation.enrolment = "open": federation.clients says who takes part already; leave one of them out'
            )
        if open_ and self.start_with is None:
            return (
                'federation.enrolment = "open": federation.start_with is not set; say how many clients must have come '
                "before the first round"
            )
        if names is not None and not names:
            return "federation.clients = []: name one client at least"
        for name in names or ():
            if problem := name_problem(name):
                return f"federation.clients: {name!r}: {problem}"
            if names is not None and names.count(name) > 1:
                return f"federation.clients: {name!r} stands there twice"
        known = self.start_with if open_ else None if names is None else len(names)
        return None if known is None else self.too_many(known)

    def too_many(self, clients: int) -> str | None:
        """What of the settings can't be with so many clients; names the key."""
        count = "there is 1 client" if clients == 1 else f"there are {clients} clients"
        there = f"the run may start with {clients} (federation.start_with)" if self.enrolment == "open" else count
        per_round = self.count(clients)
        if (self.start_with or 0) > clients:
            return f"federation.start_with = {self.start_with}: {there}"
        if per_round > clients:
            return f"federation.per_round = {per_round}: {there}"
        if self.minimum > per_round:
            asked = f", and a round asks {per_round} of them" if per_round < clients else ""
            return f"federation.minimum = {self.minimum}: {there}{asked}"
        return None

    def count(self, clients: int) -> int:
        """Clients in a round."""
        if self.per_round is not None:
            return self.per_round
        # rounded down, as the papers' code does: 5% of 738 are 36; the little bit is for 0.29 * 100, which is below 29
        return clients if self.fraction is None else max(1, floor(self.fraction * clients + 1e-9))

    @property
    def names_parties(self) -> bool:
        """Whether it says who takes part, or lets them enrol."""
        return self.clients is not None or self.enrolment == "open"


class StoppingSettings(Table):
    """Early stopping, by the loss on the task's validation examples, which every evaluation measures.

    Args:
        patience: the run ends when so many evaluations in a row have brought no better validation loss: evaluations,
            not rounds, as in FederatedScope. With evaluation.every = 10 and a patience of 3, 30 rounds after the best.
    """

    patience: PositiveInt = 30
