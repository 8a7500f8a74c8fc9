"""FedSGD: one gradient per client and round; the server takes the step.

McMahan et al., AISTATS 2017, Section 2: FedAvg with one step on one batch, where it does not matter whether weights
or gradients are averaged. With g_i the gradient of client i's mean loss over its batch:

    w <- w - eta sum_i c_i g_i

With c_i in proportion to the terms of the loss (response tokens, or examples) the sum is the gradient of the mean loss
over the union of the batches: the step is the one of centralised SGD on that union.

In a simulation the clients' gradients are added up where backward puts them, so that any number of clients takes the
memory of one gradient (`fedseed.federation.worker`); over a network each client sends its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveFloat, PositiveInt

from fedseed.errors import MessageError
from fedseed.methods.base import Client, Contribution, Nothing
from fedseed.methods.fedavg import Dense, FedAvgState, read_weights, to_floats
from fedseed.methods.payload import Reader, u32_bytes
from fedseed.weights.layout import ITEM_BYTES


@dataclass(frozen=True)
class Gradient:
    """An update.

    Args:
        data: the gradient, tensor by tensor, in the weights' dtypes.
        terms: how many terms the loss is a mean of.
    """

    data: bytes
    terms: int

    def encode(self) -> bytes:
        """The number of terms (u32), then the tensors' bytes."""
        return u32_bytes(np.array([self.terms])) + self.data


class FedSGD(Dense):
    """FedSGD's settings.

    Args (besides those of `Dense`):
        rate: eta, the server's.
        batch: examples of a client's gradient; None: all it has.
        micro_batch: examples that go through the model at a time.
        weighting: "terms": the gradient on the union of the batches; or "examples", "equal" as with other methods.
    """

    name: Literal["fedsgd"] = "fedsgd"
    code: ClassVar[int] = 9
    about: ClassVar[str] = "one gradient a round and client, averaged: centralised SGD on the union of the batches"
    trains_in_place: ClassVar[bool] = False

    rate: PositiveFloat = 1e-2
    batch: PositiveInt | None = None
    micro_batch: PositiveInt = 8
    weighting: Literal["equal", "examples", "terms"] = "terms"  # type: ignore[assignment]

    @property
    def adds_gradients(self) -> bool:
        """Clients of one worker may add up their gradients."""
        return True

    @property
    def server_rate(self) -> float:
        """eta."""
        return self.rate

    def train(self, state: FedAvgState, plan: Nothing, client: Client) -> Gradient:
        """The gradient of the mean loss over one batch."""
        return Gradient(*client.gradient(self.batch, self.micro_batch))

    def shares(self, contributions: Sequence[Contribution]) -> list[float]:
        """c_i of each answer."""
        if self.weighting != "terms":
            return [c.share for c in contributions]
        total = sum(c.update.terms for c in contributions)
        return [c.update.terms / total for c in contributions]

    def change(self, state: Any, contributions: Sequence[Contribution]) -> Iterator[NDArray[np.float64]]:
        """-sum_i c_i g_i."""
        shares = self.shares(contributions)
        position = 0
        for entry in state.layout.tensors:
            size = entry.size * ITEM_BYTES[entry.dtype]
            change = np.zeros(entry.size)
            for share, (_, _, update) in zip(shares, contributions, strict=True):
                change -= share * to_floats(update.data[position : position + size], entry.dtype).astype(np.float64)
            yield change
            position += size

    def decode_update(self, state: Any, number: int, data: bytes) -> Gradient:
        """A gradient from its payload: the right length, finite, of at least one term."""
        reader = Reader(data)
        terms = int(reader.u32s(1)[0])
        if terms < 1:
            raise MessageError("a gradient of a loss with no terms")
        return Gradient(read_weights(state.layout, reader.take(reader.left)).data, terms)
