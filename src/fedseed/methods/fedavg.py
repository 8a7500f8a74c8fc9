"""FedAvg: clients train all parameters and send them; the coordinator averages.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017, Algorithm 1:

    w_i     <- local training from w                          ClientUpdate
    w       <- w + eta_g (sum_i c_i w_i - w)                  eta_g = 1: the weighted average
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat

from fedseed.errors import MessageError
from fedseed.methods.base import Client, Contribution, Floats, Method, Nothing, Payload, State, Weighting
from fedseed.training.settings import LocalTraining
from fedseed.weights.layout import ITEM_BYTES, Layout

if TYPE_CHECKING:
    from fedseed.weights.space import ParameterSpace


@dataclass(frozen=True)
class Weights:
    """All trainable tensors in order, in their own dtypes; no bytes: unchanged (nobody answered)."""

    data: bytes

    def encode(self) -> bytes:
        """The tensors' bytes."""
        return self.data


@dataclass(frozen=True)
class FedAvgState(State):
    """What the coordinator keeps.

    Args:
        weights: its copy of the weights; None before the first step, when only the clients know them.
        first: the server optimiser's average change, float32, length d; empty before there is one.
        second: the average of its square, for Adam.
    """

    weights: Weights | None = None
    first: Floats = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    second: Floats = field(default_factory=lambda: np.zeros(0, dtype=np.float32))


class Dense(Method):
    """Whole weights down: what FedAvg, dense zeroth-order methods and FedSGD share, with the server's optimiser.

    The round's answers ask for a change D of the weights (FedAvg: sum_i c_i w_i - w; FedSGD: -sum_i c_i g_i), and

        average    w <- w + eta_g D
        momentum   m <- beta1 m + D;              w <- w + eta_g m
        adam       m <- beta1 m + (1 - beta1) D,
                   v <- beta2 v + (1 - beta2) D^2;  w <- w + eta_g m / (sqrt(v) + tau)

    momentum: Hsu, Qi, Brown, 2019 (FedAvgM). adam: Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
    Algorithm 2 (FedAdam; its averages are not bias-corrected).

    Args (besides those of `Method`):
        server: the server's optimiser.
        server_beta1: decay of the average change, for momentum and Adam.
        server_beta2: decay of the average squared change, for Adam.
        server_eps: Adam's tau: how adaptive it is.
    """

    blocks: Literal["one"] = "one"
    weighting: Weighting = "examples"
    server: Literal["average", "momentum", "adam"] = "average"
    server_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    server_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    server_eps: PositiveFloat = 1e-3

    @property
    def dense(self) -> bool:
        """Steps are whole weights."""
        return True

    @property
    @abstractmethod
    def server_rate(self) -> float:
        """eta_g."""

    @abstractmethod
    def change(self, state: Any, contributions: Sequence[Contribution]) -> Iterator[NDArray[np.float64]]:
        """D, tensor by tensor, flat, in double precision."""

    def start(self, layout: Layout, seed: int) -> FedAvgState:
        """The state before the first round."""
        return FedAvgState(layout, seed)

    def advance(self, state: FedAvgState, step: Weights) -> FedAvgState:  # type: ignore[override]
        """Remember the new weights."""
        return replace(state, weights=step) if step.data else state

    def plan(self, state: Any, number: int) -> Payload:
        """Nothing but the round's number."""
        return Nothing()

    def remember(self, state: Any, number: int, contributions: Sequence[Contribution]) -> Any:
        """The server optimiser's averages after this round."""
        if self.server == "average" or not contributions:
            return state
        size = state.layout.size
        first = state.first.copy() if len(state.first) else np.zeros(size, dtype=np.float32)
        second = state.second.copy() if len(state.second) else np.zeros(size, dtype=np.float32)
        gain, at = 1.0 if self.server == "momentum" else 1 - self.server_beta1, 0
        for part in self.change(state, contributions):
            here = slice(at, at := at + len(part))
            first[here] = self.server_beta1 * first[here].astype(np.float64) + gain * part
            if self.server == "adam":
                second[here] = self.server_beta2 * second[here].astype(np.float64) + (1 - self.server_beta2) * part**2
        return replace(state, first=first, second=second if self.server == "adam" else state.second)

    def aggregate(self, state: Any, number: int, contributions: Sequence[Contribution]) -> Weights:
        """w + eta_g times what the server's optimiser makes of D; rounded once to each tensor's dtype."""
        if not contributions:
            return Weights(b"")
        old = old_weights(state)
        wanted = self.change(state, contributions) if self.server == "average" else self._optimised(state)
        parts = []
        for entry, before, change in zip(state.layout.tensors, old, wanted, strict=True):
            after = before + self.server_rate * change
            parts.append(from_floats(after.astype(np.float32), entry.dtype))
        return Weights(b"".join(parts))

    def _optimised(self, state: FedAvgState) -> Iterator[NDArray[np.float64]]:
        at = 0
        for entry in state.layout.tensors:
            here = slice(at, at := at + entry.size)
            first = state.first[here].astype(np.float64)
            if self.server == "adam":
                first /= np.sqrt(state.second[here].astype(np.float64)) + self.server_eps
            yield first

    def keep(self, state: Any) -> dict[str, NDArray[Any]]:
        """The server optimiser's averages."""
        return {name: a for name, a in (("first", state.first), ("second", state.second)) if len(a)}

    def restore(self, state: Any, kept: Mapping[str, NDArray[Any]]) -> Any:
        """The inverse of `keep`."""
        if self.server == "average":
            return state
        if any(len(kept[name]) != state.layout.size for name in kept if name in ("first", "second")):
            raise ValueError("the server optimiser's averages do not fit the model")
        return replace(state, **{name: kept[name] for name in ("first", "second") if name in kept})

    def apply(self, state: Any, step: Weights, space: "ParameterSpace") -> None:
        """Overwrite the weights."""
        if step.data:
            space.load_dense(step.data)

    def decode_plan(self, state: Any, data: bytes) -> Any:
        """A plan has no content."""
        if data:
            raise MessageError(f"a plan of {self.name} has no payload, {len(data)} bytes came")
        return Nothing()

    def decode_step(self, state: Any, data: bytes) -> Any:
        """A step from its payload."""
        return read_weights(state.layout, data) if data else Weights(b"")


class Averaged(Dense):
    """Weights up, their weighted average down: what FedAvg and dense zeroth-order methods share.

    Args (besides those of `Dense`):
        global_rate: eta_g; 1 with server = "average" is plain averaging.
    """

    global_rate: PositiveFloat = 1.0

    @property
    def server_rate(self) -> float:
        """eta_g."""
        return self.global_rate

    def change(self, state: Any, contributions: Sequence[Contribution]) -> Iterator[NDArray[np.float64]]:
        """sum_i c_i w_i - w."""
        for mean, before in zip(self.mean(state, contributions), old_weights(state), strict=True):
            yield mean - before

    def mean(self, state: Any, contributions: Sequence[Contribution]) -> Iterator[NDArray[np.float64]]:
        """sum_i c_i w_i, tensor by tensor, in double precision."""
        position = 0
        for entry in state.layout.tensors:
            size = entry.size * ITEM_BYTES[entry.dtype]
            mean = np.zeros(entry.size)
            for _, share, update in contributions:
                mean += share * to_floats(update.data[position : position + size], entry.dtype).astype(np.float64)
            yield mean
            position += size

    def aggregate(self, state: Any, number: int, contributions: Sequence[Contribution]) -> Weights:
        """Plain averaging needs no old weights: the mean, rounded once to each tensor's dtype."""
        if not contributions or self.server != "average" or self.global_rate != 1.0:
            return super().aggregate(state, number, contributions)
        means = zip(state.layout.tensors, self.mean(state, contributions), strict=True)
        return Weights(b"".join(from_floats(mean.astype(np.float32), entry.dtype) for entry, mean in means))

    def decode_update(self, state: Any, number: int, data: bytes) -> Any:
        """Weights from their payload: the right length and finite."""
        return read_weights(state.layout, data)


class FedAvg(Averaged):
    """FedAvg's settings.

    Args (besides those of `Averaged`):
        training: local training.
    """

    name: Literal["fedavg"] = "fedavg"
    code: ClassVar[int] = 2
    about: ClassVar[str] = "all parameters trained and sent, averaged (AISTATS 2017)"

    training: LocalTraining = LocalTraining(optimizer="adamw", learning_rate=3e-4)

    def train(self, state: FedAvgState, plan: Nothing, client: Client) -> Weights:
        """Train locally, send the weights."""
        client.first_order(self.training)
        return Weights(client.space.dense())


def old_weights(state: FedAvgState) -> Iterator[NDArray[np.float64]]:
    """The coordinator's copy of the weights, tensor by tensor, in double precision."""
    if state.weights is None:
        raise ValueError("a server optimiser, or a rate other than 1, needs the base's weights at the coordinator")
    position = 0
    for entry in state.layout.tensors:
        size = entry.size * ITEM_BYTES[entry.dtype]
        yield to_floats(state.weights.data[position : position + size], entry.dtype).astype(np.float64)
        position += size


def read_weights(layout: Layout, data: bytes) -> Weights:
    """Tensors from a payload: the right length and finite. Raises MessageError."""
    if len(data) != layout.dense_bytes:
        raise MessageError(f"{len(data)} bytes of weights, the model has {layout.dense_bytes}")
    position = 0
    for entry in layout.tensors:
        size = entry.size * ITEM_BYTES[entry.dtype]
        if not np.isfinite(to_floats(data[position : position + size], entry.dtype)).all():
            raise MessageError(f"tensor {entry.name} has a value that is NaN or infinite")
        position += size
    return Weights(data)


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
