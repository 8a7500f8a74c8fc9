"""Simulates a federation on one machine, which does every client's work (`loop` has the rounds).

Coordinator and worker exchange only encoded messages, as over a network, so byte counts are real.
Local processes may share the clients' work (`workers`), with the same results. Coordinator, files
and evaluation stay in this process.
"""

import time
import weakref
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any, cast

import torch

from fedseed.errors import FedseedError, MessageError, RecipeError, plural
from fedseed.federation.byzantine import Byzantine
from fedseed.federation.client.accounts import accounts_in_memory, charge, kind_of, run_of, turn_of
from fedseed.federation.client.secure import Masking, answer_ask
from fedseed.federation.client.state import Hosted
from fedseed.federation.client.worker import Answer, Worker
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.federation.coordinator.membership import Roster
from fedseed.federation.coordinator.rounds import Gathered, Rounds
from fedseed.federation.coordinator.secure import SecureCoordinator
from fedseed.federation.coordinator.session import CoordinatorSettings, Rejected, Session
from fedseed.federation.coordinator.summed import SummedCoordinator
from fedseed.federation.cost import Cost
from fedseed.federation.messages import Message
from fedseed.federation.protocol import read_plan, silent_message
from fedseed.methods import Method
from fedseed.models import adapters
from fedseed.objectives.guessing import guess_loss
from fedseed.orbit import NO_DIGEST, Record
from fedseed.orbit.card import Facts, card
from fedseed.privacy.settings import WITHHELD
from fedseed.reports.machine import resident_memory
from fedseed.reports.progress import Progress, choose_progress
from fedseed.reports.results import RoundLine
from fedseed.runs.costs import RunResult
from fedseed.runs.folder import MEMORY
from fedseed.runs.loop import Run
from fedseed.runs.spec import RunSpec
from fedseed.runs.store import Restored
from fedseed.runs.workers import Work, Workers, look, train
from fedseed.training.memory import Memory
from fedseed.transport.base import CoordinatorEnd
from fedseed.weights.devices import limited, peak_on

# attempts at a round; more would not help, because local clients would do the same again
MOST_ATTEMPTS = 20


class _Everybody(Roster):
    """The roster of a simulation: all clients are always present."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(inf, list(names))
        self._all = frozenset(range(len(names)))

    def present(self) -> frozenset[int]:
        return self._all


@dataclass
class _Attempt:
    """The costs of the round that is being gathered."""

    spent: Cost = field(default_factory=Cost)  # the clients' work
    training: float = 0.0  # seconds of training
    restarts: int = 0  # how often the round began again


class _LocalEnd:
    """The part of a coordinator's transport that a simulation uses.

    It keeps broadcasts until the session carries them out.
    """

    largest = inf  # largest message in bytes; unlimited, because messages stay in this process
    resend_seconds = inf

    def __init__(self) -> None:
        self._broadcasts: list[bytes] = []

    async def broadcast(self, data: bytes, soon: Collection[str] = ()) -> None:
        """Keep a message to the clients."""
        self._broadcasts.append(data)

    def take_broadcasts(self) -> list[bytes]:
        """Return the messages since the last call."""
        broadcasts, self._broadcasts = self._broadcasts, []
        return broadcasts


class _LocalSession(Session):
    """A coordinator's session with clients in the same process.

    The clients work when the coordinator waits for their answers.
    """

    def __init__(
        self,
        hosted: Hosted,
        coordinator: Coordinator,
        byzantine: Byzantine | None,
        team: Workers | None,
        progress: Progress,
    ) -> None:
        # `rejected` stays silent, because the rounds report refused updates themselves
        settings, rejected = (
            CoordinatorSettings(deadline=inf, minimum=0, patience=inf),
            Rejected(Progress(), ""),
        )
        # rounds use only the methods that `_LocalEnd` has
        end = cast(CoordinatorEnd, _LocalEnd())
        super().__init__(end, settings, progress, rejected, at_hand=True)
        self.hosted = hosted
        self.coordinator = coordinator
        self.byzantine = byzantine
        self.team = team
        self.masking: Masking | None = None
        sizes = dict(enumerate(map(len, hosted.items.values())))
        if hosted.secure is not None:
            self.masking = Masking(hosted.secure, hosted.worker.method, sizes, progress.warn)
        self.rounds = Rounds(self, _Everybody(hosted.names), coordinator, 0)
        # clients without examples; a note at the start names them
        self.rounds.idle.update(number for number, size in sizes.items() if not size)
        self._begun: dict[int, bytes] = {}  # the plans already given to workers, by client
        self._attempt = _Attempt()

    @property
    def local_end(self) -> _LocalEnd:
        """Return the coordinator's end as the `_LocalEnd` that it is."""
        return cast(_LocalEnd, self.end)

    def gather(self, number: int) -> Gathered:
        """Open a round and gather the answers. Raises FedseedError if no attempt succeeds."""
        attempt = self._attempt = _Attempt()
        self.local_end.take_broadcasts()  # drop broadcasts of a round that was given up
        start = time.perf_counter()
        gathered = _run_to_end(self.rounds.gather(number))
        gathered.spent, took = attempt.spent, time.perf_counter() - start
        if self.masking is not None:
            attempt.spent.seconds["secure_sums"] = took - attempt.training
        if self.team is not None:
            attempt.spent.fit(took)
        return gathered

    def begin(self, number: int) -> None:
        """Let workers begin the next round early."""
        self.coordinator.open(number)
        self._deal(
            {
                client: plan
                for plan, clients in self.coordinator.plans().items()
                for client in clients
            }
        )

    async def pause(self, seconds: float) -> None:
        """Carry out the broadcasts, instead of waiting for clients elsewhere."""
        broadcasts = self.local_end.take_broadcasts()
        if not broadcasts:
            self._attempt.restarts += 1
        if self._attempt.restarts >= MOST_ATTEMPTS:
            raise FedseedError(
                f"a round began {MOST_ATTEMPTS} times without a sum that could be opened"
            )
        self._carry_out(broadcasts)

    def _carry_out(self, broadcasts: Sequence[bytes]) -> None:
        """Let the clients answer plans and the requests of secure sums."""
        plans: dict[int, bytes] = {}
        for data in broadcasts:
            addressees, message = read_plan(data[1:])
            clients: Collection[int] = self.coordinator.current.clients
            if addressees is not None:
                clients = addressees
            if data[:1] == b"P":
                plans.update(dict.fromkeys(clients, message))
            elif self.masking is not None:
                for client in clients:
                    self.rounds.take(
                        self.hosted.names[client], answer_ask(self.masking, client, message)
                    )
        if plans:
            self._train(dict(sorted(plans.items())))

    def _train(self, plans: dict[int, bytes]) -> None:
        start = time.perf_counter()
        answers = dict(zip(plans, self._answers(plans), strict=True))
        for client, answer in answers.items() if self.hosted.accounts else ():
            plan, name = Message.decode(plans[client]), self.hosted.names[client]
            turn = turn_of(self.hosted, plan, name, client)
            answers[client] = charge(self.hosted.accounts, turn, answer, plan, client)
        self._attempt.training += time.perf_counter() - start
        messages = {
            client: answer.message
            for client, answer in answers.items()
            if answer.message is not None
        }
        first_plan = Message.decode(next(iter(plans.values())))
        if self.byzantine is not None:
            messages = self.byzantine.corrupt_messages(
                first_plan.round, messages, self.hosted.worker.corrupt
            )
        for client, answer in answers.items():
            self._attempt.spent.add(answer.spent)
            message = messages.get(client) or silent_message(
                first_plan.round, first_plan.attempt, str(answer.reason)
            )
            if self.masking is not None:
                try:
                    message = self.masking.update(
                        self.hosted.worker.state, first_plan, client, messages.get(client)
                    )
                except MessageError:
                    message = silent_message(first_plan.round, first_plan.attempt, WITHHELD)
            self.rounds.take(self.hosted.names[client], message)

    def _answers(self, plans: dict[int, bytes]) -> list[Answer]:
        """Return the clients' answers, from the workers or from this process."""
        worker, items = self.hosted.worker, list(self.hosted.items.values())
        if isinstance(self.coordinator, SummedCoordinator):
            return sum_round(self.coordinator, worker, plans, [items[client] for client in plans])
        losses: dict[Any, Any] = {}
        if self.team is not None:
            self._deal(plans)
            self._begun = {}
            results = self.team.results()
            if not worker.shares:
                return results
            for part in results:
                losses |= part
        return worker.train_all(
            list(plans.values()), list(plans), [items[client] for client in plans], losses
        )

    def _deal(self, plans: dict[int, bytes]) -> None:
        """Give a round's work to the workers, unless they have it already. The work is to train
        clients, or to measure parts of the losses that all clients share.
        """
        if self.team is None or self._begun == plans:
            return
        if self._begun:  # the clients differ from those expected
            self.team.results()
        self._begun, parts = plans, len(self.team.seats)
        orders: Sequence[Work] = [partial(train, plan, client) for client, plan in plans.items()]
        if self.hosted.worker.shares:
            orders = [
                partial(look, list(plans.values()), list(plans), part, parts)
                for part in range(parts)
            ]
        self.team.begin(orders)


def _run_to_end(work: Coroutine[Any, Any, Gathered]) -> Gathered:
    """Run a coroutine that never waits for anything outside this process, and return its result.

    It needs no event loop.
    """
    try:
        work.send(None)
    except StopIteration as stop:
        gathered: Gathered = stop.value
        return gathered
    raise RuntimeError("a round of a simulation waited for something outside its process")


def sum_round(
    coordinator: SummedCoordinator,
    worker: Worker,
    plans: Mapping[int, bytes],
    items: Sequence[Sequence[Any]],
) -> list[Answer]:
    """Let clients add up their gradients, give the sum to the coordinator, and return the answers.

    Args:
        coordinator: the coordinator of the open round.
        worker: the model.
        plans: each client's plan, by the client's number.
        items: the clients' examples, in the order of the plans.
    """
    answers, total = worker.sum_gradients(
        list(plans.values()), list(plans), items, coordinator.weigh
    )
    coordinator.take_sum(total)
    return answers


def check_processes(method: Method, workers: object | None) -> None:
    """Raise RecipeError if there are workers but the method works only in one process."""
    if method.sums_gradients and workers is not None:
        raise RecipeError(
            "method.summed = true: gradients are added up in a single process; leave out "
            "--workers and --ray"
        )


class Simulation(Run):
    """A simulated federation. One process does the clients' work in turn, or several processes of
    this machine share it.

    Args:
        spec: the run's specification.
        hosted: the base model with the examples of all clients.
        progress: shows progress. True: on standard error; False: not at all; None: on standard
            error if it is a terminal.
        workers: local processes that share the clients' work. The results are those of one process
            with the same number of threads as each of them.

    Raises:
        RecipeError: a setting is invalid; the message names it.
    """

    def __init__(
        self,
        spec: RunSpec,
        hosted: Hosted,
        progress: Progress | bool | None = None,
        workers: Workers | None = None,
    ) -> None:
        super().__init__(choose_progress(progress))
        names = self.names = list(hosted.names)
        per_round = len(names)
        if spec.per_round is not None:
            per_round = spec.per_round
        if not 1 <= per_round <= len(names):
            raise RecipeError(
                f"clients per round = {per_round}: from 1 to the number of clients, {len(names)}"
            )
        if any(not 0 <= number < len(names) for number in spec.byzantine):
            raise RecipeError(
                f"attackers {sorted(spec.byzantine)}: clients are numbered 0 to {len(names) - 1}"
            )
        if spec.threads is None and workers is not None:
            spec = replace(spec, threads=workers.threads)
        self.hosted, self.worker, self.items = hosted, hosted.worker, list(hosted.items.values())
        self.header = replace(hosted.header, base_folder=spec.base_folder)
        self.spec = spec = replace(spec, per_round=per_round, notes=hosted.notes)
        sizes = [len(items) for items in self.items]
        common = (
            spec.method,
            self.header.layout,
            spec.seed,
            sizes,
            per_round,
            spec.aggregation,
            spec.bounds,
        )
        sums, attack, byzantine = spec.secure_sums, spec.attack, None
        try:
            if spec.method.sums_gradients and sums is None:
                if attack is not None:
                    raise ValueError(
                        "method.summed = true: [attack] changes single clients' gradients; leave "
                        "one of the two out"
                    )
                check_processes(spec.method, workers)
                self.coordinator = SummedCoordinator(*common)
            elif sums is None:
                self.coordinator = Coordinator(*common)
            else:
                self.coordinator = SecureCoordinator(sums, *common)
            if attack is not None:
                byzantine = Byzantine(
                    self.coordinator, attack, spec.byzantine, spec.attack_strength
                )
        except ValueError as error:
            raise RecipeError(str(error)) from error
        if spec.method.catch_up.replaces:  # then the base counts as step 0
            self.coordinator.weights = self.worker.space.dense()
        self.worker.memory = Memory(None if spec.folder is None else spec.folder / MEMORY)
        self.team = workers
        if workers is not None:
            workers.limit(per_round)
            workers.warn = self.progress.warn
            memory = None
            if self.method.remembers:
                memory = self.worker.memory.folder
            workers.expect(hosted.start, self.method.catch_up.replaces, memory)
            weakref.finalize(self, workers.close)  # also for a simulation that never runs
        self.clients = _LocalSession(
            self.hosted, self.coordinator, byzantine, self.team, self.progress
        )

    @property
    def method(self) -> Method:
        """Return the method."""
        return self.spec.method

    def run(self, resume: bool = False, extend: bool = False, overwrite: bool = False) -> RunResult:
        if self.team is not None:
            count = plural(len(self.team.seats), "worker process", "worker processes")
            self.progress.note(f"{count}, {plural(self.team.threads, 'thread')} each")
        # no client asks for an earlier round's answer again, and all answers of a long run would
        # take much memory
        self.hosted.accounts = accounts_in_memory(
            self.method, self.names, self.spec.rounds, keep_answers=False
        )
        try:
            with limited(self.spec.threads):
                return super().run(resume, extend, overwrite)
        finally:
            if self.team is not None:
                self.team.close()

    def catch_up(self, restored: Restored) -> None:
        self.worker.catch_up(restored.records)
        for number in range(1, restored.round + 1) if self.hosted.accounts else ():
            for client in self.coordinator.sample_clients(number):
                account = self.hosted.accounts[self.names[client]]
                account.count_earlier(run_of(self.hosted), kind_of(self.hosted))
        memory = self.worker.memory.folder
        if self.method.remembers and restored.round and not memory.is_dir():
            raise FedseedError(
                f"{memory} is missing: it has what clients keep from round to round, so the run "
                "can't continue; choose another folder with --out"
            )
        if self.team is not None:
            self.team.apply(*restored.records)

    def gather(self, number: int) -> Gathered:
        return self.clients.gather(number)

    def apply(self, step: Message, line: RoundLine, log: bool) -> None:
        """Apply the step to the weights.

        Workers apply it too, and begin the next round at the same time.
        """
        number = line.round
        if self.team is not None:
            self.team.apply(Record(number, step.payload))
            if number < self.spec.rounds:
                self.clients.begin(number + 1)
        start = time.perf_counter()
        # the frame need not be checked: a message within one process can't be damaged or mixed up
        norm = self.worker.apply_payload(step.payload)
        line.seconds["rebuild"] = time.perf_counter() - start
        line.weights_digest = self.worker.space.digest() if self.spec.digests(line.round) else None
        if norm is not None and log:  # computing the weights' norm takes a pass over the weights
            line.metrics["step_over_weights"] = norm / max(self.worker.space.norm(), 1e-30)
        if self.team is not None:
            self.team.confirm(line.weights_digest or NO_DIGEST)

    def examine(self, line: RoundLine, evaluate: bool) -> None:
        if self.team is not None:
            # workers load before the first round, while this process evaluates
            self.team.load()
        if evaluate:
            start = time.perf_counter()
            self.worker.space.model.eval()
            figures = self.hosted.evaluate(self.worker.space.model)
            line.by_client = figures.pop("by_client", None)
            line.metrics.update(figures)
            line.weights_norm = self.worker.space.norm()
            line.seconds["evaluation"] = time.perf_counter() - start
        if line.round == 0:
            line.weights_digest = self.worker.space.digest()

    def guess_loss(self) -> float | None:
        item = next((items[0] for items in self.items if items), None)
        return guess_loss(self.worker.objective, self.worker.space.model, item)

    def finish(self) -> None:
        """Write the adapter as a folder that peft loads."""
        if self.header.adapter is not None and self.spec.folder is not None:
            folder, model = self.spec.folder / "adapter", self.tuned()
            adapters.save(model, folder)
            facts = Facts(self.spec.rounds, self.worker.space.digest(), clients=len(self.names))
            kind = type(model.get_base_model()).__name__
            (folder / "README.md").write_text(
                card(self.header, facts, "adapter", kind), encoding="utf-8"
            )

    @property
    def threads(self) -> int:
        if self.team is not None:
            return self.team.threads
        return torch.get_num_threads()

    def tuned(self) -> Any:
        return self.worker.space.model

    def describe_process(self) -> dict[str, Any]:
        devices = self.worker.space.devices
        facts = {
            "devices": [str(device) for device in devices],
            "peak_memory_bytes": peak_on(devices) or resident_memory(peak=True),
            "threads": torch.get_num_threads(),
        }
        if self.team is not None:
            facts.update(workers=len(self.team.seats), worker_peak_memory_bytes=self.team.memory)
        return facts
