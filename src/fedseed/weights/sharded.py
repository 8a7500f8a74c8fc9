"""A model that a group of processes holds in shards, by torch's FSDP2, and its parameter space.

A process holds a run of each parameter's rows; a layer is gathered while it computes. All processes
compute the same passes of the same batch, so their gradients are equal: each keeps its run of them,
and nothing is averaged or sent. Directions depend only on an entry's position in the vector, so
steps move shards to the same bits as whole weights.
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
from fedseed.weights.digest import digest_inputs, tensor_bytes
from fedseed.weights.heap import map_large
from fedseed.weights.layout import BlockRule, DigestKind, Layout
from fedseed.weights.space import ParameterSpace
from fedseed.weights.vector import Vector

# seconds that the other processes wait for the next task of a client
PATIENCE = timedelta(days=365)


def shard(model: torch.nn.Module, local: int) -> None:
    """Shard a model over the processes, on this process' GPU if the machine has any.

    Each layer is sharded by itself, then the rest of the model.

    Args:
        model: a whole model of transformers, on the CPU.
        local: this process' number on its machine.
    """
    # otherwise gathered layers fragment the heap, by as much as all layers together
    map_large()
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(local)
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", timeout=PATIENCE)
    mesh = init_device_mesh("cuda" if gpu else "cpu", (dist.get_world_size(),))
    layers = set(getattr(model, "_no_split_modules", None) or ())
    for module in [m for m in model.modules() if type(m).__name__ in layers] + [model]:
        wrapped: Any = fully_shard(module, mesh=mesh, reshard_after_forward=True)
        wrapped.set_custom_reduce_scatter(_OwnRun())
        wrapped.set_gradient_divide_factor(1.0)
        wrapped.set_force_sum_reduction_for_comms(True)


class _OwnRun:
    """Keeps this process' run of the gradients, in place of a sum over processes.

    All processes have equal gradients.
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
    """This process' shard of the vector; the layout is that of the whole tensors."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], layout: Layout) -> None:
        super().__init__(parameters, layout)
        rank = dist.get_rank()
        self.processes = dist.get_world_size()
        start = 0
        for p, entry in zip(parameters, layout.tensors, strict=True):
            rows = entry.shape[0]
            # FSDP2 divides rows as `torch.chunk` does
            first = min(rows, rank * -(-rows // self.processes))
            self._starts[id(p)] = start + first * (entry.size // max(1, rows))
            start += entry.size

    def gather(self, value: Any) -> list[Any]:
        values = [None] * self.processes
        dist.all_gather_object(values, value)
        return values


class ShardedSpace(ParameterSpace):
    """The parameter space of a model that `shard` has sharded.

    All processes must call the same methods in the same order.

    `parameters` are this process' runs of rows. Only the first process holds the bytes to send;
    the others hold one whole tensor at a time. `ParameterSpace` has the arguments and errors.
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
        for local, p in zip(self.parameters, self._shards, strict=True):
            p.register_post_accumulate_grad_hook(partial(_pass_gradient, local))

    def perturbed(self, basis: Any, k: int, scale: float, often: bool = False) -> Any:
        # functions get gathered copies, which the perturbation can't recognise as parameters
        return super().perturbed(basis, k, scale, often=True)

    def _wholes(self, runs: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Gather whole tensors from the processes' runs, one after the other."""
        for local, p in zip(runs, self._shards, strict=True):
            geometry = {"shape": p.shape, "stride": p.stride()}
            yield DTensor.from_local(
                local.detach(), p.device_mesh, p.placements, run_check=False, **geometry
            ).full_tensor()

    def _bytes(self, tensors: Iterable[torch.Tensor]) -> bytes:
        return b"".join(
            b"" if dist.get_rank() else tensor_bytes(whole) for whole in self._wholes(tensors)
        )

    def digest(self) -> str:
        named_wholes, kind = (
            zip(self.layout.tensors, self._wholes(self.parameters), strict=True),
            self.digest_kind,
        )
        return digest_of(
            (
                (e.name, e.dtype, e.shape, next(iter(digest_inputs([whole], kind))))
                for e, whole in named_wholes
            ),
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
        return float(np.linalg.norm(self.vector.gather(super().norm())))


def _pass_gradient(local: torch.nn.Parameter, p: Any) -> None:
    """Move a gradient from FSDP's parameter to this process' run of it, as backward would."""
    gradient, p.grad = p.grad.to_local(), None
    local.grad = gradient if local.grad is None else local.grad.add_(gradient)
    hooks = getattr(local, "_post_accumulate_grad_hooks")  # noqa: B009 (torch's own)
    for hook in list((hooks or {}).values()):
        hook(local)
