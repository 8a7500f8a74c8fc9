"""A run's costs and result: the merging of lines of metrics, and a round's cost to a client.

Seconds in lines of metrics are sums over a round's clients; of those, local work and projection are
a client's own, so they are divided by the clients. The coordinator combines the answers once a
round. Rebuilding, the step's change of the weights, is done by every client for itself: a
simulation does it once for all of them, on a network each process does. "Local update" in Ferret's
Tables 4, 5 and 10 is local work and projection; "global aggregation" is the other two.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from fedseed.errors import FedseedError
from fedseed.methods import Method
from fedseed.methods.payload import NUMBERS, Content, sum_contents
from fedseed.reports.results import PHASES, RoundLine

PASSES = ("forward_passes", "backward_passes")
COLUMNS = ("bytes", *NUMBERS)


def count_exchanged(
    clients: int,
    updates: int,
    received: Sequence[Content],
    planned: Content,
    downloads: Sequence[Content],
) -> dict[str, float]:
    """Return the numbers that one client sends and receives in a round: means over those who take
    part.

    Args:
        clients: how many take part.
        updates: how many sent an update, also one within another's message, or one that was
            refused.
        received: the content of each message that counts.
        planned: the content of a plan.
        downloads: the content of the missed steps that each client downloaded.
    """
    upload, download = sum_contents(received), sum_contents(downloads)
    # updates that are not known are like the others
    sent_per_message, client_count = updates / max(1, len(received)), max(1, clients)
    numbers = {
        f"{name}_up": getattr(upload, name) * sent_per_message / client_count for name in NUMBERS
    }
    plan = clients / client_count
    return numbers | {
        f"{n}_down": getattr(download, n) / client_count + getattr(planned, n) * plan
        for n in NUMBERS
    }


def mean_exchanged(lines: Sequence[RoundLine]) -> dict[str, float]:
    """Return the mean over the rounds of some lines.

    Nothing if none is known, as in lines of an earlier fedseed.
    """
    counted_lines = [(line.exchanged, line.rounds) for line in lines if line.exchanged]
    rounds = sum(count for _, count in counted_lines)
    if not counted_lines:
        return {}
    names = counted_lines[0][0]
    means = {}
    for name in names:
        means[name] = sum(figures[name] * count for figures, count in counted_lines) / rounds
    return means


def mean_by_round(lines: Sequence[RoundLine], name: str) -> float:
    """Return the mean over the rounds of one of the numbers in lines of metrics; 0 without lines.

    Args:
        lines: of metrics, without round 0.
        name: the number, such as "bytes_up".
    """
    if not lines:
        return 0.0
    count = sum(line.rounds for line in lines)
    return sum(getattr(line, name) * line.rounds for line in lines) / count


def seconds_per_client(lines: Sequence[RoundLine]) -> dict[str, float]:
    """Return the mean seconds by phase of one client in a round in which it takes part.

    Args:
        lines: of metrics, without round 0.
    """
    rounds = sum(line.rounds for line in lines)
    taking_part = sum(line.taking_part for line in lines)
    means = {}
    for phase in PHASES:
        rebuild, is_client_work = phase == "rebuild", phase in ("local", "projection")
        spent = sum(
            line.seconds.get(phase, 0.0) / max(1, rebuild * (line.processes or 1)) for line in lines
        )
        means[phase] = spent / max(1, taking_part if is_client_work else rounds)
    return means


def merge_rounds(lines: Sequence[RoundLine]) -> RoundLine:
    """Make one line of metrics for several rounds: counts and seconds add up.

    Bytes, numbers and losses are means.
    """
    if len(lines) == 1:
        return lines[0]

    def together(key: str) -> Any:
        return sum(getattr(line, key) for line in lines)

    losses = [line.train_loss for line in lines if line.train_loss is not None]
    seconds: dict[str, float] = {}
    metrics: dict[str, Any] = {}
    skipped = []
    for line in lines:
        metrics |= line.metrics
        skipped += [{**one, "round": line.round} for one in line.skipped]
        for phase, spent in line.seconds.items():
            seconds[phase] = seconds.get(phase, 0.0) + spent
    return replace(
        lines[-1],
        rounds=len(lines),
        clients=sorted(set(chain.from_iterable(line.clients for line in lines))),
        attacked=sorted(set(chain.from_iterable(line.attacked for line in lines))),
        skipped=skipped,
        not_taken=list(chain.from_iterable(line.not_taken for line in lines)),
        exchanged=mean_exchanged(lines),
        train_loss=sum(losses) / len(losses) if losses else None,
        seconds=dict(sorted(seconds.items())),
        metrics=metrics,
        **{key: together(key) for key in ("taking_part", "refused", "skipped_steps", *PASSES)},
        **{key: together(key) / len(lines) for key in ("bytes_up", "bytes_down")},
    )


def by_client(lines: Sequence[RoundLine]) -> dict[str, Any]:
    """Return, of parties that each evaluate on what they hold out, their figures before and after
    the run, by name.

    One that was away at the last evaluation has the round of its last one ("round").
    """
    evaluated = [(line.round, line.by_client) for line in lines if line.by_client is not None]
    if not evaluated:
        return {}
    figures_by_client: dict[str, Any] = {}
    for number, figures in evaluated:
        for name, final in figures.items():
            figures_by_client[name] = {"baseline": evaluated[0][1].get(name), "final": final}
            # the client was away at the end: take its last result, and the round of it
            if number < evaluated[-1][0]:
                figures_by_client[name]["round"] = number
    return {"by_client": figures_by_client}


class Downloads:
    """Counts what is in the payloads of the steps that clients who take part in a round have
    missed, and download.

    Args:
        method: the method.
        clients: how many clients there are.
    """

    def __init__(self, method: Method, clients: int) -> None:
        self._method = method
        self._has = [0] * clients  # how many steps each client has received
        # contents of all steps up to and with each, a column for each of a content's numbers: there
        # may be millions
        self._totals = {name: array("q", [0]) for name in COLUMNS}
        self.changed = 0  # number of the newest step that is not empty

    def count_missed(self, client: int) -> Content:
        """Return the content of the steps that bring a client up to date, and count it as up to
        date.
        """
        received, newest = self._has[client], len(self._totals["bytes"]) - 1
        self._has[client] = newest
        steps = self._method.catch_up.steps_to_download(received, newest, self.changed)
        if not steps:
            return Content()
        first, newest = steps.start - 1, steps.stop - 1
        return Content(
            **{name: column[newest] - column[first] for name, column in self._totals.items()}
        )

    def add(self, step: Content) -> None:
        """Count a new step, which holds this."""
        for name, column in self._totals.items():
            column.append(column[-1] + getattr(step, name))
        if step.bytes:
            self.changed = len(self._totals["bytes"]) - 1

    def take_up(self, steps: Sequence[Content], participants: Sequence[Sequence[int]]) -> None:
        """Count the rounds of an earlier session.

        Args:
            steps: what each round's step held.
            participants: the clients that took part in each round.
        """
        for number, (step, members) in enumerate(zip(steps, participants, strict=True)):
            for client in members:
                self._has[client] = max(self._has[client], number)
            self.add(step)


@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    Args:
        summary: what summary.json holds.
        metrics: what metrics.jsonl holds, a line a round, round 0 first.
        folder: where the files are, None if the run wrote none.
        tuned: returns the tuned model where it is in memory; None: it is made of the files.
    """

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    folder: Path | None
    tuned: Callable[[], Any] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def model(self) -> Any:
        """Return the tuned model: the one that was trained, with its adapter.

        Or made of the run's files.

        Raises:
            FedseedError: no file of the run can be made a model of.
        """
        if self.tuned is not None:
            return self.tuned()
        if self.folder is None:
            raise FedseedError("the run wrote no files, and its model is not in this process")
        from fedseed.runs.tuned import find_source, open_tuned  # torch's side

        return open_tuned(find_source(str(self.folder))).model
