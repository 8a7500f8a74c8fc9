"""Training inside random subspaces: the model computes with W + B P, and gradients are those of B.

While `FactoredModel.installed` is active, each trainable tensor of the model is replaced by one
that stands for W + B P. A linear layer computes x W^T + (x P^T) B^T, so that neither W + B P nor a
gradient of W is ever in memory, and only x P^T is kept for the backward pass, as in a LoRA whose A
is frozen; where B stands on the input's side (more rows than columns) x is kept. Embeddings look up
their rows of both. Any other function gets W + B P as a tensor that is made for it. Because the
exchange is made in the tensor, tied weights, modules that use another module's weight, and layers
that are computed once more in the backward pass all see it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch.nn import functional

from fedseed.weights.change import Floats
from fedseed.weights.perturbation import can_exchange, exchange_kind
from fedseed.weights.space import ParameterSpace
from fedseed.weights.subspace import MatrixView, RandomSubspace, matrices_of


@dataclass(eq=False)
class Factor:
    """B and P of one tensor."""

    shape: tuple[int, ...]  # the tensor's
    # B of each subspace, shape (stack, shorter side, r); of a tensor without a projection one
    # change of its own shape
    trained: Sequence[torch.Tensor]
    scale: float  # 1/sqrt(r)
    matrices: MatrixView | None = None  # how the tensor is seen; None: without a projection
    signs: torch.Tensor | None = None  # of P, shape (stack, K r, longer side)

    @staticmethod
    def from_parts(subspace: RandomSubspace, weight: torch.Tensor, start: int) -> "Factor":
        """Return B, from zero, and P of a tensor.

        Args:
            subspace: where P comes from.
            weight: the tensor W, which stays as it is.
            start: index of its first element in the parameter vector.
        """
        shape = tuple(weight.shape)
        factor_shape, scale = subspace.factor_shape(shape), float(subspace.sign_scale)
        if subspace.is_whole(shape):
            return Factor(shape, [_zeros(factor_shape, weight.device)], scale)
        # one part for each subspace, so that one of them can be trained by itself
        part = (*factor_shape[:-1], subspace.rank)
        trained = [_zeros(part, weight.device) for _ in range(subspace.count)]
        matrices = matrices_of(shape)
        size = matrices.rows * matrices.columns
        signs = [
            torch.from_numpy(subspace.signs(start + number * size, matrices.longer))
            for number in range(matrices.stack)
        ]
        on_device = torch.stack(signs).to(weight.device, weight.dtype)
        return Factor(shape, trained, scale, matrices, on_device)

    def columns(self) -> torch.Tensor:
        """Return B of all subspaces, shape (stack, shorter side, K r); gradients reach those that
        are trained now.
        """
        if len(self.trained) == 1:
            return self.trained[0]
        return torch.cat(list(self.trained), dim=-1)

    def change(self, dtype: torch.dtype) -> torch.Tensor:
        """Return B P as a tensor of the weight's shape."""
        if self.matrices is None or self.signs is None:
            return self.trained[0].to(dtype)
        product = (self.columns().to(dtype) @ self.signs.to(dtype)) * self.scale
        if self.matrices.rows_are_longer:
            product = product.transpose(1, 2)
        return product.reshape(self.shape)

    def item(self, number: int) -> "Factor":
        """Return B and P of one matrix of the stack, as a tensor of two dimensions has them."""
        assert self.matrices is not None and self.signs is not None
        return Factor(
            self.shape[1:],
            [part[number : number + 1] for part in self.trained],
            self.scale,
            MatrixView(1, self.matrices.rows, self.matrices.columns),
            self.signs[number : number + 1],
        )

    def matrix(self) -> "MatrixFactor | None":
        """Return B and P of a tensor that is one matrix; None if it is anything else."""
        if self.matrices is None or self.signs is None or len(self.shape) != 2:
            return None
        return MatrixFactor(
            self.columns()[0], self.signs[0], self.scale, self.matrices.rows_are_longer
        )


@dataclass(frozen=True, eq=False)
class MatrixFactor:
    """B (shorter side, K r) and P (K r, longer side) of one matrix of m rows and n columns."""

    columns: torch.Tensor  # B
    signs: torch.Tensor  # of P
    scale: float  # 1/sqrt(r)
    rows_are_longer: bool  # whether the change is (B P)^T

    def times(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs (..., n) times the transpose of B P: shape (..., m)."""
        columns = self.columns.to(inputs.dtype)
        signs = self.signs.to(inputs.dtype)
        if self.rows_are_longer:
            return (inputs @ columns) @ (signs * self.scale)
        return functional.linear(functional.linear(inputs, signs) * self.scale, columns)

    def times_transposed(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs (..., m) times B P: shape (..., n)."""
        columns = self.columns.to(inputs.dtype)
        signs = self.signs.to(inputs.dtype)
        if self.rows_are_longer:
            return functional.linear(functional.linear(inputs, signs) * self.scale, columns)
        return (inputs @ columns) @ (signs * self.scale)

    def rows(self, indices: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return rows of B P: shape (*indices.shape, n)."""
        columns, signs = self.columns.to(dtype), self.signs.to(dtype)
        if self.rows_are_longer:
            return functional.linear(functional.embedding(indices, signs.t()), columns) * self.scale
        return functional.embedding(indices, columns) @ (signs * self.scale)


def _zeros(shape: Sequence[int], device: torch.device) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(tuple(shape), dtype=torch.float32, device=device))


class FactoredWeight(torch.nn.Parameter):
    """A weight that stands for W + B P.

    It shares W's memory. Functions that need its values get those of the sum.
    """

    factor: Factor
    weight: torch.Tensor

    @staticmethod
    def from_parts(weight: torch.Tensor, factor: Factor) -> "FactoredWeight":
        """Return the weight W + B P.

        Args:
            weight: W.
            factor: B and P.
        """
        plain = weight.detach()
        factored = plain.as_subclass(FactoredWeight)
        factored.factor, factored.weight = factor, plain
        return factored

    def sum(self) -> torch.Tensor:  # type: ignore[override]
        """Return W + B P, from which gradients reach B."""
        return self.weight + self.factor.change(self.weight.dtype)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if exchange_kind(func) == "ask":
            return func(*_exchanged(args, _plain), **_exchanged(kwargs, _plain))
        shortcut = _SHORTCUTS.get(func)
        if shortcut is not None:
            result = shortcut(*args, **kwargs)
            if result is not None:
                return result
        return func(*_exchanged(args, _sum), **_exchanged(kwargs, _sum))


def _plain(weight: FactoredWeight) -> torch.Tensor:
    return weight.weight


def _sum(weight: FactoredWeight) -> torch.Tensor:
    return weight.sum()


def _exchanged(value: Any, make: Callable[[FactoredWeight], torch.Tensor]) -> Any:
    """Return the value with every factored weight in it replaced by `make` of it."""
    if isinstance(value, FactoredWeight):
        return make(value)
    if type(value) in (list, tuple):
        return type(value)([_exchanged(one, make) for one in value])
    if type(value) is dict:
        return {key: _exchanged(one, make) for key, one in value.items()}
    return value


def _matrix_factor(weight: Any) -> MatrixFactor | None:
    """Return B and P of a factored weight that is one matrix; None if it is anything else."""
    if isinstance(weight, FactoredWeight):
        return weight.factor.matrix()
    return None


def _linear(
    input: torch.Tensor, weight: Any, bias: torch.Tensor | None = None
) -> torch.Tensor | None:
    factor = _matrix_factor(weight)
    if factor is None or isinstance(input, FactoredWeight):
        return None
    plain = functional.linear(input, weight.weight, _exchanged(bias, _sum))
    return plain + factor.times(input).to(plain.dtype)


def _addmm(bias: Any, input: Any, weight: Any, **options: Any) -> torch.Tensor | None:
    """Compute bias + input @ weight, as GPT-2's layers do."""
    factor = _matrix_factor(weight)
    if factor is None or options or isinstance(input, FactoredWeight):
        return None
    plain = torch.addmm(_exchanged(bias, _sum), input, weight.weight)
    return plain + factor.times_transposed(input).to(plain.dtype)


def _embedding(
    input: torch.Tensor,
    weight: Any,
    padding_idx: int | None = None,
    *arguments: Any,
    **options: Any,
) -> torch.Tensor | None:
    factor = _matrix_factor(weight)
    if factor is None or any(arguments) or any(options.values()):
        return None
    # the step moves the padding's row, too: it is no exception here either
    rows = functional.embedding(input, weight.weight)
    return rows + factor.rows(input, rows.dtype)


def _item(stack: Any, index: Any) -> torch.Tensor | None:
    """Take one matrix of a stack, such as one expert of a layer."""
    if not isinstance(stack, FactoredWeight) or isinstance(index, bool):
        return None
    is_number = isinstance(index, int) or (isinstance(index, torch.Tensor) and index.dim() == 0)
    matrices = stack.factor.matrices
    if not is_number or matrices is None or matrices.stack != len(stack.weight):
        return None
    return FactoredWeight.from_parts(stack.weight[index], stack.factor.item(int(index)))


_SHORTCUTS: dict[Any, Callable[..., torch.Tensor | None]] = {
    functional.linear: _linear,
    torch.addmm: _addmm,
    functional.embedding: _embedding,
    torch.Tensor.__getitem__: _item,
}


class FactoredModel:
    """A model whose trainable tensors W stand for W + B P, with B from zero.

    Args:
        space: the trainable tensors; they stay as they are.
        subspace: the matrices P.

    Raises:
        ValueError: the model has scripted or compiled parts, a recurrent layer whose weights are
            to train, or is held in shards.
    """

    def __init__(self, space: ParameterSpace, subspace: RandomSubspace) -> None:
        self.space = space
        if not can_exchange(space.model):
            raise ValueError("a scripted or compiled model can't be trained in a subspace")
        if space.vector.processes > 1:
            raise ValueError("a model in shards can't be trained in a subspace")
        self.factors = [
            Factor.from_parts(subspace, parameter, space.vector.start_of(parameter))
            for parameter in space.parameters
        ]
        self._stand_ins = {
            id(parameter): FactoredWeight.from_parts(parameter, factor)
            for parameter, factor in zip(space.parameters, self.factors, strict=True)
        }

    @property
    def parameters(self) -> list[torch.Tensor]:
        """Return all that is trained: B of every tensor and subspace."""
        return list(chain.from_iterable(factor.trained for factor in self.factors))

    def train_only(self, number: int) -> None:
        """Let gradients reach B of one subspace alone; tensors without a projection always get
        theirs.
        """
        for factor in self.factors:
            if len(factor.trained) > 1:
                for index, part in enumerate(factor.trained):
                    part.requires_grad_(index == number)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside the block the model computes with W + B P."""
        replaced = []
        for module in self.space.model.modules():
            owned = module.named_parameters(recurse=False, remove_duplicate=False)
            for name, parameter in owned:
                stand_in = self._stand_ins.get(id(parameter))
                if stand_in is None:
                    continue
                if isinstance(module, torch.nn.RNNBase):
                    raise ValueError(
                        f"a {type(module).__name__} keeps its weights elsewhere, too: it can't be "
                        "trained in a subspace; leave it out of method.targets"
                    )
                replaced.append((module, name, parameter, stand_in))
        try:
            for module, name, _, stand_in in replaced:
                setattr(module, name, stand_in)
            yield
        finally:
            for module, name, parameter, _ in replaced:
                setattr(module, name, parameter)

    def values(self) -> list[Floats]:
        """Return B of each tensor, as `fedseed.weights.change.AddFactors` takes it."""
        return [factor.columns().detach().cpu().numpy() for factor in self.factors]
