"""The side that holds a model: applies steps and trains for the clients it hosts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedseed.errors import NonFiniteError
from fedseed.messages import Kind, Message
from fedseed.methods import Method
from fedseed.parameters import ParameterSpace
from fedseed.training.client import Effort, LocalClient
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

    def train(self, plan_message: bytes, client: int, items: Sequence[Any]) -> Answer:
        """Let a client do what the plan asks; the weights are as before afterwards."""
        message = Message.decode(plan_message)
        message.expect(Kind.PLAN, self.method.code, message.round)
        plan = self.method.decode_plan(self.state, message.payload)
        local = LocalClient(self.space, self.objective, items, self.seed, message.round, client)
        buffers = [b.clone() for b in self.space.model.buffers()]  # batch norm's statistics are local
        try:
            payload = self.method.train(self.state, plan, local).encode()
        except NonFiniteError as error:
            return Answer(None, str(error), local.effort)
        finally:
            local.put_back()
            with torch.no_grad():
                for buffer, saved in zip(self.space.model.buffers(), buffers, strict=True):
                    buffer.copy_(saved)
        reply = Message(Kind.UPDATE, self.method.code, message.round, client, payload)
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
        self.method.apply(step, self.space)
        self.state = self.method.advance(self.state, step)
        return norm if norm is None or np.isfinite(norm) else None
