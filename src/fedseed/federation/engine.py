"""A federation in one process: the main loop, from top to bottom.

Coordinator and worker exchange encoded messages only, as they would over a network, so byte counts are true.
"""

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedseed.durable import replacing
from fedseed.errors import FedseedError, MessageError, OrbitError, RecipeError
from fedseed.federation import checkpoint
from fedseed.federation.checkpoint import Checkpoint
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.downloads import Downloads, restored
from fedseed.federation.ledger import RunFolder, read_metrics, read_summary
from fedseed.federation.worker import Worker
from fedseed.messages import FRAME_BYTES, Message
from fedseed.methods import FedKSeed, Method
from fedseed.methods.base import Attack
from fedseed.methods.fedavg import Weights
from fedseed.orbit import NO_DIGEST, Header, OrbitWriter, Record
from fedseed.parameters import base_digest
from fedseed.randomness import Domain
from fedseed.randomness.stream import words
from fedseed.reports.progress import Progress, Silent
from fedseed.tasks.data import ClientData
from fedseed.training.evaluation import mean_loss
from fedseed.training.objectives import Objective

# A step whose reconstruction noise is this long beside the weights (per round) is likely to harm the model.
NOISE_WARNING = 0.1

Evaluation = Callable[[torch.nn.Module], dict[str, float]]


@dataclass(frozen=True)
class RunResult:
    """What `Federation.run` returns.

    Args:
        summary: what summary.json holds.
        metrics: what metrics.jsonl holds, a line a round, round 0 first.
        folder: where the files are, None if the run wrote none.
    """

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    folder: Path | None


class Federation:
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
        attack: what Byzantine clients do: "sign" (reversed), "random" (unrelated to their data) or "noise" (added).
            "labels" only names them: their data was changed by `fedseed.robustness.flip_labels`.
        attackers: the numbers of the Byzantine clients.
        recipe_text: the complete recipe, written beside the results.
        notes: about the data, such as what was left out; shown when the run starts, and kept in the summary.
        progress: shows the run going on.
    """

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
        attack: Attack | None = None,
        attackers: Sequence[int] = (),
        recipe_text: str | None = None,
        notes: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> None:
        named = [c if isinstance(c, ClientData) else ClientData(f"client-{i}", c) for i, c in enumerate(clients)]
        self.names = [c.name for c in named]
        self.items = [objective.prepare(c.examples) for c in named]
        per_round = len(named) if per_round is None else per_round
        if not 1 <= per_round <= len(named):
            raise RecipeError(f"clients per round = {per_round}: from 1 to the number of clients, {len(named)}")
        self.method = method
        self.rounds = rounds
        self.seed = seed
        self.evaluate_every = evaluate_every
        self.out = None if out is None else Path(out)
        self.recipe_text = recipe_text
        self.notes = tuple(notes)
        self.attack: Attack | None = attack
        self.attackers = frozenset(attackers) if attack is not None else frozenset()
        if any(not 0 <= a < len(named) for a in self.attackers):
            raise RecipeError(f"attackers {sorted(self.attackers)}: clients are numbered 0 to {len(named) - 1}")
        self.progress = progress or Silent()
        self._warned = False
        self._started = False
        self._orbit: OrbitWriter | None = None
        self._downloads = Downloads(method, len(named))
        self._evaluate = evaluation if callable(evaluation) else self._loss_of(objective, evaluation or {})
        base_dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        digest = base_digest(model)
        try:
            self.worker = Worker(model, method, objective, seed)
            layout = self.worker.space.layout
            self.coordinator = Coordinator(method, layout, seed, [len(i) for i in self.items], per_round)
        except ValueError as error:
            raise RecipeError(str(error)) from error
        if method.dense:  # a dense method's coordinator keeps the weights; they are its step 0
            self.coordinator.state = method.advance(self.coordinator.state, Weights(self.worker.space.dense()))
        patterns = None if trainable is None else tuple(trainable)
        self.header = Header(base, digest, base_dtype, layout, method, seed, patterns)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        overrides: Sequence[str] = (),
        out: Path | str | None = None,
        progress: Progress | None = None,
    ) -> "Federation":
        """A federation from a recipe: a TOML file, or the name of one that comes with fedseed.

        Args:
            path: the file or name.
            overrides: "key=value" pairs that replace values of the recipe, such as "method.directions=1000".
            out: folder for the run's files; None: nothing is written.
            progress: shows the run going on.

        Raises:
            RecipeError: the recipe is wrong; names key, value and what is allowed.
        """
        from fedseed.configuration import build, read_recipe

        return build(read_recipe(path, overrides), out=out, progress=progress)

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
            if self._orbit is not None:
                self._orbit.release()

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
            for number in range(first, self.rounds + 1):
                evaluate = number % self.evaluate_every == 0 or number == self.rounds
                log = evaluate or not self.method.stepwise
                if number > done:
                    pending.append(self._round(number, folder, log))
                if not log:
                    self.progress.advance(number)
                    continue
                line: dict[str, Any] = merge_rounds(pending) if pending else {"round": 0}
                pending = []
                if evaluate:
                    start = time.perf_counter()
                    self.worker.space.model.eval()
                    line.update(self._evaluate(self.worker.space.model))
                    line.setdefault("seconds", {})["evaluation"] = time.perf_counter() - start
                line.setdefault("weights_digest", self.worker.space.digest())
                metrics.append(line)
                if folder is not None:
                    folder.add_metrics(line)
                self.progress.round(line)
        if self._orbit is not None:
            self._orbit.close()
        summary = self._summary(metrics, time.perf_counter() - began)
        if folder is not None:
            self._draw(folder, metrics)
            folder.finish(summary)
        return RunResult(summary, metrics, None if folder is None else folder.path)

    # -- taking up an interrupted run ------------------------------------------------------------------------------

    def _take_up(self, folder: RunFolder) -> int:
        """Bring weights and states to the last round that counts; returns its number, 0 in a new folder."""
        path = folder.path / ("model.safetensors" if self.method.dense else "model.orbit")
        if folder.has_rounds and not path.exists():
            raise FedseedError(f"{folder.path}: {path.name} is missing, and with it what the run has learnt")
        done, sizes = self._take_up_weights(path) if self.method.dense else self._take_up_orbit(path)
        picked = [self.coordinator.sampled(number) for number in range(1, done + 1)]
        self._downloads = restored(self.method, sizes, picked, len(self.items))
        if done:
            self.progress.note(f"resumed after round {done} of {self.rounds}")
        if done > self.rounds:
            raise RecipeError(f"{folder.path}: the run there has {done} rounds, this one is to have {self.rounds}")
        return done

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
            self.worker.state = self.method.advance(self.worker.state, self.method.decode_step(self.worker.state, step))
        return at.round, sizes

    # -- a round ---------------------------------------------------------------------------------------------------

    def _round(self, number: int, folder: RunFolder | None, log: bool) -> dict[str, Any]:
        """One round; returns its line of metrics. `log`: it will be a line of its own, with a digest."""
        seconds: dict[str, float] = {}
        bytes_up, bytes_down, losses, skipped, refused = [], [], [], [], 0
        picked = self.coordinator.open(number)
        plans = [self.coordinator.plan(client) for client in picked]
        for client, plan in zip(picked, plans, strict=True):
            bytes_down.append(len(plan) - FRAME_BYTES + self._downloads.of(client))
        answers = self.worker.train_all(plans, picked, [self.items[client] for client in picked])
        for client, answer in zip(picked, answers, strict=True):
            name = self.names[client]
            for phase, spent in answer.effort.seconds.items():
                seconds[phase] = seconds.get(phase, 0.0) + spent
            if answer.message is None:
                skipped.append({"client": name, "reason": answer.reason})
                self.progress.warn(f"round {number}: {name} sends nothing: {answer.reason}")
                continue
            message = answer.message
            if client in self.attackers and self.attack != "labels":  # flipped labels act through the data
                message = self._corrupt(message, number, client)
            bytes_up.append(len(message) - FRAME_BYTES)
            losses.extend(answer.effort.losses)
            try:
                self.coordinator.receive(message, client)
            except MessageError as error:
                refused += 1
                skipped.append({"client": name, "reason": f"refused: {error}"})
                self.progress.warn(f"round {number}: the update of {name} is refused: {error}")
        start = time.perf_counter()
        step = self.coordinator.close()
        seconds["aggregation"] = time.perf_counter() - start
        start = time.perf_counter()
        norm = self.worker.apply(step)
        seconds["rebuild"] = time.perf_counter() - start
        digest = self.worker.space.digest() if log else NO_DIGEST
        self._downloads.add(len(step) - FRAME_BYTES)
        line = {
            "round": number,
            "clients": [self.names[c] for c in picked],
            "skipped": skipped,
            "refused": refused,
            "train_loss": sum(losses) / len(losses) if losses else None,
            "bytes_up": sum(bytes_up) / len(picked),
            "bytes_down": sum(bytes_down) / len(picked),
            "forward_passes": sum(a.effort.forward_passes for a in answers),
            "backward_passes": sum(a.effort.backward_passes for a in answers),
            "skipped_steps": sum(a.effort.skipped_steps for a in answers),
            "attacked": [self.names[c] for c in picked if c in self.attackers],
            "seconds": seconds,
            "weights_digest": digest,
        }
        if norm is not None:
            ratio = norm / max(self.worker.space.norm(), 1e-30)
            line["step_over_weights"] = ratio
            if ratio > NOISE_WARNING and not self._warned:
                self._warned = True  # once is enough; every round's ratio is in the metrics
                self.progress.warn(
                    f"round {number}: the step's expected norm, mostly noise sqrt(d/K) eta_g |Delta|, is "
                    f"{ratio:.0%} of |w|; lower the local rate or global_rate, or raise directions"
                )
        if folder is not None:  # in this order; on disk before the round counts
            folder.add_progress(line)
            if self._orbit is not None:
                self._orbit.append(Record(number, step[FRAME_BYTES:], digest))
            else:
                at = Checkpoint(number, self._downloads.changed)
                checkpoint.save(folder.path / "model.safetensors", self.worker.space, self.header, at)
        return line

    def _corrupt(self, data: bytes, number: int, client: int) -> bytes:
        """What a Byzantine client sends in place of its honest update."""
        message = Message.decode(data)
        state = self.coordinator.state
        update = self.method.decode_update(state, number, message.payload)
        drawn = words(self.seed, Domain.ATTACK, client, number << 20, 1 << 12).reshape(-1)
        assert self.attack is not None
        payload = self.method.corrupt(state, update, self.attack, drawn).encode()
        return replace(message, payload=payload).encode()

    # -- at the end --------------------------------------------------------------------------------------------------

    def _summary(self, metrics: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
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
            "rounds": self.rounds,
            "parameters": layout.size,
            "blocks": len(layout.block_sizes),
            "clients": len(self.items),
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
            "privacy": self.method.privacy(self.rounds),
            "seconds": phases,
            "peak_memory_bytes": peak_memory(),
            "base_digest": self.header.base_digest,
            "weights_digest": metrics[-1]["weights_digest"],
            "orbit_bytes": None if self._orbit is None else self._orbit.path.stat().st_size,
            "threads": torch.get_num_threads(),
        }

    def _draw(self, folder: RunFolder, metrics: list[dict[str, Any]]) -> None:
        # matplotlib takes a while to import
        from fedseed.reports.pictures import LABELS, draw_probabilities, draw_runs

        if any(name in metrics[0] for name in LABELS):
            with replacing(folder.path / "metrics.png") as picture:
                draw_runs({self.method.name: metrics}, picture)
        if isinstance(self.method, FedKSeed) and self.method.importance:
            state: Any = self.coordinator.state
            with replacing(folder.path / "probabilities.png") as picture:
                draw_probabilities(self.method.probabilities(state.step), picture)

    @staticmethod
    def _loss_of(objective: Objective, sets: Mapping[str, Sequence[Any]]) -> Evaluation:
        prepared = {prefix: objective.prepare(examples) for prefix, examples in sets.items()}

        def evaluate(model: torch.nn.Module) -> dict[str, float]:
            return {f"{prefix}loss": mean_loss(model, objective, items) for prefix, items in prepared.items()}

        return evaluate


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


def peak_memory() -> int:
    """The process' peak memory in bytes: on the GPU where there is one, otherwise resident memory."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
