"""The JSON messages with which coordinator and clients describe themselves.

A sender may lie or be broken. `parse_control` returns a message only if its values are within the
bounds declared here. Otherwise it raises a MessageError that names the field. So later code can
safely add up the numbers over all processes and rounds, and write them down. docs/federation.md
explains how far values within bounds are trusted: they are shown, and digests are compared. No
weight, step or privacy account depends on them.
"""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Annotated, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    PlainSerializer,
    ValidationError,
)

from fedseed.errors import MessageError
from fedseed.federation.cost import Cost, Seconds, check_name
from fedseed.orbit.record import DIGEST_BYTES
from fedseed.reports.results import FIELDS
from fedseed.text import first_problem

# the most values and keys of a message: enough for a hello of MOST_CLIENTS, or for a report of
# their figures
MOST_PARTS = 250_000
MOST_TEXT = 1 << 20  # the most characters of a field that holds bytes
MOST_ROUND = 0xFFFFFFFF  # a round's number has 32 bits in every message
MOST_EXAMPLES = 10**9  # the most examples of a client
MOST_CLIENTS = 100_000  # the most clients of a run, and in a hello
MOST_METRICS = 100  # the most metrics of a report, or of one client in it
MOST_LOSS = 1e39  # the largest mean loss in a report; the largest float32 is 3.4e38
HELD_OUT = "held_out"
VALIDATION = "validation"
COUNTS = (HELD_OUT, VALIDATION)  # the numbers of examples among a client's figures
# fields of a line of metrics. Metrics keep the names that clients give them, so these names are
# reserved
LINE_FIELDS = frozenset(
    (*FIELDS, "epsilon", "evaluated", "metrics", "privacy", "step_over_weights", "weights_moved")
)

M = TypeVar("M", bound="Control")


def _client(name: str) -> str:
    if not name.isprintable():
        raise ValueError("not a valid client name")
    return name


def _metric(name: str) -> str:
    if name in LINE_FIELDS:
        raise ValueError("a reserved name, which a metric can't have")
    return check_name(name)


def _figures(figures: dict[str, float]) -> dict[str, float]:
    if HELD_OUT not in figures:
        raise ValueError("figures without a number of examples")
    for name in COUNTS:
        count = figures.get(name, 0.0)
        if not 0 <= count <= MOST_EXAMPLES or count != int(count):
            raise ValueError(f"{count:.3g} examples")
    return {name: int(value) if name in COUNTS else value for name, value in figures.items()}


def _ratio(ratio: float) -> float | None:
    if ratio < 0:
        raise ValueError(f"{ratio:.3g} is below 0")
    # None where the norm is not known, because weights are NaN
    return ratio if isfinite(ratio) else None


def _plausible(spent: Cost) -> Cost:
    if not abs(spent.losses) <= MOST_LOSS * spent.counted:
        raise ValueError(f"{spent.losses:.3g} can't be the sum of {spent.counted:,} losses")
    if spent.moved_weights > spent.movable_weights:
        raise ValueError("more weights moved than exist")
    return spent


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_client)]
RoundNumber = Annotated[int, Field(ge=0, le=MOST_ROUND)]
Examples = Annotated[int, Field(ge=0, le=MOST_EXAMPLES)]
Names = Annotated[list[Name], Field(max_length=MOST_CLIENTS), FailFast()]
Digest = Annotated[str, Field(pattern=f"^[0-9a-f]{{{2 * DIGEST_BYTES}}}$")]
Encoded = Annotated[str, Field(max_length=MOST_TEXT)]  # bytes in base64
Metrics = Annotated[
    dict[Annotated[str, AfterValidator(_metric)], float], Field(max_length=MOST_METRICS)
]
Figures = Annotated[Metrics, AfterValidator(_figures)]
Ratio = Annotated[float, AfterValidator(_ratio)]
Texts = Annotated[
    dict[Annotated[str, Field(max_length=40)], Annotated[str, Field(max_length=100)]],
    Field(max_length=10),
]
Spent = Annotated[Cost, AfterValidator(_plausible), PlainSerializer(Cost.to_json)]


class Control(BaseModel):
    """A message. Undeclared fields are refused, and so are texts in place of numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def encode(self) -> bytes:
        """Return the fields that were set, as JSON."""
        return json.dumps(self.model_dump(exclude_unset=True)).encode()


class Attach(Control):
    """Names the process that hosts a client, and the client's number of examples."""

    client: Name
    host: Name
    examples: Examples


class Hello(Control):
    """Introduces a process to the coordinator."""

    host: Name  # the client after which the process is named
    header: Encoded  # the beginning of its orbit
    names: Names  # all clients that the process knows, or only those that it speaks for
    names_matter: bool = True  # whether the run must have exactly these clients
    at: RoundNumber  # the last applied step
    bucket: bool = False  # whether the process needs to store large messages
    # digest of the process's weights before the first step
    begins: Annotated[str, Field(max_length=64)] | None = None
    # the weights before the first step, or a reference to them, if the coordinator has asked for
    # them
    weights: Encoded | None = None
    # fingerprint of its tokenizer (`fedseed.federation.fingerprint`)
    fingerprint: Texts | None = None


class Beat(Control):
    """Shows that a process is alive, and at which step of which log."""

    at: RoundNumber
    epoch: Annotated[str, Field(max_length=200)]
    done: bool = False


class Report(Beat):
    """Reports on a process's weights after a round."""

    round: RoundNumber
    digest: Digest  # digest of the weights, in hex; zeros: not hashed
    spent: Spent  # the cost of the work since the last report
    # the norm of the newest step, divided by that of the weights; None: not known
    ratio: Ratio | None = None
    metrics: Metrics | None = None  # metrics by name; None: the process did not evaluate
    # metrics on each client's own held-out data; None: not asked for
    by_client: dict[Name, Figures] | None = None
    seconds: Seconds = 0.0  # seconds of the evaluation


class CoordinatorMessage(Control):
    """A message of the coordinator. Unknown fields are ignored, because a newer version may have
    added them.
    """

    model_config = ConfigDict(extra="ignore")


class Welcome(CoordinatorMessage):
    """The answer to a hello."""

    refused: str | None = None  # why the process can't take part; then no other field is set
    epoch: str = ""  # the log's incarnation; "": there is none yet
    beat: float = 2.0  # seconds between beats
    waits: str | None = None  # what the start waits for
    clients: int | None = None  # number of the run's clients
    bring: str | None = None  # "weights", if the coordinator needs the base's weights


class Question(CoordinatorMessage):
    """Asks for a report on the weights after a round."""

    round: RoundNumber
    # the host that also evaluates; True: every host evaluates, on its clients' held-out data
    evaluate: str | bool | None = None
    digest: bool = True  # whether hosts hash their weights


class Beginning(CoordinatorMessage):
    """The beginning of a log, except the orbit's header."""

    epoch: str  # the log's incarnation
    names: list[str]  # the clients, in the order of their numbers
    rounds: int | None = None
    # fingerprint of most clients' tokenizers (`fedseed.federation.fingerprint`)
    fingerprint: dict[str, str] | None = None


class Status(CoordinatorMessage):
    """The state of a run. Fields that are not declared here are only for display."""

    model_config = ConfigDict(extra="allow")

    run: str = ""
    began: float = 0.0
    round: int | None = None


def parse_control(kind: type[M], data: bytes) -> M:
    """Parse and check a message.

    Raises MessageError if the message is invalid, or if it has so many parts that parsing would
    take far more memory than the message itself.
    """
    parts = 1 + sum(map(data.count, (b",", b"[", b"{", b":")))
    if parts > MOST_PARTS:
        raise MessageError(
            f"not valid JSON: about {parts:,} values, but at most {MOST_PARTS:,} are read"
        )
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise MessageError(first_problem(error)) from None


def average_metrics(by_client: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of clients' metrics, weighted by their numbers of examples.

    A client without examples is left out. A client's figures are its metrics by name and its
    numbers of examples: "held_out" weights most metrics, and "validation" those that begin with
    "validation_". Figures are added up in the mapping's order.
    """
    sums: dict[str, float] = {}
    weights: dict[str, float] = {}
    for figures in by_client.values():
        for name, value in figures.items():
            is_validation = name.startswith(f"{VALIDATION}_")
            weight = figures.get(VALIDATION if is_validation else HELD_OUT, 0)
            if name not in COUNTS and weight:
                sums[name] = sums.get(name, 0.0) + weight * value
                weights[name] = weights.get(name, 0.0) + weight
    return {name: total / weights[name] for name, total in sums.items()}
