"""The side that holds a model: applies steps and trains for the clients it hosts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedseed.errors import NonFiniteError
from fedseed.federation.cost import Spent
from fedseed.federation.messages import Kind, Message
from fedseed.methods import FedSGD, Method
from fedseed.methods.base import Attack
from fedseed.methods.fedsgd import Gradient
from fedseed.objectives.losses import Objective
from fedseed.orbit import Record
from fedseed.orbit.replay import catch_up
from fedseed.randomness import Domain
from fedseed.randomness.stream import words
from fedseed.training.client import Effort, JointClient, JointClients, LocalClient, add_gradients
from fedseed.weights.space import ParameterSpace


@dataclass(frozen=True)
class Answer:
    """A hosted client's answer.

    Args:
        message: the update's bytes, or None if the client sends nothing.
        reason: why it sends nothing.
        effort: what the work cost.
        within: payload bytes that its part of another client's message would have alone; None: it speaks for itself.
    """

    message: bytes | None
    reason: str | None
    effort: Effort
    within: int | None = None


class Worker:
    """A model with the clients it trains for; all of them are at the same weights, so one copy serves.

    Args:
        model: the base.
        method: the method and its settings.
        objective: makes losses of items.
        seed: the run's seed.
        joint: clients that look along common directions share forward passes.
        spill_base: keep the copy of the base that some methods need in a temporary file, not in memory.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        method: Method,
        objective: Objective,
        seed: int,
        joint: bool = True,
        spill_base: bool = False,
    ) -> None:
        self.space = ParameterSpace(model, method.blocks)
        self.method = method
        self.objective = objective
        self.seed = seed
        self.joint = joint
        self.apart = False  # whether every client's gradient is sent by itself
        self.state = method.start(self.space.layout, seed)
        if method.from_base:
            self.space.keep_base(spill_base)

    def train(self, plan_message: bytes, client: int, items: Sequence[Any]) -> Answer:
        """Let a client do what the plan asks; the weights are as before afterwards."""
        return self._answer(*self._begin(plan_message, client, items))

    def train_all(self, plans: Sequence[bytes], clients: Sequence[int], items: Sequence[Sequence[Any]]) -> list[Answer]:
        """Like `train` for several clients.

        Methods that only look at common directions do so in joint passes. Gradients are added up in place, unless they
        are to be sent apart.
        """
        if self.method.adds_gradients and not self.apart and len(clients) > 1:
            added = self._add_gradients(plans, clients, items)
            if added is not None:
                return added
        if not (self.method.looks_together and self.joint):
            return [self.train(p, c, i) for p, c, i in zip(plans, clients, items, strict=True)]
        begun = [self._begin(p, c, i) for p, c, i in zip(plans, clients, items, strict=True)]
        together = JointClients([client for _, client in begun])
        return [
            self._answer(message, client, member)
            for (message, client), member in zip(begun, together.members, strict=True)
        ]

    def _add_gradients(
        self, plans: Sequence[bytes], clients: Sequence[int], items: Sequence[Sequence[Any]]
    ) -> list[Answer] | None:
        """All clients' gradients as one message of the first that has one: their sum is made where backward makes it.

        None where the sum is not finite though the losses are: then each sends its own, and the bad one is refused.
        """
        method = self.method
        assert isinstance(method, FedSGD)
        plan_messages, begun = zip(
            *(self._begin(p, c, i) for p, c, i in zip(plans, clients, items, strict=True)), strict=True
        )
        terms, reasons = add_gradients(begun, method.batch, method.micro_batch, method.weighting)
        if not all(bool(p.grad.isfinite().all()) for p in self.space.parameters if p.grad is not None):
            self.space.take_gradient()
            return None
        payload = Gradient(self.space.take_gradient(), terms).encode()
        answers: list[Answer] = []
        spoken = False
        for plan, client in zip(plan_messages, begun, strict=True):
            if client.number in reasons:
                answers.append(Answer(None, reasons[client.number], client.effort))
            elif not spoken:
                message = Message(Kind.UPDATE, method.code, client.round, client.number, payload, plan.attempt)
                answers.append(Answer(message.encode(), None, client.effort))
                spoken = True
            else:
                answers.append(Answer(None, None, client.effort, within=len(payload)))
        return answers

    def _begin(self, plan_message: bytes, client: int, items: Sequence[Any]) -> tuple[Message, LocalClient]:
        message = Message.decode(plan_message)
        message.expect(Kind.PLAN, self.method.code, message.round)
        in_place = self.method.trains_in_place and not self.method.from_base  # a copy is kept to go back to
        spill = self.method.spills_start
        local = LocalClient(self.space, self.objective, items, self.seed, message.round, client, in_place, spill)
        return message, local

    def _answer(self, message: Message, local: LocalClient, seen_as: JointClient | None = None) -> Answer:
        plan = self.method.decode_plan(self.state, message.payload)
        keep = [b.clone() for b in self.space.model.buffers()] if self.method.trains_in_place else []
        try:
            payload = self.method.train(self.state, plan, seen_as or local).encode()
        except NonFiniteError as error:
            return Answer(None, str(error), local.effort)
        finally:
            local.put_back()
            if self.method.trains_in_place and self.method.from_base:
                self.method.put_back(self.state, self.space)
            with torch.no_grad():  # batch norm's statistics are local
                for buffer, saved in zip(self.space.model.buffers(), keep, strict=False):
                    buffer.copy_(saved)
        reply = Message(Kind.UPDATE, self.method.code, message.round, local.number, payload, message.attempt)
        return Answer(reply.encode(), None, local.effort)

    def corrupt(self, update: bytes, attack: Attack) -> bytes:
        """What a Byzantine client sends in place of its honest update (simulation)."""
        message = Message.decode(update)
        honest = self.method.decode_update(self.state, message.round, message.payload)
        drawn = words(self.seed, Domain.ATTACK, message.client, message.round << 20, 1 << 12).reshape(-1)
        return replace(message, payload=self.method.corrupt(self.state, honest, attack, drawn).encode()).encode()

    def apply(self, step_message: bytes) -> float | None:
        """Apply a step; returns its expected norm where the method knows it.

        Raises:
            MessageError: not a step of this method.
        """
        message = Message.decode(step_message)
        message.expect(Kind.STEP, self.method.code, message.round)
        step = self.method.decode_step(self.state, message.payload)
        norm = self.method.step_norm(self.state, step)
        self.method.apply(self.state, step, self.space)
        self.state = self.method.advance(self.state, step)
        return norm if norm is None or np.isfinite(norm) else None

    def catch_up(self, records: Iterable[Record]) -> None:
        """Apply recorded steps from where the weights are: after a restart, or as a client that joins late.

        Raises:
            OrbitError: a step is not valid, or the weights differ from the digest recorded last.
        """
        self.state = catch_up(self.method, self.state, self.space, records)


def spent(effort: Effort, counts: bool = True) -> Spent:
    """What a client's work cost.

    Args:
        effort: the client's notes.
        counts: whether it answered; the losses of one that did not are left out.
    """
    losses = effort.losses if counts else []
    passes = (effort.forward_passes, effort.backward_passes, effort.skipped_steps)
    return Spent(dict(effort.seconds), *passes, sum(losses), len(losses))
