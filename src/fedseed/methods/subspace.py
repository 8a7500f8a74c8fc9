"""Subspace: clients train inside shared random subspaces, and send the trained parameters.

Yang, Wu, Guo, Sun, Gong: "FedKRSO: Communication and Memory Efficient Federated Fine-Tuning of
Large Language Models", arXiv 2602.03019, INFOCOM 2026. fedseed adds the encoding in bits, the orbit
and the exactness.

    P_k      signs over the root of r, from the round's seed    E[P_k^T P_k] = I
    B_ik     minimises client i's loss at W + sum_k B_ik P_k    T local steps from zero, one k after
                                                                another
    up       Q(B_i1), ..., Q(B_iK)                              1 bit: sign and magnitude
    step     Q'(sum_i c_i Q(B_ik))                              4 bits, rounded without bias
    W     <- round(W + eta_g sum_k B_k P_k)                     once for each entry

for each weight matrix W. B is on its shorter side and P on its longer side
(`fedseed.weights.subspace`). Ferret trains all weights and then projects their change onto d / K
times fewer directions, which adds noise of sqrt(d / K) |Delta|. Here a client sends exactly what it
has trained. Gradients and optimiser states are only for B, so a client needs as much memory as for
a LoRA of rank r with a frozen A.

    up       8 bytes for the seed, 2 bytes for each matrix, a bit for each entry of B
    down     the same with `down_bits` for each entry; empty if nobody answered
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from fedseed.errors import MessageError, NonFiniteError
from fedseed.methods.base import Answers, Method
from fedseed.methods.ferret import parse_bytes
from fedseed.methods.payload import (
    Array,
    DecodeContext,
    Floats,
    Halves,
    Many,
    Nothing,
    Packed,
    Payload,
    Scalar,
    Small,
    State,
    Summand,
    move_size,
)
from fedseed.methods.quantised import Bits, dequantise, quantise
from fedseed.randomness import Domain, derive
from fedseed.training.protocol import Client
from fedseed.training.settings import LocalTraining
from fedseed.weights.change import NOTHING, AddFactors, Change
from fedseed.weights.layout import Layout
from fedseed.weights.subspace import RandomSubspace, matrices_of

MAX_RANK = 1 << 16
# longer than any side of a matrix, so that every tensor is trained directly
FULL_RANK = 1 << 40
SEED_BYTES = 8
MAGNITUDE_BYTES = 2
# used in place of a client's number in the random numbers that round a step
_STEP = 0xFFFFFFFF


@dataclass(frozen=True)
class SubspaceState(State):
    """The state: the settings' values for the trained weights, and the number of steps."""

    rank: int = 1  # r; `FULL_RANK`: no projection
    count: int = 1  # K
    magnitude_per_row: bool = False
    steps_done: int = 0  # number of rounds with at least one answer

    def subspace(self, seed: int) -> RandomSubspace:
        """Return the subspaces of a seed."""
        return RandomSubspace(seed, self.rank, self.count)

    @cached_property
    def entries(self) -> int:
        """Return the number of entries of B over all tensors."""
        return sum(self.subspace(0).factor_sizes(self.layout))

    @cached_property
    def group_sizes(self) -> NDArray[np.int64]:
        """Return for each group (a tensor, or a row of B) how many entries share its magnitude."""
        subspace = self.subspace(0)
        sizes: list[int] = []
        for tensor, size in zip(
            self.layout.tensors, subspace.factor_sizes(self.layout), strict=True
        ):
            if self.magnitude_per_row and not subspace.is_whole(tensor.shape):
                sizes += [subspace.width] * (size // subspace.width)
            elif size:
                sizes.append(size)
        return np.array(sizes, dtype=np.int64)

    @property
    def groups(self) -> int:
        """Return the number of magnitudes."""
        return len(self.group_sizes)

    def squared_norm(self, values: Floats) -> float:
        """Return the expected squared length of the weights' change, given B's entries as one
        vector.
        """
        subspace = self.subspace(0)
        return subspace.squared_norm(self.layout, subspace.split(self.layout, values))


class FactorEntries(Summand):
    """The entries of B for all tensors, in the layout's order, and the seed of P."""

    seed: int

    def values(self, state: SubspaceState) -> Floats:
        """Return the entries, shape (entries,)."""
        raise NotImplementedError

    def check(self, context: DecodeContext) -> None:
        if context.kind == "update":
            planned = context.method.subspace_seed(context.state, context.round)
            if self.seed != planned:
                raise MessageError(f"seed {self.seed}, but the round's seed is {planned}")

    def size(self, context: DecodeContext) -> float:
        state: Any = context.state
        return move_size(context.state.layout, state.squared_norm(self.values(state)))

    def numbers(self, context: DecodeContext) -> NDArray[Any]:
        state: Any = context.state
        return self.values(state)

    def vector(self, context: DecodeContext) -> NDArray[np.float64]:
        return self.numbers(context).astype(np.float64)

    @classmethod
    def words(cls, context: DecodeContext) -> int:
        return int(context.lookup("entries"))


@dataclass(frozen=True)
class FloatEntries(FactorEntries):
    """Entries with 4 bytes each."""

    seed: Annotated[int, Scalar("u8")]
    entries: Annotated[Floats, Array("f4", "entries")]

    def values(self, state: SubspaceState) -> Floats:
        return self.entries

    def with_numbers(self, numbers: NDArray[Any], context: DecodeContext) -> "FloatEntries":
        return replace(self, entries=numbers.astype(np.float32))

    @classmethod
    def from_vector(cls, vector: NDArray[Any], context: DecodeContext) -> "FloatEntries":
        seed = context.method.subspace_seed(context.state, context.round)
        return cls(seed, vector.astype(np.float32))


@dataclass(frozen=True)
class CodedEntries(FactorEntries):
    """Entries with `up_bits` each, and their magnitudes."""

    seed: Annotated[int, Scalar("u8")]
    magnitudes: Annotated[Floats, Halves("groups")]
    codes: Annotated[Small, Packed("entries", width="up_bits", kind="scalars")]

    def values(self, state: SubspaceState) -> Floats:
        return dequantise(self.magnitudes, self.codes.numbers, state.group_sizes, self.codes.width)

    def check(self, context: DecodeContext) -> None:
        super().check(context)
        if (self.magnitudes < 0).any():
            raise MessageError(f"magnitude {int(np.argmax(self.magnitudes < 0))} is negative")
        highest = 1 if self.codes.width == 1 else 2**self.codes.width - 2
        if len(self.codes.numbers) and self.codes.numbers.max() > highest:
            raise MessageError(
                f"code {int(self.codes.numbers.argmax())} is {self.codes.numbers.max()}, but at "
                f"most {highest} is possible"
            )

    def with_numbers(self, numbers: NDArray[Any], context: DecodeContext) -> "CodedEntries":
        state: Any = context.state
        return type(self).coded(
            self.seed, numbers.astype(np.float32), state, self.codes.width, self.seed
        )

    @classmethod
    def coded(
        cls, seed: int, values: Floats, state: SubspaceState, bits: int, rounding_seed: int
    ) -> Any:
        """Encode entries with a few bits each.

        Args:
            seed: the seed of P.
            values: the entries.
            state: the state before the round.
            bits: bits of a code.
            rounding_seed: seed of the rounding.
        """
        magnitudes, codes = quantise(values, state.group_sizes, bits, rounding_seed)
        return cls(seed, magnitudes, Small(codes, bits))


@dataclass(frozen=True)
class CodedSum(CodedEntries):
    """`CodedEntries` in a step: entries with `down_bits` each."""

    codes: Annotated[Small, Packed("entries", width="down_bits", kind="scalars")]


@dataclass(frozen=True)
class FloatStep(Payload):
    """A step: the clients' mean without quantisation; empty if nobody answered."""

    parts: Annotated[tuple[FloatEntries, ...], Many(FloatEntries)]

    def check(self, context: DecodeContext) -> None:
        if len(self.parts) > 1:
            raise MessageError(
                f"{len(self.parts)} parts in a step, but expected only one, the mean"
            )

    def size(self, context: DecodeContext) -> float:
        if self.parts:
            return self.parts[0].size(context)
        return 0.0


@dataclass(frozen=True)
class CodedStep(FloatStep):
    """A step: the clients' mean with a few bits for each entry."""

    parts: Annotated[tuple[CodedSum, ...], Many(CodedSum)]  # type: ignore[assignment]


class Subspace(Method):
    """Subspace's settings.

    Besides the arguments of `Method`:

    Args:
        bytes: the most bytes that a client sends in a round, such as 28000 or "28kB". It sets the
            largest rank that fits with `up_bits` for each entry.
        rank: r, the number of rows of P in a subspace. "full": no projection; every trainable
            tensor is trained and sent directly, which suits adapters.
        subspaces: K, the number of subspaces in a round; K times as many entries are sent.
        interval: number of local steps after which a client changes to the next of its K subspaces;
            not set: it uses each of them once.
        refresh: number of rounds after which new subspaces are drawn; 0: all rounds have the same
            subspaces.
        up_bits: bits of an entry in an update: 1 (its sign), 2, 4, 8, or 32 (a float32).
        down_bits: bits of an entry of the mean in a step.
        magnitudes: which entries share a magnitude: those of a "matrix", or of a "row" of B.
        feedback: add what a client's rounding loses to its next update (error feedback). It needs
            refresh = 0, and 4 bytes for each entry on the client's disk.
        global_rate: eta_g, the rate of the step made from the answers.
        targets: which parameters train, if model.trainable is not set: "linear" (the linear layers
            of attention, MLP and experts in the model's blocks), "all", or name patterns such as
            ["*.layers.*", "*classifier*"].
        training: local training of B. Unless its small_steps is "nearest", 16-bit weights round the
            round's step stochastically.
    """

    name: Literal["subspace"] = "subspace"
    code: ClassVar[int] = 17
    about: ClassVar[str] = (
        "first-order training inside shared random subspaces; entries are sent in bits "
        "(FedKRSO, INFOCOM 2026)"
    )

    bytes: Annotated[PositiveInt | None, BeforeValidator(parse_bytes)] = None
    rank: Annotated[int, Field(ge=1, le=MAX_RANK)] | Literal["full"] = 16
    subspaces: Annotated[int, Field(ge=1, le=4096)] = 1
    interval: PositiveInt | None = None
    refresh: NonNegativeInt = 1
    up_bits: Bits = 1
    down_bits: Bits = 4
    magnitudes: Literal["matrix", "row"] = "matrix"
    feedback: bool = False
    global_rate: PositiveFloat = 1.0
    targets: Literal["linear", "all"] | list[str] = "linear"
    training: LocalTraining = LocalTraining(
        optimizer="adamw", learning_rate=1e-3, batch=4, accumulation=1
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Subspace":
        if self.feedback and self.refresh != 0:
            raise ValueError(
                "feedback = true: the remembered part belongs to one subspace; set refresh = 0"
            )
        if self.feedback and self.up_bits == 32:
            raise ValueError("feedback = true: with up_bits = 32 nothing is lost; remove this key")
        if self.rank == "full" and self.subspaces > 1:
            raise ValueError('rank = "full": there are no subspaces')
        # a complete recipe, as a run's folder has it, names the default rank beside `bytes`
        if self.bytes is not None and self.rank != type(self).model_fields["rank"].default:
            raise ValueError("bytes and rank: bytes determines the rank; set only one of them")
        return self

    def start(self, layout: Layout, seed: int) -> SubspaceState:
        """Return the state before the first round, with the rank that fits."""
        rank = FULL_RANK if self.rank == "full" else self.rank
        state = SubspaceState(layout, seed, rank, self.subspaces, self.magnitudes == "row")
        if self.bytes is None:
            return state
        return self._within_budget(state, self.bytes)

    def trained_numbers(self, layout: Layout) -> int | None:
        return self.start(layout, 0).entries

    def check(self, layout: Layout) -> None:
        super().check(layout)
        self.start(layout, 0)

    def _within_budget(self, state: SubspaceState, budget: int) -> SubspaceState:
        """Return the state with the largest rank whose update takes at most `budget` bytes.

        Raises ValueError if the smallest rank takes more, or the largest rank takes less.
        """
        longest = max(
            (matrices_of(t.shape).longer for t in state.layout.tensors if len(t.shape) > 1),
            default=1,
        )
        rank, largest = 1, max(1, longest // self.subspaces)
        if self.update_bytes(replace(state, rank=rank)) > budget:
            raise ValueError(
                f"bytes = {budget}: an update of rank 1 takes "
                f"{self.update_bytes(replace(state, rank=1))} bytes here; raise bytes to this "
                "number, or train fewer parameters (method.targets)"
            )
        whole = self.update_bytes(replace(state, rank=largest))
        if whole < budget:
            raise ValueError(
                f"bytes = {budget}: all weights that train take {whole} bytes in {self.up_bits} "
                f"bit{'s' if self.up_bits > 1 else ''} an entry; allow for at most as many, or set "
                "up_bits"
            )
        while rank < largest:
            middle = (rank + largest + 1) // 2
            if self.update_bytes(replace(state, rank=middle)) <= budget:
                rank = middle
            else:
                largest = middle - 1
        return replace(state, rank=rank)

    def update_bytes(self, state: SubspaceState) -> int:
        """Return the size of an update in bytes."""
        magnitudes = 0 if self.up_bits == 32 else MAGNITUDE_BYTES * state.groups
        return SEED_BYTES + magnitudes + -(-state.entries * self.up_bits // 8)

    def subspace_seed(self, state: SubspaceState, number: int) -> int:
        """Return the seed of a round's subspaces."""
        if self.refresh == 0:
            return state.round_seed(0)
        return state.round_seed((number - 1) // self.refresh + 1)

    def train(self, state: SubspaceState, plan: Nothing, client: Client) -> FactorEntries:
        """Train B at W + B P, and round it to `up_bits`."""
        seed = self.subspace_seed(state, client.round)
        factors = client.train_factors(
            self.training.for_round(client.round), state.subspace(seed), self.interval
        )
        values = _join_entries(factors)
        if not np.isfinite(values).all():
            raise NonFiniteError("an entry is not finite: the local update overflowed")
        if self.up_bits == 32:
            return FloatEntries(seed, values)
        if self.feedback:
            left_over = client.recall(len(values))
            if left_over is not None:
                values = values + left_over
        rounding_seed = derive(seed, Domain.ROUNDING, client.round, client.number)
        coded: CodedEntries = CodedEntries.coded(seed, values, state, self.up_bits, rounding_seed)
        if self.feedback:
            client.keep(values - coded.values(state))
        return coded

    def aggregate(self, state: SubspaceState, answers: Answers) -> FloatStep:
        """Combine the clients' entries by the rule, and round the result."""
        if not answers:
            return self.step_type(())
        values = answers.combine([update.values(state) for update in answers.updates])
        seed = answers[0].update.seed
        mean = values.astype(np.float32)
        if self.down_bits == 32:
            return FloatStep((FloatEntries(seed, mean),))
        rounding_seed = derive(seed, Domain.ROUNDING, answers.round, _STEP)
        part: CodedSum = CodedSum.coded(seed, mean, state, self.down_bits, rounding_seed)
        return CodedStep((part,))

    def change(self, state: SubspaceState, step: FloatStep) -> Change:
        """W <- round(W + eta_g sum_k B_k P_k)."""
        if not step.parts:
            return NOTHING
        (part,) = step.parts
        subspace = state.subspace(part.seed)
        factors = subspace.split(state.layout, part.values(state))
        rounding = (part.seed, state.steps_done) if self.keeps_small_steps else None
        return AddFactors(subspace, factors, self.global_rate, rounding)

    def advance(self, state: SubspaceState, step: FloatStep) -> SubspaceState:
        if step.parts:
            return replace(state, steps_done=state.steps_done + 1)
        return state

    @property
    def update_type(self) -> type[FactorEntries]:  # type: ignore[override]
        if self.up_bits == 32:
            return FloatEntries
        return CodedEntries

    @property
    def step_type(self) -> type[FloatStep]:  # type: ignore[override]
        if self.down_bits == 32:
            return FloatStep
        return CodedStep

    @property
    def needs_each(self) -> str | None:
        if self.up_bits == 32:
            return self.incomparable
        return f"up_bits = {self.up_bits}: each client has its own magnitudes; set up_bits = 32"

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        return self.feedback

    @property
    def lasting_entries(self) -> bool:
        return self.refresh == 0

    @property
    def keeps_small_steps(self) -> bool:  # type: ignore[override]
        return self.training.small_steps != "nearest"


def _join_entries(factors: Sequence[Floats]) -> Floats:
    """Join the entries of all tensors in one vector."""
    return np.concatenate([factor.reshape(-1) for factor in factors]).astype(np.float32)
