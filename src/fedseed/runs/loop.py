"""Runs all rounds of a federation, whatever carries the messages: in process or over a network.

Free of torch. A `Backend` says how messages travel and where weights are kept (`Simulation`: here, in this process;
`NetworkBackend`: behind a transport); opening and closing rounds, what a round costs, the run's folder, metrics,
summary and picture are the same code for both.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedseed.errors import FedseedError, RecipeError
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.cost import rounding_warning
from fedseed.federation.messages import FRAME_BYTES
from fedseed.federation.rounds import Gathered
from fedseed.methods import Method
from fedseed.methods.payload import Content
from fedseed.orbit import Header
from fedseed.privacy import mechanism_of
from fedseed.registry import one_line
from fedseed.reports.log import Logged, first_stamp, stamp
from fedseed.reports.machine import command, host, versions
from fedseed.reports.pictures import draw_run
from fedseed.reports.progress import Progress, Silent, describe
from fedseed.reports.results import RoundLine, best_rounds, read_metrics, read_summary
from fedseed.runs import stopping
from fedseed.runs.answers import written
from fedseed.runs.costs import (
    Downloads,
    RunResult,
    by_client,
    exchanged,
    mean_exchanged,
    merge_rounds,
    restored,
    seconds_per_client,
)
from fedseed.runs.folder import RunFolder
from fedseed.runs.folder import extend as extended
from fedseed.runs.spec import RunSpec
from fedseed.tracking import Start, Trackers

logger = logging.getLogger(__name__)

# A step whose reconstruction noise is this long beside the weights (per round) is likely to harm the model.
NOISE_WARNING = 0.1


class Backend(ABC):
    """Where a run's clients are: how a round's answers are gathered, and who holds the weights."""

    spec: RunSpec
    coordinator: Coordinator
    header: Header
    names: Sequence[str]  # the clients', in the order of their numbers

    @abstractmethod
    def restore(self, folder: RunFolder) -> tuple[int, list[Content]]:
        """Brings states (and weights) to the last round that counts; returns its number and all steps' contents."""

    @abstractmethod
    def gather(self, number: int) -> Gathered:
        """Opens a round, sends the plans, hands the answers to the coordinator."""

    def apply(self, step: bytes, line: RoundLine, log: bool) -> None:  # noqa: B027
        """Applies the step if the model is here, and adds to `line` what is known then."""

    @abstractmethod
    def record(self, number: int, step: bytes, line: RoundLine, log: bool) -> None:
        """Makes the step durable: from here on the round counts."""

    @abstractmethod
    def examine(self, line: RoundLine, evaluate: bool) -> None:
        """Adds to a line of metrics what only those with the model know: its digest, evaluation, their work."""

    def complete(self) -> int | None:
        """Ends the orbit after the last round; returns its bytes, None for a method without one."""
        return None

    def draw(self, folder: RunFolder, summary: dict[str, Any]) -> None:
        """Draws the run's pictures and writes its page."""
        found = self.coordinator.figures().get("probabilities")
        draw_run(folder.path, None if found is None else found.tolist(), summary)

    def release(self) -> None:  # noqa: B027
        """Closes files and connections as they are."""

    def tuned(self) -> Any:
        """Returns the tuned model; None: it is not here."""
        return None

    def about(self) -> dict[str, Any]:
        """Returns what the summary says about the process."""
        return {}


class Loop:
    """The rounds of one run.

    Args:
        backend: what the run is, and where its clients are.
        progress: shows the run going on.
    """

    def __init__(self, backend: Backend, progress: Progress | None = None) -> None:
        self.backend = backend
        self.progress = progress if isinstance(progress, Logged) else Logged(progress or Silent())
        self._trackers = Trackers(backend.spec.trackers, self.progress.warn)
        self._downloads = Downloads(backend.spec.method, len(backend.names))
        self._warned = False
        self._started = False
        self._began = ""

    @property
    def spec(self) -> RunSpec:
        """Returns what the run is."""
        return self.backend.spec

    # -- the loop ----------------------------------------------------------------------------------

    def run(self, resume: bool = False, extend: bool = False) -> RunResult:
        """Runs all rounds; `Simulation.run` says with what, and what is raised."""
        if self._started:
            raise FedseedError("this federation has run already: its model is no longer the base; make a new one")
        if resume and self.spec.folder is None:
            raise RecipeError("resume needs a folder (out)")
        if extend and not resume:
            raise RecipeError("extend goes with resume: a new run has as many rounds as its recipe says")
        if extend and (said := extended(self.spec)):
            self.progress.note(said)
        self._keep_to_budget()
        spec, folder = self.spec, None
        if spec.folder is not None:
            folder = RunFolder(spec.folder, spec.recipe_text, resume, spec.chat_template)
        if folder is not None and folder.finished:
            self.progress.note(f"the run in {folder.path} is finished: nothing is changed")
            return RunResult(read_summary(folder.path), read_metrics(folder.path), folder.path)
        self._started = True
        self._began = stamp()
        try:
            return self._run(folder)
        finally:
            if folder is not None:
                folder.release()
            self._trackers.close()
            self.backend.release()
            self.progress.close()

    def _run(self, folder: RunFolder | None) -> RunResult:
        metrics: list[RoundLine] = []
        pending: list[RoundLine] = []  # a step-by-step method's rounds since the last line
        began = time.perf_counter()
        self.progress.write("began", command())
        with self.progress.running(self.spec.method.name, self.spec.rounds):
            # notes are about clients' data: of a private run whoever has that sees them, and no file does
            say = self.progress.shown.note if self.spec.private else self.progress.note
            for note in self.spec.notes:
                say(note)
            done = 0  # the last round that counts
            if folder is not None:
                done = self._take_up(folder)
                metrics, pending = folder.take_up(done)
                earlier = sum(spent for line in [*metrics, *pending] for spent in line.seconds.values())
                began -= earlier  # what earlier sessions took, but for loading
            self.progress.open(None if folder is None else folder.path)
            # an interrupted run may have its last round's step, but not yet its line of metrics
            first = done if pending or not metrics else done + 1
            where, settings = None if folder is None else folder.path, self.spec
            self._trackers.tell("start",
                Start(
                    settings.method.name, settings.rounds, settings.seed, self.backend.names, where,
                    settings.recipe_text, [line.to_json() for line in metrics],
                )
            )  # fmt: skip
            for number in range(first, self.spec.rounds + 1):
                if stopping.over(metrics, self.spec.patience):
                    break
                evaluate = self.spec.evaluates(number)
                log = self.spec.logs(number)
                if number > done:
                    pending.append(self._round(number, folder, log))
                if not log:
                    self.progress.advance(number)
                    continue
                line = merge_rounds(pending) if pending else RoundLine(0)
                pending = []
                self.backend.examine(line, evaluate and settings.measures)
                if number and (mechanism := mechanism_of(settings.method)) is not None and mechanism.by_turns:
                    line.metrics["epsilon"] = mechanism.spent(self.backend.coordinator.counted)["epsilon"]
                if number == 0:
                    stopping.check(line, settings.patience)
                metrics.append(line)
                ratio = line.metrics.get("step_over_weights")
                if ratio is not None and ratio > NOISE_WARNING and not self._warned:
                    self._warned = True  # warns once; every round's ratio is in the metrics
                    self.progress.warn(
                        f"round {line.round}: the step's expected norm, mostly noise sqrt(d/K) eta_g |Delta|, is "
                        f"{ratio:.0%} of |w|; lower the local rate or global_rate, or raise directions"
                    )
                if stopping.diverged(metrics) == line.round:
                    self.progress.warn(
                        f"round {line.round}: the run has diverged: its loss is {line.metrics['loss']:.3g}; lower the "
                        "rates, or look at who sends what (its metrics say what was refused)"
                    )
                if (still := stopping.standing(metrics, settings.rounds)) is not None and still[0] == line.round:
                    self.progress.warn(
                        f"round {still[0]}: the loss has hardly moved, from {still[1]:.5g} to {still[2]:.5g}: at this "
                        f"pace the run tunes nothing. Most likely {_rate(settings.method)} is too small for this "
                        "model: try ten times as much"
                    )
                if (moved := line.metrics.get("weights_moved")) is not None:  # in the first round
                    self.progress.warn(f"round {line.round}: {rounding_warning(moved)}")
                if folder is not None:
                    folder.add_metrics(line)
                self._trackers.tell("metrics", line.to_json())
                self.progress.round(line)
                logger.info("round %d: %s", line.round, describe(line))
        orbit_bytes = self.backend.complete()
        summary = self._summary(metrics, time.perf_counter() - began, orbit_bytes)
        if folder is not None:
            try:
                self.backend.draw(folder, summary)
            except Exception as error:  # the run's results do not depend on pictures
                self.progress.warn(f"{folder.path / 'report.html'}: can't be made: {one_line(error)}")
            folder.finish(summary)
            self._trackers.tell("artefacts", folder.left())
        self._trackers.tell("finish", summary)
        self.progress.write("ended", f"after round {summary['rounds']}; digest {summary['weights_digest']}")
        tuned = None if self.backend.tuned() is None else self.backend.tuned
        return RunResult(summary, [line.to_json() for line in metrics], where, tuned)

    def _keep_to_budget(self) -> None:
        """Ends the run with the last round that privacy's budget allows. Raises RecipeError if there is none."""
        wanted = self.spec.rounds
        last = self.backend.coordinator.last_round(wanted)
        if last == wanted:
            return
        mechanism = mechanism_of(self.spec.method)
        assert mechanism is not None
        about = mechanism.spent(1)
        if last == 0:
            raise RecipeError(
                f"privacy.budget = {about['budget']:g}: the first round would spend {about['epsilon']:.3g}; more "
                "privacy.noise spends less"
            )
        self.progress.note(f"privacy: a budget of {about['budget']:g} is enough for {last} of {wanted} rounds")
        self.backend.spec = replace(self.spec, rounds=last)

    def _take_up(self, folder: RunFolder) -> int:
        """Takes up an interrupted run; returns the last round that counts, 0 in a new folder."""
        done, steps = self.backend.restore(folder)
        picked = [self.backend.coordinator.sampled(number) for number in range(1, done + 1)]
        self._downloads = restored(self.spec.method, steps, picked, len(self.backend.names))
        if done:
            self.progress.note(f"resumed after round {done} of {self.spec.rounds}")
        if done > self.spec.rounds:
            wanted = self.spec.rounds
            raise RecipeError(f"{folder.path}: the run there has {done} rounds, this one is to have {wanted}")
        return done

    def _round(self, number: int, folder: RunFolder | None, log: bool) -> RoundLine:
        """Runs one round and returns its line of metrics. `log`: it will be a line of its own."""
        gathered = self.backend.gather(number)
        seconds = dict(gathered.spent.seconds)
        fetched = [self._downloads.of(client) for client in gathered.clients]
        coordinator, count = self.backend.coordinator, len(gathered.clients)
        numbers = exchanged(count, len(gathered.update_bytes), coordinator.received, coordinator.planned, fetched)
        if folder is not None and self.spec.answers:
            folder.add_answers(*written(number, coordinator, self.backend.names))
        start = time.perf_counter()
        step = coordinator.close()
        seconds["aggregation"] = time.perf_counter() - start
        self._downloads.add(coordinator.closed)
        line = RoundLine(
            number,
            clients=[self.backend.names[c] for c in gathered.clients],
            skipped=[{"client": self.backend.names[c], "reason": reason} for c, reason in gathered.skipped],
            refused=gathered.refused,
            taking_part=count,
            bytes_up=(sum(gathered.update_bytes) + gathered.secure_up) / max(1, count),
            bytes_down=(count * gathered.plan_bytes + sum(part.bytes for part in fetched) + gathered.secure_down)
            / max(1, count),
            exchanged=numbers,
            attacked=[self.backend.names[c] for c in gathered.clients if c in self.spec.byzantine],
            seconds=seconds,
        )
        gathered.spent.tell(line)
        if coordinator.untaken is not None:
            line.not_taken = [{"round": number, "reason": coordinator.untaken}]
            self.progress.warn(f"round {number}: the step is not taken: {coordinator.untaken}")
        self.backend.apply(step, line, log)
        if folder is not None:  # in this order: what the round cost is written before it counts
            folder.add_progress(line)
        self.backend.record(number, step, line, log)
        return line

    # -- at the end ----------------------------------------------------------------------------------

    def _summary(self, metrics: list[RoundLine], seconds: float, orbit_bytes: int | None) -> dict[str, Any]:
        rounds, settings, header = metrics[1:], self.spec, self.backend.header
        measured = list(metrics[0].metrics)
        # the last line, but where a run is taken up that was to have had more rounds
        final = next(line for line in reversed(metrics) if all(name in line.metrics for name in measured)).metrics
        numbers = mean_exchanged(rounds)
        phases = {"total": seconds}
        for phase, spent in ((phase, spent) for line in metrics for phase, spent in line.seconds.items()):
            phases[phase] = phases.get(phase, 0.0) + spent
        layout, mechanism = header.layout, mechanism_of(settings.method)

        def mean(key: str) -> float:
            count = sum(line.rounds for line in rounds)
            return sum(getattr(line, key) * line.rounds for line in rounds) / count if rounds else 0.0

        attack = None if settings.attack is None else {"kind": settings.attack, "clients": len(settings.byzantine)}
        return {
            "method": settings.method.name,
            "aggregation": self.backend.coordinator.aggregation.model_dump(),
            "rounds": metrics[-1].round,
            "stopped": stopping.describe(metrics, settings.patience, settings.rounds),
            "diverged": stopping.diverged(metrics),
            "adapter": None if header.adapter is None else header.adapter.settings.model_dump(),
            "parameters": layout.size,
            "blocks": len(layout.block_sizes),
            "clients": len(self.backend.names),
            "clients_per_round": self.backend.coordinator.per_round,
            "data_notes": [] if settings.private else list(settings.notes),
            "baseline": dict(metrics[0].metrics),
            "final": {name: final[name] for name in measured},
            "best": best_rounds(metrics),
            **by_client(metrics),
            "payload_bytes_up": mean("bytes_up"),
            "payload_bytes_down": mean("bytes_down"),
            "frame_bytes": FRAME_BYTES,
            "fedavg_bytes": 2 * layout.dense_bytes,
            "parameters_exchanged": numbers["scalars_up"] + numbers["scalars_down"] if numbers else None,
            "exchanged": numbers,
            "forward_passes": sum(line.forward_passes for line in rounds),
            "backward_passes": sum(line.backward_passes for line in rounds),
            "skipped": sum(len(line.skipped) for line in rounds),
            "skipped_steps": sum(line.skipped_steps for line in rounds),
            "refused": sum(line.refused for line in rounds),
            "not_taken": sum(len(line.not_taken) for line in rounds),
            "attack": attack,
            "privacy": None if mechanism is None else mechanism.spent(self.backend.coordinator.counted),
            "seconds": phases,
            "seconds_per_client": seconds_per_client(rounds),
            "base_digest": header.base_digest,
            "weights_digest": metrics[-1].weights_digest,
            "orbit_bytes": orbit_bytes,
            "versions": versions(),
            "host": host(),
            "command": command(),
            "started": first_stamp(settings.folder) or self._began,
            "ended": stamp(),
            **self.backend.about(),
        }


def _rate(method: Method) -> str:
    """Returns the key that sets how far a method's steps go, with its value."""
    places = ("method.learning_rate", method), ("method.training.learning_rate", getattr(method, "training", None))
    found = ((key, getattr(settings, "learning_rate", None)) for key, settings in places)
    return next((f"{key} = {rate:g}" for key, rate in found if rate is not None), "its rate")
