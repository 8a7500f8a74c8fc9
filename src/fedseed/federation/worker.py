"""The side that holds a model: applies steps and trains for the clients it hosts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedseed.errors import NonFiniteError
from fedseed.messages import Kind, Message
from fedseed.methods import Method
from fedseed.orbit import Record
from fedseed.orbit.replay import catch_up
from fedseed.parameters import ParameterSpace
from fedseed.training.client import Effort, JointClient, JointClients, LocalClient
from fedseed.training.objectives import Objective


@dataclass(frozen=True)
class Answer:
    """A hosted client's answer.

    Args:
        message: the update's bytes, or None if the client sends nothing.
        reason: why it sends nothing.
        effort: what the work cost.
    """

    message: bytes | None
    reason: str | None
    effort: Effort


class Worker:
    """A model with the clients it trains for; all of them are at the same weights, so one copy serves.

    Args:
        model: the base.
        method: the method and its settings.
        objective: makes losses of items.
        seed: the run's seed.
    """

    def __init__(self, model: torch.nn.Module, method: Method, objective: Objective, seed: int) -> None:
        self.space = ParameterSpace(model, method.blocks)
        self.method = method
        self.objective = objective
        self.seed = seed
        self.state = method.start(self.space.layout, seed)
        if method.from_base:
            self.space.keep_base()

    def train(self, plan_message: bytes, client: int, items: Sequence[Any]) -> Answer:
        """Let a client do what the plan asks; the weights are as before afterwards."""
        return self._answer(*self._begin(plan_message, client, items))

    def train_all(self, plans: Sequence[bytes], clients: Sequence[int], items: Sequence[Sequence[Any]]) -> list[Answer]:
        """Like `train` for several clients; methods that only look at common directions do so in joint passes."""
        if not self.method.looks_together:
            return [self.train(p, c, i) for p, c, i in zip(plans, clients, items, strict=True)]
        begun = [self._begin(p, c, i) for p, c, i in zip(plans, clients, items, strict=True)]
        together = JointClients([client for _, client in begun])
        return [
            self._answer(message, client, member)
            for (message, client), member in zip(begun, together.members, strict=True)
        ]

    def _begin(self, plan_message: bytes, client: int, items: Sequence[Any]) -> tuple[Message, LocalClient]:
        message = Message.decode(plan_message)
        message.expect(Kind.PLAN, self.method.code, message.round)
        in_place = self.method.trains_in_place
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
            with torch.no_grad():  # batch norm's statistics are local
                for buffer, saved in zip(self.space.model.buffers(), keep, strict=False):
                    buffer.copy_(saved)
        reply = Message(Kind.UPDATE, self.method.code, message.round, local.number, payload)
        return Answer(reply.encode(), None, local.effort)

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
