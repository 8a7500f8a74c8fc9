"""Looking at a model from w + scale * v without changing w.

While the mode below is active, every torch function that is given one of the space's parameters gets a perturbed copy
of it instead, made on the fly and freed after use: the extra memory is the largest tensor a function takes. The
weights are never written, so they can't drift. Because the exchange happens where a parameter is *used*, tied weights,
modules that reach for another module's weight, norm layers and functional code all see the perturbed value.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode, resolve_name

from fedseed.randomness import Basis

# what asks a tensor about itself, not for its values: no copy is made for these
_ASKS = {
    "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "element_size", "get_device",
    "is_contiguous", "is_floating_point", "is_complex", "is_inference", "is_signed", "is_pinned", "type",
    "data_ptr", "__len__", "__hash__", "__repr__", "requires_grad_", "register_hook",
}  # fmt: skip
_VIEWS = {"T", "mT", "H", "mH", "data", "real"}  # attributes that hand out values


def can_exchange(model: torch.nn.Module) -> bool:
    """Whether parameters can be exchanged where they are used: not inside scripted or compiled code."""
    return not any(
        isinstance(module, torch.jit.ScriptModule | torch._dynamo.OptimizedModule) for module in model.modules()
    )


class PerturbedUse(TorchFunctionMode):
    """Hands w + scale * v to torch functions instead of w.

    Args:
        change: maps a parameter to its float32 change, scale * v, flat.
        parameters: the parameters that are exchanged.
    """

    def __init__(self, change: Any, parameters: Mapping[int, Any]) -> None:
        super().__init__()
        self._change = change
        self._parameters = parameters

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch in place of `func`; the mode is off inside."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _ASKS or (name in ("__get__", "__set__") and not self._hands_out_values(func)):
            return func(*args, **kwargs)
        return func(*(self._exchange(a) for a in args), **{k: self._exchange(v) for k, v in kwargs.items()})

    def _hands_out_values(self, func: Any) -> bool:
        owner = (resolve_name(func) or "").removesuffix(".__get__")
        return owner.rpartition(".")[2] in _VIEWS

    def _exchange(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._perturbed(value) if id(value) in self._parameters else value
        if type(value) in (list, tuple):
            return type(value)(self._exchange(v) for v in value)
        if type(value) is dict:
            return {k: self._exchange(v) for k, v in value.items()}
        return value

    def _perturbed(self, parameter: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            change = self._change(self._parameters[id(parameter)]).to(parameter.device).view(parameter.shape)
            return change.add_(parameter.float()).to(parameter.dtype)


def direction_over(
    basis: Basis, k: int, scale: float, boundaries: tuple[int, ...], start: int, stop: int
) -> torch.Tensor:
    """scale * direction(k) over elements start..stop of a vector cut into blocks at `boundaries`."""
    out = np.empty(stop - start, dtype=np.float32)
    at = start
    block = int(np.searchsorted(boundaries, start, side="right")) - 1
    while at < stop:
        end = min(stop, boundaries[block + 1])
        length = boundaries[block + 1] - boundaries[block]
        out[at - start : end - start] = basis.direction(k, at, end, length)
        at, block = end, block + 1
    out *= np.float32(scale)
    return torch.from_numpy(out)
