"""FedAvg: clients train all parameters and send them; the coordinator averages.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017, Algorithm 1:

    w_i     <- local training from w                          ClientUpdate
    w       <- w + eta_g (sum_i c_i w_i - w)                  eta_g = 1: the weighted average
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveFloat

from fedseed.errors import MessageError
from fedseed.layout import ITEM_BYTES, Layout
from fedseed.methods.base import Client, Contribution, Floats, Method, Nothing, State, Weighting
from fedseed.training.settings import LocalTraining

if TYPE_CHECKING:
    from fedseed.parameters import ParameterSpace


@dataclass(frozen=True)
class Weights:
    """All trainable tensors in order, in their own dtypes; no bytes: unchanged (nobody answered)."""

    data: bytes

    def encode(self) -> bytes:
        """The tensors' bytes."""
        return self.data


@dataclass(frozen=True)
class FedAvgState(State):
    """The coordinator's copy of the weights; None before the first step, when only the clients know them."""

    weights: Weights | None = None


class Averaged(Method):
    """Weights up, their weighted average down: what FedAvg and dense zeroth-order methods share.

    Args (besides those of `Method`):
        global_rate: eta_g; 1 is plain averaging.
    """

    dense: ClassVar[bool] = True

    blocks: Literal["one"] = "one"
    weighting: Weighting = "examples"
    global_rate: PositiveFloat = 1.0

    def start(self, layout: Layout, seed: int) -> FedAvgState:
        """The state before the first round."""
        return FedAvgState(layout, seed)

    def advance(self, state: FedAvgState, step: Weights) -> FedAvgState:  # type: ignore[override]
        """Remember the new weights."""
        return replace(state, weights=step) if step.data else state

    def plan(self, state: FedAvgState, number: int) -> Nothing:
        """Nothing but the round's number."""
        return Nothing()

    def aggregate(self, state: FedAvgState, number: int, contributions: Sequence[Contribution]) -> Weights:
        """w + eta_g (sum_i c_i w_i - w), summed in double precision, rounded once to each tensor's dtype."""
        if not contributions:
            return Weights(b"")
        if self.global_rate != 1.0 and state.weights is None:
            raise ValueError("global_rate other than 1 needs the base's weights at the coordinator")
        parts = []
        position = 0
        for entry in state.layout.tensors:
            size = entry.size * ITEM_BYTES[entry.dtype]
            mean = np.zeros(entry.size)
            for _, share, update in contributions:
                mean += share * to_floats(update.data[position : position + size], entry.dtype).astype(np.float64)
            if self.global_rate != 1.0 and state.weights is not None:
                old = to_floats(state.weights.data[position : position + size], entry.dtype).astype(np.float64)
                mean = old + self.global_rate * (mean - old)
            parts.append(from_floats(mean.astype(np.float32), entry.dtype))
            position += size
        return Weights(b"".join(parts))

    def apply(self, state: FedAvgState, step: Weights, space: "ParameterSpace") -> None:
        """Overwrite the weights."""
        if step.data:
            space.load_dense(step.data)

    def decode_plan(self, state: FedAvgState, data: bytes) -> Nothing:
        """A plan has no content."""
        if data:
            raise MessageError(f"a FedAvg plan has no payload, {len(data)} bytes came")
        return Nothing()

    def decode_update(self, state: FedAvgState, number: int, data: bytes) -> Weights:
        """Weights from their payload: the right length and finite."""
        if len(data) != state.layout.dense_bytes:
            raise MessageError(f"{len(data)} bytes of weights, the model has {state.layout.dense_bytes}")
        position = 0
        for entry in state.layout.tensors:
            size = entry.size * ITEM_BYTES[entry.dtype]
            if not np.isfinite(to_floats(data[position : position + size], entry.dtype)).all():
                raise MessageError(f"tensor {entry.name} has a value that is NaN or infinite")
            position += size
        return Weights(data)

    def decode_step(self, state: FedAvgState, data: bytes) -> Weights:
        """A step from its payload."""
        return self.decode_update(state, 0, data) if data else Weights(b"")


class FedAvg(Averaged):
    """FedAvg's settings.

    Args (besides those of `Averaged`):
        training: local training.
    """

    name: Literal["fedavg"] = "fedavg"
    code: ClassVar[int] = 2
    about: ClassVar[str] = "all parameters trained and sent, averaged (AISTATS 2017)"

    training: LocalTraining = LocalTraining(optimizer="adamw", rate=3e-4)

    def train(self, state: FedAvgState, plan: Nothing, client: Client) -> Weights:
        """Train locally, send the weights."""
        client.first_order(self.training)
        return Weights(client.space.dense())


def to_floats(data: bytes, dtype: str) -> Floats:
    """Bytes of a float32, bfloat16 or float16 tensor as float32."""
    if dtype == "float32":
        return np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)
    if dtype == "float16":
        return np.frombuffer(data, dtype="<f2").astype(np.float32)
    return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)


def from_floats(values: Floats, dtype: str) -> bytes:
    """float32 rounded to nearest (ties to even) in float32, bfloat16 or float16, as bytes; finite values only."""
    if dtype == "float32":
        return values.astype("<f4").tobytes()
    if dtype == "float16":
        return values.astype("<f2").tobytes()
    bits: NDArray[np.uint32] = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype("<u2").tobytes()
