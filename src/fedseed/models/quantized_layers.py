"""Linear layers with 4 or 8 bits that compute the same on any machine.

Each row of a weight matrix is divided into groups of 64. Each group has a scale, and each weight a
code:

    s = max |w| / c,  q = round(w / s),  w' = s q         c = 7 (4 bits), 127 (8 bits)

Two 4-bit codes share a byte. Scales are float32 parameters, so that they can train (Fine-tuning
Quantized Neural Networks with Zeroth-order Optimization, ICLR 2026). Codes never change. Quantising
only divides and rounds single numbers, which gives the same bits everywhere.
"""

from collections import Counter
from collections.abc import Collection
from itertools import chain
from typing import Any, ClassVar

import torch
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

GROUP = 64  # number of weights that share a scale


class QuantizedLayer(torch.nn.Module):
    """The part of a quantised layer that replaces its weight matrix.

    `weight` is made of codes and scales whenever it is asked for, so that code which looks for it
    finds what the layer computes with. Writing to it changes nothing.
    """

    plain: ClassVar[type[torch.nn.Module]]  # the class of the original layer

    codes: torch.nn.Parameter  # uint8, (rows, groups * group * bits / 8)
    scales: torch.nn.Parameter  # float32, (rows, groups)
    bits: int
    columns: int
    compute_dtype: torch.dtype  # the dtype that the weight is rounded to

    @classmethod
    def from_layer(cls, layer: torch.nn.Module, bits: int) -> "QuantizedLayer":
        """Return a quantised layer that takes the place of a plain one.

        Args:
            layer: the layer whose weights, shape (rows, columns), are quantised.
            bits: 4 or 8.
        """
        quantized = cls.__new__(cls)
        torch.nn.Module.__init__(quantized)
        weight: Any = layer.weight
        codes, scales = quantize(weight, bits)
        # frozen parameters and not buffers, because a client copies a model's buffers before it
        # trains
        quantized.codes = torch.nn.Parameter(codes, requires_grad=False)
        quantized.scales = torch.nn.Parameter(scales, requires_grad=False)
        quantized.bits, quantized.columns = bits, weight.shape[1]
        quantized.compute_dtype = weight.dtype
        quantized.register_parameter("bias", layer.bias)  # type: ignore[arg-type]
        for name in ("in_features", "out_features", "nf", "nx"):
            if hasattr(layer, name):
                setattr(quantized, name, getattr(layer, name))
        return quantized.train(layer.training)

    @property
    def weight(self) -> torch.Tensor:
        """Return the weights (rows, columns) that the layer computes with."""
        return dequantize(self.codes, self.scales, self.bits, self.columns, self.compute_dtype)

    def to_plain(self) -> torch.nn.Module:
        """Return a plain layer with the weights of this one."""
        layer = self.plain.__new__(self.plain)
        torch.nn.Module.__init__(layer)
        layer.weight = torch.nn.Parameter(self.weight.detach())
        layer.register_parameter("bias", self.bias)  # type: ignore[arg-type]
        for name in ("in_features", "out_features", "nf", "nx"):
            if hasattr(self, name):
                setattr(layer, name, getattr(self, name))
        return layer.train(self.training)

    def multiply(self, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the product of inputs (..., in) with the weights, without the bias."""
        raise NotImplementedError

    def multiply_back(self, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the inputs, given that of the product (..., out)."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's outputs (..., out) for inputs (..., in)."""
        if not (torch.is_grad_enabled() and x.requires_grad) or self.scales.requires_grad:
            return super().forward(x)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        product: torch.Tensor = _FrozenProduct.apply(x, self)  # type: ignore[no-untyped-call]
        bias: Any = self.bias
        if bias is None:
            return product
        return product + bias.to(product.dtype)


class QuantizedLinear(QuantizedLayer, torch.nn.Linear):  # type: ignore[override]
    """A quantised `torch.nn.Linear`."""

    plain = torch.nn.Linear

    def multiply(self, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.linear(inputs, weight)

    def multiply_back(self, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return gradient @ weight


class QuantizedConv1D(QuantizedLayer, Conv1D):  # type: ignore[misc]
    """A quantised `Conv1D`, GPT-2's linear layer, whose weights are (in, out)."""

    plain = Conv1D

    def multiply(self, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return inputs @ weight

    def multiply_back(self, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return gradient @ weight.T


class _FrozenProduct(torch.autograd.Function):
    """A product with frozen weights, which are computed again for the backward pass.

    Otherwise autograd would keep every layer's weights from the forward pass, which takes as many
    bytes as the unquantised base.
    """

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, layer: QuantizedLayer) -> torch.Tensor:
        ctx.layer = layer
        return layer.multiply(inputs, layer.weight.to(inputs.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        layer: QuantizedLayer = ctx.layer
        return layer.multiply_back(gradient, layer.weight.to(gradient.dtype)), None


KINDS: dict[type[torch.nn.Module], type[QuantizedLayer]] = {
    torch.nn.Linear: QuantizedLinear,
    Conv1D: QuantizedConv1D,
}


@torch.no_grad()
def quantize(weight: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes and scales of a matrix.

    Args:
        weight: (rows, columns), of any floating-point dtype.
        bits: 4 or 8.

    Returns:
        Codes in uint8, shape (rows, groups * group * bits / 8), and scales in float32, shape (rows,
        groups). A group has 64 weights, or fewer if a row is shorter. Rows are padded with zeros.
    """
    rows, columns = weight.shape
    group = group_size(columns)
    padded = functional.pad(weight.float(), (0, -columns % group)).view(rows, -1, group)
    largest = 2 ** (bits - 1) - 1
    scales = padded.abs().amax(dim=2) / largest
    # a group of zeros, or of numbers too small for a scale, gets codes of zero
    divisors = torch.where(scales > 0, scales, 1.0).unsqueeze(2)
    signed = torch.round(padded / divisors).clamp_(-largest, largest)
    codes = (signed + 2 ** (bits - 1)).to(torch.uint8).view(rows, -1)
    if bits == 4:
        codes = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return codes.contiguous(), scales


def dequantize(
    codes: torch.Tensor, scales: torch.Tensor, bits: int, columns: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return the matrix (rows, columns) for codes and scales from `quantize`.

    Products of codes and scales are rounded to float32, and then to `dtype`.
    """
    rows = len(codes)
    if bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), dim=2)
    signed = codes.view(rows, scales.shape[-1], -1).float() - float(2 ** (bits - 1))
    weight = (signed * scales.unsqueeze(-1)).reshape(rows, -1)
    return weight[:, :columns].to(dtype).contiguous()


def group_size(columns: int) -> int:
    """Return the number of weights in a row that share a scale. It is even."""
    return min(GROUP, columns + columns % 2)


def quantize_layers(model: torch.nn.Module, bits: int, spared: Collection[str]) -> None:
    """Quantise a model's linear layers in place.

    Output layers are not changed, and neither are layers that share weights with another layer,
    such as embeddings.

    Args:
        model: the model loaded by transformers.
        bits: 4 or 8.
        spared: layers with one of these in their names are not changed.
    """
    output = None
    if hasattr(model, "get_output_embeddings"):
        output = model.get_output_embeddings()  # type: ignore[operator]
    parameters = chain.from_iterable(module.parameters(recurse=False) for module in model.modules())
    users = Counter(map(id, parameters))
    # so that a layer used at two places stays a single one
    quantized: dict[int, QuantizedLayer] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        kind = KINDS.get(type(module))
        if kind is None or module is output or any(part in spared for part in name.split(".")):
            continue
        if users[id(module.weight)] > 1:
            continue
        if id(module) not in quantized:
            quantized[id(module)] = kind.from_layer(module, bits)
        _exchange(model, name, quantized[id(module)])


def dequantize_layers(model: torch.nn.Module) -> None:
    """Replace a model's quantised layers in place by plain ones that compute the same."""
    plain: dict[int, torch.nn.Module] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, QuantizedLayer):
            if id(module) not in plain:
                plain[id(module)] = module.to_plain()
            _exchange(model, name, plain[id(module)])


def _exchange(model: torch.nn.Module, name: str, layer: torch.nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, layer)
