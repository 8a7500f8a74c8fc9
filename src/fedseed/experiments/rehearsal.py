"""A round without a model: what a method asks of its clients, and what its messages take in memory and on the way.

A method trains with a client that only notes what it is asked for; coordinator and messages are the real ones. Where
whole weights travel, all tensors are made smaller by one factor, and what was measured is multiplied by it.
"""

import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedseed.aggregation import AggregationRule
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.messages import FRAME_BYTES, Message, MessageKind
from fedseed.methods import Method
from fedseed.privacy import PrivacySettings
from fedseed.randomness import Basis
from fedseed.training.settings import LocalTraining
from fedseed.weights.change import Change, Floats
from fedseed.weights.layout import Layout, TensorEntry

SMALL = 1 << 22  # elements, over all clients of a round, of the smaller model


@dataclass(frozen=True)
class Asked:
    """Something that a client was asked for.

    Args:
        what: "loss", "change", "train", "stream" or "gradient".
        examples: of a loss or a gradient; None: all that the client has.
        micro_batch: of a gradient: examples that go through the model at a time.
        training: local training.
        change: of the weights.
    """

    what: str
    examples: int | None = None
    micro_batch: int = 0
    training: LocalTraining | None = None
    change: Change | None = None


class NotingClient:
    """A client (`fedseed.methods.client.Client`) that notes what it is asked for; its losses and products are made up.

    Args:
        layout: the parameter space.
        round: the round's number.
        number: the client's number.
    """

    def __init__(self, layout: Layout, round: int, number: int) -> None:
        self.round = round
        self.number = number
        self.asked: list[Asked] = []
        self._layout = layout
        self._losses = 0

    def batches(self, size: int) -> Iterator[list[Any]]:
        """Batches of nothing."""
        while True:
            yield [None] * size

    def private_batches(self, size: int, privacy: PrivacySettings) -> Iterator[list[Any]]:
        """Batches of nothing, all of one size."""
        return self.batches(size)

    def example_losses(self, basis: Basis, k: int, scale: float, items: Sequence[Any]) -> list[float]:
        """As `loss`, for each item."""
        return [self.loss(items)] * len(items)

    def loss(self, items: Sequence[Any]) -> float:
        """One that differs a little from the one before."""
        self._note(Asked("loss", len(items)))
        self._losses += 1
        return 1.0 + 1e-6 * (self._losses % 2)

    def perturbed_loss(self, basis: Basis, k: int, scale: float, items: Sequence[Any]) -> float:
        """As `loss`."""
        return self.loss(items)

    def population_losses(self, basis: Basis, along: Sequence[int], scale: float, items: Sequence[Any]) -> list[float]:
        """As `loss`, for each part."""
        return [self.loss(items) for _ in along]

    def apply(self, change: Change) -> None:
        """Nothing happens."""
        if not any(asked.what == "change" for asked in self.asked):
            self._note(Asked("change", change=change))

    def skip(self, reason: str) -> None:
        """Nothing happens."""

    def first_order(self, training: LocalTraining) -> None:
        """Nothing happens."""
        self._note(Asked("train", training=training))

    def gradient(self, batch: int | None, micro_batch: int) -> tuple[bytes, int]:
        """Zeros."""
        self._note(Asked("gradient", batch, micro_batch))
        return bytes(self._layout.dense_bytes), 1

    def project_gradients(self, training: LocalTraining, basis: Basis, counts: Sequence[int]) -> list[Floats]:
        """Ones."""
        self._note(Asked("stream", training=training))
        return self.project_change(basis, counts)

    def change_norms(self) -> NDArray[np.float64]:
        """Ones."""
        return np.ones(len(self._layout.block_sizes))

    def project_change(self, basis: Basis, counts: Sequence[int]) -> list[Floats]:
        """Ones."""
        return [np.ones(count, dtype=np.float32) for count in counts]

    def difference(self) -> Floats:
        """Other numbers than another client's: what is largest of them lies elsewhere."""
        return np.random.default_rng(self.number).random(self._layout.size, dtype=np.float32)

    def recall(self) -> Floats:
        """As `difference`."""
        return self.difference()

    def keep(self, vector: Floats) -> None:
        """It goes to a file."""

    def weights(self) -> bytes:
        """Zeros."""
        return bytes(self._layout.dense_bytes)

    def autocast(self, dtype: str | None) -> AbstractContextManager[None]:
        """Nothing is cast."""
        return nullcontext()

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Nothing is timed."""
        return nullcontext()

    def _note(self, asked: Asked) -> None:
        if asked not in self.asked[-2:]:  # thousands of local steps are alike
            self.asked.append(asked)


@dataclass(frozen=True)
class Rehearsed:
    """What a round is, but for the model.

    Args:
        asked: what a client is asked for, in order, without repetitions.
        change: what a step does.
        bytes_up: payload bytes of an update.
        bytes_down: payload bytes of a plan and a step.
        kept: bytes that coordinator and worker hold between rounds.
        waiting: bytes of the other clients' answers while the last one trains, with what is kept.
        answer: the peak while an update is made and encoded, with what is waiting.
        closing: the peak while answers are decoded and combined.
        applying: the peak while a step is decoded, before the weights change.
    """

    asked: list[Asked]
    change: Change
    bytes_up: int
    bytes_down: int
    kept: int
    waiting: int
    answer: int
    closing: int
    applying: int


@dataclass
class _Traced:
    """Peaks and sizes of memory as Python knows it, times a factor."""

    factor: float
    peaks: dict[str, int] = field(default_factory=dict)
    begin: int = field(default_factory=lambda: tracemalloc.get_traced_memory()[0])

    def now(self) -> int:
        return round((tracemalloc.get_traced_memory()[0] - self.begin) * self.factor)

    def start(self) -> None:
        tracemalloc.reset_peak()

    def end(self, phase: str) -> None:
        peak = round((tracemalloc.get_traced_memory()[1] - self.begin) * self.factor)
        self.peaks[phase] = max(peak, self.peaks.get(phase, 0))


def shrunk(layout: Layout, size: int) -> tuple[Layout, float]:
    """A layout with about `size` parameters in all, its tensors in the same proportions; how many times less bytes."""
    by = max(1, layout.size // size)
    entries = tuple(TensorEntry(e.name, (max(1, e.size // by),), e.dtype) for e in layout.tensors)
    ends = tuple(accumulate(e.size for e in entries))
    small = Layout(entries, (0, ends[-1]))
    return small, layout.dense_bytes / small.dense_bytes


def rehearse(
    method: Method, layout: Layout, clients: int, per_round: int, aggregation: AggregationRule | None, apart: bool
) -> Rehearsed:
    """Two rounds of a method, with all the clients of a round.

    Args:
        method: the method; `exact` coefficients, which need directions of full length, are taken for others.
        layout: the parameter space.
        clients: how many there are.
        per_round: clients in a round.
        aggregation: how answers are combined.
        apart: every client's answer is a message of its own.

    Raises:
        ValueError: the method does not fit the layout.
    """
    if getattr(method, "exact", False):
        method = method.model_copy(update={"exact": False})
    factor, dense = 1.0, layout.dense_bytes
    if method.entrywise:  # what travels is in proportion to the model
        layout, factor = shrunk(layout, max(1 << 14, SMALL // (per_round + 4)))
    tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        coordinator = Coordinator(method, layout, 1, [8] * clients, per_round, aggregation)
        return _rounds(method, coordinator, layout, _Traced(factor), dense - layout.dense_bytes, apart)
    finally:
        if not tracing:
            tracemalloc.stop()


def _rounds(
    method: Method, coordinator: Coordinator, layout: Layout, traced: _Traced, longer: int, apart: bool
) -> Rehearsed:
    """`longer`: by how many bytes whole weights are longer than in the layout."""
    state = method.start(layout, 1)
    coordinator.take_base(lambda: bytes(layout.dense_bytes))
    alone = method.together == "gradients" and not apart  # one speaks for all
    for number in (1, 2):
        picked = coordinator.open(number)
        plans = [coordinator.plan(client) for client in picked]
        kept = traced.now()
        messages = []
        for client, plan in zip(picked[:1] if alone else picked, plans, strict=False):
            waiting = traced.now()
            traced.start()
            noting = NotingClient(layout, number, client)
            update = method.train(state, method.decode_plan(state, plan[FRAME_BYTES:]), noting)
            messages.append(Message(MessageKind.UPDATE, method.code, number, client, update.encode()).encode())
            traced.end("answer")
            del update
        up = len(messages[-1]) - FRAME_BYTES
        traced.start()
        for client, message in zip(picked, messages, strict=False):
            coordinator.receive(message, client)
        del message, messages
        step_message = coordinator.close()
        traced.end("closing")
        traced.start()
        step = method.decode_step(state, Message.decode(step_message).payload)
        change = method.change(state, step)
        traced.end("applying")
        state = method.advance(state, step)
        down = len(plans[0]) + len(step_message) - 2 * FRAME_BYTES
        del step, step_message
    if method.catch_up.replaces:
        up, down = (size + longer if size >= layout.dense_bytes else size for size in (up, down))
    else:
        up, down = (round(size * traced.factor) for size in (up, down))
    peaks = traced.peaks
    return Rehearsed(
        noting.asked, change, up, down, kept, waiting, peaks["answer"], peaks["closing"], peaks["applying"]
    )  # fmt: skip
