"""A model that a group of processes holds in shards, by torch's FSDP2, and its parameter space.

A process holds a run of each parameter's rows; a layer is whole while it computes. All compute the
same passes of the same batch, so their gradients are equal: each keeps its run of them, and nothing
is averaged or sent. Directions are functions of an entry's place in the vector, so steps move
shards to the bits of whole weights.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from fedseed.weights.change import Floats
from fedseed.weights.dense_digest import digest_of
from fedseed.weights.digest import hashed, tensor_bytes
from fedseed.weights.heap import map_large
from fedseed.weights.layout import BlockRule, DigestKind, Layout
from fedseed.weights.space import ParameterSpace
from fedseed.weights.vector import Vector

# others wait for the next thing to do, however long nothing is asked of a client
PATIENCE = timedelta(days=365)


def shard(model: torch.nn.Module, local: int) -> None:
    """Shards a model, on this process' GPU if there are any: its layers each by itself, then all
    else.

    Args:
        model: whole, on the CPU; of transformers, which names the classes of its layers.
        local: this process' number on its machine.
    """
    map_large()  # or layers that were whole leave holes in the heap, as large as all of them
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(local)
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", timeout=PATIENCE)
    mesh = init_device_mesh("cuda" if gpu else "cpu", (dist.get_world_size(),))
    layers = set(getattr(model, "_no_split_modules", None) or ())
    for module in [m for m in model.modules() if type(m).__name__ in layers] + [model]:
        made: Any = fully_shard(module, mesh=mesh, reshard_after_forward=True)
        made.set_custom_reduce_scatter(_OwnRun())
        made.set_gradient_divide_factor(1.0)
        made.set_force_sum_reduction_for_comms(True)


class _OwnRun:
    """In place of a sum over processes: the gradients are equal, and this process takes its run of
    its own.
    """

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        output_tensor.copy_(input_tensor.view(dist.get_world_size(group), -1)[dist.get_rank(group)])


class ShardedVector(Vector):
    """The vector of whole tensors, whose layout it has; of each one's rows a run is here."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], layout: Layout) -> None:
        super().__init__(parameters, layout)
        rank, self.processes, start = dist.get_rank(), dist.get_world_size(), 0
        for p, entry in zip(parameters, layout.tensors, strict=True):
            rows = entry.shape[0]
            first = min(rows, rank * -(-rows // self.processes))  # as `torch.chunk` deals them out
            self._starts[id(p)] = start + first * (entry.size // max(1, rows))
            start += entry.size

    def each(self, own: Any) -> list[Any]:
        found = [None] * self.processes
        dist.all_gather_object(found, own)
        return found


class ShardedSpace(ParameterSpace):
    """The parameter space of a model that `shard` has sharded.

    Every process calls the same, in the same order.

    Its `parameters` are this process' runs. What is sent is whole in the first process alone, a
    tensor at a time in the others. `ParameterSpace` has the arguments and errors.
    """

    def __init__(
        self, model: torch.nn.Module, blocks: BlockRule = "one", digest_kind: DigestKind = "blake2b"
    ) -> None:
        assert isinstance(model, FSDPModule)
        super().__init__(model, blocks, digest_kind)
        self._shards = list[Any](self.parameters)
        self.parameters = [torch.nn.Parameter(p.to_local().detach()) for p in self._shards]
        self.vector = ShardedVector(self.parameters, self.layout)
        self.rows.reason = "the weights lie in shards"
        for own, p in zip(self.parameters, self._shards, strict=True):
            p.register_post_accumulate_grad_hook(partial(_arrived, own))

    def perturbed(self, basis: Any, k: int, scale: float, often: bool = False) -> Any:
        # functions are given gathered copies, which nobody knows
        return super().perturbed(basis, k, scale, often=True)

    def _wholes(self, runs: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Yields whole tensors, one after the other, of every process' runs of them."""
        for own, p in zip(runs, self._shards, strict=True):
            about = {"shape": p.shape, "stride": p.stride()}
            yield DTensor.from_local(
                own.detach(), p.device_mesh, p.placements, run_check=False, **about
            ).full_tensor()

    def _bytes(self, tensors: Iterable[torch.Tensor]) -> bytes:
        return b"".join(
            b"" if dist.get_rank() else tensor_bytes(whole) for whole in self._wholes(tensors)
        )

    def digest(self) -> str:
        each, kind = (
            zip(self.layout.tensors, self._wholes(self.parameters), strict=True),
            self.digest_kind,
        )
        return digest_of(
            ((e.name, e.dtype, e.shape, next(iter(hashed([whole], kind)))) for e, whole in each),
            kind,
        )

    def difference(
        self, saved: Sequence[torch.Tensor], now: Sequence[torch.Tensor] | None = None
    ) -> Floats:
        runs = [
            s.float() - p.detach().float()
            for p, s in zip(now or self.parameters, saved, strict=True)
        ]
        return np.concatenate([whole.cpu().numpy().reshape(-1) for whole in self._wholes(runs)])

    def norm(self) -> float:
        return float(np.linalg.norm(self.vector.each(super().norm())))


def _arrived(own: torch.nn.Parameter, p: Any) -> None:
    """Hands a gradient from FSDP's parameter to this process' run of it, as backward would."""
    gradient, p.grad = p.grad.to_local(), None
    own.grad = gradient if own.grad is None else own.grad.add_(gradient)
    for hook in list((getattr(own, "_post_accumulate_grad_hooks") or {}).values()):  # noqa: B009 (another's own)
        hook(own)
