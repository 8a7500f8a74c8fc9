"""A run's result and costs: merges lines of metrics, and works out what a round costs a client.

The seconds in a line of metrics are sums over a round's clients. Each client does its own local
work and projection, so a client's share is their sum divided by the number of clients. The
coordinator combines the answers once a round. Rebuilding, which applies the step to the weights,
happens once a round for all clients in a simulation, and once in each process on a network. In
Ferret's Tables 4, 5 and 10, "local update" is local work plus projection, and "global aggregation"
is combining plus rebuilding.
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
    """Return how many numbers one client sends and receives in a round, as means over the round's
    clients.

    Args:
        clients: how many clients take part.
        updates: how many clients sent an update. Includes updates that were part of another
            client's message, and refused ones.
        received: the content of each message that counts.
        planned: the content of a plan.
        downloads: the content of the missed steps that each client downloaded.
    """
    upload, download = sum_contents(received), sum_contents(downloads)
    # the content of updates outside `received` is not known: assume that it is like the others'
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
    """Return the mean of what clients exchange over the rounds of these lines.

    Empty if no line has these figures, as in files of an earlier fedseed.
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
    """Return the mean of a figure over the rounds of these lines; 0 without lines.

    Args:
        lines: lines of metrics, without round 0.
        name: the figure's name, such as "bytes_up".
    """
    if not lines:
        return 0.0
    count = sum(line.rounds for line in lines)
    return sum(getattr(line, name) * line.rounds for line in lines) / count


def seconds_per_client(lines: Sequence[RoundLine]) -> dict[str, float]:
    """Return by phase the mean seconds of one client, in a round in which it takes part.

    Args:
        lines: lines of metrics, without round 0.
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
    """Merge the lines of several rounds into one. Counts and seconds are added up.

    Bytes, counts of exchanged numbers, and losses become means.
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
    """Return each client's figures before and after the run, by name, for clients that evaluate
    their own held-out examples.

    A client that was away at the last evaluation has the figures of the last one it took part in,
    and that round ("round").
    """
    evaluated = [(line.round, line.by_client) for line in lines if line.by_client is not None]
    if not evaluated:
        return {}
    figures_by_client: dict[str, Any] = {}
    for number, figures in evaluated:
        for name, final in figures.items():
            figures_by_client[name] = {"baseline": evaluated[0][1].get(name), "final": final}
            # the client was away at the end: the file shows the round of its last result
            if number < evaluated[-1][0]:
                figures_by_client[name]["round"] = number
    return {"by_client": figures_by_client}


class Downloads:
    """Counts the content of the steps that a round's clients have missed and now download.

    Args:
        method: the method.
        clients: how many clients there are.
    """

    def __init__(self, method: Method, clients: int) -> None:
        self._method = method
        self._has = [0] * clients  # how many steps each client has received
        # cumulative contents of all steps, one column for each kind of number; an array, because
        # there may be millions of steps
        self._totals = {name: array("q", [0]) for name in COLUMNS}
        self.changed = 0  # number of the newest step that is not empty

    def count_missed(self, client: int) -> Content:
        """Return the content of the steps that bring a client up to date, and mark the client as up
        to date.
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
        """Count a new step with this content."""
        for name, column in self._totals.items():
            column.append(column[-1] + getattr(step, name))
        if step.bytes:
            self.changed = len(self._totals["bytes"]) - 1

    def take_up(self, steps: Sequence[Content], participants: Sequence[Sequence[int]]) -> None:
        """Count the rounds of earlier sessions.

        Args:
            steps: the content of each round's step.
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
        summary: the content of summary.json.
        metrics: the lines of metrics.jsonl, one for each round, round 0 first.
        folder: where the files are; None if the run wrote none.
        tuned: returns the tuned model from memory; None: the model is loaded from the files.
    """

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    folder: Path | None
    tuned: Callable[[], Any] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def model(self) -> Any:
        """Return the tuned model, with its adapter if there is one.

        It is the model that was trained if it is still in memory; otherwise it is loaded from the
        run's files.

        Raises:
            FedseedError: the run has no files to load a model from.
        """
        if self.tuned is not None:
            return self.tuned()
        if self.folder is None:
            raise FedseedError("the run wrote no files, and its model is not in this process")
        from fedseed.runs.tuned import find_source, open_tuned  # imports torch

        return open_tuned(find_source(str(self.folder))).model
