"""A federation in one process: every client's work is done here (`rounds` has the main loop).

Coordinator and worker exchange encoded messages only, as they would over a network, so byte counts are true.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedseed.aggregation import AggregationRule, Mean
from fedseed.attacks.updates import AttackKind
from fedseed.errors import FedseedError, MessageError, OrbitError, RecipeError
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.messages import FRAME_BYTES
from fedseed.federation.worker import Worker, spent
from fedseed.methods import Method
from fedseed.models import adapters
from fedseed.models.adapters import Adapter
from fedseed.objectives.evaluation import mean_loss
from fedseed.objectives.losses import Objective
from fedseed.orbit import NO_DIGEST, AdapterStart, Header, OrbitWriter, Record
from fedseed.reports.progress import Progress
from fedseed.runs import checkpoint
from fedseed.runs.checkpoint import Checkpoint
from fedseed.runs.folder import RunFolder, resident_memory
from fedseed.runs.loop import Gathered, Rounds
from fedseed.tasks.data import ClientData
from fedseed.tracking import Tracker, Trackers
from fedseed.weights.digest import base_digest

Evaluation = Callable[[torch.nn.Module], dict[str, float]]


class Simulation(Rounds):
    """A simulated federation: every client's work is done here, one after the other.

    Args:
        model: the base, any torch module; it is tuned in place.
        clients: the data holders (`ClientData`), or just one list of examples per client.
        method: the method and its settings.
        objective: makes losses of examples.
        rounds: how many.
        per_round: clients that take part in a round; all by default.
        seed: decides client sampling, data order and directions.
        evaluation: prepared held-out sets by prefix ("" for the main one), or a function of the model; measured at
            round 0, every `evaluate_every` rounds and at the end.
        evaluate_every: rounds between evaluations.
        out: folder for the run's files; None: nothing is written.
        base: the base's name, for the orbit's header.
        trainable: name patterns of the trainable parameters, for the orbit's header; None: all.
        classes: names of the classes that an image classifier tells apart, for the orbit's header; none: no classifier.
        adapter: tune an adapter of this kind in place of the model; None: what the method is defined with, if anything.
        patience: stop after so many rounds without a better "validation_loss" in the evaluation; None: never.
        attack: what Byzantine clients do: "sign" (reversed), "random" (unrelated to their data) or "noise" (added).
            "labels" only names them: their data was changed by `fedseed.attacks.labels.flip_labels`.
        attackers: the numbers of the Byzantine clients.
        recipe_text: the complete recipe, written beside the results.
        notes: about the data, such as what was left out; shown when the run starts, and kept in the summary.
        spill_base: keep the copy of the base that some methods need (FedKSeed, small_steps = "from-base") in a
            temporary file, not in memory.
        progress: shows the run going on.
        joint: clients that look along common directions share forward passes: faster, and the same but for the float
            noise of another batch size.
        aggregation: how the clients' answers become one; the weighted mean by default.
        trackers: where else the metrics go.
    """

    attack: AttackKind | None

    def __init__(
        self,
        model: torch.nn.Module,
        clients: Sequence[ClientData | Sequence[Any]],
        method: Method,
        objective: Objective,
        rounds: int,
        per_round: int | None = None,
        seed: int = 0,
        evaluation: Mapping[str, Sequence[Any]] | Evaluation | None = None,
        evaluate_every: int = 1,
        out: Path | str | None = None,
        base: str = "",
        trainable: Sequence[str] | None = None,
        classes: Sequence[str] = (),
        adapter: Adapter | None = None,
        patience: int | None = None,
        attack: AttackKind | None = None,
        attackers: Sequence[int] = (),
        recipe_text: str | None = None,
        notes: Sequence[str] = (),
        spill_base: bool = False,
        progress: Progress | None = None,
        joint: bool = True,
        aggregation: AggregationRule | None = None,
        trackers: Sequence[Tracker] = (),
    ) -> None:
        named = [c if isinstance(c, ClientData) else ClientData(f"client-{i}", c) for i, c in enumerate(clients)]
        super().__init__(
            [c.name for c in named], method, rounds, seed, evaluate_every, out, recipe_text, notes, progress
        )
        self.aggregation = aggregation or Mean()
        self.trackers = Trackers(trackers, self.progress.warn)
        self.items = [objective.prepare(c.examples) for c in named]
        per_round = len(named) if per_round is None else per_round
        if not 1 <= per_round <= len(named):
            raise RecipeError(f"clients per round = {per_round}: from 1 to the number of clients, {len(named)}")
        self.patience = patience
        self.attack: AttackKind | None = attack
        self.attackers = frozenset(attackers) if attack is not None else frozenset()
        if any(not 0 <= a < len(named) for a in self.attackers):
            raise RecipeError(f"attackers {sorted(self.attackers)}: clients are numbered 0 to {len(named) - 1}")
        self._orbit: OrbitWriter | None = None
        self._evaluate = evaluation if callable(evaluation) else self._loss_of(objective, evaluation or {})
        base_dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        digest = base_digest(model)
        chosen = adapters.chosen(adapter, method.adapter, method.name)
        if chosen is not None:
            model = adapters.install(model, chosen, seed, base)
            if trainable is not None:
                from fedseed.models.loading import choose_trainable  # brings transformers; models without it do without

                choose_trainable(model, trainable)
        try:
            apart = bool(self.attackers) or not joint  # what a Byzantine client sends must stand apart
            self.worker = Worker(model, method, objective, seed, joint, spill_base, apart)
            layout = self.worker.space.layout
            self.coordinator = Coordinator(
                method, layout, seed, [len(i) for i in self.items], per_round, self.aggregation
            )
        except ValueError as error:
            raise RecipeError(str(error)) from error
        if method.catch_up == "newest":  # a dense method's coordinator keeps the weights; they are its step 0
            self.coordinator.weights = self.worker.space.dense()
        patterns = None if trainable is None else tuple(trainable)
        start = None if chosen is None else AdapterStart(chosen, self.worker.space.digest())
        self.header = Header(
            base, digest, base_dtype, layout, method, seed, patterns, adapter=start, classes=tuple(classes)
        )

    # -- taking up an interrupted run ----------------------------------------------------------------------------------

    def _restore(self, folder: RunFolder) -> tuple[int, list[int]]:
        """Bring weights and states to the last round that counts."""
        path = folder.path / ("model.safetensors" if self.method.catch_up == "newest" else "model.orbit")
        if folder.has_rounds and not path.exists():
            raise FedseedError(f"{folder.path}: {path.name} is missing, and with it what the run has learnt")
        return self._take_up_weights(path) if self.method.catch_up == "newest" else self._take_up_orbit(path)

    def _take_up_orbit(self, path: Path) -> tuple[int, list[int]]:
        there = path.exists()
        self._orbit = OrbitWriter(path, self.header, resume=there)
        if self._orbit.cut is not None:
            self.progress.warn(self._orbit.cut)
        if not there:
            return 0, []
        orbit = self._orbit.take()
        if orbit.header.first > 1:
            raise OrbitError(f"{path} is compacted: a run can't go on from it")
        self.worker.catch_up(orbit.steps())
        self.coordinator.catch_up(record.payload for record in orbit.steps())
        return orbit.last, [len(record.payload) for record in orbit.steps()]

    def _take_up_weights(self, path: Path) -> tuple[int, list[int]]:
        if not path.exists():
            return 0, []
        at = checkpoint.load(path, self.worker.space, self.header)
        sizes = [0] * at.round
        if at.changed:  # a dense step is the weights themselves
            step = self.worker.space.dense()
            sizes[at.changed - 1] = len(step)
            self.coordinator.catch_up([step])
            self.coordinator.load_state_dict(at.kept)
            self.worker.state = self.method.advance(self.worker.state, self.method.decode_step(self.worker.state, step))
        return at.round, sizes

    # -- a round ----------------------------------------------------------------------------------

    def _gather(self, number: int) -> Gathered:
        picked = self.coordinator.open(number)
        plans = [self.coordinator.plan(client) for client in picked]
        gathered = Gathered(picked, len(plans[0]) - FRAME_BYTES)
        answers = self.worker.train_all(plans, picked, [self.items[client] for client in picked])
        for client, answer in zip(picked, answers, strict=True):
            name = self.names[client]
            gathered.spent.add(spent(answer.effort, counts=answer.message is not None or answer.within is not None))
            if answer.within is not None:  # its part is in another client's message
                gathered.update_bytes.append(answer.within)
                continue
            if answer.message is None:
                gathered.skipped.append((client, str(answer.reason)))
                self.progress.warn(f"round {number}: {name} sends nothing: {answer.reason}")
                continue
            message = answer.message
            if client in self.attackers and self.attack not in (None, "labels"):  # flipped labels act through the data
                message = self.worker.corrupt(message, self.attack)
            gathered.update_bytes.append(len(message) - FRAME_BYTES)
            try:
                self.coordinator.receive(message, client)
            except MessageError as error:
                gathered.refused += 1
                gathered.skipped.append((client, f"refused: {error}"))
                self.progress.warn(f"round {number}: the update of {name} is refused: {error}")
        return gathered

    def _apply(self, step: bytes, line: dict[str, Any], log: bool) -> None:
        start = time.perf_counter()
        norm = self.worker.apply(step)
        line["seconds"]["rebuild"] = time.perf_counter() - start
        line["weights_digest"] = self.worker.space.digest() if log else NO_DIGEST
        if norm is not None:
            line["step_over_weights"] = norm / max(self.worker.space.norm(), 1e-30)

    def _record(self, number: int, step: bytes, line: dict[str, Any], log: bool) -> None:
        if self._orbit is not None:
            self._orbit.append(Record(number, step[FRAME_BYTES:], line["weights_digest"]))
        elif self.out is not None:
            at = Checkpoint(number, self._downloads.changed, self.coordinator.state_dict())
            checkpoint.save(self.out / "model.safetensors", self.worker.space, self.header, at)

    def evaluate(self, model: torch.nn.Module) -> dict[str, float]:
        """A model's metrics on the evaluation sets."""
        return self._evaluate(model)

    def _look(self, line: dict[str, Any], evaluate: bool) -> None:
        if evaluate:
            start = time.perf_counter()
            self.worker.space.model.eval()
            line.update(self._evaluate(self.worker.space.model))
            line["seconds"]["evaluation"] = time.perf_counter() - start
        if "weights_digest" not in line:  # round 0
            line["weights_digest"] = self.worker.space.digest()

    # -- at the end ----------------------------------------------------------------------------------

    def _complete(self) -> int | None:
        if self.header.adapter is not None and self.out is not None:
            adapters.save(self.worker.space.model, self.out / "adapter")
        if self._orbit is None:
            return None
        self._orbit.close()
        return self._orbit.path.stat().st_size

    def _release(self) -> None:
        if self._orbit is not None:
            self._orbit.release()

    def _about(self) -> dict[str, Any]:
        return {"peak_memory_bytes": peak_memory(), "threads": torch.get_num_threads()}

    @staticmethod
    def _loss_of(objective: Objective, sets: Mapping[str, Sequence[Any]]) -> Evaluation:
        prepared = {prefix: objective.prepare(examples) for prefix, examples in sets.items()}
        for prefix, items in prepared.items():
            if not items:
                raise RecipeError(
                    f'none of the {len(sets[prefix])} examples of the evaluation set "{prefix}" is usable'
                )

        def evaluate(model: torch.nn.Module) -> dict[str, float]:
            return {f"{prefix}loss": mean_loss(model, objective, items) for prefix, items in prepared.items()}

        return evaluate


def peak_memory() -> int:
    """The process' peak memory in bytes: on the GPU where there is one, otherwise resident memory."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return resident_memory(peak=True)
