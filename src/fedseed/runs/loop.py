"""The rounds of a federation, from top to bottom, whatever carries the messages: in process or over a network.

Free of torch. A subclass says how messages travel and where weights are kept (`Federation`: here, in this process;
`serve.Served`: NATS); opening and closing rounds, what a round costs, the run's folder, metrics, summary and picture
are the same code for both.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedseed.aggregation import AggregationRule, Mean
from fedseed.durable import replacing
from fedseed.errors import FedseedError, RecipeError
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.cost import Spent
from fedseed.federation.messages import FRAME_BYTES
from fedseed.methods import Method
from fedseed.orbit import Header
from fedseed.reports.progress import Progress, Silent
from fedseed.reports.results import read_metrics, read_summary
from fedseed.runs import stopping
from fedseed.runs.downloads import Downloads, restored
from fedseed.runs.folder import RunFolder
from fedseed.tracking import Start, Trackers

# A step whose reconstruction noise is this long beside the weights (per round) is likely to harm the model.
NOISE_WARNING = 0.1


@dataclass(frozen=True)
class RunResult:
    """What a run returns.

    Args:
        summary: what summary.json holds.
        metrics: what metrics.jsonl holds, a line a round, round 0 first.
        folder: where the files are, None if the run wrote none.
    """

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    folder: Path | None


@dataclass
class Gathered:
    """What became of an open round.

    Args:
        clients: who took part, in ascending order.
        plan_bytes: payload of a plan.
        update_bytes: payload of each update that came.
        skipped: clients whose update does not count, and why.
        refused: messages that were refused.
        spent: what the clients' work cost, as far as it is known by now.
    """

    clients: Sequence[int]
    plan_bytes: int
    update_bytes: list[int] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    refused: int = 0
    spent: Spent = field(default_factory=Spent)


class Rounds(ABC):
    """A run: its rounds and what it writes.

    Args:
        names: the clients' names, in the order of their numbers.
        method: the method and its settings.
        rounds: how many.
        seed: decides client sampling, data order and directions.
        evaluate_every: rounds between evaluations.
        out: folder for the run's files; None: nothing is written.
        recipe_text: the complete recipe, written beside the results.
        notes: about the data, such as what was left out; shown when the run starts, and kept in the summary.
        progress: shows the run going on.
    """

    coordinator: Coordinator
    header: Header
    patience: int | None = None  # rounds without a better validation loss after which the run ends
    attack: str | None = None
    attackers: frozenset[int] = frozenset()
    aggregation: AggregationRule = Mean()
    trackers = Trackers()  # none

    def __init__(
        self,
        names: Sequence[str],
        method: Method,
        rounds: int,
        seed: int,
        evaluate_every: int,
        out: Path | str | None,
        recipe_text: str | None,
        notes: Sequence[str],
        progress: Progress | None,
    ) -> None:
        self.names = list(names)
        self.method = method
        self.rounds = rounds
        self.seed = seed
        self.evaluate_every = evaluate_every
        self.out = None if out is None else Path(out)
        self.recipe_text = recipe_text
        self.notes = tuple(notes)
        self.progress = progress or Silent()
        self._warned = False
        self._started = False
        self._downloads = Downloads(method, len(self.names))

    # -- what a transport adds ----------------------------------------------------------------------------------

    @abstractmethod
    def _restore(self, folder: RunFolder) -> tuple[int, list[int]]:
        """Bring states (and weights) to the last round that counts: its number, payload bytes of all steps to there."""

    @abstractmethod
    def _gather(self, number: int) -> Gathered:
        """Open a round, send the plans, hand the answers to the coordinator."""

    def _apply(self, step: bytes, line: dict[str, Any], log: bool) -> None:  # noqa: B027
        """Where the model is here: apply the step; `line` is told what is known then."""

    @abstractmethod
    def _record(self, number: int, step: bytes, line: dict[str, Any], log: bool) -> None:
        """Make the step durable: from here on the round counts."""

    @abstractmethod
    def _look(self, line: dict[str, Any], evaluate: bool) -> None:
        """Add to a line of metrics what only those with the model know: its digest, evaluation, their work."""

    def _complete(self) -> int | None:
        """The last round is over: end the orbit; its bytes, None for a method without one."""
        return None

    def _release(self) -> None:  # noqa: B027
        """Close files and connections as they are."""

    def _about(self) -> dict[str, Any]:
        """What the summary says about the process."""
        return {}

    # -- the loop ----------------------------------------------------------------------------------

    def run(self, resume: bool = False) -> RunResult:
        """Run all rounds; returns (and writes, if there is a folder) metrics and summary.

        Args:
            resume: go on where the run in the folder stopped, whatever stopped it, to the same end as if it had not;
                start if the folder is empty. A finished run's results are returned as they are.

        Raises:
            FedseedError: the folder holds a run already; with `resume`: another one, or a damaged one.
        """
        if self._started:
            raise FedseedError("this federation has run already: its model is no longer the base; make a new one")
        if resume and self.out is None:
            raise RecipeError("resume needs a folder (out)")
        folder = None if self.out is None else RunFolder(self.out, self.recipe_text, resume)
        if folder is not None and folder.finished:
            self.progress.note(f"the run in {folder.path} is finished: nothing is changed")
            return RunResult(read_summary(folder.path), read_metrics(folder.path), folder.path)
        self._started = True
        try:
            return self._run(folder)
        finally:
            if folder is not None:
                folder.release()
            self.trackers.close()
            self._release()

    def _run(self, folder: RunFolder | None) -> RunResult:
        metrics: list[dict[str, Any]] = []
        pending: list[dict[str, Any]] = []  # a step-by-step method's rounds since the last line
        began = time.perf_counter()
        with self.progress.running(self.method.name, self.rounds):
            for note in self.notes:
                self.progress.note(note)
            done = 0  # the last round that counts
            if folder is not None:
                done = self._take_up(folder)
                metrics, pending = folder.take_up(done)
                earlier = sum(spent for line in [*metrics, *pending] for spent in line["seconds"].values())
                began -= earlier  # what earlier sessions took, but for loading
            # an interrupted run may have its last round's step, but not yet its line of metrics
            first = done if pending or not metrics else done + 1
            where = None if folder is None else folder.path
            self.trackers.start(
                Start(self.method.name, self.rounds, self.seed, self.names, where, self.recipe_text, tuple(metrics))
            )
            for number in range(first, self.rounds + 1):
                if stopping.over(metrics, self.patience):
                    break
                evaluate = self._evaluates(number)
                log = self._logs(number)
                if number > done:
                    pending.append(self._round(number, folder, log))
                if not log:
                    self.progress.advance(number)
                    continue
                line: dict[str, Any] = merge_rounds(pending) if pending else {"round": 0, "seconds": {}}
                pending = []
                self._look(line, evaluate)
                self._warn_of_noise(line)
                metrics.append(line)
                if folder is not None:
                    folder.add_metrics(line)
                self.trackers.metrics(line)
                self.progress.round(line)
        orbit_bytes = self._complete()
        summary = self._summary(metrics, time.perf_counter() - began, orbit_bytes)
        if folder is not None:
            self._draw(folder, metrics)
            folder.finish(summary)
        self.trackers.finish(summary)
        return RunResult(summary, metrics, None if folder is None else folder.path)

    def _evaluates(self, number: int) -> bool:
        return number % self.evaluate_every == 0 or number == self.rounds

    def _logs(self, number: int) -> bool:
        """Whether a round gets a line of metrics of its own."""
        return self._evaluates(number) or not self.method.stepwise

    def _take_up(self, folder: RunFolder) -> int:
        """Take up an interrupted run; returns the last round that counts, 0 in a new folder."""
        done, sizes = self._restore(folder)
        picked = [self.coordinator.sampled(number) for number in range(1, done + 1)]
        self._downloads = restored(self.method, sizes, picked, len(self.names))
        if done:
            self.progress.note(f"resumed after round {done} of {self.rounds}")
        if done > self.rounds:
            raise RecipeError(f"{folder.path}: the run there has {done} rounds, this one is to have {self.rounds}")
        return done

    def _round(self, number: int, folder: RunFolder | None, log: bool) -> dict[str, Any]:
        """One round; returns its line of metrics. `log`: it will be a line of its own."""
        gathered = self._gather(number)
        seconds = dict(gathered.spent.seconds)
        bytes_down = [gathered.plan_bytes + self._downloads.of(client) for client in gathered.clients]
        start = time.perf_counter()
        step = self.coordinator.close()
        seconds["aggregation"] = time.perf_counter() - start
        self._downloads.add(len(step) - FRAME_BYTES)
        taking_part = max(1, len(gathered.clients))
        line = {
            "round": number,
            "clients": [self.names[c] for c in gathered.clients],
            "skipped": [{"client": self.names[c], "reason": reason} for c, reason in gathered.skipped],
            "refused": gathered.refused,
            "bytes_up": sum(gathered.update_bytes) / taking_part,
            "bytes_down": sum(bytes_down) / taking_part,
            **gathered.spent.about(),
            "attacked": [self.names[c] for c in gathered.clients if c in self.attackers],
            "seconds": seconds,
        }
        self._apply(step, line, log)
        if folder is not None:  # in this order: what the round cost is written before it counts
            folder.add_progress(line)
        self._record(number, step, line, log)
        return line

    def _warn_of_noise(self, line: dict[str, Any]) -> None:
        ratio = line.get("step_over_weights")
        if ratio is not None and ratio > NOISE_WARNING and not self._warned:
            self._warned = True  # once is enough; every round's ratio is in the metrics
            self.progress.warn(
                f"round {line['round']}: the step's expected norm, mostly noise sqrt(d/K) eta_g |Delta|, is "
                f"{ratio:.0%} of |w|; lower the local rate or global_rate, or raise directions"
            )

    # -- at the end ----------------------------------------------------------------------------------

    def _summary(self, metrics: list[dict[str, Any]], seconds: float, orbit_bytes: int | None) -> dict[str, Any]:
        rounds = metrics[1:]
        measured = [name for name, value in metrics[0].items() if isinstance(value, float)]
        phases: dict[str, float] = {"total": seconds}
        for line in metrics:
            for phase, spent in line["seconds"].items():
                phases[phase] = phases.get(phase, 0.0) + spent
        layout = self.header.layout

        def mean(key: str) -> float:
            count = sum(line["rounds"] for line in rounds)
            return sum(line[key] * line["rounds"] for line in rounds) / count if rounds else 0.0

        return {
            "method": self.method.name,
            "aggregation": self.aggregation.model_dump(),
            "rounds": metrics[-1]["round"],
            "stopped": stopping.describe(metrics, self.patience),
            "adapter": None if self.header.adapter is None else self.header.adapter.settings.model_dump(),
            "parameters": layout.size,
            "blocks": len(layout.block_sizes),
            "clients": len(self.names),
            "clients_per_round": self.coordinator.per_round,
            "data_notes": list(self.notes),
            "baseline": {name: metrics[0][name] for name in measured},
            "final": {name: metrics[-1][name] for name in measured},
            "payload_bytes_up": mean("bytes_up"),
            "payload_bytes_down": mean("bytes_down"),
            "frame_bytes": FRAME_BYTES,
            "fedavg_bytes": 2 * layout.dense_bytes,
            "forward_passes": sum(line["forward_passes"] for line in rounds),
            "backward_passes": sum(line["backward_passes"] for line in rounds),
            "skipped": sum(len(line["skipped"]) for line in rounds),
            "skipped_steps": sum(line["skipped_steps"] for line in rounds),
            "refused": sum(line["refused"] for line in rounds),
            "attack": None if self.attack is None else {"kind": self.attack, "clients": len(self.attackers)},
            "privacy": None if (p := self.method.privacy) is None else p.spent(metrics[-1]["round"]),
            "seconds": phases,
            "base_digest": self.header.base_digest,
            "weights_digest": metrics[-1]["weights_digest"],
            "orbit_bytes": orbit_bytes,
            **self._about(),
        }

    def _draw(self, folder: RunFolder, metrics: list[dict[str, Any]]) -> None:
        # matplotlib takes a while to import
        from fedseed.reports.pictures import LABELS, draw_probabilities, draw_runs

        if any(name in metrics[0] for name in LABELS):
            with replacing(folder.path / "metrics.png") as picture:
                draw_runs({self.method.name: metrics}, picture)
        for name, values in self.coordinator.figures().items():
            with replacing(folder.path / f"{name}.png") as picture:
                draw_probabilities(values, picture)


def merge_rounds(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One line of metrics for several rounds: counts and seconds add up, bytes and losses are means."""
    merged = dict(lines[-1])
    merged["rounds"] = len(lines)
    if len(lines) == 1:
        return merged
    for key in ("forward_passes", "backward_passes", "skipped_steps", "refused"):
        merged[key] = sum(line[key] for line in lines)
    for key in ("bytes_up", "bytes_down"):
        merged[key] = sum(line[key] for line in lines) / len(lines)
    for key in ("clients", "attacked"):
        merged[key] = sorted({name for line in lines for name in line[key]})
    merged["skipped"] = [{**s, "round": line["round"]} for line in lines for s in line["skipped"]]
    losses = [line["train_loss"] for line in lines if line["train_loss"] is not None]
    merged["train_loss"] = sum(losses) / len(losses) if losses else None
    phases = {phase for line in lines for phase in line["seconds"]}
    merged["seconds"] = {p: sum(line["seconds"].get(p, 0.0) for line in lines) for p in sorted(phases)}
    return merged
