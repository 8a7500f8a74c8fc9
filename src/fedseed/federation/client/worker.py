"""Holds a model, applies steps, and trains for the hosted clients."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, replace
from typing import Any

import numpy as np
import torch

from fedseed.attacks.updates import AttackKind, alone
from fedseed.errors import NonFiniteError
from fedseed.federation.cost import Cost
from fedseed.federation.messages import Message, MessageKind
from fedseed.methods import Method, without_gradients
from fedseed.methods.payload import DecodeContext
from fedseed.models.stored import stored_weights
from fedseed.objectives.losses import Objective
from fedseed.orbit import Record
from fedseed.orbit.replay import catch_up
from fedseed.privacy import protection_of
from fedseed.privacy.account import hash_of
from fedseed.privacy.protection import check_dtypes
from fedseed.privacy.settings import WITHHELD
from fedseed.training.client import ClientCost, LocalClient
from fedseed.training.memory import Memory
from fedseed.training.summing import GradientSum
from fedseed.training.together import Look, PassLosses, SharedLosses
from fedseed.weights.change import expected_norm
from fedseed.weights.devices import wait_for
from fedseed.weights.digest import dtype_name
from fedseed.weights.layout import DigestKind
from fedseed.weights.space import ParameterSpace


@dataclass(frozen=True)
class Answer:
    """A hosted client's answer."""

    message: bytes | None  # the update's bytes, or None if the client sends nothing
    reason: str | None  # why the client sends nothing
    # the cost of the work; empty in private runs, because it depends on the client's data
    cost: ClientCost

    @property
    def spent(self) -> Cost:
        """The cost to report, without losses if no update is sent."""
        cost, losses = self.cost, [] if self.message is None else self.cost.losses
        passes = (cost.forward_passes, cost.backward_passes, cost.skipped_steps)
        weight_counts = (cost.moved_weights, cost.movable_weights)
        return Cost(dict(cost.seconds), *passes, sum(losses), len(losses), *weight_counts)


@dataclass(eq=False)
class Worker:
    """A model and the clients that it trains for, which share one copy of the weights."""

    model: InitVar[torch.nn.Module]  # the base
    method: Method
    objective: Objective  # computes losses of items
    seed: int  # the run's seed
    joint: bool = True  # whether clients with common directions share forward passes
    digest: InitVar[DigestKind] = "blake2b"  # how weights are hashed
    kind: InitVar[type[ParameterSpace]] = ParameterSpace

    def __post_init__(
        self, model: torch.nn.Module, digest: DigestKind, kind: type[ParameterSpace]
    ) -> None:
        method, objective = self.method, self.objective
        self.space = kind(model, method.blocks, digest)
        method.check(self.space.layout)
        check_dtypes(method, map(dtype_name, (*model.parameters(), *model.buffers())))
        if not getattr(objective, "differentiable", True):
            problem = without_gradients(method)
            if problem:
                raise ValueError(problem)
        self.protection = protection_of(method)
        # whether the run shows nothing that depends on data except what the method sends
        self.private = self.protection is not None
        self.state = method.start(self.space.layout, self.seed)
        self.memory = Memory()  # what clients keep from round to round
        # the memory in which clients' gradients are added up; None: not used yet
        self._total: GradientSum | None = None
        # a hash of the applied steps, kept if clients have accounts; together with the base it
        # identifies the weights of a question
        self.history = hash_of()
        if method.from_base:
            self.space.keep_base(stored_weights(model), often=method.rebuilds_each_step)
        elif method.retakes_steps:
            self.space.follow_steps(stored_weights(model))

    def train(self, plan_message: bytes, client: int, items: Sequence[Any]) -> Answer:
        """Train for a client as the plan asks. Afterwards the weights are as before."""
        return self.train_all([plan_message], [client], [items])[0]

    @property
    def shares(self) -> bool:
        """Whether a round's clients share forward passes."""
        works_alone = self.protection is not None and self.protection.alone
        return self.joint and self.method.shares_losses and not works_alone

    def train_all(
        self,
        plans: Sequence[bytes],
        clients: Sequence[int],
        items: Sequence[Sequence[Any]],
        shared_losses: Mapping[Look, PassLosses] | None = None,
    ) -> list[Answer]:
        """Train for several clients, which share computations if the method allows it.

        Args:
            plans: the plan's message for each client.
            clients: the clients' numbers.
            items: the clients' examples.
            shared_losses: shared losses that other processes have computed (`look`).

        Returns:
            The clients' answers, in order.
        """
        messages, local_clients = self._locals(plans, clients, items)
        trainers: Sequence[LocalClient] = local_clients
        if self.shares:
            trainers = SharedLosses(local_clients, shared_losses).members
        return [
            self._answer(message, client)
            for message, client in zip(messages, trainers, strict=True)
        ]

    def sum_gradients(
        self,
        plans: Sequence[bytes],
        clients: Sequence[int],
        items: Sequence[Sequence[Any]],
        weigh: Callable[[Sequence[int], Sequence[int]], Sequence[float]],
    ) -> tuple[list[Answer], memoryview]:
        """Train for several clients, and add up their gradients in the memory of a single gradient.

        If a client's loss is not finite, the client is left out and the sum is computed again.

        Args:
            plans: as for `train_all`.
            clients: as for `train_all`.
            items: as for `train_all`.
            weigh: returns the weights c_i of clients, given their numbers and the numbers of terms
                in their losses.

        Returns:
            The clients' answers without gradients, and sum_i c_i g_i. The next call reuses the
            sum's memory.
        """
        if self._total is None:
            self._total = GradientSum(self.space)
        batch: int | None = getattr(self.method, "batch", None)
        silent: dict[int, Answer] = {}
        while True:
            messages, local_clients = self._locals(plans, clients, items)
            terms = [
                0 if client.number in silent else client.count_terms(batch)
                for client in local_clients
            ]
            answers: list[Answer] = []
            self._total.clear()
            for message, client, share in zip(
                messages, local_clients, weigh(clients, terms), strict=True
            ):
                client.total, client.share = self._total, share
                answer = silent.get(client.number) or self._answer(message, client)
                answers.append(answer)
                if answer.message is None and client.number not in silent:
                    silent[client.number] = answer
                    if share:
                        # the sum already has a part of its gradient, so compute it again
                        break
            else:
                return answers, self._total.data()

    def look(
        self,
        plans: Sequence[bytes],
        clients: Sequence[int],
        items: Sequence[Sequence[Any]],
        part: int,
        parts: int,
    ) -> dict[Look, PassLosses]:
        """Compute one part of the losses that clients share, for another process's `train_all`.

        Args:
            plans: as for `train_all`, for all participants.
            clients: as for `train_all`.
            items: as for `train_all`.
            part: the number of the part, from 0.
            parts: how many processes share the losses.
        """
        messages, local_clients = self._locals(plans, clients, items)
        shared = SharedLosses(local_clients, part=part, parts=parts)
        for message, client in zip(messages, shared.members, strict=True):
            self._answer(message, client)  # only for the losses that it evaluates
        return shared.passes

    def _locals(
        self, plans: Sequence[bytes], clients: Sequence[int], items: Sequence[Sequence[Any]]
    ) -> tuple[list[Message], list[LocalClient]]:
        """Return the decoded plans, and the clients that carry them out."""
        messages = [Message.decode(plan) for plan in plans]
        return messages, [
            LocalClient(
                self.space, self.objective, examples, self.seed, message.round, client, self.memory
            )
            for message, client, examples in zip(messages, clients, items, strict=True)
        ]

    def _answer(self, message: Message, client: LocalClient) -> Answer:
        message.expect(MessageKind.PLAN, self.method.code, message.round)
        plan = self.method.decode_plan(self.state, message.payload)
        cost = ClientCost() if self.private else client.cost
        train = self.method.train if self.protection is None else self.protection.train
        try:
            payload = train(self.state, plan, client).encode()
        except NonFiniteError as error:
            return Answer(None, WITHHELD if self.private else str(error), cost)
        finally:
            client.put_back()
        reply = Message(
            MessageKind.UPDATE,
            self.method.code,
            message.round,
            client.number,
            payload,
            message.attempt,
        )
        return Answer(reply.encode(), None, cost)

    def corrupt(self, update: bytes, kind: AttackKind) -> bytes:
        """Return a Byzantine client's message in place of its honest update (simulation)."""
        message, state = Message.decode(update), self.state
        honest = self.method.decode_update(state, message.round, message.payload)
        # the weights before the round, which a client itself need not keep
        if self.method.catch_up.replaces:
            state = self.method.advance(state, self.method.decode_step(state, self.space.dense()))
        context = DecodeContext(self.method, state, "update", message.round)
        payload = alone(honest, kind, self.seed, message.client, context).encode()
        return replace(message, payload=payload).encode()

    def apply(self, step_message: bytes) -> float | None:
        """Apply a step.

        Returns the expected norm of what the step adds to the weights, if the method knows it.

        Raises MessageError if it is not a step of this method.
        """
        message = Message.decode(step_message)
        message.expect(MessageKind.STEP, self.method.code, message.round)
        return self.apply_payload(message.payload)

    def apply_payload(self, payload: bytes) -> float | None:
        """Apply a step from its bytes without a frame.

        Args:
            payload: the step, as encoded by the coordinator's method.

        Returns:
            The expected norm of what the step adds to the weights, if the method knows it.

        Raises:
            MessageError: it is not a step of this method.
        """
        step = self.method.decode_step(self.state, payload)
        change = self.method.change(self.state, step)
        self.space.apply(change)
        wait_for(self.space.parameters)  # so that measured times include work on a GPU
        self.state = self.method.advance(self.state, step)
        self._note(payload)
        norm = expected_norm(change, self.space.layout)
        return norm if norm is None or np.isfinite(norm) else None

    def advance(self, payload: bytes) -> None:
        """Advance the state by a step that the weights already include."""
        self.state = self.method.advance(self.state, self.method.decode_step(self.state, payload))
        self._note(payload)

    def catch_up(self, records: Iterable[Record]) -> None:
        """Apply recorded steps, starting from the current weights.

        Raises OrbitError if a step is invalid, or if the last digest differs.
        """
        steps = list(records) if isinstance(records, Iterator) else records
        self.state = catch_up(self.method, self.state, self.space, steps)
        for record in steps:
            self._note(record.payload)

    def _note(self, payload: bytes) -> None:
        """Add a step to the history's hash, if clients keep accounts. Methods without accounts can
        have whole weights as steps, which would take long to hash.
        """
        if self.protection is not None and self.protection.by_client:
            self.history = hash_of(bytes.fromhex(self.history), payload)
