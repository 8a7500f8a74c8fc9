"""Error feedback: a client adds the part that its compressor left out to its next change.

Karimireddy, Rebjock, Stich, Jaggi: "Error Feedback Fixes SignSGD and other Gradient Compression
Schemes", ICML 2019, Algorithm 1, with a round's change in place of a step's gradient. For client i
and a compressor C:

    p        = e_i + Delta_i              Delta_i = w_start - w_end, after T local optimiser steps
    q        = C(p)                       is sent
    e_i     <- beta (p - q)               is remembered: d float32 numbers on the client
    w       <- w - eta_g sum_i c_i q_i

A client keeps its memory in rounds in which it does not take part. If an update is sent but does
not count (because it is refused or too late), the sent part is lost.
"""

from abc import abstractmethod
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat

from fedseed.errors import MessageError, NonFiniteError
from fedseed.methods.base import Method
from fedseed.methods.payload import Floats, Halves, Nothing, Payload, from_floats, to_floats
from fedseed.training.protocol import Client
from fedseed.training.settings import LocalTraining
from fedseed.weights.change import Patch

# number of entries of a vector that are compressed together; the last chunk may be shorter
CHUNK = 4096
TOGETHER = 64  # chunks to process at a time


def chunks_of(size: int) -> int:
    """Return the number of chunks of a vector with `size` entries."""
    return -(-size // CHUNK)


def round_to_brain(values: NDArray[Any]) -> Floats:
    """Return numbers after rounding to bfloat16, as they are sent."""
    return to_floats(from_floats(values.astype(np.float32), "bfloat16"), "bfloat16")


class Scales(Halves):
    """Encodes scales of chunks: numbers in bfloat16 that must not be negative."""

    def decode_elements(self, values: NDArray[Any]) -> NDArray[Any]:
        scales = super().decode_elements(values)
        if (scales < 0).any():
            raise MessageError(f"scale {int(np.argmax(scales < 0))} of {len(scales)} is negative")
        return scales


class Feedback(Method):
    """Settings of methods that compress the local change.

    Besides the arguments of `Method`:

    Args:
        global_rate: eta_g, the rate of the step made from the answers.
        feedback: beta, the share of the unsent part that is remembered; 0: clients keep no memory.
        training: local training.
    """

    entrywise: ClassVar[bool] = True
    lasting_entries: ClassVar[bool] = True

    global_rate: PositiveFloat = 1.0
    feedback: Annotated[float, Field(ge=0, le=1)] = 1.0
    training: LocalTraining = LocalTraining()

    @abstractmethod
    def compress(self, state: Any, vector: Floats, round: int) -> Payload:
        """Return C(p), the compressed form of a vector of length d."""

    @abstractmethod
    def to_patches(self, state: Any, update: Any) -> list[Patch]:
        """Return q as patches, read from the update like every receiver does."""

    def train(self, state: Any, plan: Nothing, client: Client) -> Payload:
        """Train locally, and compress the change plus the remembered part.

        The client then remembers the part that is left out.
        """
        client.first_order(self.training.for_round(client.round))
        with client.phase("projection"):
            vector = client.difference()
            residual = client.recall() if self.remembers else None
            if residual is not None:
                vector += residual
            if not np.isfinite(vector).all():
                raise NonFiniteError("the local update is not finite: a weight overflowed")
            update = self.compress(state, vector, client.round)
            if self.remembers:
                for patch in self.to_patches(state, update):
                    positions, values = patch.within(0, len(vector))
                    vector[positions] -= values
                if self.feedback != 1.0:
                    vector *= np.float32(self.feedback)
                client.keep(vector)
        return update

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        return self.feedback > 0
