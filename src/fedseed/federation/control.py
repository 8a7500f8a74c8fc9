"""Declares the JSON messages by which coordinator and clients describe themselves.

A sender may lie or be broken. `parse_control` returns a message within the bounds declared here, or
refuses it with a MessageError that names the field. So later code gets numbers that it can add up
over all processes and rounds and write down. docs/federation.md says how far values within bounds
are believed: they are shown, and digests are compared. No weight, step or privacy account depends
on them.
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

# values and keys of a message: enough for a hello of MOST_CLIENTS, or a report of their figures
MOST_PARTS = 250_000
MOST_TEXT = 1 << 20  # characters of a field that holds bytes
MOST_ROUND = 0xFFFFFFFF  # a round's number has 32 bits in every message
MOST_EXAMPLES = 10**9  # of a client
MOST_CLIENTS = 100_000  # of a run, and in a hello
MOST_METRICS = 100  # of a report, or of one client in it
MOST_LOSS = 1e39  # the mean of those that are reported; a float32 ends at 3.4e38
HELD_OUT = "held_out"
VALIDATION = "validation"
COUNTS = (HELD_OUT, VALIDATION)  # numbers of examples among a client's figures
# fields of a line of metrics; a metric keeps the name that a client gives it, so it may not take
# one of these
LINE_FIELDS = frozenset(
    (*FIELDS, "epsilon", "evaluated", "metrics", "privacy", "step_over_weights", "weights_moved")
)

M = TypeVar("M", bound="Control")


def _client(name: str) -> str:
    if not name.isprintable():
        raise ValueError("no name of a client")
    return name


def _metric(name: str) -> str:
    if name in LINE_FIELDS:
        raise ValueError("a field of the line itself, no metric")
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
    # not known where weights are NaN
    return ratio if isfinite(ratio) else None


def _plausible(spent: Cost) -> Cost:
    if not abs(spent.losses) <= MOST_LOSS * spent.counted:
        raise ValueError(f"{spent.losses:.3g} is no sum of {spent.counted:,} losses")
    if spent.moved_weights > spent.movable_weights:
        raise ValueError("more weights have moved than there are")
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
    """A message. Fields that are not declared, and texts in place of numbers, are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def encode(self) -> bytes:
        """Return the fields that were set, as JSON."""
        return json.dumps(self.model_dump(exclude_unset=True)).encode()


class Attach(Control):
    """A client names the process that hosts it, and its number of examples."""

    client: Name
    host: Name
    examples: Examples


class Hello(Control):
    """A process introduces itself."""

    host: Name  # the client that gives the process its name
    header: Encoded  # how its orbit begins
    names: Names  # all clients that it knows, or those that it speaks for
    names_matter: bool = True  # whether the run must have these clients
    at: RoundNumber  # the last step that it has applied
    bucket: bool = False  # whether it needs to store large messages
    # the digest of its weights before the first step
    begins: Annotated[str, Field(max_length=64)] | None = None
    # those weights, or a reference to them, if the coordinator has asked for them
    weights: Encoded | None = None
    # the tokens that it makes of texts (`fedseed.federation.fingerprint`)
    fingerprint: Texts | None = None


class Beat(Control):
    """A process is alive, at this step of this log."""

    at: RoundNumber
    epoch: Annotated[str, Field(max_length=200)]
    done: bool = False


class Report(Beat):
    """A process reports on the weights after a round."""

    round: RoundNumber
    digest: Digest  # of the weights, in hex; zeros: not hashed
    spent: Spent  # the cost of its work since its last report
    # the length of the newest step over that of the weights; None: not known
    ratio: Ratio | None = None
    metrics: Metrics | None = None  # by name; None: it has not evaluated
    # metrics on each client's own held-out data; None: not asked for
    by_client: dict[Name, Figures] | None = None
    seconds: Seconds = 0.0  # that the evaluation took


class CoordinatorMessage(Control):
    """A message of the coordinator. Unknown fields, of a newer version, are ignored."""

    model_config = ConfigDict(extra="ignore")


class Welcome(CoordinatorMessage):
    """The answer to a hello."""

    refused: str | None = None  # why the process can't take part; no other field is set then
    epoch: str = ""  # the log's incarnation; "": there is none yet
    beat: float = 2.0  # seconds between signs of life
    waits: str | None = None  # what the start waits for
    clients: int | None = None  # how many the run has
    bring: str | None = None  # "weights", if the coordinator needs those of the base


class Question(CoordinatorMessage):
    """Asks for a report on the weights after a round."""

    round: RoundNumber
    # the host that evaluates, too; True: every host, on its clients' held-out data
    evaluate: str | bool | None = None
    digest: bool = True  # whether hosts hash their weights


class Beginning(CoordinatorMessage):
    """The beginning of a log: all but the orbit's header."""

    epoch: str  # the log's incarnation
    names: list[str]  # the clients, in the order of their numbers
    rounds: int | None = None
    # the tokens that most clients make of texts (`fedseed.federation.fingerprint`)
    fingerprint: dict[str, str] | None = None


class Status(CoordinatorMessage):
    """The state of a run; fields that are not declared here are for people to read."""

    model_config = ConfigDict(extra="allow")

    run: str = ""
    began: float = 0.0
    round: int | None = None


def parse_control(kind: type[M], data: bytes) -> M:
    """Parse and check a message.

    Raises MessageError: the message is not valid, or has so many parts that to parse it would take
    far more memory than the message itself.
    """
    parts = 1 + sum(map(data.count, (b",", b"[", b"{", b":")))
    if parts > MOST_PARTS:
        raise MessageError(
            f"not valid JSON: about {parts:,} values, at most {MOST_PARTS:,} are read"
        )
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise MessageError(first_problem(error)) from None


def average_metrics(by_client: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of clients' metrics, weighted by their numbers of examples.

    A client without examples is left out. A client's figures are its metrics by
    name, and its numbers of examples: "held_out", and "validation" for metrics that begin with
    "validation_". They are added up in the mapping's order.
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
