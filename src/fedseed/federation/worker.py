"""The side that holds a model: applies steps and trains for the clients it hosts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, replace
from typing import Any

import numpy as np
import torch

from fedseed.attacks.updates import AttackKind, alone
from fedseed.errors import NonFiniteError
from fedseed.federation.cost import Cost
from fedseed.federation.messages import Message, MessageKind
from fedseed.methods import Method, without_gradients
from fedseed.methods.payload import About
from fedseed.objectives.losses import Objective
from fedseed.orbit import Record
from fedseed.orbit.replay import catch_up
from fedseed.privacy import protection_of
from fedseed.privacy.account import hash_of
from fedseed.privacy.protection import check_dtypes
from fedseed.privacy.settings import WITHHELD
from fedseed.training.client import ClientCost, LocalClient
from fedseed.training.memory import Memory
from fedseed.training.together import Look, Seen, SharedLosses
from fedseed.weights.change import expected_norm
from fedseed.weights.devices import wait_for
from fedseed.weights.digest import dtype_name
from fedseed.weights.layout import DigestKind
from fedseed.weights.space import ParameterSpace


@dataclass(frozen=True)
class Answer:
    """A hosted client's answer."""

    message: bytes | None  # the update's bytes, or None if the client sends nothing
    reason: str | None  # why it sends nothing
    # of the work; of a private method nothing, for it depends on the client's data
    cost: ClientCost

    @property
    def spent(self) -> Cost:
        """Return what the work cost, as it is reported.

        Without the losses where nothing is sent.
        """
        cost, losses = self.cost, [] if self.message is None else self.cost.losses
        passes = (cost.forward_passes, cost.backward_passes, cost.skipped_steps)
        moved = (cost.moved_weights, cost.movable_weights)
        return Cost(dict(cost.seconds), *passes, sum(losses), len(losses), *moved)


@dataclass(eq=False)
class Worker:
    """A model with the clients it trains for.

    All of them are at the same weights, so one copy serves.
    """

    model: InitVar[torch.nn.Module]  # the base
    method: Method
    objective: Objective  # makes losses of items
    seed: int  # the run's
    joint: bool = True  # clients that evaluate along common directions share forward passes
    digest: InitVar[DigestKind] = "blake2b"  # how weights are hashed
    kind: InitVar[type[ParameterSpace]] = ParameterSpace

    def __post_init__(
        self, model: torch.nn.Module, digest: DigestKind, kind: type[ParameterSpace]
    ) -> None:
        method, objective = self.method, self.objective
        self.space = kind(model, method.blocks, digest)
        method.check(self.space.layout)
        check_dtypes(method, map(dtype_name, (*model.parameters(), *model.buffers())))
        if not getattr(objective, "differentiable", True) and (
            problem := without_gradients(method)
        ):
            raise ValueError(problem)
        self.protection = protection_of(method)
        # nothing is told that depends on data, but what the method sends
        self.private = self.protection is not None
        self.state = method.start(self.space.layout, self.seed)
        self.memory = Memory()  # of clients, from round to round
        # a hash of the steps that were applied, where clients keep accounts: with the base it says
        # at which weights they are asked
        self.history = hash_of()
        if method.from_base:
            self.space.keep_base()

    def train(self, plan_message: bytes, client: int, items: Sequence[Any]) -> Answer:
        """Let a client do what the plan asks; the weights are as before afterwards."""
        return self.train_all([plan_message], [client], [items])[0]

    @property
    def shares(self) -> bool:
        """Return whether a round's clients share forward passes here.

        Otherwise each works alone.
        """
        alone = self.protection is not None and self.protection.alone
        return self.joint and self.method.shares_losses and not alone

    def train_all(
        self,
        plans: Sequence[bytes],
        clients: Sequence[int],
        items: Sequence[Sequence[Any]],
        known: Mapping[Look, Seen] | None = None,
    ) -> list[Answer]:
        """Like `train` for several clients, which compute in one go what the method allows.

        Args:
            plans: a message for each client.
            clients: their numbers.
            items: their examples.
            known: what other processes found of the losses that the clients share (`look`).
        """
        messages, locals_ = self._locals(plans, clients, items)
        return list(
            map(
                self._answer,
                messages,
                SharedLosses(locals_, known).members if self.shares else locals_,
            )
        )

    def look(
        self,
        plans: Sequence[bytes],
        clients: Sequence[int],
        items: Sequence[Sequence[Any]],
        part: int,
        parts: int,
    ) -> dict[Look, Seen]:
        """Return a part of the losses that clients share, for another process' `train_all`, of all
        who take part.

        Args: as of `train_all`, and which part it is, from 0, of how many: so many processes share
        the losses.
        """
        messages, locals_ = self._locals(plans, clients, items)
        shared = SharedLosses(locals_, part=part, parts=parts)
        for message, client in zip(messages, shared.members, strict=True):
            self._answer(message, client)  # only to see what is looked at
        return shared.found

    def _locals(
        self, plans: Sequence[bytes], clients: Sequence[int], items: Sequence[Sequence[Any]]
    ) -> tuple[list[Message], list[LocalClient]]:
        """Return the plans, read, and the clients that are to follow them."""
        messages = [Message.decode(plan) for plan in plans]
        return messages, [
            LocalClient(
                self.space, self.objective, own, self.seed, message.round, client, self.memory
            )
            for message, client, own in zip(messages, clients, items, strict=True)
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
        """Return what a Byzantine client sends in place of its honest update (simulation)."""
        message, state = Message.decode(update), self.state
        honest = self.method.decode_update(state, message.round, message.payload)
        if self.method.catch_up.replaces:  # the weights before, which a client need not remember
            state = self.method.advance(state, self.method.decode_step(state, self.space.dense()))
        about = About(self.method, state, "update", message.round)
        return replace(
            message, payload=alone(honest, kind, self.seed, message.client, about).encode()
        ).encode()

    def apply(self, step_message: bytes) -> float | None:
        """Apply a step.

        Returns the expected norm of what it adds to the weights, where that can be known.

        Raises MessageError: not a step of this method.
        """
        message = Message.decode(step_message)
        message.expect(MessageKind.STEP, self.method.code, message.round)
        return self.apply_payload(message.payload)

    def apply_payload(self, payload: bytes) -> float | None:
        """Apply a step from its bytes without a frame.

        Args:
            payload: as a coordinator's method has encoded it.

        Returns:
            The expected norm of what the step adds to the weights, where that can be known.

        Raises:
            MessageError: not a step of this method.
        """
        step = self.method.decode_step(self.state, payload)
        change = self.method.change(self.state, step)
        self.space.apply(change)
        wait_for(self.space.parameters)  # who measures this, measures all of it
        self.state = self.method.advance(self.state, step)
        self._note(payload)
        norm = expected_norm(change, self.space.layout)
        return norm if norm is None or np.isfinite(norm) else None

    def advance(self, payload: bytes) -> None:
        """Go on to the state after a step whose change the weights have already."""
        self.state = self.method.advance(self.state, self.method.decode_step(self.state, payload))
        self._note(payload)

    def catch_up(self, records: Iterable[Record]) -> None:
        """Apply recorded steps from where the weights are.

        Raises OrbitError: not valid, or to another last digest.
        """
        steps = list(records) if isinstance(records, Iterator) else records
        self.state = catch_up(self.method, self.state, self.space, steps)
        for record in steps:
            self._note(record.payload)

    def _note(self, payload: bytes) -> None:
        """Take a step into the history; elsewhere steps can be whole weights."""
        if self.protection is not None and self.protection.by_client:
            self.history = hash_of(bytes.fromhex(self.history), payload)
