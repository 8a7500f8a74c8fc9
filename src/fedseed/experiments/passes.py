"""What passes through a model take in memory, from its outline alone: every operation is followed, none is computed.

torch's `FakeTensorMode` gives each operation's results their shapes and nothing else, with the kernels that the device
would take; `LiveBytes` counts the tensors that are alive. So the numbers hold for any architecture, and cost no memory.
"""

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from fedseed.objectives.losses import Objective, Options
from fedseed.objectives.seq2seq import Pair
from fedseed.objectives.tokens import Tokens
from fedseed.training.client import LocalClient
from fedseed.training.settings import LocalTraining
from fedseed.training.streaming import gradients_taken
from fedseed.weights.layout import BlockRule
from fedseed.weights.space import ParameterSpace

FEW = 2  # optimiser steps, and micro-batches of a step, that show all there is: states are made in the first
_PUTS = ("index_put_", "_index_put_impl_", "_unsafe_index_put")
_SEPARATE = object()


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors that operations make, as long as they are alive.

    Some operations' results depend on what is in a tensor, which nobody knows here: a choice by a mask has `chosen`
    elements, a number that Python asks for is 1, or 0.5 if it is no whole one.

    Args:
        known: tensors that are there before; they do not count.
        chosen: how many elements a mask chooses.
    """

    def __init__(self, known: Sequence[torch.Tensor], chosen: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self.chosen = chosen
        self._known = [t.untyped_storage() for t in known]  # kept, so that the identities hold
        self._seen = {id(storage) for storage in self._known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch in place of `func`; the mode is off inside."""
        result = self._instead(func.overloadpacket.__name__, args)
        if result is _SEPARATE:
            result = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self._count, result)
        return result

    def _count(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key not in self._seen:
            size = storage.nbytes()
            self._seen.add(key)
            weakref.finalize(storage, self._freed, key, size).atexit = False
            self.now += size
            self.peak = max(self.peak, self.now)
        return tensor

    def _freed(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size

    def _instead(self, operation: str, args: Any) -> Any:
        """The result of an operation of ATen that depends on contents; otherwise `_SEPARATE`."""
        if operation == "_local_scalar_dense":
            return 0.5 if args[0].dtype.is_floating_point else 1
        if operation == "equal":
            return True
        if operation == "index":
            source, masks = args[0], [i for i in args[1] if _is_mask(i)]
            if masks:
                before = next(at for at, i in enumerate(args[1]) if _is_mask(i))
                rest = source.shape[before + masks[0].dim() :]
                return source.new_empty((*source.shape[:before], self.chosen, *rest))
        if operation in _PUTS and any(_is_mask(i) for i in args[1]):
            return args[0]
        if operation == "index_put" and any(_is_mask(i) for i in args[1]):
            return args[0].new_empty(args[0].shape)
        if operation == "nonzero":
            return args[0].new_empty((self.chosen, args[0].dim()), dtype=torch.long)
        if operation == "_unique2":
            found = args[0].new_empty(args[0].numel())
            return found, found.new_empty(args[0].shape, dtype=torch.long), found.new_empty(0, dtype=torch.long)
        return _SEPARATE


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def _exchange(model: torch.nn.Module, device: str) -> None:
    """Put new tensors in the place of a model's own: shared ones stay shared."""
    made: dict[int, torch.Tensor] = {}
    kept = []  # so that no identity is used twice
    for module in model.modules():
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, tensor in own:
            if id(tensor) not in made:
                kept.append(tensor)
                new = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
                trains = tensor.requires_grad
                made[id(tensor)] = torch.nn.Parameter(new, trains) if isinstance(tensor, torch.nn.Parameter) else new
            setattr(module, name, made[id(tensor)])


def chosen(items: Sequence[Any]) -> int:
    """How many positions of a batch carry loss."""
    count = 0
    for item in items:
        for sequence in item.sequences if isinstance(item, Options) else (item,):
            if isinstance(sequence, Tokens):
                count += sequence.terms
            else:
                count += len(sequence.target) if isinstance(sequence, Pair) else 1
    return max(1, count)


class Passes:
    """Passes through a model's outline.

    Args:
        model: ready to train; on "meta" it takes no memory. Its tensors are exchanged for outlines.
        blocks: how its vector is cut.
        device: where the passes are to be.
    """

    def __init__(self, model: torch.nn.Module, blocks: BlockRule, device: str = "cpu") -> None:
        self.model = model
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        with self._mode:
            _exchange(model, device)
            self.space = ParameterSpace(model, blocks)
        self._own = [*self.model.parameters(), *self.model.buffers()]

    @property
    def weights(self) -> int:
        """Bytes of all parameters and buffers, each once."""
        storages = {id(s): s for s in (t.untyped_storage() for t in self._own)}
        return sum(s.nbytes() for s in storages.values())

    @property
    def trained(self) -> int:
        """Bytes of the trainable parameters."""
        return self.space.layout.dense_bytes

    def outside(self) -> AbstractContextManager[Any]:
        """Where tensors take no memory."""
        return self._mode

    def forward(self, objective: Objective, items: Sequence[Any]) -> int:
        """The peak of a forward pass that nobody goes back through, beyond the weights, in bytes."""
        live = LiveBytes(self._own, chosen(items))
        with self._mode, live, torch.no_grad():
            self.model.eval()
            objective.losses(self.model, items)
        return live.peak

    def first_order(self, objective: Objective, items: Sequence[Any], training: LocalTraining) -> int:
        """The peak of local training beyond the weights: with the start copy, gradients and the optimiser's states.

        Args:
            objective: makes losses.
            items: what goes through the model at a time.
            training: its settings; two steps, of two micro-batches if it has several, show all there is.
        """
        several = min(-(-training.step_examples // len(items)), FEW)
        update = {"epochs": None, "steps": FEW, "accumulation": several, "batch": len(items), "batch_tokens": None}
        short = training.model_copy(update=update)
        live = LiveBytes(self._own, chosen(items))
        with self._mode, live:
            client = LocalClient(self.space, objective, items, 1, 1, 0)
            client.first_order(short)
            client.put_back()
        return live.peak

    def gradient(self, objective: Objective, items: Sequence[Any], more: bool) -> int:
        """The peak while gradients are made and kept, beyond the weights.

        Args:
            objective: makes losses.
            items: what goes through the model at a time.
            more: whether it does so more than once.
        """
        live = LiveBytes(self._own, chosen(items))
        with self._mode, live:
            client = LocalClient(self.space, objective, items, 1, 1, 0)
            for _ in range(FEW if more else 1):
                client.add_gradient(items, 1.0, len(items))
            self._forget()
        return live.peak

    def streaming(self, objective: Objective, items: Sequence[Any], training: LocalTraining) -> int:
        """The peak of plain SGD that takes and frees each gradient as backward makes it, beyond the weights."""
        live = LiveBytes(self._own, chosen(items))
        parameters = self.space.parameters

        def take(index: int, gradient: torch.Tensor) -> None:
            if training.weight_decay:
                gradient = gradient.add(parameters[index], alpha=training.weight_decay)
            gradient.float()  # what is projected
            parameters[index].add_(gradient, alpha=-training.learning_rate)

        def take_rows(index: int, rows: torch.Tensor, gradients: torch.Tensor) -> None:
            parameters[index].index_add_(0, rows, gradients.float().to(gradients.dtype))

        with self._mode, live, gradients_taken(parameters, take, None if training.weight_decay else take_rows):
            self.model.train()
            for _ in range(FEW):
                (objective.losses(self.model, items).sum() / 2).backward()  # type: ignore[no-untyped-call]
            self._forget()
        return live.peak

    def _forget(self) -> None:
        for p in self.space.parameters:
            p.grad = None
