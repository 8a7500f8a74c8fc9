"""How a client's weights follow the log: through every step, or to the newest weights because they replace all before.

Which of the two a run has follows from how whoever missed rounds catches up (`Method.catch_up`).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from fedseed.errors import MessageError, NetworkError
from fedseed.federation.cost import Cost
from fedseed.federation.hosted import WorkThread
from fedseed.federation.large import fetch, is_stored
from fedseed.federation.messages import FRAME_BYTES, Message
from fedseed.federation.worker import Worker
from fedseed.methods.catch_up import CatchUp
from fedseed.orbit import Record
from fedseed.transport.base import ClientEnd

WEIGHTS_PATIENCE_SECONDS = 60.0  # how long newer weights may take to come when older ones have been deleted


class Applying(ABC):
    """Brings a worker's weights through the log's steps.

    Args:
        end: the transport.
        thread: where the work is done.
    """

    large: ClassVar[bool] = False  # whether this process sends messages that need room on the server

    def __init__(self, end: ClientEnd, thread: WorkThread) -> None:
        self.norm: float | None = None  # of the newest step, where the method knows it
        self._end = end
        self._thread = thread

    @property
    def current(self) -> bool:
        """Whether the weights are those after the last step given to `apply`."""
        return True

    async def message(self, carried: bytes) -> bytes | None:
        """A step's message, fetched where the log has a reference; None: it is not needed before `apply`."""
        return await fetch(self._end, carried, None)

    @abstractmethod
    async def apply(self, worker: Worker, steps: Sequence[bytes]) -> Cost:
        """Apply steps that follow each other, as `message` has them or as the log carries them."""

    async def settle(self, worker: Worker) -> Cost:
        """Do what could not be done yet, if it can be now."""
        return Cost()


class EveryStep(Applying):
    """One after another; many are merged, as in a replay."""

    async def apply(self, worker: Worker, steps: Sequence[bytes]) -> Cost:
        """Apply one step, or replay several."""
        began = time.perf_counter()
        if len(steps) == 1:
            self.norm = await self._thread.do(worker.apply, steps[0])
        else:
            messages = [Message.decode(step) for step in steps]
            records = [Record(message.round, message.payload) for message in messages]
            await self._thread.do(worker.catch_up, records)
            self.norm = None
        return Cost({"rebuild": time.perf_counter() - began})


class NewestWeights(Applying):
    """Only the newest are fetched and loaded."""

    large = True

    def __init__(self, end: ClientEnd, thread: WorkThread) -> None:
        super().__init__(end, thread)
        self._awaited: tuple[float, bytes] | None = None  # weights that could not be had yet, and since when

    @property
    def current(self) -> bool:
        """Whether no weights are awaited."""
        return self._awaited is None

    async def message(self, carried: bytes) -> bytes | None:
        """Weights of their own object are fetched when it is known that they are the newest."""
        return None if is_stored(carried) else carried

    async def apply(self, worker: Worker, steps: Sequence[bytes]) -> Cost:
        """Load the last that is not empty."""
        changed = [step for step in steps if is_stored(step) or len(step) > FRAME_BYTES]
        if not changed:
            return Cost()
        self._awaited = (time.monotonic(), changed[-1])
        return await self.settle(worker)

    async def settle(self, worker: Worker) -> Cost:
        """Load the newest weights; where they have been deleted already, newer ones are on their way.

        Raises:
            NetworkError: they have not come for a minute.
        """
        if self._awaited is None:
            return Cost()
        since, carried = self._awaited
        try:
            message = await fetch(self._end, carried, None)
        except MessageError as error:
            if time.monotonic() > since + WEIGHTS_PATIENCE_SECONDS:
                raise NetworkError(f"the newest weights can't be had: {error}") from error
            return Cost()
        began = time.perf_counter()
        self.norm = await self._thread.do(worker.apply, message)
        self._awaited = None
        return Cost({"rebuild": time.perf_counter() - began})


def applying(catch_up: CatchUp, end: ClientEnd, thread: WorkThread) -> Applying:
    """Returns how a client of a method that catches up so follows the log."""
    return (NewestWeights if catch_up.replaces else EveryStep)(end, thread)
