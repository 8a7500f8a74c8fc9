"""What a run's process and its local workers say to each other: orders and replies, pickled, over a pair of sockets.

A run and its workers are one program, so they trust each other. What clients and coordinator exchange travels encoded
inside: plan, update and step are the bytes that they would be over a network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedseed.orbit.record import Record

if TYPE_CHECKING:
    from fedseed.federation.worker import Answer
    from fedseed.training.together import Look, Seen

# -- to a worker -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """The first order: load the model at its base, and the clients' examples.

    Args:
        number: the worker's, from 0; on a machine with GPUs it decides which one is its.
        threads: torch's and numba's.
        load: a pickled function that returns a `Hosted` of all clients.
    """

    number: int
    threads: int
    load: bytes


@dataclass(frozen=True)
class CatchUp:
    """Apply what was learnt so far.

    Args:
        records: the steps.
        memory: the folder of what clients keep from round to round; None: they keep nothing.
    """

    records: Sequence[Record]
    memory: Path | None = None


@dataclass(frozen=True)
class Apply:
    """Apply a step, as the coordinator's message has it."""

    step: bytes


@dataclass(frozen=True)
class Train:
    """Do what a plan asks of a client; the reply's result is its `Answer`."""

    plan: bytes
    client: int


@dataclass(frozen=True)
class Evaluate:
    """Measure a part of the losses that a round's clients have in common; the result says what each look found.

    Args:
        plans: the plans of all clients that take part.
        clients: their numbers.
        part: of the looks, numbered in order, those whose number is this modulo `parts`.
        parts: how many workers share them.
    """

    plans: Sequence[bytes]
    clients: Sequence[int]
    part: int
    parts: int


Work = Train | Evaluate
Order = Load | CatchUp | Apply | Work

# -- from a worker -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loaded:
    """The model is at its base; `start` is what an orbit of it begins with, which must be the run's own."""

    start: bytes


@dataclass(frozen=True)
class Done:
    """Work is done.

    Args:
        result: a client's answer, or losses by look.
        memory: the worker's peak memory so far, in bytes.
    """

    result: "Answer | Mapping[Look, Seen]"
    memory: int


@dataclass(frozen=True)
class Failed:
    """What one process would have raised; the worker ends."""

    error: Exception


Reply = Loaded | Done | Failed
