"""Keys and values that a model keeps from one call to the next, as tensors that can be mapped over rows.

`torch.vmap` maps over tensors. A cache of transformers is an object that a model changes: here it is taken apart into
its tensors, of which every row has its own, and put together again, a new one each time.
"""

import sys
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree


@dataclass
class _Apart:
    """A cache that `pytree` takes apart."""

    cache: Any


def apart(tree: Any) -> Any:
    """Returns the arguments or results with every cache taken apart."""
    return pytree.tree_map(lambda v: _Apart(v) if _is_cache(v) else v, tree)


def together(tree: Any) -> Any:
    """The inverse of `apart`."""
    return pytree.tree_map(_whole, tree, is_leaf=lambda v: isinstance(v, _Apart))


def _whole(value: Any) -> Any:
    return value.cache if isinstance(value, _Apart) else value


def _is_cache(value: Any) -> bool:
    """Whether it is a cache that grows, layer by layer; there is none where transformers was not imported."""
    module = sys.modules.get("transformers.cache_utils")
    kind = getattr(module, "DynamicCache", None)
    return kind is not None and type(value) is kind


def _tensors(layer: Any) -> list[torch.Tensor]:
    return [layer.keys, layer.values] if layer.is_initialized else []


def _flatten(held: _Apart) -> tuple[list[torch.Tensor], Any]:
    shell = copy(held.cache)
    shell.layers = [_with(layer, (None, None)) for layer in held.cache.layers]
    return [tensor for layer in held.cache.layers for tensor in _tensors(layer)], shell


def _unflatten(tensors: Iterable[Any], shell: Any) -> _Apart:
    found = iter(tensors)
    cache = copy(shell)
    cache.layers = [
        _with(layer, (next(found), next(found))) if layer.is_initialized else copy(layer) for layer in shell.layers
    ]
    return _Apart(cache)


def _with(layer: Any, tensors: tuple[Any, Any]) -> Any:
    """A layer of its own with these keys and values."""
    other = copy(layer)
    other.keys, other.values = tensors
    return other


pytree.register_pytree_node(_Apart, _flatten, _unflatten)
