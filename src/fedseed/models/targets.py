"""Chooses the parameters that a method trains, if the recipe does not name them."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from glob import escape
from typing import Any

import torch

from fedseed.weights.subspace import LEAST_COLUMNS_OF_STACK

# the number of a block in a module's name
_IN_A_BLOCK = re.compile(r"\.\d+\.")
# GPT-2's linear layer in transformers, whose weight has the inputs as rows
_TURNED_LINEAR = "Conv1D"


def chosen_targets(method: Any, model: torch.nn.Module) -> list[str] | None:
    """Return the name patterns of the parameters of a model that a method trains.

    Args:
        method: the method; methods that choose parameters have `targets`.
        model: the base.

    Returns:
        The patterns; None: all parameters.
    """
    targets = getattr(method, "targets", None)
    if targets is None or targets == "all":
        return None
    if targets == "linear":
        return [escape(name) for name in linear_parameters(model)]
    return list(targets)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a parameter's name matches one of several patterns such as "*.layers.3.*"."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def freeze_others(model: torch.nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the trainable parameters whose names match no pattern.

    Raises ValueError if no parameter matches.
    """
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matching = {name for name, _ in trainable if matches(name, patterns)}
    if not matching:
        raise ValueError(f"method.targets = {list(patterns)}: no parameter has such a name")
    for name, parameter in trainable:
        parameter.requires_grad_(name in matching)


def linear_parameters(model: torch.nn.Module) -> list[str]:
    """Return the names of the matrices of the linear layers in a model's repeated blocks.

    These are the matrices of attention and MLP, including three-dimensional tensors with many
    experts. Not included are embeddings, layers before and after the blocks (poolers, heads, output
    layers), convolutions and vectors. If a model has no such matrices, all its matrices are
    returned.
    """
    matrices = {name: p for name, p in model.named_parameters() if p.requires_grad and p.dim() > 1}
    left_out = _embedding_ids(model)
    names = []
    for module_name, module in model.named_modules():
        if not _IN_A_BLOCK.search(f".{module_name}."):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            full_name = f"{module_name}.{name}"
            if full_name not in matrices or id(parameter) in left_out:
                continue
            is_linear = _is_linear_weight(module, name, parameter)
            if is_linear or _is_stack_of_experts(module, parameter):
                names.append(full_name)
    return names or list(matrices)


def _is_linear_weight(module: torch.nn.Module, name: str, parameter: torch.Tensor) -> bool:
    is_linear = isinstance(module, torch.nn.Linear) or type(module).__name__ == _TURNED_LINEAR
    return is_linear and name == "weight" and parameter.dim() == 2


def _is_stack_of_experts(module: torch.nn.Module, parameter: torch.Tensor) -> bool:
    is_convolution = isinstance(module, torch.nn.Conv1d | torch.nn.ConvTranspose1d)
    return (
        parameter.dim() == 3
        and not is_convolution
        and parameter.shape[-1] >= LEAST_COLUMNS_OF_STACK
    )


def _embedding_ids(model: torch.nn.Module) -> set[int]:
    """Return the ids of the parameters of embeddings and of a language model's output layer."""
    ids: set[int] = set()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            ids |= {id(parameter) for parameter in module.parameters(recurse=False)}
    get_output_layer = getattr(model, "get_output_embeddings", None)
    output_layer = get_output_layer() if get_output_layer is not None else None
    if output_layer is not None:
        ids |= {id(parameter) for parameter in output_layer.parameters(recurse=False)}
    return ids
