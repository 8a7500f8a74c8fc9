"""What a client's process reports about its weights and its work, and the bounds of each of its fields.

A report comes from somebody who may lie or be broken. It becomes a `Report` here, or is refused here; whoever reads
one later finds numbers that can be added up over all processes and rounds and be written down. What is in bounds is
believed as far as docs/federation.md says: it is shown, and the digest is compared with the others'. No weight, step
or privacy account depends on it.

A metric keeps the name that the client gives it, in a line of metrics.jsonl and in the summary. The names of a line's
own fields are no metrics' names: a client can't say which round it is, or what it has cost in bytes.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any

from fedseed.errors import MessageError
from fedseed.federation.cost import Cost
from fedseed.orbit.record import DIGEST_BYTES
from fedseed.reports.results import FIELDS, PHASES
from fedseed.text import shown

MOST_COUNT = 10**15  # passes, steps, weights, losses in one report
MOST_ROUND = 0xFFFFFFFF  # a round's number has 32 bits in every message
MOST_EXAMPLES = 10**9  # of a client
MOST_SECONDS = 1e9  # of a phase: thirty years
MOST_LOSS = 1e39  # the mean of those that are reported; a float32 ends at 3.4e38
MOST_METRICS = 100  # of a report, or of one client in it
MOST_PHASES = 32
MOST_NAME = 100  # characters that a metric's name may have, or a phase's; plug-ins choose them
# of a line of metrics, whoever writes it: what a client measures has another name
LINE_FIELDS = frozenset((*FIELDS, "epsilon", "evaluated", "metrics", "privacy", "step_over_weights", "weights_moved"))
OWN_PHASES = frozenset(("aggregation", "evaluation", "total"))  # which the coordinator measures itself
_KNOWN = frozenset(("at", "by_client", "digest", "epoch", "metrics", "ratio", "round", "seconds", "spent"))


@dataclass(frozen=True)
class Report:
    """What a process says about the weights after a round.

    Args:
        round: which round.
        digest: of the weights, in hex; zeros: they were not hashed.
        spent: what its work since its last report has cost.
        ratio: the length of the newest step over that of the weights, from 0; None: not known.
        metrics: what it has measured, by name; None: it has not evaluated.
        by_client: what each of its clients has measured on what it holds out; None: it has not been asked.
        seconds: that the evaluation took.
    """

    round: int
    digest: str
    spent: Cost = field(default_factory=Cost)
    ratio: float | None = None
    metrics: Mapping[str, float] | None = None
    by_client: Mapping[str, Mapping[str, float]] | None = None
    seconds: float = 0.0


def read_report(
    about: Mapping[str, Any], read_by_client: Callable[[Mapping[str, Any]], Mapping[str, Mapping[str, float]]]
) -> Report:
    """A report as it came.

    Args:
        about: decoded JSON.
        read_by_client: reads the figures by client.

    Raises:
        MessageError: not within its bounds; the text names the field.
    """
    if unknown := sorted(about.keys() - _KNOWN):
        raise MessageError(f"a report with a field '{shown(unknown[0], 40)}'")
    metrics, by_client = about.get("metrics"), about.get("by_client")
    if by_client is not None and not isinstance(by_client, dict):
        raise MessageError("by_client is no table")
    return Report(
        whole(about.get("round"), "round", MOST_ROUND),
        _digest(about.get("digest")),
        read_cost(about.get("spent")),
        _ratio(about.get("ratio")),
        None if metrics is None else read_metrics(metrics),
        None if by_client is None else read_by_client(by_client),
        read_seconds(about.get("seconds") or 0.0, "seconds"),
    )


def whole(value: Any, name: str, most: int) -> int:
    """A whole number from 0 to `most`. Raises MessageError, which names the field and does not write a long one out."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise MessageError(f"{name} is no whole number")
    if not 0 <= value <= most:
        raise MessageError(f"{name}: {short(value)} is not from 0 to {most:,}")
    return value


def real(value: Any, name: str) -> float:
    """A number, also one that is infinite or NaN: a run that diverges measures those. Raises MessageError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MessageError(f"{name} is no number")
    if isinstance(value, int) and value.bit_length() > 1000:
        raise MessageError(f"{name}: {short(value)} is more than a float can hold")
    return float(value)


def read_metrics(data: Any) -> dict[str, float]:
    """Metrics by name. Raises MessageError."""
    if not isinstance(data, dict) or len(data) > MOST_METRICS:
        raise MessageError(f"metrics that are no table of at most {MOST_METRICS} numbers")
    return {metric_name(name): real(value, f"metrics: {name}") for name, value in data.items()}


def metric_name(name: Any) -> str:
    """A name that a metric may have. Raises MessageError."""
    if not isinstance(name, str) or not _is_name(name):
        raise MessageError(f"metrics: '{shown(name, 40)}' is no name of a metric")
    if name in LINE_FIELDS:
        raise MessageError(f"metrics: {name} is a field of the line itself, no metric")
    return name


def _is_name(name: str) -> bool:
    return 0 < len(name) <= MOST_NAME and name.isprintable()


def read_cost(data: Any) -> Cost:
    """What work has cost, as `Cost.to_json` has it. Raises MessageError."""
    if not isinstance(data, dict):
        raise MessageError("spent is no table")
    counts = [part.name for part in fields(Cost) if part.name not in ("seconds", "losses")]
    if unknown := sorted(data.keys() - {"seconds", "losses", *counts}):
        raise MessageError(f"spent: a field '{shown(unknown[0], 40)}'")
    found = {name: whole(data.get(name, 0), f"spent: {name}", MOST_COUNT) for name in counts}
    losses = real(data.get("losses", 0.0), "spent: losses")
    if not abs(losses) <= MOST_LOSS * found["counted"]:
        raise MessageError(f"spent: losses: {losses:.3g} is no sum of {found['counted']:,} losses")
    if found["moved_weights"] > found["movable_weights"]:
        raise MessageError("spent: more weights have moved than there are")
    return Cost(_phases(data.get("seconds", {})), losses=losses, **found)


def _phases(data: Any) -> dict[str, float]:
    if not isinstance(data, dict) or len(data) > MOST_PHASES:
        raise MessageError(f"spent: seconds that are no table of at most {MOST_PHASES} phases")
    for name in data:
        if not _is_name(name) or name in OWN_PHASES:
            raise MessageError(f"spent: seconds: '{shown(name, 40)}' is no phase of a client's work")
    return {name: read_seconds(value, f"spent: seconds: {name}") for name, value in data.items()}


def read_seconds(value: Any, name: str) -> float:
    """How long something took. Raises MessageError."""
    seconds = real(value, name)
    if not -1.0 <= seconds <= MOST_SECONDS:  # a clock may have been off by a little between two readings
        raise MessageError(f"{name}: {seconds:.3g} seconds")
    return seconds


def _digest(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(f"[0-9a-f]{{{2 * DIGEST_BYTES}}}", value):
        raise MessageError(f"digest is not {2 * DIGEST_BYTES} hexadecimal digits")
    return value


def _ratio(value: Any) -> float | None:
    ratio = None if value is None else real(value, "ratio")
    if ratio is not None and ratio < 0:
        raise MessageError(f"ratio: {ratio:.3g} is below 0")
    return ratio if ratio is not None and isfinite(ratio) else None  # of weights that are NaN it is not known


def short(value: int) -> str:
    """A whole number for an error; one of many digits by its length."""
    digits = int(value.bit_length() * 0.30103) + 1
    return str(value) if digits <= 20 else f"a number of about {digits:,} digits"


class Phases:
    """The phases that clients have named, so few that a summary can list them.

    Args:
        most: how many besides the usual ones.
    """

    def __init__(self, most: int = MOST_PHASES) -> None:
        self._most = most
        self._named: set[str] = set()

    def check(self, names: Collection[str]) -> None:
        """Remember names. Raises MessageError: there are too many by now."""
        new = set(names) - set(PHASES) - self._named
        if len(self._named) + len(new) > self._most:
            raise MessageError(f"spent: seconds: more than {self._most} phases in all")
        self._named |= new
