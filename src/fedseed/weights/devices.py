"""The devices of tensors: list them, wait for them, ask for their memory; and CPU threads."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch


def devices_of(tensors: Iterable[torch.Tensor]) -> tuple[torch.device, ...]:
    """Return the devices of some tensors, each once, in order."""
    return tuple(dict.fromkeys(tensor.device for tensor in tensors))


def wait_for(tensors: Iterable[torch.Tensor]) -> None:
    """Wait until the tensors' devices have done all their work, as before a clock is read.

    Without a GPU in use this returns at once, as work on a CPU is done already.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    for device in devices_of(tensors):
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def gpus(devices: Sequence[torch.device]) -> list[int]:
    """Return the numbers of the GPUs among some devices, for `torch.random.fork_rng`."""
    current = torch.cuda.current_device
    return [current() if d.index is None else d.index for d in devices if d.type == "cuda"]


def peak_on(devices: Sequence[torch.device]) -> int | None:
    """Return the peak bytes that torch allocated on the GPUs among some devices, added up.

    None: there is no GPU.
    """
    peaks = [
        int(torch.cuda.max_memory_allocated(device)) for device in devices if device.type == "cuda"
    ]
    return sum(peaks) if peaks else None


def free_on(device: torch.device) -> int:
    """Return the bytes of a GPU's memory that torch could still allocate; 0 for a CPU."""
    if device.type != "cuda":
        return 0
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Limit torch and numba to a number of threads each, inside the block.

    None: as many as torch had before.

    Sums in torch are split by threads, so their last bits depend on the number. numba's kernels
    have the same bits with any number, but with more threads than torch two would share a core and
    its cache.
    """
    import numba

    torch_threads = torch.get_num_threads()
    numba_threads = numba.get_num_threads()
    count = torch_threads if threads is None else threads
    torch.set_num_threads(count)
    numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
    try:
        yield
    finally:
        torch.set_num_threads(torch_threads)
        numba.set_num_threads(numba_threads)
