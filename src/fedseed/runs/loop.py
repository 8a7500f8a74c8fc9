"""The main loop: runs all rounds of a federation, in one process or over a network.

A `Run` opens and closes rounds, counts their costs, and writes the folder with metrics, summary and
pictures. Its subclasses move the messages and hold the weights: `Simulation` in this process,
`NetworkRun` over a transport. This module does not need torch.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from fedseed.errors import FedseedError, RecipeError, plural
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.federation.coordinator.rounds import Gathered
from fedseed.federation.coordinator.step_log import StepLogContents
from fedseed.federation.cost import rounding_warning
from fedseed.federation.messages import FRAME_BYTES, Message
from fedseed.methods import Method
from fedseed.orbit import NO_DIGEST, Header
from fedseed.privacy import mechanism_of
from fedseed.registry import one_line
from fedseed.reports.log import LoggedProgress, first_stamp, stamp
from fedseed.reports.machine import command, host, versions
from fedseed.reports.pictures import draw_run
from fedseed.reports.progress import Progress
from fedseed.reports.results import RoundLine, best_rounds, read_metrics, read_summary
from fedseed.runs import costs, stopping, verdict
from fedseed.runs.answers import encode_lines
from fedseed.runs.folder import RunFolder, clear_run, reopen_cut_run
from fedseed.runs.folder import extend as extended
from fedseed.runs.spec import RunSpec
from fedseed.runs.store import OrbitStore, Restored, StepStore, WeightsStore
from fedseed.tracking import Start, Trackers

# Warn if the norm of a step's reconstruction noise is at least this share of the weights' norm:
# such noise is likely to harm the model.
NOISE_WARNING = 0.1
LONG_ACCOUNT = 20_000  # from this number of rounds on, privacy accounting takes seconds


def _heard_nobody(metrics: Sequence[RoundLine]) -> bool:
    """Return whether rounds have run but no client has sent anything in any of them."""
    return len(metrics) > 1 and not any(line.bytes_up for line in metrics[1:])


class Run(ABC):
    """A run and its rounds; subclasses reach the clients and hold the weights.

    A subclass sets `spec`, `coordinator`, `header` and `names` (the clients' names in the order of
    their numbers) before `run` is called.

    Args:
        progress: shows progress.
    """

    # whether a step's digest becomes known only in `examine`
    waits: ClassVar[bool] = False
    spec: RunSpec
    coordinator: Coordinator
    header: Header
    names: Sequence[str]

    def __init__(self, progress: Progress) -> None:
        self.progress = LoggedProgress(progress)
        self.folder: RunFolder | None = None  # where the run writes; None: nowhere
        self.store: StepStore | None = None  # keeps the steps, in the folder
        self._warned = False
        self._warned_of_divergence = False
        self._began = ""

    @property
    def threads(self) -> int | None:
        """Return the number of threads with which each process trains; None if this process does
        not train.
        """
        return None

    def logged(self) -> StepLogContents | None:
        """Return the content of the run's log; None if there is no log."""
        return None

    @abstractmethod
    def catch_up(self, restored: Restored) -> None:
        """Bring every process that holds weights to the last round that counts."""

    @abstractmethod
    def gather(self, number: int) -> Gathered:
        """Open a round, send the plans, and pass the answers to the coordinator."""

    def apply(self, step: Message, line: RoundLine, log: bool) -> None:  # noqa: B027
        """Apply the step if this process holds the model, and add the figures it gives to
        `line`.
        """

    def publish(self, step: Message, line: RoundLine) -> None:  # noqa: B027
        """Send the step to the clients. Where there is a log, the round counts from here on."""

    def recorded(self, line: RoundLine, log: bool) -> None:  # noqa: B027
        """Record that the round counts."""

    @abstractmethod
    def examine(self, line: RoundLine, evaluate: bool) -> None:
        """Add to a line of metrics what needs the model: the digest, the evaluation, the clients'
        work.
        """

    def guess_loss(self) -> float | None:
        """Return the loss of a model that finds every word or class equally likely.

        None if it is not known here.
        """
        return None

    def finish(self) -> None:  # noqa: B027
        """Do what the subclass has to do after the last round, besides writing files."""

    def draw(self, folder: RunFolder, summary: dict[str, Any]) -> None:
        """Draw the run's pictures and write its page."""
        draw_run(folder.path, summary)

    def tuned(self) -> Any:
        """Return the tuned model; None if this process does not have it."""
        return None

    def describe_process(self) -> dict[str, Any]:
        """Return the summary's entries about the process."""
        return {}

    def run(
        self, resume: bool = False, extend: bool = False, overwrite: bool = False
    ) -> costs.RunResult:
        """Run all rounds and return metrics and summary. They are also written if the run has a
        folder.

        Args:
            resume: continue the run in the folder from where it stopped, with the same result as
                without the stop. If the folder is empty, start; if its run is finished, return its
                results.
            extend: with `resume`: continue a run that had fewer rounds to the number of this one,
                even if it is finished.
            overwrite: delete the run in the folder, finished or not, after this run has passed its
                checks.

        Raises:
            FedseedError: the folder holds a run and `resume` is false; or, with `resume`, the
                folder's run is a different one or damaged.
        """
        self._check_options(resume, extend, overwrite)
        self._change_earlier_run(resume, extend, overwrite)
        if self.folder is not None and self.folder.finished:
            return self._finished(self.folder.path)
        self._keep_to_budget()
        spec = self.spec
        if spec.folder is not None:
            if self.folder is None:
                self.folder = RunFolder(
                    spec.folder,
                    spec.recipe_text,
                    resume,
                    spec.chat_template,
                    # in a private run, a reader of the folder could use the digests to test guesses
                    # about the data
                    data={} if spec.private else spec.data_record,
                    fingerprint=spec.fingerprint,
                    threads=None if spec.private else self.threads,
                )
                earlier_threads = self.folder.earlier_threads
                if earlier_threads is not None:
                    self.progress.warn(
                        f"{spec.folder}: the run began with {plural(earlier_threads, 'thread')} "
                        f"in each process but now has {self.threads}, so the last bits of the "
                        "weights will differ from an uninterrupted run's; use --threads "
                        f"{earlier_threads} to keep them equal"
                    )
            if self.folder.finished:
                return self._finished(spec.folder)
        self._began = stamp()
        self._downloads = costs.Downloads(spec.method, len(self.names))
        self._trackers = Trackers(spec.trackers, self.progress.warn)
        try:
            return self._run()
        finally:
            if self.folder is not None:
                self.folder.release()
            self._trackers.close()
            if self.store is not None:
                self.store.release()
            self.progress.close()

    def _check_options(self, resume: bool, extend: bool, overwrite: bool) -> None:
        """Raise FedseedError if the options of `run` do not fit each other or the run."""
        if self._began:
            raise FedseedError(
                "this federation has run already, so its model is no longer the base: make a "
                "new Federation"
            )
        if resume and self.spec.folder is None:
            raise RecipeError("resume needs a folder: set out")
        if extend and not resume:
            raise RecipeError("extend needs resume: a new run has the recipe's number of rounds")
        if overwrite and (resume or self.spec.folder is None):
            raise RecipeError("overwrite needs a folder (out) and can't be combined with resume")

    def _change_earlier_run(self, resume: bool, extend: bool, overwrite: bool) -> None:
        """Delete, extend or reopen the run in the folder, according to the options of `run`."""
        path = self.spec.folder
        if path is None:
            return
        if overwrite:
            clear_run(path)
        notes = []
        if extend:
            notes.append(extended(self.spec))
        if resume and self.folder is None:
            notes.append(reopen_cut_run(path))
        for note in filter(None, notes):
            self.progress.note(note)

    def _finished(self, path: Path) -> costs.RunResult:
        """Return the results of a finished run from its folder."""
        self.progress.note(f"the run in {path} is finished already: nothing to do")
        return costs.RunResult(read_summary(path), read_metrics(path), path)

    def _run(self) -> costs.RunResult:
        spec, folder, path = self.spec, self.folder, self.spec.folder
        metrics: list[RoundLine] = []
        # rounds of a step-by-step method that are not yet in a line of metrics
        pending: list[RoundLine] = []
        began = time.perf_counter()
        self.progress.write("began", command())
        with self.progress.running(spec.method.name, spec.rounds):
            self._show_notes()
            last_round = 0  # the last round that counts
            if folder is not None:
                restored = self._restore(folder)
                last_round = restored.round
                folder.begin()
                metrics, pending = folder.take_up(last_round, fill=self.waits)
                # the folder has passed all checks, so trackers may start
                self.catch_up(restored)
                # the total includes the seconds of earlier sessions, except for their loading
                began -= sum(
                    chain.from_iterable(line.seconds.values() for line in [*metrics, *pending])
                )
            self.progress.open(path)
            # an interrupted run may have stored the last round's step without its line of metrics
            first = last_round if pending or not metrics else last_round + 1
            earlier = [line.to_json() for line in metrics]
            start = Start(
                spec.method.name,
                spec.rounds,
                spec.seed,
                self.names,
                path,
                spec.recipe_text,
                earlier,
            )
            self._trackers.tell("start", start)
            for number in range(first, spec.rounds + 1):
                # only after a new line of metrics can the run stop early
                if not pending and stopping.is_over(metrics, spec.patience):
                    break
                log = spec.logs(number)
                if number > last_round:
                    pending.append(self._round(number, log))
                if not log:
                    self.progress.advance(number)
                    continue
                line = costs.merge_rounds(pending) if pending else RoundLine(0)
                pending = []
                self._complete_line(line, number)
                metrics.append(line)
                self._warn(metrics)
                if folder is not None:
                    folder.add_metrics(line)
                self._trackers.tell("metrics", line.to_json())
                self.progress.round(line)
        orbit_bytes = None
        if self.store is not None:
            orbit_bytes = self.store.complete(metrics[-1].weights_digest or NO_DIGEST)
        self.finish()
        summary = self._summary(metrics, time.perf_counter() - began, orbit_bytes)
        if _heard_nobody(metrics):
            self.progress.warn(
                "no client sent anything in any round, so the model is still the base; each "
                'client\'s reason is in log.txt and under "skipped" in metrics.jsonl'
            )
        if folder is not None:
            self._finish_folder(folder, summary)
        self._trackers.tell("finish", summary)
        self.progress.write(
            "ended", f"after round {summary['rounds']}; digest {summary['weights_digest']}"
        )
        tuned = None
        if self.tuned() is not None:
            tuned = self.tuned
        return costs.RunResult(summary, [line.to_json() for line in metrics], path, tuned)

    def _show_notes(self) -> None:
        """Show the notes about the data, and warn if the budget of bytes exceeds the weights."""
        # the notes are about clients' data: a private run shows them only to the data's holder, and
        # writes them to no file
        show = self.progress.note
        if self.spec.private:
            show = self.progress.shown.note
        for note in self.spec.notes:
            show(note)
        excess = self._excess_bytes()
        if excess:
            self.progress.warn(excess)

    def _complete_line(self, line: RoundLine, number: int) -> None:
        """Add the evaluation and the privacy spent so far to a round's line of metrics.

        Raises RecipeError if the run uses early stopping but the evaluation has no validation loss.
        """
        spec = self.spec
        self.examine(line, spec.evaluates(number) and spec.measures)
        mechanism = mechanism_of(spec.method)
        if number and mechanism is not None and mechanism.by_turns:
            line.metrics["epsilon"] = mechanism.spent(self.coordinator.counted)["epsilon"]
        stops_early = spec.patience is not None
        if number == 0 and stops_early and stopping.VALIDATION_LOSS not in line.metrics:
            raise RecipeError(
                f"stopping: patience = {spec.patience}, but the evaluation does not measure "
                f'"{stopping.VALIDATION_LOSS}", which early stopping needs'
            )

    def _finish_folder(self, folder: RunFolder, summary: dict[str, Any]) -> None:
        """Draw the run's pictures, write its summary and give its files to the trackers."""
        try:
            self.draw(folder, summary)
        except Exception as error:  # a failed picture must not fail the run
            self.progress.warn(f"{folder.path / 'report.html'}: can't be made: {one_line(error)}")
        folder.finish(summary)
        self._trackers.tell("artefacts", folder.list_artefacts())

    def _warn(self, metrics: list[RoundLine]) -> None:
        """Check the newest line, and warn of noisy steps and of a loss that diverges or stands
        still.
        """
        line, place = metrics[-1], f"round {metrics[-1].round}"
        ratio = line.metrics.get("step_over_weights")
        if ratio is not None and ratio > NOISE_WARNING and not self._warned:
            # warn once; the metrics have every round's ratio
            self._warned = True
            self.progress.warn(
                f"{place}: the expected norm of the step, mostly noise of sqrt(d/K) eta_g "
                f"|Delta|, is {ratio:.0%} of |w|; lower the local rate or global_rate, or raise "
                "directions"
            )
        moved_share = line.metrics.get("weights_moved")
        if moved_share is not None:  # only the first round's line has it
            self.progress.warn(f"{place}: {rounding_warning(moved_share)}")
        # without a new loss there is nothing to judge, and each check reads all lines
        if "loss" not in line.metrics and "loss" in metrics[0].metrics:
            return
        divergence = None
        if not self._warned_of_divergence:
            divergence = self._divergence(metrics)
        if divergence is not None:
            self._warned_of_divergence = True
            self.progress.warn(
                f"{place}: the run has diverged: {divergence.reason}; {self._advise(divergence)}"
            )
        if "loss" in line.metrics and not (self._warned_of_divergence or _heard_nobody(metrics)):
            self._warn_of_standing(metrics)

    def _warn_of_standing(self, metrics: list[RoundLine]) -> None:
        """Warn once if the loss hardly moves."""
        line = metrics[-1]
        still = stopping.find_standstill(metrics, self.spec.rounds)
        if still is None or still[0] != line.round:
            return
        problem = (
            f"round {line.round}: the loss has hardly moved, from {still[1]:.5g} to {still[2]:.5g}"
        )
        rate = rate_of(self.spec.method)
        if verdict.learns_its_own(metrics[0], line):
            self.progress.warn(
                f"{problem}, though the clients' local loss fell to {line.train_loss:.3g}: they "
                "learn their own examples, and it does not show on the held-out ones; more rounds, "
                "more data or fewer local steps may help"
            )
        elif verdict.has_moved_far(metrics[0], line):
            grown, local = verdict.growth(metrics[0], line), line.train_loss
            figures = [
                *([] if grown is None else [f"the weights' norm changed by {grown:+.1%}"]),
                *([] if local is None else [f"the clients' local loss is {local:.3g}"]),
            ]
            self.progress.warn(
                f"{problem}, though {' and '.join(figures)}: {verdict.advise(rate, 0.1)}"
            )
        else:
            self.progress.warn(
                f"{problem}: at this pace the run will not tune the model; "
                f"{verdict.advise(rate, 10)}"
            )

    def _divergence(self, metrics: list[RoundLine]) -> verdict.Divergence | None:
        return verdict.find_divergence(metrics, self._guess_loss)

    @cached_property
    def _guess_loss(self) -> float | None:
        return self.guess_loss()

    def _advise(self, divergence: verdict.Divergence) -> str:
        advice = verdict.advise(rate_of(self.spec.method), divergence.factor)
        return f"{advice}; or check what each client sends (the metrics show what was refused)"

    def _excess_bytes(self) -> str:
        """Return a warning if a budget of bytes exceeds the weights themselves; "" if not."""
        budget = getattr(self.spec.method, "bytes", None)
        whole = self.header.layout.dense_bytes
        if budget is None or budget <= whole:
            return ""
        return (
            f"method.bytes = {budget:,}: this is more than all trainable weights ({whole:,} "
            "bytes); lower it, which tunes as well, or send whole weights (method.name=fedavg)"
        )

    def _keep_to_budget(self) -> None:
        """End the run with the last round that the privacy budget allows.

        Raises RecipeError if the budget does not allow even one round.
        """
        rounds = self.spec.rounds
        if rounds >= LONG_ACCOUNT and self.coordinator.by_turns:
            self.progress.note(
                f"privacy: computing the epsilon of {rounds:,} rounds before the first one, which "
                "may take a minute"
            )
        last = self.coordinator.last_round(rounds)
        if last == rounds:
            return
        mechanism = mechanism_of(self.spec.method)
        assert mechanism is not None
        spending = mechanism.spent(1)
        if last == 0:
            raise RecipeError(
                f"privacy.budget = {spending['budget']:g}: the first round would spend "
                f"{spending['epsilon']:.3g}; raise privacy.noise, which spends less, or the budget"
            )
        self.progress.note(
            f"privacy: a budget of {spending['budget']:g} is enough for {last} of {rounds} rounds"
        )
        self.spec = replace(self.spec, rounds=last)

    def _restore(self, folder: RunFolder) -> Restored:
        """Bring the store and the coordinator to the last round of an interrupted run, and return
        it.

        Raises FedseedError: the folder's files do not fit the run or its log.
        """
        kind: type[OrbitStore] | type[WeightsStore] = OrbitStore
        if self.spec.method.catch_up.replaces:
            kind = WeightsStore
        self.store = kind(folder.path, self.header, self.coordinator, self.logged())
        restored = self.store.restore(folder.has_rounds, self.progress.warn)
        last_round = restored.round
        participants = [
            self.coordinator.sample_clients(number) for number in range(1, last_round + 1)
        ]
        self._downloads.take_up(restored.contents, participants)
        if last_round:
            self.progress.note(f"resumed after round {last_round} of {self.spec.rounds}")
        if last_round > self.spec.rounds:
            rounds = self.spec.rounds
            raise RecipeError(
                f"{folder.path}: the run in it has {last_round} rounds already, but this run has "
                f"only {rounds}"
            )
        return restored

    def _round(self, number: int, log: bool) -> RoundLine:
        """Run one round and return its line of metrics. `log`: the line is written, not merged with
        later ones.
        """
        gathered = self.gather(number)
        seconds = dict(gathered.spent.seconds)
        downloads = [self._downloads.count_missed(client) for client in gathered.clients]
        coordinator, current, count = (
            self.coordinator,
            self.coordinator.current,
            len(gathered.clients),
        )
        received = list(current.received.values())
        numbers = costs.count_exchanged(
            count, len(gathered.update_bytes), received, current.planned, downloads
        )
        if self.folder is not None and self.spec.answers:
            self.folder.add_answers(*encode_lines(number, coordinator, self.names))
        start = time.perf_counter()
        step = coordinator.close()
        seconds["aggregation"] = time.perf_counter() - start
        self._downloads.add(coordinator.closed)
        line = RoundLine(
            number,
            clients=[self.names[c] for c in gathered.clients],
            skipped=[{"client": self.names[c], "reason": reason} for c, reason in gathered.skipped],
            refused=gathered.refused,
            taking_part=count,
            bytes_up=(sum(gathered.update_bytes) + gathered.secure_up) / max(1, count),
            bytes_down=(
                count * gathered.plan_bytes
                + sum(part.bytes for part in downloads)
                + gathered.secure_down
            )
            / max(1, count),
            exchanged=numbers,
            attacked=[self.names[c] for c in gathered.clients if c in self.spec.byzantine],
            seconds=seconds,
        )
        gathered.spent.tell(line)
        if coordinator.untaken is not None:
            line.not_taken = [{"round": number, "reason": coordinator.untaken}]
            self.progress.warn(f"round {number}: the step was not applied: {coordinator.untaken}")
        self.apply(step, line, log)
        # this order matters: the round's costs are on disk before the step counts
        if self.folder is not None and self.store is not None:
            self.folder.add_progress(line)
            self.store.prepare(number)
        self.publish(step, line)
        if self.store is not None:
            self.store.record(number, coordinator.closed_payload)
            if not (log and self.waits):
                self.store.confirm(line.weights_digest or NO_DIGEST)
        self.recorded(line, log)
        return line

    def _describe_attack(self) -> dict[str, Any] | None:
        if self.spec.attack is None:
            return None
        return {"kind": self.spec.attack, "clients": len(self.spec.byzantine)}

    def _summary(
        self, metrics: list[RoundLine], seconds: float, orbit_bytes: int | None
    ) -> dict[str, Any]:
        rounds, settings, header = metrics[1:], self.spec, self.header
        measured = list(metrics[0].metrics)
        # usually the last line; an extended run may have later lines without these metrics
        final = next(
            line for line in reversed(metrics) if all(name in line.metrics for name in measured)
        ).metrics
        numbers = costs.mean_exchanged(rounds)
        phases = {"total": seconds}
        for line in metrics:
            for phase, spent in line.seconds.items():
                phases[phase] = phases.get(phase, 0.0) + spent
        layout, mechanism = header.layout, mechanism_of(settings.method)
        failure = self._divergence(metrics)

        return {
            "method": settings.method.name,
            "aggregation": self.coordinator.aggregation.model_dump(),
            "rounds": metrics[-1].round,
            "stopped": stopping.describe(metrics, settings.patience, settings.rounds),
            "diverged": stopping.find_divergence_round(metrics),
            "failure": None if failure is None else failure.to_json(self._advise(failure)),
            "adapter": None if header.adapter is None else header.adapter.settings.model_dump(),
            "parameters": layout.size,
            "blocks": len(layout.block_sizes),
            "clients": len(self.names),
            "clients_per_round": self.coordinator.per_round,
            "data_notes": [] if settings.private else list(settings.notes),
            "baseline": dict(metrics[0].metrics),
            "final": {name: final[name] for name in measured},
            "best": best_rounds(metrics),
            **costs.by_client(metrics),
            "payload_bytes_up": costs.mean_by_round(rounds, "bytes_up"),
            "payload_bytes_down": costs.mean_by_round(rounds, "bytes_down"),
            "frame_bytes": FRAME_BYTES,
            "fedavg_bytes": 2 * layout.dense_bytes,
            "parameters_exchanged": numbers["scalars_up"] + numbers["scalars_down"]
            if numbers
            else None,
            "exchanged": numbers,
            "forward_passes": sum(line.forward_passes for line in rounds),
            "backward_passes": sum(line.backward_passes for line in rounds),
            "skipped": sum(len(line.skipped) for line in rounds),
            "skipped_steps": sum(line.skipped_steps for line in rounds),
            "refused": sum(line.refused for line in rounds),
            "not_taken": sum(len(line.not_taken) for line in rounds),
            "attack": self._describe_attack(),
            "privacy": None if mechanism is None else mechanism.spent(self.coordinator.counted),
            "seconds": phases,
            "seconds_per_client": costs.seconds_per_client(rounds),
            "base_digest": header.base_digest,
            "weights_digest": metrics[-1].weights_digest,
            "orbit_bytes": orbit_bytes,
            "versions": versions(),
            "host": host(),
            "command": command(),
            "started": first_stamp(settings.folder) or self._began,
            "ended": stamp(),
            **self.describe_process(),
        }


def rate_of(method: Method) -> tuple[str, float] | None:
    """Return the recipe key of a method's learning rate, and its value; None if it has none."""
    places = (
        ("method.learning_rate", method),
        ("method.training.learning_rate", getattr(method, "training", None)),
    )
    rates = ((key, getattr(settings, "learning_rate", None)) for key, settings in places)
    return next(((key, rate) for key, rate in rates if rate is not None), None)
