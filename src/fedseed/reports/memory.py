"""How much memory this process has, and how much there is."""

import resource
import sys
from pathlib import Path


def resident_memory(peak: bool = False) -> int:
    """Returns this process' resident memory in bytes, now or at its peak."""
    if peak or not Path("/proc/self/statm").exists():
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def available_memory() -> tuple[int, int] | None:
    """Returns (all, free) of this machine's memory in bytes, or of this container's; None where it can't be told."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
    if "MemTotal" not in found or "MemAvailable" not in found:
        return None
    total, free = found["MemTotal"], found["MemAvailable"]
    try:  # a container's limit
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return total, free
    return min(total, limit), min(free, limit - used)
