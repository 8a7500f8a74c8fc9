"""ParameterSpace: a model's trainable tensors as one vector in blocks, and what can be done to
it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from fedseed.optimizers.rules import Moments, Rule
from fedseed.randomness import Basis, kernels
from fedseed.randomness.kernels.reference import sum_in_order
from fedseed.weights import factoring, moving, projection
from fedseed.weights.change import (
    Add,
    AddFactors,
    Average,
    Change,
    Coefficients,
    Entries,
    Floats,
    Optimize,
    Rebuild,
    Replace,
    Term,
)
from fedseed.weights.codes import count_stray
from fedseed.weights.digest import dtype_name, hash_tensors, tensor_bytes
from fedseed.weights.layout import ITEM_BYTES, BlockRule, DigestKind, Layout, TensorEntry, cut
from fedseed.weights.perturbation import Perturbation, can_exchange, can_stand_in, in_place_of
from fedseed.weights.perturbed_rows import PerturbedRows, Rows, moves_of
from fedseed.weights.vector import Vector, flat, move_entries


class ParameterSpace:
    """The trainable tensors of a model, in `named_parameters` order, as one vector of length d in L
    blocks.

    Args:
        model: any torch module; parameters with `requires_grad` belong to the space, tied ones
            once.
        blocks: "one", "tensor", "packed" or a number (see `fedseed.weights.layout.cut`).
        digest_kind: how `digest` hashes (see `fedseed.weights.digest`).

    Raises:
        ValueError: nothing is trainable, a dtype is not float32, bfloat16 or float16, the block
            rule is wrong, or the model is quantised and nobody chose what of it trains.
    """

    def __init__(
        self, model: torch.nn.Module, blocks: BlockRule = "one", digest_kind: DigestKind = "blake2b"
    ) -> None:
        self.model = model
        self.digest_kind = digest_kind
        if stray := count_stray(model):
            raise ValueError(
                f"the model is quantised: only {stray:,} parameters that are not would move; "
                "tune an adapter (fedseed.models.adapters.install), or freeze what is to stay "
                '(fedseed.models.loading.choose_trainable(model, ["*.scales"]), say)'
            )
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        for name, p in named:
            if dtype_name(p) not in ("float32", "bfloat16", "float16"):
                raise ValueError(
                    f"parameter {name} is {dtype_name(p)}: float32, bfloat16 or float16 is needed"
                )
        self.parameters: list[torch.nn.Parameter] = [p for _, p in named]
        entries = tuple(TensorEntry(name, tuple(p.shape), dtype_name(p)) for name, p in named)
        self.layout = Layout(entries, cut([e.size for e in entries], blocks))
        self.vector = Vector(self.parameters, self.layout)
        self._base: Sequence[torch.Tensor] | None = None
        self._rebuilt: Rebuild | None = None  # the last one
        # whether the weights are anything but the base or what was rebuilt from it
        self._moved = False
        self._moments: Moments | None = None
        self.rows = Rows(model, self.vector)

    @property
    def size(self) -> int:
        """d, the number of trainable parameters."""
        return self.layout.size

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Returns where the trainable tensors are."""
        return self.vector.devices

    def apply(self, change: Change) -> None:
        """Carry out what a method's `change` says (`fedseed.weights.change` has the kinds).

        Raises:
            ValueError: a coefficient or the scale is not finite, the number of arrays is not that
                of the blocks, the bytes to replace the weights have another length, or there is no
                base to rebuild from; the weights are unchanged then.
            TypeError: it is no change.
        """
        match change:
            case Add(terms, scale, None):
                if terms:
                    moving.move(self.vector, self.vector.preparing(terms, scale), scale)
            case Add(terms, scale, rounding):
                moving.move_by_pieces(self.vector, terms, scale, rounding)
            case Rebuild():
                self._rebuild(change)
            case Optimize():
                self._optimize(change)
            case Average():
                self._average(change)
            case Entries():
                move_entries(self.vector, change)
            case AddFactors():
                factoring.add_factors(self.vector, [change])
            case Replace():
                self._replace(change.data)
            case _:
                raise TypeError(f"{change!r} is no change of the weights")
        self._moved = not isinstance(change, Rebuild)

    def apply_adds(self, changes: Sequence[Add]) -> None:
        """Several `Add`s that round to nearest, in one pass over w.

        Each rounds in its turn, so the bits are the same.

        Raises ValueError as `apply` does; the weights are unchanged then.
        """
        if any(change.rounding is not None for change in changes):
            raise ValueError("changes that are rounded stochastically are applied one by one")
        if not changes:
            return
        moving.move_steps(self.vector, changes)
        self._moved = True

    def apply_factors(self, changes: Sequence[AddFactors]) -> None:
        """Apply several `AddFactors` in one pass over w: the bits of one after the other.

        Raises ValueError as `apply` does; the weights are unchanged then.
        """
        if changes:
            factoring.add_factors(self.vector, changes)
            self._moved = True

    def add(
        self, basis: Basis, coefficients: Coefficients, scale: float = 1.0, first: int = 0
    ) -> None:
        """w += scale * sum_k coefficients[k] * direction(first + k), in one pass over w: an `Add`
        of one term.

        Args:
            basis: where the directions come from.
            coefficients: 1-D, used on all blocks; or one 1-D array per block.
            scale: multiplies the sum.
            first: index of the first direction.
        """
        self.apply(Add([Term(basis, coefficients, first)], scale))

    def _rebuild(self, change: Rebuild) -> None:
        base = self._kept_base("Rebuild")
        moving.move(
            self.vector, self.vector.preparing(change.terms, change.scale), change.scale, base
        )
        self._rebuilt, self._moved = change, False

    def _optimize(self, change: Optimize) -> None:
        if not change.terms:
            return
        self.vector.preparing(change.terms, 1.0)  # what can't be is refused before the step counts
        rule = change.rule
        if change.past is not None:
            moving.move_rebuilt(self.vector, [*change.past, change.terms], rule, change.rounding)
            return
        if self._moments is None or replace(self._moments.rule, rate=rule.rate) != rule:
            self._moments = self._new_moments(rule)
        self._moments.rule = rule  # a schedule's rate may be another one at each step
        self._moments.steps += 1
        moving.move_by_pieces(self.vector, change.terms, 1.0, change.rounding, self._moments)

    def _new_moments(self, rule: Rule) -> Moments:
        device = self.vector.devices[0]
        if rule.kind == "hiso":
            self.rows.reason = (
                "hiso divides directions entry by entry: no products of low rank are left"
            )
            return Moments(
                rule, torch.zeros(0, device=device), torch.ones(self.size, device=device)
            )
        second = self.size if rule.kind == "adam" else 0
        return Moments(
            rule, torch.zeros(self.size, device=device), torch.zeros(second, device=device)
        )

    def _average(self, change: Average) -> None:
        if not change.branches:
            return
        start = self.snapshot()
        totals = [
            torch.zeros(p.shape, dtype=torch.float64, device=p.device) for p in self.parameters
        ]
        try:
            for weight, changes in change.branches:
                self.restore(start)
                self.apply_adds(changes)
                for total, p in zip(totals, self.parameters, strict=True):
                    total += p.detach().double() * weight
        except ValueError:
            self.restore(start)
            raise
        self.restore([total.float() for total in totals])

    @torch.no_grad()
    def _replace(self, data: bytes) -> None:
        if len(data) != self.layout.dense_bytes:
            raise ValueError(f"{len(data)} bytes for a space of {self.layout.dense_bytes}")
        source = np.frombuffer(data, dtype=np.uint8)
        position = first = 0  # of a tensor, in the bytes and in the vector
        for p, e in zip(self.parameters, self.layout.tensors, strict=True):
            width = ITEM_BYTES[e.dtype]
            at = position + (self.vector.start_of(p) - first) * width
            part = source[at : at + p.numel() * width]
            if p.is_cpu and p.is_contiguous():
                flat(p).view(torch.uint8).numpy()[:] = part
            elif p.numel():
                # torch wants memory it could write to
                p.copy_(torch.from_numpy(part.copy()).view(p.dtype).view(p.shape))
            position, first = position + e.size * width, first + e.size

    def keep_base(self) -> None:
        """Keep a copy of the weights as they are: what `Rebuild` starts from."""
        self._base = self.snapshot()
        self._rebuilt, self._moved = None, False

    def release_base(self) -> None:
        """Free the copy that `keep_base` made."""
        self._base = self._rebuilt = None

    def restore_base(self) -> None:
        """w = w0, and what steps have left in averages is gone.

        Raises ValueError if `keep_base` was not called.
        """
        self.restore(self._kept_base("restore_base"))
        self._rebuilt, self._moved, self._moments = None, False, None

    def way_back(self) -> Callable[[], None] | None:
        """Undoes whatever will have happened to the weights, without a copy of them.

        None where only a copy could.

        Possible where the weights are the base, or were rebuilt from it: they are rebuilt once
        more.
        """
        if self._base is None or self._moved:
            return None
        return self.restore_base if self._rebuilt is None else partial(self._rebuild, self._rebuilt)

    def _kept_base(self, what: str) -> Sequence[torch.Tensor]:
        if self._base is None:
            raise ValueError(f"{what} needs keep_base first")
        return self._base

    def project(
        self, delta: torch.Tensor | Floats, basis: Basis, count: int | Sequence[int], first: int = 0
    ) -> Floats | list[Floats]:
        """V^T delta: inner products with `count` directions.

        Args:
            delta: vector of length d (float32, bfloat16 or float16 tensor, or float32 array). If
                the weights are on a GPU, a tensor there is used where it is.
            basis: where the directions come from.
            count: how many directions for the whole vector, or one number per block.
            first: index of the first direction.

        Returns:
            float32 array of shape (count,), or for one number per block a list with one array per
            block.

        Raises:
            ValueError: delta has not length d, or the number of counts is not that of the blocks.
        """
        kernel = kernels.current(
            delta.device.type if isinstance(delta, torch.Tensor) else self.vector.devices[0].type
        )
        if isinstance(delta, torch.Tensor):
            delta = delta.detach().reshape(-1)
            if not kernel.TENSORS:
                delta = delta.to("cpu", torch.float32).numpy()
        if delta.shape != (self.size,):
            raise ValueError(
                f"delta has shape {tuple(delta.shape)}, the space has {self.size} parameters"
            )
        layout, whole = self.layout, isinstance(count, int | np.integer)
        counts = (
            [count] * len(layout.block_sizes)
            if isinstance(count, int | np.integer)
            else list(count)
        )
        if len(counts) != len(layout.block_sizes):
            raise ValueError(f"{len(counts)} counts for {len(layout.block_sizes)} blocks")
        spec, parts = basis.spec_on(layout.matrices), []
        for k, start, length in zip(counts, layout.boundaries, layout.block_sizes, strict=False):
            parts.append(
                kernel.project(spec, first, int(k), delta[start : start + length], start, length)
            )
        return (
            sum_in_order(np.array(parts, dtype=np.float64), axis=0).astype(np.float32)
            if whole
            else parts
        )

    @contextmanager
    def perturbed(self, basis: Basis, k: int, scale: float, often: bool = False) -> Iterator[None]:
        """Inside the block, forward passes see w + scale * direction(k).

        Afterwards w has the same bits as before.

        Nothing is added to and subtracted from the weights. Each torch function gets a perturbed
        copy of the parameters it uses (`weights.perturbation`), rounded to the dtype as `add`
        rounds. Otherwise the weights are changed and put back from a copy: of a model with scripted
        or compiled parts, and after steps of the rule "hiso". After these each entry of the
        direction is divided by what they have learnt of it: such a space moves along v / (sqrt(h) +
        eps), to be evaluated and by steps alike.

        Args:
            basis: where the direction comes from.
            k: the direction's index.
            scale: how far to move along it.
            often: the model is called many times inside, as when it writes: the direction is made
                once, and the weights are changed and put back from a copy, also where that would
                not be necessary.
        """
        term, moments = Term(basis, np.ones(1, dtype=np.float32), k), self._moments
        learnt = moments if moments is not None and moments.rule.kind == "hiso" else None
        if can_exchange(self.model) and not often and learnt is None:
            perturbation = Perturbation(self.vector, term, scale)
            with (
                in_place_of(perturbation) if can_stand_in(self.model, self.vector) else perturbation
            ):
                yield
            return
        saved, moved = self.snapshot(), self._moved
        try:
            if learnt is None:
                self.apply(Add([term], scale))
            else:
                moving.move_scaled(self.vector, [term], scale, learnt)
            yield
        finally:
            self.restore(saved)
            self._moved = moved  # they are what they were

    def perturbed_rows(
        self, basis: Basis, directions: Sequence[int], scales: float | Sequence[float]
    ) -> AbstractContextManager[PerturbedRows]:
        """Inside the block, the model sees row i of its inputs with w + scales[i] *
        direction(directions[i]).

        That is one pass, little slower than one with w: products with matrices are shared by all
        rows. Inputs of the model whose first dimension is B have rows; others are the same for all.
        `fedseed.weights.row_losses` takes a pass for each direction where this is not possible.

        Args:
            basis: where the directions come from: "lowrank".
            directions: B indices, one for each row; some may be the same.
            scales: how far to move along each; one number: all rows alike.

        Raises:
            ValueError: no row, a scale that is not finite, or numbers of directions and scales that
                differ.
            RowsError: the basis is another one, or the model has scripted or compiled parts; inside
                the block, the model can't be mapped over rows (`fedseed.weights.perturbed_rows`),
                it is called with no tensor of B rows, or a parameter is used outside of its
                `forward`.
        """
        return self.rows.shown(basis, moves_of(directions, scales))

    def digest(self) -> str:
        """Hex digest (128 bit) of the trainable tensors: names, dtypes, shapes and bytes."""
        named = [(e.name, p) for e, p in zip(self.layout.tensors, self.parameters, strict=True)]
        return hash_tensors(named, self.digest_kind)

    def snapshot(self) -> list[torch.Tensor]:
        """Copies of the trainable tensors."""
        return [p.detach().clone() for p in self.parameters]

    def restore(self, saved: Iterable[torch.Tensor]) -> None:
        """Put back what `snapshot` returned."""
        # for all that is known here, they are no base and nothing rebuilt from it
        self._moved = True
        with torch.no_grad():
            for p, s in zip(self.parameters, saved, strict=True):
                p.copy_(s)

    def difference(
        self, saved: Sequence[torch.Tensor], now: Sequence[torch.Tensor] | None = None
    ) -> Floats:
        """saved - w as one float32 vector of length d.

        `now`: as in `fedseed.weights.projection.project_change`.
        """
        out = np.empty(self.size, dtype=np.float32)
        position = 0
        for p, s in zip(now or self.parameters, saved, strict=True):
            for lo, hi, part in projection.differences(s, p):
                out[position + lo : position + hi] = part.cpu().numpy()
            position += p.numel()
        return out

    def norm(self) -> float:
        """Returns the Euclidean norm of w."""
        # doubles take room
        parts = (part for p in self.parameters for part in torch.split(flat(p), moving.PIECE))
        sum_squares = projection.Squares()
        return float(np.sqrt(sum(sum_squares(part) for part in parts)))

    def dense(self) -> bytes:
        """Returns the trainable tensors in order, in their dtypes, as little-endian bytes: what
        `Replace` takes.
        """
        return self._bytes(self.parameters)

    def take_gradient(self) -> bytes:
        """Returns the trainable tensors' gradients as `dense` has weights (zeros for none), and
        frees them.
        """
        return self._bytes(map(_take_gradient, self.parameters))

    def _bytes(self, tensors: Iterable[torch.Tensor]) -> bytes:
        return b"".join(map(tensor_bytes, tensors))


def _take_gradient(p: torch.nn.Parameter) -> torch.Tensor:
    gradient, p.grad = p.grad, None
    return torch.zeros_like(p) if gradient is None else gradient
