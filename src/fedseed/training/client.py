"""Do a client's work in a round: draw batches, measure losses, train, and count the cost."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, count, islice
from math import isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedseed.errors import NonFiniteError
from fedseed.objectives.losses import Objective
from fedseed.objectives.prepared import micro_batches, sequences_of
from fedseed.randomness import Basis, Domain, derive, permutation
from fedseed.training.factored import FactoredModel
from fedseed.training.memory import Memory
from fedseed.training.protocol import Client
from fedseed.training.settings import Autocast, LocalTraining
from fedseed.training.steps import Rounder, Steps, steps_of, steps_on_factors
from fedseed.training.streaming import gradients_taken
from fedseed.training.summing import GradientSum
from fedseed.weights.change import Change, Floats
from fedseed.weights.devices import gpus, wait_for
from fedseed.weights.heap import release_free_memory
from fedseed.weights.projection import Projection, change_norms, count_changed, project_change
from fedseed.weights.row_losses import row_losses
from fedseed.weights.space import ParameterSpace
from fedseed.weights.subspace import RandomSubspace

# with as many bytes of weights or more, the memory of gradients is given back after a client
MANY_BYTES = 64 << 20


@torch.no_grad()
def part_losses(
    space: ParameterSpace,
    objective: Objective,
    batches: Sequence[Sequence[Any]],
    basis: Basis,
    along: Sequence[int],
    scale: float,
) -> list[list[float]]:
    """Return the mean loss of each part of some batches, in one forward pass if that is possible.

    Args:
        space: the weights.
        objective: makes losses of items.
        batches: each a multiple of n items, or none.
        basis: where the directions come from.
        along: n indices: part j of every batch is evaluated at w + scale * direction(along[j]).
        scale: how far; 0: at the weights as they are.

    Returns:
        n losses for each batch, in single precision; zeros for one without items.
    """
    n = len(along)
    sizes = [len(batch) // n for batch in batches]  # of a batch's parts
    parts: list[Sequence[Any]] = []
    for batch, size in zip(batches, sizes, strict=True):
        if batch:
            parts += [batch[start : start + size] for start in range(0, len(batch), size)]
    items = list(chain.from_iterable(parts))
    losses = partial(objective.losses, space.model)
    space.model.eval()
    if scale == 0.0:
        losses_of_items = losses(items)
    elif n == 1:  # all rows share it
        with space.perturbed(
            basis, along[0], scale, often=getattr(objective, "calls_often", False)
        ):
            losses_of_items = losses(items)
    else:
        directions: list[int] = []
        for number, part in enumerate(parts):
            directions += [along[number % n]] * len(part)
        counts = [len(sequences_of(item)) for item in items]
        together = getattr(objective, "together", None)
        if together is not None:
            together = partial(together, space.model, items)
        losses_of_items = row_losses(
            space, losses, items, basis, directions, scale, counts, together
        )
    # of several processes the first one's count
    item_losses = iter(space.vector.gather(losses_of_items.tolist())[0])
    part_means: list[float] = []
    for part in parts:
        total = sum(islice(item_losses, len(part)))
        part_means.append(total / sum(map(objective.weight, part)))
    means = iter(part_means)
    return [list(islice(means, n)) if batch else [0.0] * n for batch in batches]


@dataclass
class ClientCost:
    """The cost of a client's work: seconds by phase, passes by micro-batch, mean loss of each step.

    In the first round it also counts, where 16-bit weights round small steps away, how many weights
    have moved and how many could have.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    forward_passes: int = 0
    backward_passes: int = 0
    losses: list[float] = field(default_factory=list)
    skipped_steps: int = 0
    moved_weights: int = 0
    movable_weights: int = 0


@dataclass(eq=False)
class LocalClient(Client):
    """One client in one round, as a method sees it; `Client` describes its methods."""

    space: ParameterSpace  # at the round's weights
    objective: Objective  # makes losses of items
    items: Sequence[Any]  # the client's prepared examples
    seed: int  # the run's
    round: int
    number: int  # the client's
    # what clients keep from round to round; by default nothing is there
    memory: Memory = field(default_factory=Memory)
    cost: ClientCost = field(default_factory=ClientCost)  # of its work so far
    # what `gradient` adds its gradient to, and by which factor; None: it returns the gradient
    total: GradientSum | None = None
    share: float = 1.0
    # the weights of the round's beginning, once training has begun
    _start: Sequence[torch.Tensor] = field(default=(), init=False)
    # the weights in float32, where the model has only their rounding
    _finer: Sequence[torch.Tensor] | None = field(default=None, init=False)
    # functions that bring the model back, the last one first; there are none while nothing has
    # changed it
    _undo: list[Callable[[], None]] = field(default_factory=list, init=False)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        wait_for(self.space.parameters)
        with self._clock(name):
            try:
                yield
            finally:
                wait_for(self.space.parameters)

    @contextmanager
    def _clock(self, name: str) -> Iterator[None]:
        """`phase` for work that ends with numbers on the host, for which it has waited itself."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.cost.seconds[name] = self.cost.seconds.get(name, 0.0) + time.perf_counter() - begin

    @cached_property
    def _rounder(self) -> Rounder:
        return Rounder(
            self.space.vector, derive(self.seed, Domain.ROUNDING, self.round, self.number)
        )

    def apply(self, change: Change) -> None:
        if not self._undo:
            self._remember(copy=False)
        self.space.apply(change)
        self._finer = None  # what comes next starts from the weights

    def weights(self) -> bytes:
        # after steps on float32 copies these, rounded stochastically, so that their mean over
        # clients is right
        if self._finer is not None:
            self._rounder.send(self._finer)
        return self.space.dense()

    def change_norms(self) -> NDArray[np.float64]:
        return change_norms(self.space.vector, self._start, self._finer)

    def project_change(self, basis: Basis, counts: Sequence[int]) -> list[Floats]:
        return project_change(self.space.vector, self._start, basis, counts, self._finer)

    def difference(self) -> Floats:
        return self.space.difference(self._start, self._finer)

    def recall(self, size: int | None = None) -> Floats | None:
        expected = self.space.size if size is None else size
        return self.memory.recall(self.number, self.round, expected)

    def keep(self, vector: Floats) -> None:
        self.memory.keep(self.number, self.round, vector)

    def put_back(self) -> None:
        """Undo the training: the weights and buffers of the round's beginning."""
        while self._undo:
            self._undo.pop()()
        self._start, self._finer = (), None
        self._give_back()

    def _give_back(self) -> None:
        """Free the memory of gradients and activations before an answer or a client needs it."""
        if self.cost.backward_passes and self.space.layout.dense_bytes >= MANY_BYTES:
            release_free_memory()

    def _remember(self, copy: bool) -> None:
        """Prepare to undo the training: by a copy of the weights, or else by the space itself."""
        if self._start:
            return  # of the round's beginning there is a copy already
        way_back = None if copy else self.space.way_back()
        if way_back is None:
            self._start = self.space.snapshot()
            way_back = partial(self.space.restore, self._start)
        self._undo += [self._buffers_as_they_are(), way_back]

    def _buffers_as_they_are(self) -> Callable[[], None]:
        """Return a function that restores the model's buffers.

        Batch norm's statistics stay with the client.
        """
        copies = [b.clone() for b in self.space.model.buffers()]

        @torch.no_grad()
        def put_back() -> None:
            for buffer, saved in zip(self.space.model.buffers(), copies, strict=True):
                buffer.copy_(saved)

        return put_back

    def batches(self, size: int) -> Iterator[list[Any]]:
        if not self.items:
            raise NonFiniteError("no usable example")
        seed, n = derive(self.seed, Domain.DATA_ORDER, self.round, self.number), len(self.items)
        epochs = (permutation(seed, Domain.DATA_ORDER, n, epoch) for epoch in count())
        order = (self.items[i] for i in chain.from_iterable(epochs))
        return (list(islice(order, size)) for _ in count())

    def estimates(
        self,
        method: Any,
        basis: Basis,
        along: Sequence[int],
        items: Sequence[Any],
        one_sided: bool = False,
    ) -> list[Any]:
        return list(method.measure_projections(self, basis, along, items, one_sided))

    @torch.no_grad()
    def example_losses(
        self, basis: Basis, k: int, scale: float, items: Sequence[Any]
    ) -> list[float]:
        if not items:
            return []
        often, model = getattr(self.objective, "calls_often", False), self.space.model.eval()
        self.cost.forward_passes += 1
        with (
            self.space.perturbed(basis, k, scale, often=often) if scale else nullcontext(),
            self._clock("local"),
        ):
            losses: list[float] = self.space.vector.gather(
                self.objective.losses(model, items).tolist()
            )[0]
        return [
            loss / self.objective.weight(item) for loss, item in zip(losses, items, strict=True)
        ]

    def population_losses(
        self, basis: Basis, along: Sequence[int], scale: float, items: Sequence[Any]
    ) -> list[float]:
        self.cost.forward_passes += 1
        with self._clock("local"):
            (losses,) = part_losses(self.space, self.objective, [items], basis, along, scale)
        if scale:
            self.cost.losses += losses
        return losses

    def skip(self, reason: str) -> None:
        self.cost.skipped_steps += 1
        self.cost.losses = [loss for loss in self.cost.losses if isfinite(loss)]

    def autocast(self, dtype: Autocast | None) -> AbstractContextManager[None]:
        # casts of weights are not kept from one use to the next: the weights may have been moved in
        # between
        if dtype is None:
            return nullcontext()
        return torch.autocast(
            self.space.devices[0].type, getattr(torch, dtype), cache_enabled=False
        )

    def first_order(self, training: LocalTraining) -> None:
        self._remember(copy=True)
        steps = steps_of(training, self.space.vector, self._rounder, self._finer, adapts=True)
        self._finer = steps.finer
        self._take_steps(training, steps)
        self._end(steps)

    def train_factors(
        self, training: LocalTraining, subspace: RandomSubspace, interval: int | None = None
    ) -> list[Floats]:
        model = FactoredModel(self.space, subspace)
        if not self._undo:
            self._undo.append(self._buffers_as_they_are())
        steps = steps_on_factors(training, model.parameters, self.space.layout)
        # every subspace for as many steps as the others, one after the other
        length = interval or -(-self._step_count(training) // subspace.count)

        def choose_subspace(number: int) -> None:
            model.train_only((number - 1) // length % subspace.count)

        with model.installed():
            self._take_steps(training, steps, choose_subspace)
        self._give_back()
        return model.values()

    def _take_steps(
        self,
        training: LocalTraining,
        steps: Steps,
        before_step: Callable[[int], None] | None = None,
    ) -> None:
        """Train with an optimiser; `before_step` is called with each step's number, from 1.

        Raises NonFiniteError if the gradient was finite in none of the steps.
        """
        steps_taken = number = 0

        def step(items: Sequence[Any]) -> float:
            nonlocal steps_taken, number
            number += 1
            if before_step is not None:
                before_step(number)
            while True:
                steps.clear()
                parts = micro_batches(items, training.batch, training.batch_tokens)
                loss = self._accumulate_gradient(items, parts, steps.scale, training.autocast)
                if not isfinite(loss):
                    return loss
                if steps.step():
                    steps_taken += 1
                    return loss
                if not steps.lower_scale():
                    self.skip("the gradient is not finite")
                    return loss

        with steps.gathering():
            self._train(training, step)
        if self.cost.skipped_steps and not steps_taken:
            raise NonFiniteError(
                f"the gradient was finite in none of {self.cost.skipped_steps} local steps "
                f"(at a loss scale of {steps.scale:g})"
            )

    def _end(self, steps: Steps) -> None:
        """Count in the first round how many weights have moved, if they can lose small steps.

        Memory is freed afterwards.
        """
        if self._start and not steps.keeps and self.round == 1:
            with self.phase("local"):
                parts = self.space.vector.gather(count_changed(self.space.parameters, self._start))
            self.cost.moved_weights, self.cost.movable_weights = map(sum, zip(*parts, strict=True))
        self._give_back()

    def count_terms(self, batch: int | None) -> int:
        """Return the number of terms of the loss that `gradient` takes; 0 without examples."""
        return sum(map(self.objective.weight, self._gradient_items(batch) if self.items else ()))

    def _gradient_items(self, batch: int | None) -> list[Any]:
        """Return the examples of one gradient; None: all."""
        batches = self.batches(1 if batch is None else batch)
        return list(self.items) if batch is None else next(batches)

    def gradient(self, batch: int | None, micro_batch: int) -> tuple[bytes, int]:
        items = self._gradient_items(batch)
        if self.total is not None:
            return b"", self._add_gradient(self.total, items, micro_batch)
        put_back_buffers = self._buffers_as_they_are()
        try:
            with self._training():
                loss = self._accumulate_gradient(items, micro_batches(items, micro_batch), 1.0)
        finally:
            gradient = self.space.take_gradient()
            put_back_buffers()
        if not isfinite(loss):
            raise NonFiniteError(f"loss is {loss}")
        self.cost.losses.append(loss)
        return gradient, sum(map(self.objective.weight, items))

    def _add_gradient(self, total: GradientSum, items: Sequence[Any], micro_batch: int) -> int:
        """Add `share` times the gradient of the mean loss to a sum; return the loss' terms.

        Raises NonFiniteError if the loss is not finite; the sum is of no use then.
        """
        put_back_buffers = self._buffers_as_they_are()
        try:
            with self._training(), total.gathering():
                loss = self._accumulate_gradient(
                    items, micro_batches(items, micro_batch), self.share
                )
        finally:
            put_back_buffers()
        if not isfinite(loss):
            raise NonFiniteError(f"loss is {loss}")
        self.cost.losses.append(loss)
        return sum(map(self.objective.weight, items))

    def project_gradients(
        self, training: LocalTraining, basis: Basis, counts: Sequence[int]
    ) -> list[Floats]:
        # the change is eta times the sum of the gradients, and projection is linear: each gradient
        # is projected, applied and freed as backward produces it; neither all gradients nor the
        # change are ever in memory
        self._remember(copy=False)
        projection = Projection(self.space.vector, basis, counts)
        # a gradient is gone before the next has come: a loss scale can't be changed for what
        # overflows
        steps = steps_of(training, self.space.vector, self._rounder, self._finer, adapts=False)
        self._finer = steps.finer
        rate, spent = training.learning_rate, 0.0

        def take(index: int, gradient: torch.Tensor, row: int | None) -> None:
            nonlocal spent
            gradient = steps.plain(index, gradient)
            begin = time.perf_counter()
            projection.add(index, gradient.float(), gradient.numel() * (row or 0), scale=rate)
            spent += time.perf_counter() - begin
            steps.move(index, gradient, row)

        # weight decay moves all rows of an embedding, so they are taken whole then
        with gradients_taken(self.space.parameters, take, by_rows=not training.weight_decay):
            self._train(
                training,
                lambda items: self._accumulate_gradient(
                    items, [items], steps.scale, training.autocast
                ),
            )
        self.cost.seconds["local"] -= spent
        self.cost.seconds["projection"] = self.cost.seconds.get("projection", 0.0) + spent
        self._end(steps)
        return projection.finish()

    def _train(self, training: LocalTraining, step: Callable[[Sequence[Any]], float]) -> None:
        """Call `step` on one batch after the other; it returns the batch's loss."""
        order = self.batches(training.batch * training.accumulation)
        with self._training():
            for number in range(1, self._step_count(training) + 1):
                loss = step(next(order))
                if not isfinite(loss):
                    raise NonFiniteError(f"loss is {loss} at local step {number}")
                self.cost.losses.append(loss)

    def _step_count(self, training: LocalTraining) -> int:
        """Return how many optimiser steps the settings ask for, with the client's examples."""
        if training.epochs is None:
            return training.steps
        return -(-training.epochs * len(self.items) // (training.batch * training.accumulation))

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Put the model in training mode.

        Dropout draws from torch's generator, seeded by (run, round, client).
        """
        with self.phase("local"), torch.random.fork_rng(gpus(self.space.devices)):
            torch.manual_seed(derive(self.seed, Domain.DROPOUT, self.round, self.number) >> 1)
            self.space.model.train(self._trains_with_dropout)
            yield

    @property
    def _trains_with_dropout(self) -> bool:
        """Return whether the model is in its training mode while it trains.

        Models of transformers checkpoint activations in this mode alone.
        """
        if getattr(self.objective, "with_dropout", True):
            return True
        layers = self.space.model.modules()
        return any(getattr(layer, "gradient_checkpointing", False) for layer in layers)

    def _accumulate_gradient(
        self,
        items: Sequence[Any],
        parts: Iterable[Sequence[Any]],
        share: float,
        autocast: Autocast | None = None,
    ) -> float:
        """Add `share` times the mean loss' gradient over all terms of `items`, part by part.

        Returns the loss.
        """
        terms, total = sum(map(self.objective.weight, items)), 0.0
        for part in parts:
            with self.autocast(autocast):
                losses = self.objective.losses(self.space.model, part)
            loss = (losses if autocast is None else losses.float()).sum() / terms
            (loss * share if share != 1.0 else loss).backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
            self.cost.forward_passes += 1
            self.cost.backward_passes += 1
        return total
