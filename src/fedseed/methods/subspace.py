"""Subspace: clients train inside random subspaces that they share, and send what they have trained.

Yang, Wu, Guo, Sun, Gong: "FedKRSO: Communication and Memory Efficient Federated Fine-Tuning of
Large Language Models", arXiv 2602.03019, INFOCOM 2026. Bits, the orbit and exactness are this
project's.

    P_k      signs over the root of r, from the round's seed        E[P_k^T P_k] = I
    B_ik     minimises client i's loss at W + sum_k B_ik P_k        from zero, T local steps; one k
                                                                    after the other
    up       Q(B_i1), ..., Q(B_iK)                                  1 bit: sign and magnitude
    step     Q'(sum_i c_i Q(B_ik))                                  4 bits, rounded without bias
    W     <- round(W + eta_g sum_k B_k P_k)                         once for each entry

for each weight matrix W; B is on its shorter side, P on the longer one
(`fedseed.weights.subspace`). Ferret trains all weights and projects their change afterwards, onto
d / K times fewer directions, which adds noise of sqrt(d / K) |Delta|; here what a client sends is
what it has trained. Gradients and optimiser states are those of B: a client needs the memory of a
LoRA of rank r whose A is frozen.

    up       8 bytes of seed, 2 bytes a matrix, a bit for each entry of B
    down     the same with `down_bits` an entry, and nothing where nobody answered
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
# longer than any side of a matrix, so that every tensor is trained as it is
FULL_RANK = 1 << 40
SEED_BYTES = 8
MAGNITUDE_BYTES = 2
# in place of a client's number, in the words that a step is rounded by
_STEP = 0xFFFFFFFF


@dataclass(frozen=True)
class SubspaceState(State):
    """The state: the values of the settings for the weights that train, and the steps so far."""

    rank: int = 1  # r, `FULL_RANK` for no projection
    count: int = 1  # K
    magnitude_per_row: bool = False
    steps_done: int = 0  # rounds with at least one answer

    def subspace(self, seed: int) -> RandomSubspace:
        """Return the subspaces of a seed."""
        return RandomSubspace(seed, self.rank, self.count)

    @cached_property
    def entries(self) -> int:
        """Return the number of entries that B has on all tensors."""
        return sum(self.subspace(0).factor_sizes(self.layout))

    @cached_property
    def group_sizes(self) -> NDArray[np.int64]:
        """Return the number of entries that share a magnitude, for each group: a tensor, or a row
        of B.
        """
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
        """Return the expected squared length of the weights' change by B's entries in one
        vector.
        """
        subspace = self.subspace(0)
        return subspace.squared_norm(self.layout, subspace.split(self.layout, values))


class FactorEntries(Summand):
    """The entries of B of all tensors, in the layout's order, and the seed of P."""

    seed: int

    def values(self, state: SubspaceState) -> Floats:
        """Return the entries, shape (entries,)."""
        raise NotImplementedError

    def check(self, context: DecodeContext) -> None:
        if context.kind == "update":
            planned = context.method.subspace_seed(context.state, context.round)
            if self.seed != planned:
                raise MessageError(f"seed {self.seed}: the round's seed is {planned}")

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
    """Entries in 4 bytes each."""

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
    """Entries in `up_bits` each, and magnitudes."""

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
                f"code {int(self.codes.numbers.argmax())} is {self.codes.numbers.max()}: "
                f"at most {highest} is possible"
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
        """Return entries in a few bits each.

        Args:
            seed: the seed of P.
            values: the entries.
            state: the state before the round.
            bits: of a code.
            rounding_seed: what they are rounded by.
        """
        magnitudes, codes = quantise(values, state.group_sizes, bits, rounding_seed)
        return cls(seed, magnitudes, Small(codes, bits))


@dataclass(frozen=True)
class CodedSum(CodedEntries):
    """The same in a step: entries in `down_bits` each."""

    codes: Annotated[Small, Packed("entries", width="down_bits", kind="scalars")]


@dataclass(frozen=True)
class FloatStep(Payload):
    """The clients' mean, as it is; no part: nobody answered."""

    parts: Annotated[tuple[FloatEntries, ...], Many(FloatEntries)]

    def check(self, context: DecodeContext) -> None:
        if len(self.parts) > 1:
            raise MessageError(f"{len(self.parts)} parts in a step: one, the mean, is expected")

    def size(self, context: DecodeContext) -> float:
        if self.parts:
            return self.parts[0].size(context)
        return 0.0


@dataclass(frozen=True)
class CodedStep(FloatStep):
    """The clients' mean in a few bits an entry."""

    parts: Annotated[tuple[CodedSum, ...], Many(CodedSum)]  # type: ignore[assignment]


class Subspace(Method):
    """Subspace's settings.

    Besides the arguments of `Method`:

    Args:
        bytes: the most that a client sends in a round, such as 28000 or "28kB": sets the rank to
            the largest that fits with `up_bits` an entry.
        rank: r, rows of P of a subspace; "full": no projection, every tensor that trains is trained
            and sent as it is, such as those of an adapter.
        subspaces: K, subspaces of a round; the entries sent are K times as many.
        interval: local steps after which a client goes on in the next of its K subspaces; not set:
            each of them once.
        refresh: rounds after which new subspaces are drawn; 0: the same in all rounds.
        up_bits: bits of an entry on the way up: 1 (its sign), 2, 4, 8, or 32 (a float32).
        down_bits: bits of an entry on the way down, after the mean.
        magnitudes: what shares a magnitude: all entries of a "matrix", or of a "row" of B.
        feedback: what a client's bits lose is added to its next update (error feedback); needs
            refresh = 0, and 4 bytes of a client's disk an entry.
        global_rate: eta_g, the rate of the step that the answers make.
        targets: which parameters train, where model.trainable does not say it: "linear" (the linear
            layers of attention, MLP and experts in the model's blocks), "all", or name patterns,
            such as ["*.layers.*", "*classifier*"].
        training: local training, of B. Unless its small_steps is "nearest", 16-bit weights round
            the round's step stochastically.
    """

    name: Literal["subspace"] = "subspace"
    code: ClassVar[int] = 17
    about: ClassVar[str] = (
        "first-order training inside shared random subspaces, sent in bits (FedKRSO, INFOCOM 2026)"
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
                "feedback = true: what is left over belongs to one subspace; set refresh = 0"
            )
        if self.feedback and self.up_bits == 32:
            raise ValueError("feedback = true: nothing is lost with up_bits = 32; leave it out")
        if self.rank == "full" and self.subspaces > 1:
            raise ValueError('rank = "full": there is nothing to divide into subspaces')
        if self.bytes is not None and "rank" in self.model_fields_set:
            raise ValueError("bytes and rank: bytes sets the rank; leave one of them out")
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

        Raises ValueError: the smallest rank takes more, or the largest less.
        """
        longest = max(
            (matrices_of(t.shape).longer for t in state.layout.tensors if len(t.shape) > 1),
            default=1,
        )
        rank, largest = 1, max(1, longest // self.subspaces)
        if self.update_bytes(replace(state, rank=rank)) > budget:
            raise ValueError(
                f"bytes = {budget}: an update of rank 1 takes "
                f"{self.update_bytes(replace(state, rank=1))} bytes here; allow for as many, or "
                "let fewer parameters train (method.targets)"
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
        """Train B at W + B P, and round it to its bits."""
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
        """Combine the clients' entries by the rule, and round them once more."""
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
        return f"up_bits = {self.up_bits}: each client has magnitudes of its own; set up_bits = 32"

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
    """Return the entries of all tensors in one vector."""
    return np.concatenate([factor.reshape(-1) for factor in factors]).astype(np.float32)
