"""The client's side of a round: batches in a reproducible order, first-order training, what it cost."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from fedseed.errors import NonFiniteError
from fedseed.parameters import Floats, ParameterSpace
from fedseed.randomness import Domain, derive, permutation
from fedseed.training.objectives import Objective
from fedseed.training.settings import OPTIMIZERS, LocalTraining


@dataclass
class Effort:
    """What a client's work cost: seconds by phase, passes counted per micro-batch, mean loss of each step."""

    seconds: dict[str, float] = field(default_factory=dict)
    forward_passes: int = 0
    backward_passes: int = 0
    losses: list[float] = field(default_factory=list)


def batches(items: Sequence[Any], size: int, seed: int) -> Iterator[list[Any]]:
    """Endless batches: the items in a random order, again and again, each pass in a new order.

    The order depends on the seed alone, not on global generators, so that a resumed run sees the same data.
    """
    epoch = 0
    queue: list[Any] = []
    while True:
        while len(queue) < size:
            queue.extend(items[i] for i in permutation(seed, Domain.DATA_ORDER, len(items), epoch))
            epoch += 1
        yield queue[:size]
        queue = queue[size:]


class LocalClient:
    """One client in one round, as a method sees it (see `fedseed.methods.base.Client`).

    Args:
        space: the parameter space, at the round's weights.
        objective: makes losses of items.
        items: the client's prepared examples.
        seed: the run's seed.
        round: the round's number.
        number: the client's number.
    """

    def __init__(
        self, space: ParameterSpace, objective: Objective, items: Sequence[Any], seed: int, round: int, number: int
    ) -> None:
        self.space = space
        self.objective = objective
        self.items = items
        self.seed = seed
        self.round = round
        self.number = number
        self.effort = Effort()
        self._start = space.snapshot()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time spent inside under this name."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.effort.seconds[name] = self.effort.seconds.get(name, 0.0) + time.perf_counter() - begin

    def delta(self) -> Floats:
        """w_start - w_now, a vector of length d."""
        return self.space.difference(self._start)

    def put_back(self) -> None:
        """Undo the training: the weights of the round's beginning."""
        self.space.restore(self._start)

    def first_order(self, training: LocalTraining) -> None:
        """Train the weights in place with a torch optimiser.

        Raises:
            NonFiniteError: a loss is NaN or infinite, or the client has no examples.
        """
        if not self.items:
            raise NonFiniteError("no usable example")
        steps = training.steps
        if training.epochs is not None:
            steps = -(-training.epochs * len(self.items) // training.step_examples)
        order = batches(
            self.items, training.step_examples, derive(self.seed, Domain.DATA_ORDER, self.round, self.number)
        )
        model = self.space.model
        with self.phase("local"), torch.random.fork_rng():
            # dropout draws from torch's own generator: seed it per run, round and client
            torch.manual_seed(derive(self.seed, Domain.DROPOUT, self.round, self.number) >> 1)
            model.train()
            optimizer = self._optimizer(training)
            for step in range(1, steps + 1):
                optimizer.zero_grad(set_to_none=True)
                loss = self._accumulate_gradient(next(order), training.batch)
                if not torch.isfinite(torch.tensor(loss)):
                    raise NonFiniteError(f"loss is {loss} at local step {step}")
                if training.clip is not None:
                    torch.nn.utils.clip_grad_norm_(self.space.parameters, training.clip)
                optimizer.step()
                self.effort.losses.append(loss)
            optimizer.zero_grad(set_to_none=True)

    def _accumulate_gradient(self, items: Sequence[Any], micro_batch: int) -> float:
        """Gradient of the mean loss over all terms of `items`, micro-batch by micro-batch; returns that loss."""
        terms = sum(self.objective.weight(item) for item in items)
        total = 0.0
        for at in range(0, len(items), micro_batch):
            loss = self.objective.loss_sum(self.space.model, items[at : at + micro_batch]) / terms
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
            self.effort.forward_passes += 1
            self.effort.backward_passes += 1
        return total

    def _optimizer(self, training: LocalTraining) -> torch.optim.Optimizer:
        options: dict[str, Any] = {"lr": training.rate, "weight_decay": training.weight_decay}
        if training.optimizer in ("sgd", "rmsprop"):
            options["momentum"] = training.momentum
        return getattr(torch.optim, OPTIMIZERS[training.optimizer])(self.space.parameters, **options)
