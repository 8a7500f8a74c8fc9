"""Describe how a run was made: versions, the machine (not its name) and its memory, the command."""

import os
import platform
import shlex
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import fedseed

resource: ModuleType | None
try:
    import resource
except ImportError:
    # Windows
    resource = None

PACKAGES = ("torch", "transformers", "peft", "tokenizers", "numpy", "numba", "triton")


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a run's bits, as far as they
    are installed.
    """
    versions_here = {"python": platform.python_version(), "fedseed": fedseed.__version__}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions_here[name] = version(name)
    return versions_here


@cache
def host() -> dict[str, Any]:
    """Return a description of the machine: system, processor, cores, memory, GPUs that torch sees
    (where torch is in use).
    """
    processor = platform.processor()
    with suppress(OSError):
        model_names = [
            line
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ]
        if model_names:
            processor = model_names[0].partition(":")[2].strip()
    facts: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "processor": processor,
        "cores": os.cpu_count(),
        "memory_bytes": available_memory()[0],
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        facts["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts


def command() -> str:
    """Return this process' command line, with only the last part of the program's path. A token is
    left out.
    """
    first = "python"
    if sys.argv and sys.argv[0]:
        first = Path(sys.argv[0]).name
    words = ["***" if previous == "--token" else word for previous, word in pairwise(sys.argv)]
    return shlex.join([first, *words])


def resident_memory(peak: bool = False) -> int:
    """Return this process' resident memory in bytes, now or at its peak; 0: it is not known."""
    if resource is None:
        return 0
    if peak or not Path("/proc/self/statm").exists():
        # macOS counts bytes, Linux kilobytes; macOS reports only the peak
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def available_memory() -> tuple[int, int]:
    """Return (all, free) of this machine's memory in bytes, or of this container's.

    Without Linux' /proc all memory counts as free. If nothing is known, both are 0.
    """
    if not Path("/proc/meminfo").exists():
        try:
            total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, ValueError, OSError):
            total = 0
        return total, total
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    meminfo = {
        line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")
    }
    total, free = meminfo["MemTotal"], meminfo["MemAvailable"]
    try:  # a container's limit
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used_bytes = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return total, free
    return min(total, limit), min(free, limit - used_bytes)
