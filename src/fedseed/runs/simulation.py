"""A federation on one machine: every client's work is done here (`loop` has the rounds).

Coordinator and worker exchange encoded messages only, as they would over a network, so byte counts are true. Clients'
work may be dealt to local processes (`workers`), with the same results; coordinator, files and evaluation stay here.
"""

import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fedseed.errors import MessageError, RecipeError
from fedseed.federation.byzantine import Byzantine
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.messages import FRAME_BYTES
from fedseed.federation.rounds import Gathered
from fedseed.federation.secure import Masking, SecureCoordinator
from fedseed.federation.worker import Answer, cost_of
from fedseed.methods import Method
from fedseed.methods.content import Content
from fedseed.models import adapters
from fedseed.objectives.losses import Objective
from fedseed.objectives.prepared import idle, prepare_clients
from fedseed.orbit import NO_DIGEST
from fedseed.orbit.card import Facts, card
from fedseed.orbit.file import begin
from fedseed.reports.progress import Progress, shown_by
from fedseed.reports.results import RoundLine
from fedseed.runs.costs import RunResult
from fedseed.runs.equipment import Evaluation
from fedseed.runs.folder import RunFolder
from fedseed.runs.learner import check_examples, check_memory, limited, loss_of, make_learner, memory_of, peak_memory
from fedseed.runs.loop import Backend, Loop
from fedseed.runs.secure import SecureRounds
from fedseed.runs.spec import RunSpec
from fedseed.runs.store import StepStore, step_store
from fedseed.runs.workers import Evaluate, Team, Train, Work, Workers
from fedseed.tasks.data import ClientData


class Simulation(Backend):
    """A simulated federation: the clients' work is done one after the other, or by several processes of this machine.

    Args:
        model: the base, any torch module; it is tuned in place.
        clients: the data holders (`ClientData`), or just one list of examples per client.
        method: the method and its settings; or all that the run is (`RunSpec`), in place of `rounds` and `settings`.
        objective: makes losses of examples.
        rounds: how many.
        evaluation: prepared held-out sets by prefix ("" for the main one), or a function of the model; measured at
            round 0, every `evaluate_every` rounds and at the end.
        progress: shows the run going on; True: on standard error, False: not at all, None: there if it is a terminal.
        workers: local processes to deal the clients to, with the results that one process with as many threads has; or
            a team of them that is loading already.
        settings: the other settings of `RunSpec`, such as `per_round=2, seed=1, out="runs/mine"`.

    Raises:
        RecipeError: something of it can't be; says what.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        clients: Sequence[ClientData | Sequence[Any]],
        method: Method | RunSpec,
        objective: Objective,
        rounds: int = 1,
        evaluation: Mapping[str, Sequence[Any]] | Evaluation | None = None,
        progress: Progress | bool | None = None,
        workers: Workers | Team | None = None,
        **settings: Any,
    ) -> None:
        spec = RunSpec(method, rounds, **settings) if isinstance(method, Method) else method
        named = [c if isinstance(c, ClientData) else ClientData(f"client-{i}", c) for i, c in enumerate(clients)]
        self.names = [client.name for client in named]
        self.prepared = prepare_clients(objective, named)
        self.items = [client.items for client in self.prepared]
        check_examples(spec.method, dict(zip(self.names, self.items, strict=True)))
        per_round = len(named) if spec.per_round is None else spec.per_round
        if not 1 <= per_round <= len(named):
            raise RecipeError(f"clients per round = {per_round}: from 1 to the number of clients, {len(named)}")
        if any(not 0 <= number < len(named) for number in spec.byzantine):
            raise RecipeError(f"attackers {sorted(spec.byzantine)}: clients are numbered 0 to {len(named) - 1}")
        if spec.threads is None and workers is not None:
            spec = replace(spec, threads=workers.threads)
        self.spec = spec = replace(spec, per_round=per_round, notes=(*spec.notes, *idle(self.prepared)))
        self.worker, self.header = make_learner(spec, model, objective, spec.apart)
        sizes = [len(items) for items in self.items]
        common = spec.method, self.header.layout, spec.seed, sizes, per_round, spec.aggregation, spec.bounds
        try:
            sums, attack = spec.secure_sums, spec.attack
            self.coordinator = Coordinator(*common) if sums is None else SecureCoordinator(sums, *common)
            self.byzantine = (
                None if attack is None else Byzantine(self.coordinator, attack, spec.byzantine, spec.attack_strength)
            )
        except ValueError as error:
            raise RecipeError(str(error)) from error
        self.coordinator.take_base(self.worker.space.dense)
        self.loop = Loop(self, shown_by(progress))
        self.progress = self.loop.progress
        self.worker.private = spec.private
        self.secure: SecureRounds | None = None
        if sums is not None and isinstance(self.coordinator, SecureCoordinator):
            masking = Masking(sums, spec.method, dict(enumerate(sizes)))
            self.secure = SecureRounds(self.coordinator, masking, self.names, spec.rounds, self.progress)
        self._evaluate = evaluation if callable(evaluation) else loss_of(objective, evaluation or {})
        self._store: StepStore | None = None  # where steps are kept; nowhere without a folder
        self.worker.memory = memory_of(self, spec.method, spec.folder, workers is not None)
        self.team, self._about_workers = self._assemble(workers, per_round)
        self._opened: tuple[int, list[int], list[bytes]] | None = None  # the open round, if it was begun ahead of time

    def _assemble(self, workers: Workers | Team | None, per_round: int) -> tuple[Team | None, str | None]:
        """The workers of the run, and what a person is told of them."""
        if workers is None:
            return None, None
        if self.worker.shares(per_round) == "gradients":  # a sum depends on the order of its terms
            return None, (
                f"{self.method.name}: one process adds up the gradients of a round's clients, so that workers have "
                "nothing to do; with federation.joint = false each client's is a message of its own"
            )
        team = workers if isinstance(workers, Team) else Team(workers, per_round)
        team.expect(begin(self.header), self.method.catch_up.replaces, self.worker.memory.folder)
        weakref.finalize(self, team.close)  # of a simulation that never runs, too
        threads = "1 thread" if workers.threads == 1 else f"{workers.threads} threads"
        return team, f"{len(team.seats)} worker process{'es' * (len(team.seats) > 1)}, {threads} each"

    # -- what it is --------------------------------------------------------------------------------------------------

    @property
    def method(self) -> Method:
        """The method."""
        return self.spec.method

    def run(self, resume: bool = False, extend: bool = False) -> RunResult:
        """Run all rounds; returns (and writes, if there is a folder) metrics and summary.

        Args:
            resume: go on where the run in the folder stopped, whatever stopped it, to the same end as if it had not;
                start if the folder is empty. A finished run's results are returned as they are.
            extend: with `resume`: a run that was to have fewer rounds, finished or not, goes on to as many as this one.

        Raises:
            FedseedError: the folder holds a run already; with `resume`: another one, or a damaged one.
        """
        if self._about_workers is not None:
            self.progress.note(self._about_workers)
        try:
            with limited(self.spec.threads):
                return self.loop.run(resume, extend)
        finally:
            if self.team is not None:
                self.team.close()

    # -- taking up an interrupted run ----------------------------------------------------------------------------------

    def restore(self, folder: RunFolder) -> tuple[int, list[Content]]:
        self._store = step_store(self.method, folder.path, self.header, self.coordinator)
        restored = self._store.restore(folder.has_rounds, self.progress.warn)
        self.worker.catch_up(restored.records)
        check_memory(self.worker.memory, self.method, restored.round)
        if self.team is not None:
            self.team.restored(restored.records)
        return restored.round, restored.contents

    # -- a round ----------------------------------------------------------------------------------

    def gather(self, number: int) -> Gathered:
        start = time.perf_counter()
        picked, plans = self._begin(number)
        gathered = Gathered(picked, len(plans[0]) - FRAME_BYTES)
        answers = self._answers(plans, picked)
        honest = {c: answer.message for c, answer in zip(picked, answers, strict=True) if answer.message is not None}
        sent = honest if self.byzantine is None else self.byzantine.sent(number, honest, self.worker.corrupt)
        if self.secure is not None:
            asked = dict(zip(picked, plans, strict=True))
            self.secure.gather(
                gathered, asked, {c: sent.get(c) for c in picked}, lambda c, why: gathered.skipped.append((c, why))
            )
            return gathered
        for client, answer in zip(picked, answers, strict=True):
            name = self.names[client]
            gathered.spent.add(cost_of(answer.cost, counts=answer.message is not None or answer.within is not None))
            if answer.within is not None:  # its part is in another client's message
                gathered.update_bytes.append(answer.within)
                continue
            if answer.message is None:
                gathered.skipped.append((client, str(answer.reason)))
                if self.items[client]:  # of those that have no example a note says so, once
                    self.progress.warn(f"round {number}: {name} sends nothing: {answer.reason}")
                continue
            gathered.update_bytes.append(len(sent[client]) - FRAME_BYTES)
            try:
                self.coordinator.receive(sent[client], client)
            except MessageError as error:
                self._refuse(gathered, number, client, str(error))
        for client, reason in self.coordinator.screen().items():
            self._refuse(gathered, number, client, reason)
        if self.team is not None:
            gathered.spent.fit(time.perf_counter() - start)
        return gathered

    def _refuse(self, gathered: Gathered, number: int, client: int, reason: str) -> None:
        """A client's update does not count."""
        gathered.refused += 1
        gathered.skipped.append((client, f"refused: {reason}"))
        self.progress.warn(f"round {number}: the update of {self.names[client]} is refused: {reason}")

    def _begin(self, number: int) -> tuple[list[int], list[bytes]]:
        """Open a round, if it is not open yet, and deal it out: who takes part, and their plans."""
        if self._opened is None or self._opened[0] != number:
            picked = self.coordinator.open(number)
            plans = [self.coordinator.plan(client) for client in picked]
            if self.team is not None:
                self.team.begin(self._orders(self.team, plans, picked))
            self._opened = number, picked, plans
        return self._opened[1:]

    def _orders(self, team: Team, plans: Sequence[bytes], picked: Sequence[int]) -> Sequence[Work]:
        """What workers do for a round: clients, or the losses that all clients have in common."""
        if self.worker.shares(len(picked)) is None:
            return [Train(plan, client) for plan, client in zip(plans, picked, strict=True)]
        return [Evaluate(plans, picked, part, len(team.seats)) for part in range(len(team.seats))]

    def _answers(self, plans: Sequence[bytes], picked: Sequence[int]) -> list[Answer]:
        """What the clients answer, wherever that was computed."""
        found = None if self.team is None else self.team.results(self.progress.warn)
        if found is not None and self.worker.shares(len(picked)) is None:
            return found
        known = {look: seen for part in found or () for look, seen in part.items()}
        return self.worker.train_all(plans, picked, [self.items[client] for client in picked], known)

    def apply(self, step: bytes, line: RoundLine, log: bool) -> None:
        """Apply the step to the weights; workers do, too, and go on with the next round meanwhile."""
        number = line.round
        if self.team is not None:
            self.team.apply(number, step, step[FRAME_BYTES:])
            if number < self.spec.rounds:
                self._begin(number + 1)
        start = time.perf_counter()
        norm = self.worker.apply(step)
        line.seconds["rebuild"] = time.perf_counter() - start
        line.weights_digest = self.worker.space.digest() if self.spec.digests(line.round) else None
        if norm is not None and log:  # the weights' norm takes a pass over them
            line.metrics["step_over_weights"] = norm / max(self.worker.space.norm(), 1e-30)

    def record(self, number: int, step: bytes, line: RoundLine, log: bool) -> None:
        if self._store is not None:
            self._store.prepare(number)
            self._store.record(number, step[FRAME_BYTES:], waits=True)
            self._store.confirm(line.weights_digest or NO_DIGEST)
        if self.team is not None:
            self.team.confirm(line.weights_digest or NO_DIGEST)

    def evaluate(self, model: torch.nn.Module) -> dict[str, Any]:
        """A model's metrics on the evaluation sets."""
        return self._evaluate(model)

    def examine(self, line: RoundLine, evaluate: bool) -> None:
        if self.team is not None:
            self.team.start()  # before the first round: workers load meanwhile
        if evaluate:
            start = time.perf_counter()
            self.worker.space.model.eval()
            found = self._evaluate(self.worker.space.model)
            line.by_client = found.pop("by_client", None)
            line.metrics.update(found)
            line.seconds["evaluation"] = time.perf_counter() - start
        if line.round == 0:
            line.weights_digest = self.worker.space.digest()

    # -- at the end ----------------------------------------------------------------------------------

    def complete(self) -> int | None:
        if self.header.adapter is not None and self.spec.folder is not None:
            folder, model = self.spec.folder / "adapter", self.tuned()
            adapters.save(model, folder)
            about = Facts(self.spec.rounds, self.worker.space.digest(), clients=len(self.names))
            kind = type(model.get_base_model()).__name__
            (folder / "README.md").write_text(card(self.header, about, "adapter", kind), encoding="utf-8")
        return None if self._store is None else self._store.complete(NO_DIGEST)

    def release(self) -> None:
        if self._store is not None:
            self._store.release()

    def tuned(self) -> Any:
        return self.worker.space.model

    def about(self) -> dict[str, Any]:
        devices = self.worker.space.devices
        about = {
            "devices": [str(device) for device in devices],
            "peak_memory_bytes": peak_memory(devices),
            "threads": torch.get_num_threads(),
        }
        if self.team is not None:
            about.update(workers=len(self.team.seats), worker_peak_memory_bytes=self.team.memory)
        return about
