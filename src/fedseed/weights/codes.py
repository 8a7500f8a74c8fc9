"""Quantised weights: find the parameters that hold a weight's codes, which no step can move. It
calls no function of torch, so that settings may use it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

TRAITS = "_fedseed_traits"  # the attribute of a loaded model with its traits (`models.traits`)


def is_wrapper(tensor: Any) -> bool:
    """Return whether a tensor wraps others, like torchao's; False for shards."""
    return hasattr(tensor, "__tensor_flatten__") and not hasattr(tensor, "device_mesh")


def holds_codes(parameter: "torch.Tensor") -> bool:
    """Return whether a parameter holds a quantised weight's codes."""
    # bytes, or 8-bit floats
    return is_wrapper(parameter) or parameter.element_size() == 1


def is_movable(parameter: "torch.Tensor") -> bool:
    """Return whether steps can move a parameter: it holds plain floating-point numbers."""
    return parameter.is_floating_point() and not holds_codes(parameter)


def is_quantized(model: "torch.nn.Module") -> bool:
    """Return whether a model, or the base inside an adapter's model, has quantised weights."""
    base: Any = model
    if hasattr(model, "peft_config"):
        base = base.get_base_model()
    return is_of_library(base) or any(holds_codes(parameter) for parameter in base.parameters())


def is_of_library(model: Any) -> bool:
    """Return whether transformers has loaded a model with one of its quantisers."""
    loaded = getattr(model, "hf_quantizer", None) is not None
    return loaded or bool(getattr(model, "is_quantized", False))


def plain_parameters(model: "torch.nn.Module") -> "Iterator[tuple[str, torch.nn.Parameter]]":
    """Yield the names and parameters of a quantised model other than codes and scales. Parameters
    that can never be tuned (`models.traits`) are left out.
    """
    resting = {id(p) for p in getattr(getattr(model, TRAITS, None), "at_rest", ())}
    scales = {id(p) for p in scales_of(model)}
    for name, parameter in model.named_parameters():
        if is_movable(parameter) and id(parameter) not in resting | scales:
            yield name, parameter


def scales_of(model: "torch.nn.Module") -> "Iterator[torch.nn.Parameter]":
    """Yield the parameters that are scales of codes."""
    for module in model.modules():
        parameters = dict(module.named_parameters(recurse=False))
        if any(map(holds_codes, parameters.values())):
            yield from (p for name, p in parameters.items() if is_movable(p) and name != "bias")


def count_stray(model: "torch.nn.Module") -> int:
    """Return how many numbers of a quantised model steps would move by default.

    Returns:
        The size of the part that is not quantised; 0: the model is not quantised, has an adapter,
        or the trainable parameters were chosen (part of these are frozen, or scales are trained).
    """
    if hasattr(model, "peft_config") or not is_quantized(model):
        return 0
    plain = [parameter for _, parameter in plain_parameters(model)]
    is_chosen = any(p.requires_grad for p in scales_of(model)) or not all(
        p.requires_grad for p in plain
    )
    return 0 if is_chosen else sum(p.numel() for p in plain)
