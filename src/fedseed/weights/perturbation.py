"""Evaluates a model at w + scale * v without changing w.

While `Perturbation` is active, every torch function that is given one of the space's parameters
gets a perturbed copy of it instead, made on the fly. The weights are never written, so they can't
drift, even if a `forward` casts a module: `module.to(dtype)` assigns the cast tensor, here a
perturbed copy, to `parameter.data` (routers of Switch Transformers and NLLB-MoE). Because the
exchange happens where a parameter is *used*, tied weights, modules that reach for another module's
weight, norm layers and functional code all see the perturbed value.

The copies cost little: small ones are made once; an embedding gets the rows it looks up; a product
with a large matrix makes them in the cache during the computation (float32 on a CPU).
"""

import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode, resolve_name

from fedseed.errors import FedseedError
from fedseed.randomness import kernels
from fedseed.randomness.kernels.reference import Job, Part
from fedseed.weights.change import Term
from fedseed.weights.digest import dtype_name
from fedseed.weights.vector import Vector, flat, operand

# functions that read a tensor's properties, not its values: no copy is made for them
_ASKS = {
    "size",
    "dim",
    "ndimension",
    "numel",
    "nelement",
    "stride",
    "storage_offset",
    "element_size",
    "get_device",
    "is_contiguous",
    "is_floating_point",
    "is_complex",
    "is_inference",
    "is_signed",
    "is_pinned",
    "data_ptr",
    "__len__",
    "__hash__",
    "__repr__",
    "requires_grad_",
    "register_hook",
}
_VIEWS = {"T", "mT", "H", "mH", "data", "real"}  # attributes that give access to values
SMALL = 1 << 13  # most elements of a tensor whose perturbed copy is kept for the next use
# least elements of a matrix whose perturbed copy is generated during a product, if the kernels can
FUSED = 1 << 18
# numbers of inputs for which this is faster than a library's product with a copy
FUSED_INPUTS = range(8, 1025)
_SHORT_CUTS = (
    torch.nn.MultiheadAttention,
    torch.nn.TransformerEncoder,
    torch.nn.TransformerEncoderLayer,
)
_MAY_HOLD = (torch.Tensor, list, tuple, dict)


@cache
def exchange_kind(func: Any) -> str:
    """Return how the weights among a torch function's arguments are exchanged.

    Returns:
        "ask": not at all, as the function reads no values; "embedding", "linear": the function has
        a faster way of its own; "any": by perturbed copies.
    """
    name = getattr(func, "__name__", "")
    if name in _ASKS:
        return "ask"
    if name in ("__get__", "__set__"):  # an attribute
        owner = (resolve_name(func) or "").removesuffix(".__get__")
        return "any" if owner.rpartition(".")[2] in _VIEWS else "ask"
    special = {functional.embedding: "embedding", functional.linear: "linear"}
    return special.get(func, "any")


def asks_only(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call reads only properties of tensors, and none of their values.

    `tensor.type()` names a tensor's type; `tensor.type(dtype)` is a cast, which reads values.
    """
    if getattr(func, "__name__", "") == "type":
        return len(args) + len(kwargs) == 1
    return exchange_kind(func) == "ask"


def assigns_data(func: Any) -> bool:
    """Return whether a torch function is the assignment of a tensor's `data`."""
    is_assignment = getattr(func, "__name__", "") == "__set__"
    return is_assignment and bool(func == torch.Tensor.data.__set__)  # type: ignore[attr-defined]


def exchange(
    value: Any, ours: Container[torch.Tensor], make: Callable[[torch.Tensor], torch.Tensor]
) -> Any:
    """Return a value in which the tensors of `ours` are exchanged.

    Lists, tuples and dictionaries are searched.

    Args:
        value: an argument of a torch function.
        ours: the tensors to exchange.
        make: makes the replacement of a tensor.
    """
    if isinstance(value, torch.Tensor):
        return make(value) if value in ours else value
    # a batch may be made of thousands of numbers
    if type(value) in (list, tuple) and any(isinstance(v, _MAY_HOLD) for v in value):
        return type(value)([exchange(v, ours, make) for v in value])
    if type(value) is dict:
        return {k: exchange(v, ours, make) for k, v in value.items()}
    return value


def can_exchange(model: torch.nn.Module) -> bool:
    """Return whether a model's parameters can be exchanged where they are used.

    Inside scripted or compiled code they can't.
    """
    # if not imported, nothing is compiled; importing takes two seconds
    compiler = sys.modules.get("torch._dynamo")
    compiled = (torch.jit.ScriptModule, *([] if compiler is None else [compiler.OptimizedModule]))
    return not any(isinstance(module, compiled) for module in model.modules())


class Perturbation(TorchFunctionMode):
    """Makes w + scale * direction, tensor by tensor, and passes it to torch functions in place of w
    while it is active.

    Args:
        vector: the tensors.
        term: the direction.
        scale: how far to move along it.
    """

    def __init__(self, vector: Vector, term: Term, scale: float) -> None:
        super().__init__()
        self.vector = vector
        self._scale = scale
        self._part = Part(
            term.basis.spec_on(vector.layout.matrices),
            term.first,
            np.asarray(term.coefficients, dtype=np.float32),
        )
        # prepared directions, by kind of device and block
        self._prepared: dict[tuple[str, int], Any] = {}
        # perturbed copies of small tensors, which models use again
        self._small: dict[int, torch.Tensor] = {}
        self._layer: dict[int, torch.Tensor] = {}  # perturbed copies of one layer, on a GPU

    def whole(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the perturbed parameter, which must not be written to.

        On a GPU one launch makes all tensors of the parameter's layer, which are kept until another
        layer's are needed.
        """
        cached = self._small.get(id(parameter), self._layer.get(id(parameter)))
        if cached is not None:
            return cached
        self._layer.clear()
        launched = kernels.current(parameter.device.type).TENSORS
        layer_copies = self.copies(self.vector.layers[id(parameter)] if launched else [parameter])
        self._small |= {name: copy for name, copy in layer_copies.items() if copy.numel() <= SMALL}
        if launched:
            self._layer = layer_copies
        return layer_copies[id(parameter)]

    def copies(self, parameters: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Return perturbed copies of some parameters, by the parameters' ids."""
        perturbed: dict[int, torch.Tensor] = {}
        jobs: dict[kernels.Kernels, list[Job]] = {}
        for p in parameters:
            out = torch.empty(p.numel(), dtype=p.dtype, device=p.device)
            vector, kernel, start = (
                self.vector,
                kernels.current(p.device.type),
                self.vector.start_of(p),
            )
            source = vector.operand(kernel, p) if p.is_contiguous() else operand(kernel, flat(p))
            target = operand(kernel, out)
            jobs.setdefault(kernel, []).extend(
                Job(
                    target[a:b],
                    source[a:b],
                    dtype_name(p),
                    self._prepare_on(kernel, p, block),
                    start + a,
                )
                for block, a, b in vector.overlaps(start, len(out))
            )
            perturbed[id(p)] = out.view(p.shape)
        for kernel, device_jobs in jobs.items():
            kernel.move_all(device_jobs, self._scale)
        return perturbed

    def _prepare_on(self, kernel: kernels.Kernels, parameter: torch.Tensor, block: int) -> Any:
        """Return the direction in the form for the kernels of a parameter's device."""
        key = parameter.device.type, block
        if key not in self._prepared:
            self._prepared[key] = kernel.prepare(
                [self._part], self.vector.layout.block_sizes[block]
            )
        return self._prepared[key]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func` with perturbed copies.

        Torch calls this in place of `func`; the mode is off inside.
        """
        kwargs = kwargs or {}
        if assigns_data(func) and args[0] in self.vector:
            return self._refuse_other_values(*args)
        if asks_only(func, args, kwargs):
            return func(*args, **kwargs)
        kind = exchange_kind(func)
        # with gradients, a graph would hold on to the copies
        if kind != "any" and not torch.is_grad_enabled():
            if kind == "embedding":
                rows = self._look_up_rows(*args, **kwargs)
                if rows is not None:
                    return rows
            else:
                w = args[1] if len(args) > 1 else kwargs["weight"]
                if w.numel() >= FUSED and w.is_cpu and w in self.vector:
                    return self._multiply_large(func, *args, **kwargs)
        if any(isinstance(value, _MAY_HOLD) for value in args):
            args = [self._exchange(a) for a in args]
        return func(*args, **{k: self._exchange(v) for k, v in kwargs.items()})

    def _exchange(self, value: Any) -> Any:
        return exchange(value, self.vector, self.whole)

    def _refuse_other_values(self, parameter: torch.Tensor, value: torch.Tensor) -> None:
        """Leave a parameter as it is where its own perturbed copy is assigned to its `data`, as by
        `module.to` with the dtype that the module has.

        Raises FedseedError for other values, as they would stay in the weights.
        """
        copy = self.whole(parameter)
        if value.dtype == copy.dtype and value.device == copy.device and torch.equal(value, copy):
            return
        what = f"other values than its own to a parameter of shape {tuple(parameter.shape)}"
        if value.dtype != parameter.dtype:
            what = f"a cast, from {parameter.dtype} to {value.dtype}, of a parameter to itself"
        raise FedseedError(
            f"the model's forward pass assigns {what}, which would change the weights after a "
            "trial of other weights: call the model once before its ParameterSpace is made, so "
            "that its casts are done, or take a first-order method"
        )

    def _look_up_rows(
        self,
        input: Any,
        weight: Any,
        padding_idx: Any = None,
        max_norm: Any = None,
        *_: Any,
        **__: Any,
    ) -> torch.Tensor | None:
        """Return the perturbed rows of an embedding for some token ids.

        None: making only these rows saves no work, or is not possible.
        """
        if weight not in self.vector or max_norm is not None or input.numel() >= weight.shape[0]:
            return None
        block, kernel = self.vector.only_block(weight), kernels.current(weight.device.type)
        # a GPU copies it as a whole
        if block is None or kernel.TENSORS or not weight.is_contiguous():
            return None
        width, start = weight.shape[1], self.vector.start_of(weight)
        out = torch.empty(*input.shape, width, dtype=weight.dtype, device=weight.device)
        source, target = (operand(kernel, flat(t)).reshape(-1, width) for t in (weight, out))
        dtype, prepared = dtype_name(weight), self._prepare_on(kernel, weight, block)
        for target_row, row in zip(target, input.reshape(-1).tolist(), strict=True):
            kernel.move(target_row, source[row], dtype, prepared, self._scale, start + row * width)
        return out

    def _multiply_large(
        self, func: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return a product with a large perturbed matrix.

        If the kernels can, they perturb the matrix in the cache during the product.
        """
        bias, (rows, columns) = self._exchange(bias), weight.shape
        block, kernel = self.vector.only_block(weight), kernels.current(weight.device.type)
        if (
            torch.is_autocast_enabled("cpu")
            or torch.get_float32_matmul_precision() != "highest"
            or input.numel() // columns not in FUSED_INPUTS
            or kernel.product is None
            or self._part.spec.name == "lowrank"
            or block is None
            or any(t is not None and t.dtype != torch.float32 for t in (input, weight, bias))
            or not weight.is_contiguous()
            or columns % 16
        ):
            return func(input, self._exchange(weight), bias)
        out = kernel.product(
            input.detach().reshape(-1, columns).contiguous().numpy(),
            self.vector.operand(kernel, weight).reshape(rows, columns),
            None if bias is None else bias.detach().numpy(),
            self._prepare_on(kernel, weight, block),
            self._scale,
            self.vector.start_of(weight),
            lambda count: self.vector.scratch(count).numpy(),
        )
        return torch.from_numpy(out).contiguous().view(*input.shape[:-1], rows)


def can_stand_in(model: torch.nn.Module, vector: Vector) -> bool:
    """Return whether copies may take the place of all tensors (`in_place_of`), with the same bits.

    They may not if the tensors need gradients, or under autocast, which caches its casts of a
    tensor. Nor with torch's attention modules, which take a fast path with other bits unless a mode
    is active. On a GPU the copies need free memory.
    """
    if (
        any(isinstance(module, _SHORT_CUTS) for module in model.modules())
        or torch.is_grad_enabled()
        or torch.is_inference_mode_enabled()
        or torch.is_autocast_enabled("cpu")
        or torch.is_autocast_enabled("cuda")
    ):
        return False
    if all(p.is_cpu for p in vector.parameters):
        # below this size no product is fused, so the bits are the same
        return vector.layout.size < FUSED
    return vector.has_room


@contextmanager
def in_place_of(perturbation: Perturbation) -> Iterator[None]:
    """Inside the block, the parameters' memory is that of perturbed copies.

    Functions see the same bits as while the perturbation is active. All copies exist at once, which
    is possible for a small model. It saves a third of the time, as no function's arguments are
    searched.
    """
    parameters = perturbation.vector.parameters
    saved_data = [p.data for p in parameters]
    copies = perturbation.copies(parameters)
    try:
        for p in parameters:
            p.data = copies[id(p)]
        yield
    finally:
        for p, data in zip(parameters, saved_data, strict=True):
            p.data = data
