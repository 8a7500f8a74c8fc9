"""Ferret: first-order local training; the update is sent as coefficients on random directions,
block by block.

Shu, Hu, Ng, Low, Yu: "Ferret: Federated Full-Parameter Tuning at Scale for Large Language Models",
ICML 2025.

    Delta   = w_start - w_end                         Algorithm 1, line 11: after T local steps
    gamma_l = (rho_l K_l)^-1 V_l^T Delta_l            Eqs. 6 and 8
    w      <- w - eta_g sum_i c_i sum_l V_l gamma_l   Eq. 2 and Algorithm 1, line 6; eta_g: C.1

K_l is the number of directions of each block (`allocation`):

    norm      K_l = max(2, floor(K |Delta_l| / max |Delta|))    as in the authors' code;
              with `fixed_total`, K_l is proportional to |Delta_l|, and K in total
    sqrt      K_l is proportional to sqrt(|Delta_l| / rho_l)    Prop. 2
    previous  like sqrt, with |Delta_l| estimated from the last step, which all parties know, so
              that all clients agree
    uniform, size

The paper prints K for K_l in the first half of Eq. 8; Eq. 7 and Theorem 1 (an unbiased
reconstruction) need K_l.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from fedseed.errors import MessageError, NonFiniteError
from fedseed.methods.base import Answers, Round
from fedseed.methods.payload import (
    DecodeContext,
    Many,
    Payload,
    Ragged,
    RaggedBits,
    Scalar,
    Summand,
    move_size,
)
from fedseed.methods.server import BlockRates, BlockState
from fedseed.randomness import Basis
from fedseed.randomness.basis import MAX_RANK, MAX_SIZE
from fedseed.training.protocol import Client
from fedseed.training.settings import LocalTraining
from fedseed.weights.change import Change
from fedseed.weights.layout import BlockRule, Layout

Counts = NDArray[np.int64]
Gammas = Sequence[NDArray[np.float32]]  # coefficients of each block
Allocation = Literal["norm", "sqrt", "uniform", "size", "previous"]
# allocations that depend on a client's change
BY_CHANGE = ("norm", "sqrt")
# K_l^2 inner products of length d_l, and K_l^2 numbers in memory, are needed
EXACT_LIMIT = 512
GRAM_PIECE = 1 << 17  # number of elements of each direction in memory at a time


@dataclass(frozen=True)
class FerretPlan(Payload):
    """A plan: the seed of all clients of the round, or None if each client has its own."""

    seed: Annotated[int | None, Scalar("u8", condition="shared")]


@dataclass(frozen=True)
class Coefficients(Summand):
    """One seed, and the coefficients of each block on its directions 0, 1, ...

    As an update, this is a client's projected change. It takes 8 bytes for the seed, 4 for the
    count of each block, and 4 for each coefficient.
    """

    seed: Annotated[int, Scalar("u8")]
    gammas: Annotated[Gammas, Ragged("max_per_block")]

    def check(self, context: DecodeContext) -> None:
        if context.kind == "update" and context.lookup("shared"):
            planned = context.method.round_seed(context.state, context.round)
            if self.seed != planned:
                raise MessageError(f"seed {self.seed}, but the round's seed is {planned}")

    def size(self, context: DecodeContext) -> float:
        return CoefficientStep((self,)).size(context)

    def times(self, weight: float) -> "Coefficients":
        """Return c gamma, computed in double precision and rounded once."""
        return replace(
            self,
            gammas=tuple((weight * g.astype(np.float64)).astype(np.float32) for g in self.gammas),
        )

    @classmethod
    def words(cls, context: DecodeContext) -> int:
        return sum(context.method.coefficient_counts(context.state))

    def vector(self, context: DecodeContext) -> NDArray[np.float64]:
        pairs = zip(self.gammas, context.method.coefficient_counts(context.state), strict=True)
        return np.concatenate(
            [np.pad(gamma.astype(np.float64), (0, count - len(gamma))) for gamma, count in pairs]
        )

    @classmethod
    def from_vector(cls, vector: NDArray[Any], context: DecodeContext) -> "Coefficients":
        """Return the coefficients of a vector, with the round's seed.

        If the lengths of blocks depend on changes, zeros at their ends are left out.
        """
        least = 1 if context.lookup("allocation") in BY_CHANGE else len(vector)
        least_of_each = [least] * len(context.state.layout.block_sizes)
        seed = context.method.round_seed(context.state, context.round)
        return cls(seed, _split(vector, context, least_of_each))

    def with_vector(self, vector: NDArray[Any], context: DecodeContext) -> "Coefficients":
        return replace(
            self, gammas=_split(vector.astype(np.float32), context, list(map(len, self.gammas)))
        )

    numbers = Payload.numbers

    def with_numbers(self, numbers: NDArray[Any], context: DecodeContext) -> "Coefficients":
        return self.with_vector(numbers, context)


def _split(
    vector: NDArray[Any], context: DecodeContext, least: Sequence[int]
) -> tuple[NDArray[Any], ...]:
    """Return the blocks of a vector, without the zeros at their ends.

    `least`: the least number of coefficients in each block.
    """
    blocks = np.split(vector, np.cumsum(context.method.coefficient_counts(context.state))[:-1])
    return tuple(
        b[: max(k, np.flatnonzero(b).max(initial=0) + 1)]
        for b, k in zip(blocks, least, strict=True)
    )


@dataclass(frozen=True)
class BitCoefficients(Coefficients):
    """`Coefficients` of one bit each: 8 bytes for the seed, 8 for each block, 1/8 for each
    coefficient.
    """

    gammas: Annotated[Gammas, RaggedBits("max_per_block")]


@dataclass(frozen=True)
class CoefficientStep(Payload):
    """A step: the sum that a round adds. It has one part if clients share a seed, and otherwise one
    part for each client.

    The coefficients are already multiplied by the weights c_i.
    """

    parts: Annotated[tuple[Coefficients, ...], Many(Coefficients)]

    def check(self, context: DecodeContext) -> None:
        if context.lookup("shared") and len(self.parts) > 1:
            raise MessageError(
                f"{len(self.parts)} parts in a step, but clients share a seed, so there must be "
                "at most one"
            )

    def size(self, context: DecodeContext) -> float:
        """Return sqrt(E |V gamma|^2 / d), because directions are nearly orthogonal."""
        if not self.parts:
            return 0.0
        basis, square = context.method.directions_of(0), 0.0
        rho = [basis.variance(size) * size for size in context.state.layout.block_sizes]
        for part in self.parts:
            doubles = (gamma.astype(np.float64) for gamma in part.gammas)
            square += sum(
                weight * float(np.dot(gamma, gamma))
                for weight, gamma in zip(rho, doubles, strict=True)
            )
        return move_size(context.state.layout, square)


@dataclass(frozen=True)
class BitStep(CoefficientStep):
    """A step with one bit for each coefficient."""

    parts: Annotated[tuple[BitCoefficients, ...], Many(BitCoefficients)]


# bytes of an update with one block, without its coefficients
OVERHEAD = 16


def parse_bytes(value: Any) -> Any:
    """Return the number of bytes from a text such as "28kB" or "1.5 MB"; return other values
    unchanged.
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"([\d.]+) *(k|M)?B", value)
    if match is None:
        return value
    return int(float(match[1]) * {None: 1, "k": 1000, "M": 1_000_000}[match[2]])


@dataclass(frozen=True)
class FerretState(BlockState):
    """The state: the last step with coefficients, and the number of such steps."""

    previous: CoefficientStep | None = None
    steps_done: int = 0


class Ferret(BlockRates):
    """Ferret's settings.

    The defaults are the published ones, except for the basis and for eta_g, which the paper
    searches (10, 5, 1).

    Besides the arguments of `Method` and `BlockRates`:

    Args:
        blocks: "one", "tensor", "packed" (published), or the number of blocks.
        bytes: approximate number of bytes that a client sends in a round, such as 28000 or "28kB".
            It sets those of the keys below that are not given: one block, one seed for each round,
            and as many coefficients as fit, with one bit each, or from 262 kB on with 4 bytes each.
            With equal bytes, bits tune better (docs/comparison.md).
        directions: K, the total number of directions over all blocks. For allocation "norm" without
            `fixed_total`, it is the number for the block with the largest update.
        basis: the kind of directions. "truncated_normal" is published; "hadamard" tunes equally
            well and costs the same for any number of directions (benchmarks/README.md).
        basis_rank: for "lowrank": the number of outer products of signs that make up a direction,
            on each matrix.
        scalars: how a coefficient is sent, up and down: in 4 bytes ("float32", as published) or in
            a "bit", which is its sign, with one magnitude for each block
            (`fedseed.methods.payload.RaggedBits`).
        allocation: the number of directions K_l of each block (`fedseed.methods.ferret`); "norm" is
            that of the authors' code.
        fixed_total: make K the total for allocation "norm" as well (the constraint of Prop. 2),
            with at least one direction for each block. Without it, as in the authors' code, the
            number of values that a client sends depends on its data, so a comparison with other
            allocations is unfair.
        seeds: "per-client" (published; the step has every client's seed and coefficients), "shared"
            (one for each round), or "fixed" (one for all rounds, so that the weights move only in
            the span of its directions).
        exact: compute coefficients by least squares (Eq. 5) instead of Eq. 6; at most 512
            directions in a block.
        streaming: project each gradient when the backward pass produces it, then apply and free it,
            so that neither all gradients nor the change are in memory. It needs plain SGD with one
            micro-batch in each step, and an allocation that does not depend on the change. With
            16-bit weights, the coefficients include steps that rounding loses. training.small_steps
            decides at which weights later gradients are taken ("master" keeps a float32 copy of
            them, "stochastic" does not).
        put_back: how a streaming client restores the weights from the start of the round. "copy":
            from a copy in memory. "steps": it reads the base from its safetensors files again and
            repeats all earlier steps. This needs no copy in memory, but each client makes the
            directions of all earlier rounds again (with "hadamard", one pass over the weights for
            each round). If there are no files with the weights, or they are smaller than 64 MiB, a
            copy is used.
        server: the optimiser that applies the step: "average" (as published), "momentum",
            "nesterov" or "adam". The last three take 4 or 8 bytes of memory per parameter, at every
            party with the model. A replay restores their averages.
        training: local training. Unless its small_steps is "nearest", 16-bit weights round the
            round's step stochastically as well.
    """

    name: Literal["ferret"] = "ferret"
    code: ClassVar[int] = 1
    about: ClassVar[str] = (
        "first-order training; the update is projected onto random directions, block by block "
        "(ICML 2025)"
    )
    plan_type = FerretPlan

    blocks: BlockRule = "packed"
    bytes: Annotated[PositiveInt | None, BeforeValidator(parse_bytes)] = None
    directions: Annotated[int, Field(ge=1, le=MAX_SIZE)] = 200
    basis: Literal["normal", "truncated_normal", "rademacher", "hadamard", "lowrank"] = "hadamard"
    basis_rank: Annotated[int, Field(ge=1, le=MAX_RANK)] = 1
    scalars: Literal["float32", "bit"] = "float32"
    allocation: Allocation = "norm"
    fixed_total: bool = False
    seeds: Literal["per-client", "shared", "fixed"] = "per-client"
    exact: bool = False
    streaming: bool = False
    put_back: Literal["copy", "steps"] = "copy"
    training: LocalTraining = LocalTraining()

    @model_validator(mode="before")
    @classmethod
    def _of_a_budget(cls, data: Any) -> Any:
        budget = parse_bytes(data.get("bytes")) if isinstance(data, dict) else None
        if not isinstance(budget, int) or isinstance(budget, bool) or budget <= 0:
            return data
        if budget <= OVERHEAD:
            raise ValueError(
                f"bytes = {budget}: an update has {OVERHEAD} bytes besides its coefficients; set "
                f"at least {OVERHEAD + 1}"
            )
        bits = budget < MAX_SIZE // 4
        count = min(MAX_SIZE, (budget - OVERHEAD) * 8 if bits else (budget - OVERHEAD) // 4)
        defaults = {"blocks": "one", "allocation": "size", "seeds": "shared", "directions": count}
        return {**defaults, "scalars": "bit" if bits else "float32", **data}

    @model_validator(mode="after")
    def _streaming_is_linear(self) -> "Ferret":
        wrong = list(self.training.plain_sgd_needs()) if self.streaming else []
        if self.streaming and self.allocation in BY_CHANGE:
            wrong.append('allocation = "size", "uniform" or "previous"')
        if wrong:
            raise ValueError(f"streaming needs {'; '.join(wrong)}")
        if self.put_back == "steps" and not (self.streaming and self.server == "average"):
            raise ValueError(
                'put_back = "steps" needs streaming = true, which does not need a copy of the '
                'first weights, and server = "average", whose steps can be repeated one by one'
            )
        return self

    @property
    def retakes_steps(self) -> bool:  # type: ignore[override]
        return self.put_back == "steps"

    def start(self, layout: Layout, seed: int) -> FerretState:
        """Return the state before the first round.

        Raises ValueError if there are more blocks than directions.
        """
        blocks = len(layout.block_sizes)
        if self.has_fixed_total and self.directions < blocks:
            raise ValueError(
                f"method.directions = {self.directions}: the model has {blocks} blocks, and each "
                "needs at least one direction; raise method.directions, or use fewer blocks than "
                f'with blocks = "{self.blocks}"'
            )
        return FerretState(layout, seed)

    def plan(self, state: FerretState, round: Round) -> FerretPlan:
        return FerretPlan(self.round_seed(state, round.number) if self.shared else None)

    def train(self, state: FerretState, plan: FerretPlan, client: Client) -> Coefficients:
        """Train locally (Algorithm 1, step 2), then project the change (step 3)."""
        seed = state.client_seed(client.round, client.number) if plan.seed is None else plan.seed
        basis, training = self.directions_of(seed), self.training.for_round(client.round)
        if self.streaming:
            products = client.project_gradients(training, basis, self.allocate(state).tolist())
        else:
            client.first_order(training)
            with client.phase("projection"):
                norms = client.change_norms() if self.allocation in BY_CHANGE else None
                if norms is not None and not np.isfinite(norms).all():
                    raise NonFiniteError("the local update is not finite: a weight overflowed")
                products = client.project_change(basis, self.allocate(state, norms).tolist())
        with client.phase("projection"):
            gammas = self.scale_products(state, basis, products)
        if not all(np.isfinite(g).all() for g in gammas):
            raise NonFiniteError("a coefficient is not finite: the local update overflowed")
        return self.update_type(seed, tuple(gammas))

    def scale_products(self, state: FerretState, basis: Basis, products: Gammas) -> Gammas:
        """Compute gamma_l from V_l^T Delta_l: by Eqs. 6 and 8 with K_l, or by Eq. 5 if `exact`."""
        if self.exact:
            return least_squares(state.layout, basis, products)
        pairs = zip(products, state.layout.block_sizes, strict=True)
        return [
            (p.astype(np.float64) / (basis.variance(size) * len(p))).astype(np.float32)
            for p, size in pairs
        ]

    def allocate(self, state: FerretState, norms: NDArray[np.floating] | None = None) -> Counts:
        """Return K_l for each block. If the allocation's values are not known, K_l is proportional
        to the block's size.

        Args:
            state: the state before the round.
            norms: |Delta_l| of the client's update, for "norm" and "sqrt".
        """
        sizes, basis, total = state.layout.block_sizes, self.directions_of(0), self.directions
        rho = np.array([basis.variance(size) for size in sizes])
        if self.allocation == "norm" and norms is not None:
            if self.has_fixed_total:
                return proportional(total, norms)
            # K is the number for the block with the largest update
            largest = norms.max()
            relative = norms / largest if largest > 0 else np.zeros_like(norms)
            return np.maximum(2, np.floor(total * relative)).astype(np.int64)
        if self.allocation == "previous":
            last = state.previous
            if last is None:
                norms = None
            else:
                norms = estimated_norms([part.gammas for part in last.parts], rho)
        if self.allocation in ("sqrt", "previous") and norms is not None:
            return proportional(total, np.sqrt(norms / rho))  # Prop. 2
        if self.allocation == "uniform":
            return proportional(total, np.ones(len(sizes)))
        return proportional(total, np.array(sizes, float))

    def aggregate(self, state: FerretState, answers: Answers) -> CoefficientStep:
        """Return the coefficients times the weights c_i.

        If clients share a seed, the coefficients are combined; missing ones count as zero.
        """
        if answers and self.shared:
            blocks = list(zip(*(update.gammas for _, _, update in answers), strict=True))
            sums = [total.astype(np.float32) for total in answers.combine_parts(blocks)]
            return self.step_type((self.update_type(answers[0].update.seed, tuple(sums)),))
        return self.step_type(tuple(update.times(weight) for _, weight, update in answers))

    def change(self, state: FerretState, step: CoefficientStep) -> Change:
        """w <- w - eta_g sum_i c_i sum_l V_l gamma_l, rounded once (Eq. 2; Algorithm 1, line 6)."""
        rounding = None
        if step.parts and self.keeps_small_steps:
            rounding = (step.parts[0].seed, state.steps_done if self.seeds == "fixed" else 0)
        return self.descent(state, self._parts(step), rounding)

    def advance(self, state: FerretState, step: CoefficientStep) -> FerretState:
        if not step.parts:
            return state
        squares = self.squares_after(state, self._parts(step))
        return replace(state, previous=step, steps_done=state.steps_done + 1, squares=squares)

    @property
    def has_fixed_total(self) -> bool:
        """Return whether a client always sends `directions` coefficients, independent of its
        change.
        """
        return self.fixed_total or self.allocation != "norm"

    @property
    def max_per_block(self) -> int:
        """Return the largest possible K_l of a block."""
        return max(2, self.directions)

    def directions_of(self, seed: int) -> Basis:
        """Return the basis of a seed."""
        return Basis(self.basis, seed, self.max_per_block, self.basis_rank)

    def round_seed(self, state: FerretState, number: int) -> int:
        """Return the seed that the clients of a round share."""
        return state.round_seed(0 if self.seeds == "fixed" else number)

    def coefficient_counts(self, state: FerretState) -> list[int]:
        """Return how many coefficients are added up in each block.

        If the allocation depends on clients' changes, it is the largest possible number.
        """
        if self.allocation in BY_CHANGE:
            return [self.max_per_block] * len(state.layout.block_sizes)
        return self.allocate(state).tolist()

    def _parts(self, step: CoefficientStep) -> list[tuple[Basis, Gammas]]:
        return [(self.directions_of(part.seed), part.gammas) for part in step.parts]

    @property
    def update_type(self) -> type[Coefficients]:  # type: ignore[override]
        if self.scalars == "bit":
            return BitCoefficients
        return Coefficients

    @property
    def step_type(self) -> type[CoefficientStep]:  # type: ignore[override]
        if self.scalars == "bit":
            return BitStep
        return CoefficientStep

    @property
    def keeps_small_steps(self) -> bool:  # type: ignore[override]
        return self.training.small_steps != "nearest"

    @property
    def shared(self) -> bool:
        """Return whether a round's clients share a seed."""
        return self.seeds != "per-client"

    @property
    def incomparable(self) -> str | None:  # type: ignore[override]
        if self.shared:
            return None
        return 'seeds = "per-client": each client projects onto its own directions'

    @property
    def needs_each(self) -> str | None:
        if self.scalars == "bit":
            return 'scalars = "bit": each client has its own magnitude'
        return self.incomparable

    @property
    def lasting_entries(self) -> bool:
        return self.seeds == "fixed"


def estimated_norms(parts: Sequence[Gammas], rho: NDArray[np.floating]) -> NDArray[np.floating]:
    """Estimate |Delta_l| of a step from the coefficients of its parts: for each, E |gamma_l|^2 =
    |Delta_l|^2 / (rho_l K_l).
    """
    squares = [
        [rho_l * len(g) * float(np.dot(g, g)) for rho_l, g in zip(rho, gammas, strict=True)]
        for gammas in parts
    ]
    return np.sqrt(np.sum(squares, axis=0))


def proportional(total: int, shares: NDArray[np.floating]) -> Counts:
    """Return whole numbers that add up to `total`. Each is at least 1; otherwise they are
    proportional to the shares.

    A block whose quota is below 1 gets 1, and the other blocks divide the rest. Quotas are rounded
    down, and the remaining units go to the largest remainders (for ties, to the first block).
    """
    blocks = len(shares)
    if total < blocks:
        raise ValueError(f"{total} directions for {blocks} blocks: each block needs at least one")
    if not (np.isfinite(shares).all() and shares.sum() > 0):
        shares = np.ones(blocks)
    quotas = total * (shares / shares.sum())
    large = np.ones(blocks, dtype=bool)
    while True:
        small = large & (quotas < 1)
        if not small.any():
            break
        quotas[small] = 1
        large &= ~small
        quotas[large] = (total - np.count_nonzero(~large)) * (shares[large] / shares[large].sum())
    counts = np.floor(quotas).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(-(quotas - counts), kind="stable")[:missing]] += 1
    return counts


def least_squares(layout: Layout, basis: Basis, products: Gammas) -> list[NDArray[np.float32]]:
    """Compute (V^T V)^-1 V^T Delta of each block from V^T Delta, in double precision (Eq. 5).

    Raises ValueError if a block has more than EXACT_LIMIT directions.
    """
    solutions = []
    for block, (product, (start, stop)) in enumerate(
        zip(products, pairwise(layout.boundaries), strict=True)
    ):
        count = len(product)
        if count > EXACT_LIMIT:
            raise ValueError(
                f"exact: {count} directions in block {block}, but at most {EXACT_LIMIT} are "
                "possible"
            )
        gram = np.zeros((count, count))
        for a in range(start, stop, GRAM_PIECE):
            b = min(a + GRAM_PIECE, stop)
            v = np.stack(
                [basis.direction(k, a, b, stop - start, layout.matrices) for k in range(count)]
            )
            gram += v.astype(np.float64) @ v.astype(np.float64).T
        solutions.append(
            np.linalg.lstsq(gram, product.astype(np.float64), rcond=None)[0].astype(np.float32)
        )
    return solutions
