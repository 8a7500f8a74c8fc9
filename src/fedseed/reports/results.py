"""Read and write the results in a run's folder: lines of metrics and a summary."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isnan, nan
from pathlib import Path
from typing import Any
from zlib import crc32

from fedseed.errors import FedseedError
from fedseed.metrics import lower_is_better

# the phases of a round, from a client's data to new weights
PHASES = ("local", "projection", "aggregation", "rebuild")


@dataclass
class RoundLine:
    """The results of one round, or of several in a row.

    Round 0 is the base before any training: it has no costs.
    """

    round: int  # the round's number; for several rounds, that of the last one
    rounds: int = 1  # number of rounds in the line
    # the names of the clients that took part: those that were asked, with or without an update
    clients: list[str] = field(default_factory=list)
    taking_part: int = 0  # number of these clients, added up over the rounds
    # {"client", "reason"} of each client that was asked and gave no update
    skipped: list[dict[str, Any]] = field(default_factory=list)
    attacked: list[str] = field(default_factory=list)  # the names of clients that were made to lie
    refused: int = 0  # how many updates were refused
    # {"round", "reason"} of each step that was made but not applied
    not_taken: list[dict[str, Any]] = field(default_factory=list)
    bytes_up: float = 0.0  # mean payload that a participating client sends in a round
    bytes_down: float = 0.0  # mean payload that it receives
    # counts of numbers that it sends and receives, by kind
    exchanged: dict[str, float] = field(default_factory=dict)
    # the mean loss of clients' local training; None if it is not disclosed
    train_loss: float | None = None
    forward_passes: int = 0  # micro-batches of all clients
    backward_passes: int = 0  # the same
    skipped_steps: int = 0  # local steps that were skipped because their loss was not finite
    # number of clients that have rebuilt the weights, if it is not one
    processes: int | None = None
    # seconds by phase, added up over clients and rounds
    seconds: dict[str, float] = field(default_factory=dict)
    # digest of the weights after the round, in hex; None: they were not hashed
    weights_digest: str | None = None
    # the Euclidean norm of the weights after the round; None: it was not measured
    weights_norm: float | None = None
    # metrics by client, where clients evaluate
    by_client: Mapping[str, Mapping[str, float]] | None = None
    # all other metrics, by name: held-out loss, scores, epsilon
    metrics: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, table: Mapping[str, Any], file: str = "", number: int = 0) -> "RoundLine":
        """Read a line of metrics.jsonl.

        Args:
            table: the line.
            file: the name of its file; "": the file is not checked.
            number: the line's number there, from 1.

        Raises ValueError or TypeError if it is not valid, was altered, or belongs to another place.
        """
        if not isinstance(table, Mapping) or not isinstance(table.get("round"), int):
            raise ValueError("it has no round")
        if "sum" in table:
            _check_sum(table, file, number)
        fields_known = {name: value for name, value in table.items() if name in FIELDS}
        others = {name: value for name, value in table.items() if name not in FIELDS}
        metrics = {name: value for name, value in others.items() if isinstance(value, int | float)}
        return cls(**fields_known, metrics=metrics)

    def to_json(self) -> dict[str, Any]:
        """Return the line as a table for metrics.jsonl."""
        left_out = {name for name in SELDOM if not getattr(self, name)}
        names = FIELDS
        if self.round == 0:
            names = OF_THE_BASE
        return {name: getattr(self, name) for name in names if name not in left_out} | self.metrics

    def encode(self, file: str, number: int) -> bytes:
        """Return the line with a checksum over its place and all values but seconds, which detects
        lines that were altered or moved.

        Args:
            file: the name of the file that it is written to.
            number: the line's number there, from 1.
        """
        table = self.to_json()
        place = f"{file}:{number}:"
        return json.dumps({**table, "sum": place + _sum(table, place)}).encode() + b"\n"

    def get(self, name: str) -> float | None:
        """Return a number of the line by its name. None if the line does not have it."""
        value = getattr(self, name) if name in NUMBERS and self.round else self.metrics.get(name)
        if value is None:
            return None
        return float(value)

    def passes(self) -> float:
        """Return the forward passes; a backward pass counts as two."""
        return float(self.forward_passes + 2 * self.backward_passes)


FIELDS = tuple(part.name for part in fields(RoundLine) if part.name != "metrics")
OF_THE_BASE = ("round", "seconds", "weights_digest", "weights_norm", "by_client")
SELDOM = (
    "not_taken",
    "processes",
    "weights_norm",
    "by_client",
)  # written only if it is not empty
NUMBERS = (
    "train_loss",
    "bytes_up",
    "bytes_down",
    "taking_part",
    "refused",
    "forward_passes",
    "backward_passes",
)


def _check_sum(table: Mapping[str, Any], file: str, number: int) -> None:
    """Raise ValueError if a line's sum shows that it was altered, or written elsewhere."""
    written_sum = str(table["sum"])
    place, colon, _ = written_sum.rpartition(":")
    place += colon  # "": from an earlier fedseed, whose sums do not cover the place
    if written_sum != place + _sum(table, place):
        raise ValueError("it was altered: its checksum differs")
    if place and file and place != f"{file}:{number}:":
        file_name, line = place.split(":")[:2]
        raise ValueError(f"it was written as line {line} of {file_name}, but is in this place")


def _sum(table: Mapping[str, Any], place: str) -> str:
    text = json.dumps(
        {name: value for name, value in table.items() if name not in ("seconds", "sum")}
    )
    return f"{crc32((place + text).encode()):08x}"


def read_lines(folder: Path) -> list[RoundLine]:
    """Return the lines of a run's metrics.jsonl.

    Raises FedseedError for one that is damaged or was altered.
    """
    round_lines: list[RoundLine] = []
    with open(folder / "metrics.jsonl", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                round_lines.append(RoundLine.from_json(json.loads(line), "metrics.jsonl", number))
            except (ValueError, TypeError) as error:
                raise FedseedError(f"{lines.name}: line {number} is not valid: {error}") from error
    return round_lines


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl as tables.

    Raises FedseedError like `read_lines`.
    """
    return [line.to_json() for line in read_lines(folder)]


def read_summary(folder: Path) -> dict[str, Any]:
    """Return a finished run's summary.json."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary


def best_rounds(lines: Sequence[RoundLine]) -> dict[str, dict[str, Any]]:
    """Find the best round by each metric, the first one of equal rounds; the base is round 0.

    Args:
        lines: the lines, round 0 first; its metrics count, too.

    Returns:
        {"round": ..., "value": ...} by the metric's name.
    """
    best_by_metric = {}
    for name in lines[0].metrics if lines else ():
        sign = -1.0
        if lower_is_better(name):
            sign = 1.0
        measured = [line for line in lines if not isnan(line.metrics.get(name, nan))]
        if measured:
            # the first of equal ones
            best = min(measured, key=lambda line: sign * line.metrics[name])
            best_by_metric[name] = {"round": best.round, "value": best.metrics[name]}
    return best_by_metric
