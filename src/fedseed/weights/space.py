"""ParameterSpace: a model's trainable tensors as one vector in blocks, and its operations."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

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
from fedseed.weights.stored import StoredBase, open_base
from fedseed.weights.vector import Vector, flat, move_entries

# to keep a base, weights of fewer bytes are copied: reading files would save almost no memory
LARGE_BYTES = 64 << 20


@dataclass(frozen=True)
class SavedWeights:
    """A copy of the weights, and of the steps' running averages."""

    tensors: Sequence[torch.Tensor]
    moments: Moments | None  # running averages of momentum or Adam


def copy_moments(moments: Moments) -> Moments:
    """Return a copy of running averages held by torch."""
    return Moments(moments.rule, moments.first.clone(), moments.second.clone(), moments.steps)


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
            rule is wrong, or the model is quantised and its trainable parameters were not chosen.
    """

    def __init__(
        self, model: torch.nn.Module, blocks: BlockRule = "one", digest_kind: DigestKind = "blake2b"
    ) -> None:
        self.model = model
        self.digest_kind = digest_kind
        stray = count_stray(model)
        if stray:
            raise ValueError(
                f"the model is quantised: only {stray:,} parameters that are not would move; "
                "tune an adapter (fedseed.models.adapters.install), or freeze what is to stay "
                '(fedseed.models.loading.choose_trainable(model, ["*.scales"]), say)'
            )
        trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        for name, p in trainable:
            if dtype_name(p) not in ("float32", "bfloat16", "float16"):
                raise ValueError(
                    f"parameter {name} is {dtype_name(p)}: float32, bfloat16 or float16 is needed"
                )
        self.parameters: list[torch.nn.Parameter] = [p for _, p in trainable]
        entries = tuple(TensorEntry(name, tuple(p.shape), dtype_name(p)) for name, p in trainable)
        self.layout = Layout(entries, cut([e.size for e in entries], blocks))
        self.vector = Vector(self.parameters, self.layout)
        self._base: Sequence[torch.Tensor] | StoredBase | None = None
        self._last_rebuild: Rebuild | None = None
        # whether the weights differ from the base and from the last rebuild
        self._has_moved = False
        # the steps from the base to the weights, if `follow_steps` was called; None: they are not
        # known
        self._steps: list[Add] | None = None
        self._moments: Moments | None = None
        self.rows = Rows(model, self.vector)

    @property
    def size(self) -> int:
        """d, the number of trainable parameters."""
        return self.layout.size

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Return the devices of the trainable tensors."""
        return self.vector.devices

    def apply(self, change: Change) -> None:
        """Carry out a method's `change` (`fedseed.weights.change` has the kinds).

        Raises:
            ValueError: a coefficient or the scale is not finite, the number of arrays is not that
                of the blocks, the bytes to replace the weights have another length, or there is no
                base to rebuild from; the weights are unchanged then.
            TypeError: the argument is not a change.
        """
        match change:
            case Add(terms, scale, None):
                if terms:
                    moving.move(self.vector, self.vector.make_preparer(terms, scale), scale)
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
        self._note_steps([change])
        self._has_moved = not isinstance(change, Rebuild)

    def apply_adds(self, changes: Sequence[Add]) -> None:
        """Apply several `Add`s that round to nearest, in one pass over w.

        The result is rounded after each, so the bits are those of separate passes.

        Raises ValueError as `apply` does; the weights are unchanged then.
        """
        if any(change.rounding is not None for change in changes):
            raise ValueError("changes that are rounded stochastically are applied one by one")
        if not changes:
            return
        moving.move_steps(self.vector, changes)
        self._note_steps(changes)
        self._has_moved = True

    def apply_factors(self, changes: Sequence[AddFactors]) -> None:
        """Apply several `AddFactors` in one pass over w, with the bits of separate passes.

        Raises ValueError as `apply` does; the weights are unchanged then.
        """
        if changes:
            factoring.add_factors(self.vector, changes)
            self._has_moved, self._steps = True, None

    def add(
        self, basis: Basis, coefficients: Coefficients, scale: float = 1.0, first: int = 0
    ) -> None:
        """Add scale * sum_k coefficients[k] * direction(first + k) to w, in one pass over w.

        Args:
            basis: where the directions come from.
            coefficients: 1-D, used on all blocks; or one 1-D array per block.
            scale: multiplies the sum.
            first: index of the first direction.
        """
        self.apply(Add([Term(basis, coefficients, first)], scale))

    def _rebuild(self, change: Rebuild) -> None:
        base = self._require_base("Rebuild")
        prepare = self.vector.make_preparer(change.terms, change.scale)
        if isinstance(base, StoredBase):
            # the files' bits are read into the weights, and the sum is added there
            self._has_moved = True
            base.restore()
            moving.move(self.vector, prepare, change.scale)
        else:
            moving.move(self.vector, prepare, change.scale, base)
        self._last_rebuild, self._has_moved = change, False

    def _optimize(self, change: Optimize) -> None:
        if not change.terms:
            return
        self.vector.make_preparer(
            change.terms, 1.0
        )  # changes that are not possible are refused before the step counts
        rule = change.rule
        if change.past is not None:
            moving.move_rebuilt(self.vector, [*change.past, change.terms], rule, change.rounding)
            return
        if self._moments is None or replace(self._moments.rule, rate=rule.rate) != rule:
            self._moments = self._new_moments(rule)
        # a schedule may change the rate at each step
        self._moments.rule = rule
        self._moments.steps += 1
        moving.move_by_pieces(self.vector, change.terms, 1.0, change.rounding, self._moments)

    def _new_moments(self, rule: Rule) -> Moments:
        device = self.vector.devices[0]
        if rule.kind == "hiso":
            self.rows.reason = (
                "hiso divides directions entry by entry, so that they no longer have a low rank"
            )
            return Moments(
                rule, torch.zeros(0, device=device), torch.ones(self.size, device=device)
            )
        first = 0 if rule.kind == "rmsprop" else self.size
        second = self.size if rule.kind in ("adam", "rmsprop") else 0
        return Moments(rule, torch.zeros(first, device=device), torch.zeros(second, device=device))

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
        # a tensor's position in the bytes and in the vector
        position = first = 0
        for p, e in zip(self.parameters, self.layout.tensors, strict=True):
            width = ITEM_BYTES[e.dtype]
            offset = position + (self.vector.start_of(p) - first) * width
            part = source[offset : offset + p.numel() * width]
            if p.is_cpu and p.is_contiguous():
                flat(p).view(torch.uint8).numpy()[:] = part
            elif p.numel():
                # torch wants memory it could write to
                p.copy_(torch.from_numpy(part.copy()).view(p.dtype).view(p.shape))
            position, first = position + e.size * width, first + e.size

    def keep_base(
        self, files: Sequence[Path] = (), often: bool = False, least_bytes: int | None = None
    ) -> None:
        """Keep the current weights as the base of `Rebuild`. They are copied, or read from files
        when they are needed, with the same bits.

        Args:
            files: safetensors files that the weights came from. Tensors that a file has bit for bit
                are read from it; the others are copied.
            often: the weights are rebuilt at every step. On a GPU a copy is kept then, as reading
                takes longer than a step.
            least_bytes: weights of fewer bytes are always copied, as that takes little memory;
                None: `LARGE_BYTES`.
        """
        stored = None
        on_cpu = all(device.type == "cpu" for device in self.devices)
        if files and self._is_large(least_bytes) and (on_cpu or not often):
            aliases = self._aliases()
            stored = open_base(self.vector, self.layout, aliases, files)
        self._base = self.snapshot() if stored is None else stored
        self._last_rebuild, self._has_moved = None, False

    def _is_large(self, least_bytes: int | None) -> bool:
        """Return whether the weights have at least this number of bytes; None: `LARGE_BYTES`."""
        return self.layout.dense_bytes >= (LARGE_BYTES if least_bytes is None else least_bytes)

    def _aliases(self) -> dict[str, list[str]]:
        """Return the further names of tied tensors, by the first one."""
        names: dict[int, list[str]] = {}
        for name, p in self.model.named_parameters(remove_duplicate=False):
            names.setdefault(id(p), []).append(name)
        return {first: others for first, *others in names.values() if others}

    @property
    def base_bytes(self) -> int:
        """Return the bytes of memory that the kept base takes; 0 if none is kept."""
        if self._base is None:
            return 0
        if isinstance(self._base, StoredBase):
            return self._base.copied_bytes
        return sum(copy.nbytes for copy in self._base)

    def follow_steps(self, files: Sequence[Path], least_bytes: int | None = None) -> bool:
        """Record the steps from now on, so that `way_back` can repeat them from the base. The
        weights must be the base now. Nothing is copied; each way back generates the directions of
        all steps so far.

        Args:
            files: safetensors files that the weights came from.
            least_bytes: for weights of fewer bytes no steps are recorded, as a copy takes little
                memory; None: `LARGE_BYTES`.

        Returns:
            Whether steps are recorded: only if the files have all weights, bit for bit.
        """
        stored = None
        if self._is_large(least_bytes):
            stored = open_base(self.vector, self.layout, self._aliases(), files)
        if stored is None or stored.copies:
            return False
        self._base, self._steps = stored, []
        return True

    def _note_steps(self, changes: Sequence[Change]) -> None:
        """Record changes of the weights, if they are steps that can be repeated."""
        if self._steps is None:
            return
        adds = [change for change in changes if isinstance(change, Add)]
        if len(adds) < len(changes):
            self._steps = None
            return
        self._steps += [change for change in adds if change.terms]

    def _retake_steps(self) -> None:
        """Set the weights to the base with all noted steps."""
        base, steps = self._require_base("way_back"), self._steps or []
        assert isinstance(base, StoredBase)
        base.restore()
        if all(step.rounding is None for step in steps):
            if steps:
                moving.move_steps(self.vector, steps)
            return
        for step in steps:
            if step.rounding is None:
                moving.move_steps(self.vector, [step])
            else:
                moving.move_by_pieces(self.vector, step.terms, step.scale, step.rounding)

    def release_base(self) -> None:
        """Free what `keep_base` has kept."""
        self._base = self._last_rebuild = self._steps = None

    def restore_base(self) -> None:
        """Set w = w0, and clear the steps' running averages.

        Raises:
            ValueError: `keep_base` was not called.
            FedseedError: a file of the base was overwritten or can't be read.
        """
        base = self._require_base("restore_base")
        if isinstance(base, StoredBase):
            self._has_moved = True
            base.restore()
        else:
            self.restore(base)
        self._last_rebuild, self._has_moved, self._moments = None, False, None
        if self._steps is not None:
            self._steps = []

    def way_back(self) -> Callable[[], None] | None:
        """Return a function that undoes later changes of the weights without a copy of them.

        It rebuilds the weights. So they must be the base or a rebuild now, or the steps from the
        base must be recorded (`follow_steps`). None: only a copy could undo changes.
        """
        if self._steps is not None:
            return self._retake_steps
        if self._base is None or self._has_moved:
            return None
        if self._last_rebuild is None:
            return self.restore_base
        return partial(self._rebuild, self._last_rebuild)

    def _require_base(self, caller: str) -> Sequence[torch.Tensor] | StoredBase:
        if self._base is None:
            raise ValueError(f"{caller} needs keep_base first")
        return self._base

    def project(
        self, delta: torch.Tensor | Floats, basis: Basis, count: int | Sequence[int], first: int = 0
    ) -> Floats | list[Floats]:
        """Return V^T delta, the inner products with `count` directions.

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
        layout = self.layout
        if isinstance(count, int | np.integer):
            is_whole = True
            counts = [int(count)] * len(layout.block_sizes)
        else:
            is_whole = False
            counts = list(count)
        if len(counts) != len(layout.block_sizes):
            raise ValueError(f"{len(counts)} counts for {len(layout.block_sizes)} blocks")
        spec, parts = basis.spec_on(layout.matrices), []
        for k, start, length in zip(counts, layout.boundaries, layout.block_sizes, strict=False):
            parts.append(
                kernel.project(spec, first, int(k), delta[start : start + length], start, length)
            )
        if not is_whole:
            return parts
        return sum_in_order(np.array(parts, dtype=np.float64), axis=0).astype(np.float32)

    @contextmanager
    def perturbed(self, basis: Basis, k: int, scale: float, often: bool = False) -> Iterator[None]:
        """Inside the block, forward passes see w + scale * direction(k).

        Afterwards w has the same bits as before.

        Nothing is added to and subtracted from the weights. Each torch function gets a perturbed
        copy of the parameters it uses (`weights.perturbation`), rounded to the dtype as `add`
        rounds. Otherwise the weights are changed and put back from a copy: of a model with scripted
        or compiled parts, and after steps of the rule "hiso". After these each entry of the
        direction is divided by sqrt(h) + eps, where h is the curvature estimated from the steps:
        both evaluations and steps then move along v / (sqrt(h) + eps).

        Args:
            basis: where the direction comes from.
            k: the direction's index.
            scale: how far to move along it.
            often: whether the model is called many times inside, as in generation. Then the
                direction is made once, and the weights are changed and restored from a copy.
        """
        term, moments = Term(basis, np.ones(1, dtype=np.float32), k), self._moments
        curvature = moments if moments is not None and moments.rule.kind == "hiso" else None
        if can_exchange(self.model) and not often and curvature is None:
            perturbation = Perturbation(self.vector, term, scale)
            context: AbstractContextManager[Any] = perturbation
            if can_stand_in(self.model, self.vector):
                context = in_place_of(perturbation)
            with context:
                yield
            return
        saved, was_moved = self.snapshot(), self._has_moved
        try:
            if curvature is None:
                self.apply(Add([term], scale))
            else:
                moving.move_scaled(self.vector, [term], scale, curvature)
            yield
        finally:
            self.restore(saved)
            # the weights are again those from before the block
            self._has_moved = was_moved

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
        return self.rows.active(basis, moves_of(directions, scales))

    def digest(self) -> str:
        """Return the hex digest (128 bit) of the trainable tensors.

        It covers names, dtypes, shapes and bytes.
        """
        named_tensors = [
            (e.name, p) for e, p in zip(self.layout.tensors, self.parameters, strict=True)
        ]
        return hash_tensors(named_tensors, self.digest_kind)

    def snapshot(self) -> list[torch.Tensor]:
        """Return copies of the trainable tensors."""
        return [p.detach().clone() for p in self.parameters]

    def restore(self, saved: Iterable[torch.Tensor]) -> None:
        """Put back what `snapshot` returned."""
        # the saved tensors may be other ones than the base or a rebuild
        self._has_moved, self._steps = True, None
        with torch.no_grad():
            for p, s in zip(self.parameters, saved, strict=True):
                p.copy_(s)

    def save(self) -> SavedWeights:
        """Return copies of the trainable tensors and of the steps' running averages."""
        moments = None if self._moments is None else copy_moments(self._moments)
        return SavedWeights(self.snapshot(), moments)

    def load(self, saved: SavedWeights) -> None:
        """Put back what `save` returned, which may be put back again later."""
        self.restore(saved.tensors)
        self._moments = None if saved.moments is None else copy_moments(saved.moments)

    def difference(
        self, saved: Sequence[torch.Tensor], now: Sequence[torch.Tensor] | None = None
    ) -> Floats:
        """Return saved - w as one float32 vector of length d.

        Args:
            saved: what `snapshot` returned.
            now: float32 copies to use in place of the weights, where these are rounded copies.
        """
        change = np.empty(self.size, dtype=np.float32)
        position = 0
        for p, s in zip(now or self.parameters, saved, strict=True):
            for lo, hi, part in projection.differences(s, p):
                change[position + lo : position + hi] = part.cpu().numpy()
            position += p.numel()
        return change

    def norm(self) -> float:
        """Return the Euclidean norm of w."""
        sum_squares = projection.SumOfSquares()
        total = 0.0
        for p in self.parameters:
            # in pieces, as their doubles take memory
            for part in torch.split(flat(p), moving.PIECE):
                total += sum_squares(part)
        return float(np.sqrt(total))

    def dense(self) -> bytes:
        """Return the trainable tensors in order, in their dtypes, as little-endian bytes.

        `fedseed.weights.change.Replace` takes these.
        """
        return self._bytes(self.parameters)

    def take_gradient(self) -> bytes:
        """Return the gradients as `dense` returns weights, and free them.

        A tensor without a gradient has zeros.
        """
        return self._bytes(map(_take_gradient, self.parameters))

    def _bytes(self, tensors: Iterable[torch.Tensor]) -> bytes:
        return b"".join(map(tensor_bytes, tensors))


def _take_gradient(p: torch.nn.Parameter) -> torch.Tensor:
    gradient, p.grad = p.grad, None
    return torch.zeros_like(p) if gradient is None else gradient
