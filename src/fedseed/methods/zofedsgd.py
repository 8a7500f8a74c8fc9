"""ZO-FedSGD and centralised MeZO: projections on the wire, aggregated every step.

Malladi, Gao, Nichani, Damian, Lee, Chen, Arora: "Fine-Tuning Language Models with Just Forward Passes" (MeZO), 2023;
ZO-FedSGD as FeedSign's paper names its baseline (Algorithm 1); one-byte scalars after Zelikman et al., "Just One Byte
(per gradient)", 2023.

    rho_k = [l(w + eps z) - l(w - eps z)] / 2 eps        on client k's batch
    w    <- w - (eta / m) sum_k rho_k z_{s_k}            own seeds
    w    <- w - eta mean(rho) z_t                        one shared seed a step
    w    <- w - (eta / n) sum_j rho_j z_{t,j}            MeZO: one client, n directions

A seed is 32 bits: the index of a direction of the run's basis.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fedseed.errors import MessageError
from fedseed.methods.base import Attack, Client, Contribution, Floats, Nothing, Weighting
from fedseed.methods.payload import Reader, f32_bytes, u32_bytes
from fedseed.methods.zeroth import StepState, Stepwise, check_scalars, corrupt_scalars
from fedseed.randomness import Domain, derive

if TYPE_CHECKING:
    from fedseed.weights.space import ParameterSpace


@dataclass(frozen=True)
class Projections:
    """Scalars on directions: an update, or a step.

    Args:
        scalars: rho, in steps with the shares multiplied in.
        indices: the directions, where each client takes its own; None: they follow from the step's number.
        bytes_each: 4, or 1 for the one-byte code.
    """

    scalars: Floats
    indices: NDArray[np.uint32] | None = None
    bytes_each: int = 4

    def encode(self) -> bytes:
        """Indices (u32 each) if any, then scalars (f32, or one byte each)."""
        head = b"" if self.indices is None else u32_bytes(self.indices)
        return head + (to_byte(self.scalars).tobytes() if self.bytes_each == 1 else f32_bytes(self.scalars))


# One byte: a sign and a magnitude 2^((c - 80) / 5), c = 1..127: from 2^-15.8 to 2^9.4 in steps of 15%; c = 0 is zero.
_OCTAVE, _OFFSET = 5, 80


def to_byte(values: Floats) -> NDArray[np.uint8]:
    """The one-byte code of each value: nearest in the logarithm; too small becomes 0, too large the largest."""
    magnitude = np.abs(values.astype(np.float64))
    code = np.round(np.log2(np.where(magnitude > 0, magnitude, 1.0)) * _OCTAVE + _OFFSET)
    code = np.where((magnitude > 0) & (code >= 1), np.minimum(code, 127), 0).astype(np.uint8)
    return np.where(values < 0, code | 0x80, code).astype(np.uint8)


def from_byte(codes: NDArray[np.uint8]) -> Floats:
    """The values that one-byte codes stand for."""
    return _VALUES[codes]


_magnitudes = [0.0] + [2.0 ** ((c - _OFFSET) / _OCTAVE) for c in range(1, 128)]
_VALUES = np.array(_magnitudes + [-m for m in _magnitudes], dtype=np.float32)


class ZOFedSGD(Stepwise):
    """ZO-FedSGD's settings; a round is a step.

    Args (besides those of `ZerothOrder`):
        seeds: "own": each client draws its own direction and sends (seed, rho), 8 bytes; "shared": one direction a
            step, 4 bytes up and the mean, 4 bytes, down.
        scalars: "float32", or "byte" for one byte a projection.
    """

    name: Literal["zo-fedsgd"] = "zo-fedsgd"
    code: ClassVar[int] = 4
    about: ClassVar[str] = "a projection per client and step, own or shared seeds, 4 bytes or 1"

    seeds: Literal["own", "shared"] = "own"
    scalars: Literal["float32", "byte"] = "float32"
    rate: PositiveFloat = 1e-7
    scale: PositiveFloat = 1e-3
    batch: PositiveInt = 16
    weighting: Weighting = "equal"

    @model_validator(mode="after")
    def _base_needs_shared_seeds(self) -> "ZOFedSGD":
        if self.seeds == "own" and self.from_base:
            raise ValueError('small_steps = "from-base" needs seeds = "shared": own directions never come twice')
        return self

    @property
    def looks_together(self) -> bool:
        """With a shared seed."""
        return self.seeds == "shared"

    def advance(self, state: StepState, step: Projections) -> StepState:  # type: ignore[override]
        """Count the step."""
        return self.count(state, step.scalars)

    def train(self, state: StepState, plan: Nothing, client: Client) -> Projections:
        """One two-point estimate."""
        items = next(client.batches(self.batch))
        k = client.round - 1
        if self.seeds == "own":
            k = derive(state.seed, Domain.CLIENT_SEED, client.round, client.number) & 0xFFFFFFFF
        rho = self.two_point(client, self.directions(state.seed), k, items)
        indices = np.array([k], dtype=np.uint32) if self.seeds == "own" else None
        return Projections(np.array([rho], dtype=np.float32), indices, self._bytes_each)

    def aggregate(self, state: StepState, number: int, contributions: Sequence[Contribution]) -> Projections:
        """Own seeds: every client's pair, its share multiplied in; shared: the mean. Steps carry full floats."""
        if self.seeds == "own":
            scalars = np.array([share * float(u.scalars[0]) for _, share, u in contributions], dtype=np.float32)
            return Projections(scalars, np.array([u.indices[0] for _, _, u in contributions], dtype=np.uint32))
        if not contributions:
            return Projections(np.zeros(0, dtype=np.float32))
        return Projections(np.array([sum(s * float(u.scalars[0]) for _, s, u in contributions)], dtype=np.float32))

    def apply(self, state: StepState, step: Projections, space: "ParameterSpace") -> None:
        """w <- w - eta sum_k c_k rho_k z_k, rounded once."""
        from fedseed.weights.space import Term

        if step.indices is None:
            self.move(state, step.scalars, space)
            return
        basis = self.directions(state.seed)
        terms = [Term(basis, [rho], int(k)) for k, rho in zip(step.indices, step.scalars, strict=True)]
        if terms:
            self.add(state, terms, space)

    def corrupt(self, state: StepState, update: Projections, kind: Attack, drawn: NDArray[np.uint32]) -> Projections:
        """Another projection on the same direction."""
        return Projections(corrupt_scalars(update.scalars, kind, drawn), update.indices, self._bytes_each)

    def decode_update(self, state: StepState, number: int, data: bytes) -> Projections:
        """One projection from its payload."""
        found = self._read(Reader(data), 1, self._bytes_each)
        check_scalars(found.scalars)
        return found

    def decode_step(self, state: StepState, data: bytes) -> Projections:
        """A step from its payload."""
        each = 8 if self.seeds == "own" else 4
        if len(data) % each or (self.seeds == "shared" and len(data) > each):
            raise MessageError(f"{len(data)} bytes in a step: {each} for each projection")
        return self._read(Reader(data), len(data) // each, 4)

    @property
    def _bytes_each(self) -> int:
        return 1 if self.scalars == "byte" else 4

    def _read(self, reader: Reader, count: int, bytes_each: int) -> Projections:
        indices = reader.u32s(count) if self.seeds == "own" else None
        if bytes_each == 1:
            scalars = from_byte(np.frombuffer(reader.take(count), dtype=np.uint8))
        else:
            scalars = reader.f32s(count)
        reader.end()
        return Projections(scalars, indices, bytes_each)


class MeZO(Stepwise):
    """Centralised MeZO: the one-client case, n directions a step.

    Args (besides those of `ZerothOrder`):
        estimates: n, directions a step; their estimates are averaged.
    """

    name: Literal["mezo"] = "mezo"
    code: ClassVar[int] = 6
    about: ClassVar[str] = "centralised zeroth-order tuning: one client that holds everything"

    estimates: Annotated[int, Field(ge=1, le=1 << 16)] = 1
    rate: PositiveFloat = 1e-6
    scale: PositiveFloat = 1e-3
    batch: PositiveInt = 16
    weighting: Weighting = "equal"

    @property
    def per_step(self) -> int:
        """n, the directions of a step."""
        return self.estimates

    def advance(self, state: StepState, step: Projections) -> StepState:  # type: ignore[override]
        """Count the step."""
        return self.count(state, step.scalars)

    def train(self, state: StepState, plan: Nothing, client: Client) -> Projections:
        """n two-point estimates on one batch, each divided by n."""
        items = next(client.batches(self.batch))
        basis = self.directions(state.seed)
        rho = [self.two_point(client, basis, k, items) / self.estimates for k in self.indices(client.round)]
        return Projections(np.array(rho, dtype=np.float32))

    def aggregate(self, state: StepState, number: int, contributions: Sequence[Contribution]) -> Projections:
        """The mean over clients, of which there is one."""
        if not contributions:
            return Projections(np.zeros(0, dtype=np.float32))
        total = sum(share * u.scalars.astype(np.float64) for _, share, u in contributions)
        return Projections(np.asarray(total, dtype=np.float32))

    def apply(self, state: StepState, step: Projections, space: "ParameterSpace") -> None:
        """w <- w - (eta / n) sum_j rho_j z_j, rounded once."""
        self.move(state, step.scalars, space)

    def decode_update(self, state: StepState, number: int, data: bytes) -> Projections:
        """n projections from their payload."""
        found = self._read(data)
        if not len(found.scalars):
            raise MessageError("an update without projections")
        check_scalars(found.scalars)
        return found

    def decode_step(self, state: StepState, data: bytes) -> Any:
        """A step from its payload; no bytes: nobody answered."""
        return self._read(data)

    def _read(self, data: bytes) -> Projections:
        reader = Reader(data)
        scalars = reader.f32s(self.estimates) if data else np.zeros(0, dtype=np.float32)
        reader.end()
        return Projections(scalars)
