"""How much memory this process has."""

import resource
import sys
from pathlib import Path


def resident_memory(peak: bool = False) -> int:
    """This process' resident memory in bytes, now or at its peak."""
    if peak or not Path("/proc/self/statm").exists():
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
