"""The devices that tensors lie on: which they are, waiting for them, the memory they have taken.

And CPU threads.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch


def devices_of(tensors: Iterable[torch.Tensor]) -> tuple[torch.device, ...]:
    """Returns the devices of some tensors, each once, in order."""
    return tuple(dict.fromkeys(tensor.device for tensor in tensors))


def wait_for(tensors: Iterable[torch.Tensor]) -> None:
    """Return when everything that was asked of the tensors' devices is done: before a clock is
    read.

    A CPU is never behind, and clocks are read often: where no GPU is in use the tensors are not
    looked at.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    for device in devices_of(tensors):
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def gpus(devices: Sequence[torch.device]) -> list[int]:
    """Returns the numbers of the GPUs among some devices, for `torch.random.fork_rng`."""
    current = torch.cuda.current_device
    return [current() if d.index is None else d.index for d in devices if d.type == "cuda"]


def peak_on(devices: Sequence[torch.device]) -> int | None:
    """Returns the most bytes that torch has held on the GPUs among some devices, added up.

    None: there is no GPU.
    """
    held = [
        int(torch.cuda.max_memory_allocated(device)) for device in devices if device.type == "cuda"
    ]
    return sum(held) if held else None


def free_on(device: torch.device) -> int:
    """Returns bytes of a device's memory that torch could still hand out.

    0 on a CPU, where nobody asks.
    """
    if device.type != "cuda":
        return 0
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Inside, torch and numba compute with so many threads each.

    None: with as many as torch had before.

    Sums in torch are split by threads, so their last bits depend on the number. numba's kernels
    have the same bits with any number; with more threads than torch they would have two on a core,
    which halves its cache, where torch has one.
    """
    import numba

    before = torch.get_num_threads(), numba.get_num_threads()
    wanted = before[0] if threads is None else threads
    torch.set_num_threads(wanted)
    numba.set_num_threads(min(wanted, numba.config.NUMBA_NUM_THREADS))
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        numba.set_num_threads(before[1])
