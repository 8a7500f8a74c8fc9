"""Where the steps of a client's optimiser act, so that 16-bit weights do not lose them.

In float16 small gradients underflow: the loss is multiplied by a scale before backward passes, and
the gradient divided by it in float32 (Micikevicius et al., "Mixed Precision Training", ICLR 2018,
Section 3.2). A gradient that overflows changes nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from math import hypot, inf, isfinite

import torch

from fedseed.training.optimizers import make_optimizer
from fedseed.training.settings import LocalTraining
from fedseed.training.streaming import gradients_taken
from fedseed.weights import moving
from fedseed.weights.layout import Layout, TensorEntry, cut
from fedseed.weights.moving import PIECE
from fedseed.weights.vector import Vector, flat, write_back

# elements that a CPU rounds at a time; averages of fewer would lie in holes that passes need again
CACHED = 1 << 20
FIRST_SCALE = 65536.0  # of the loss, where it adapts
_SENDING = 0  # the words that weights are sent with; those of steps are counted from 1


class Rounder:
    """Rounds a client's weights stochastically: each tensor's n-th update has random words of its
    own.

    Args:
        vector: the tensors.
        seed: of (run, round, client).
    """

    def __init__(self, vector: Vector, seed: int) -> None:
        self._vector = vector
        self._seed = seed
        self._turns = [_SENDING] * len(vector.parameters)

    def begin(self, index: int) -> None:
        """Begins the next update of a tensor."""
        self._turns[index] += 1

    def put(self, index: int, elements: torch.Tensor, lo: int, values: torch.Tensor) -> None:
        """Rounds values into elements, which are those from `lo` on of tensor `index`."""
        start = self._vector.start_of(self._vector.parameters[index]) + lo
        moving.write(elements, values, (self._seed, self._turns[index]), start)

    @torch.no_grad()
    def send(self, copies: Sequence[torch.Tensor]) -> None:
        """Make the weights the float32 copies, rounded; the same each time."""
        for p, copy in zip(self._vector.parameters, copies, strict=True):
            elements = flat(p)
            moving.write(elements, flat(copy), (self._seed, _SENDING), self._vector.start_of(p))
            write_back(p, elements)


def _part(tensor: torch.Tensor, row: int | None) -> torch.Tensor:
    """Return a row of a matrix; None: all of the tensor."""
    if row is None:
        return tensor
    return tensor[row]


def _advance(optimizer: torch.optim.Optimizer) -> None:
    """Take a step; torch counts them on the CPU, all else lies where the weights do."""
    with torch.device("cpu"):
        optimizer.step()


class Steps:
    """Steps on the weights themselves: float32, or small_steps = "nearest".

    Args:
        training: the settings.
        vector: the weights.
        scale: what the loss is multiplied by.
        adapts: whether the scale may be lowered after an overflow.
    """

    # whether 16-bit weights keep small steps; gradients are then looked at, also where the scale is
    # 1
    keeps = False
    # the weights in float32, where the model has only their rounding
    finer: Sequence[torch.Tensor] | None = None

    def __init__(
        self, training: LocalTraining, vector: Vector, scale: float = 1.0, adapts: bool = False
    ) -> None:
        self.training = training
        self.vector = vector
        self.scale = scale
        self.adapts = adapts
        self.weights: Sequence[torch.Tensor] = vector.parameters  # what the optimiser steps on
        # made when it is first needed, because some optimisers make their averages at once
        self._optimizer: torch.optim.Optimizer | None = None

    def lower_scale(self) -> bool:
        """Halves the loss' scale after an overflow; returns whether it could."""
        if self.adapts and self.scale > 1.0:
            self.scale /= 2
            return True
        return False

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """While active, backward passes leave gradients where `step` looks for them."""
        try:
            yield
        finally:
            self.clear()

    def clear(self) -> None:
        """Forgets the gradients."""
        for w in self.weights:
            w.grad = None

    def step(self) -> bool:
        """Lets the optimiser take a step.

        Returns False, with nothing changed, if the gradient is not finite.
        """
        factor = 1.0
        parted = self.training.clip is not None and self.vector.processes > 1
        if self.keeps or self.adapts or self.scale != 1.0 or parted:
            norm = (
                hypot(
                    *self.vector.gather(
                        norm_of([w.grad for w in self.weights if w.grad is not None])
                    )
                )
                / self.scale
            )
            if not isfinite(norm):
                return False
            factor = min(1.0, (self.training.clip or inf) / (norm + 1e-6)) / self.scale
        elif self.training.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.weights, self.training.clip)
        self._take(factor)
        return True

    @torch.no_grad()
    def _take(self, factor: float) -> None:
        if factor != 1.0:
            for w in self.weights:
                if w.grad is not None:
                    w.grad.mul_(factor)
        if self._optimizer is None:
            self._optimizer = make_optimizer(self.training, self.weights)
        _advance(self._optimizer)

    def plain(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        """Return a gradient, or a row of one, without the scale and with weight decay.

        In float32 where steps are.
        """
        decay = self.training.weight_decay
        if self.keeps or self.scale != 1.0:
            gradient = gradient.float()
        if self.scale != 1.0:
            gradient = gradient / self.scale
        if decay:
            return gradient.add(self.weights[index], alpha=decay)
        return gradient

    def move(self, index: int, gradient: torch.Tensor, row: int | None = None) -> None:
        """Moves a tensor, or one row of a matrix: w <- w - eta g."""
        _part(self.weights[index], row).add_(gradient, alpha=-self.training.learning_rate)


class MasterSteps(Steps):
    """Steps on float32 copies of 16-bit weights (a float32 weight is its own).

    Besides the arguments of `Steps`:

    Args:
        finer: copies to go on from; None: the weights as they are.
    """

    keeps = True

    def __init__(
        self,
        training: LocalTraining,
        vector: Vector,
        scale: float,
        adapts: bool,
        finer: Sequence[torch.Tensor] | None,
    ) -> None:
        super().__init__(training, vector, scale, adapts)
        self.finer = self.weights = [
            p if p.dtype == torch.float32 else torch.nn.Parameter(w.detach().float())
            for p, w in zip(vector.parameters, finer or vector.parameters, strict=True)
        ]

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Add gradients up in float32; a 16-bit one is freed as soon as it has arrived."""
        pairs = [
            (p, copy)
            for p, copy in zip(self.vector.parameters, self.weights, strict=True)
            if copy is not p
        ]

        def arrived(number: int, gradient: torch.Tensor, _: int | None) -> None:
            copy = pairs[number][1]
            copy.grad = gradient.float() if copy.grad is None else copy.grad.add_(gradient)

        with super().gathering(), gradients_taken([p for p, _ in pairs], arrived):
            yield

    @torch.no_grad()
    def _take(self, factor: float) -> None:
        super()._take(factor)
        for index in range(len(self.weights)):
            self._round(index)

    def _round(self, index: int, row: int | None = None) -> None:
        p, copy = self.vector.parameters[index], self.weights[index]
        if copy is not p:
            _part(p, row).copy_(_part(copy, row))

    def move(self, index: int, gradient: torch.Tensor, row: int | None = None) -> None:
        super().move(index, gradient, row)
        self._round(index, row)


class StochasticSteps(Steps):
    """Steps on a piece of the weights at a time, in float32, rounded stochastically by the
    rounder.
    """

    keeps = True

    def __init__(
        self, training: LocalTraining, vector: Vector, scale: float, adapts: bool, rounder: Rounder
    ) -> None:
        super().__init__(training, vector, scale, adapts)
        self._rounder = rounder
        # the optimiser of each piece, by tensor and first element
        self._optimizers: dict[tuple[int, int], torch.optim.Optimizer] = {}

    @torch.no_grad()
    def _take(self, factor: float) -> None:
        for index, p in enumerate(self.vector.parameters):
            if p.grad is not None:
                self._change(index, partial(self._step_of, index, flat(p.grad), factor))

    def _step_of(
        self,
        index: int,
        gradients: torch.Tensor,
        factor: float,
        lo: int,
        hi: int,
        piece: torch.Tensor,
    ) -> torch.Tensor:
        """Return a piece after a step of its optimiser. The optimiser's averages are kept, not the
        piece.
        """
        if (index, lo) not in self._optimizers:
            self._optimizers[index, lo] = make_optimizer(self.training, [torch.nn.Parameter(piece)])
        (holder,) = self._optimizers[index, lo].param_groups[0]["params"]
        holder.data = piece
        holder.grad = self._copy(gradients[lo:hi], 1).mul_(factor)
        _advance(self._optimizers[index, lo])
        holder.grad = None
        holder.data = piece.new_empty(0)
        return piece

    def _change(
        self,
        index: int,
        act: Callable[[int, int, torch.Tensor], torch.Tensor],
        row: int | None = None,
    ) -> None:
        """Lets `act` make new values of each piece lo..hi of a tensor or a row, from its values in
        float32.
        """
        p = _part(self.vector.parameters[index], row)
        elements, start = flat(p), p.numel() * (row or 0)
        self._rounder.begin(index)
        step = CACHED if p.is_cpu else PIECE
        for lo in range(0, len(elements), step):
            hi = min(lo + step, len(elements))
            self._rounder.put(
                index, elements[lo:hi], start + lo, act(lo, hi, self._copy(elements[lo:hi], 0))
            )
        write_back(p, elements)

    def _copy(self, piece: torch.Tensor, place: int) -> torch.Tensor:
        """Return a piece in float32.

        A CPU's lies in one of two places, used again, as new memory is slow to come.
        """
        if not piece.is_cpu:
            return piece.to(torch.float32, copy=True)
        room = self.vector.scratch(2 * CACHED)
        return room[place * CACHED : place * CACHED + len(piece)].copy_(piece)

    def move(self, index: int, gradient: torch.Tensor, row: int | None = None) -> None:
        change = flat(gradient)
        self._change(
            index,
            lambda lo, hi, piece: piece.add_(change[lo:hi], alpha=-self.training.learning_rate),
            row,
        )


def steps_of(
    training: LocalTraining,
    vector: Vector,
    rounder: Rounder,
    finer: Sequence[torch.Tensor] | None,
    adapts: bool,
) -> Steps:
    """Return the steps that the settings ask for.

    Args:
        training: the settings.
        vector: the weights.
        rounder: rounds them stochastically.
        finer: the weights in float32 after earlier steps on copies.
        adapts: whether a loss scale can be changed after a gradient has been seen.
    """
    dtypes = {p.dtype for p in vector.parameters}
    keeps_small_steps = training.small_steps != "nearest" and dtypes != {torch.float32}
    float16 = training.autocast == "float16" or (keeps_small_steps and torch.float16 in dtypes)
    adapts = training.loss_scale == "auto" and float16 and adapts
    if adapts:
        scale = FIRST_SCALE
    else:
        scale = 1.0 if isinstance(training.loss_scale, str) else training.loss_scale
    if not keeps_small_steps:
        return Steps(training, vector, scale, adapts)
    if training.small_steps == "master":
        return MasterSteps(training, vector, scale, adapts, finer)
    return StochasticSteps(training, vector, scale, adapts, rounder)


def steps_on_factors(
    training: LocalTraining, factors: Sequence[torch.Tensor], layout: Layout
) -> Steps:
    """Return steps on tensors that are trained beside the weights, in float32.

    Args:
        training: the settings.
        factors: the tensors.
        layout: of the weights, whose dtype decides whether the loss is scaled: gradients that come
            through float16 weights may underflow.
    """
    float16 = training.autocast == "float16" or any(t.dtype == "float16" for t in layout.tensors)
    adapts = training.loss_scale == "auto" and float16
    scale = 1.0
    if adapts:
        scale = FIRST_SCALE
    elif not isinstance(training.loss_scale, str):
        scale = training.loss_scale
    shapes = [TensorEntry(str(i), tuple(f.shape), "float32") for i, f in enumerate(factors)]
    own_layout = Layout(tuple(shapes), cut([entry.size for entry in shapes], "one"))
    parameters = [f for f in factors if isinstance(f, torch.nn.Parameter)]
    return Steps(training, Vector(parameters, own_layout), scale, adapts)


def norm_of(gradients: Sequence[torch.Tensor]) -> float:
    """Return the Euclidean norm of all of them, summed up in float32.

    Not finite if a value is not.
    """
    longest = min(PIECE, max((g.numel() for g in gradients), default=0))

    @cache
    # used again for each piece, as a CPU's new memory is slow to come
    def room(device: torch.device) -> torch.Tensor:
        return torch.empty(longest, device=device)

    def norm(piece: torch.Tensor) -> torch.Tensor:
        if piece.dtype != torch.float32:
            piece = room(piece.device)[: len(piece)].copy_(piece)
        return torch.linalg.vector_norm(piece)

    norms: list[torch.Tensor] = []
    for gradient in gradients:
        starts = range(0, gradient.numel(), PIECE)
        norms += [norm(flat(gradient)[start : start + PIECE]) for start in starts]
    if norms:
        return float(torch.stack(norms).double().norm())
    return 0.0
