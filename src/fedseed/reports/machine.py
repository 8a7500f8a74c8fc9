"""What a run was made with: versions, the machine (not its name), the command."""

import os
import platform
import shlex
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

import fedseed
from fedseed.reports.memory import available_memory

PACKAGES = ("fedseed", "torch", "transformers", "peft", "tokenizers", "numpy", "numba", "triton")


@cache
def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that decide a run's bits, as far as they are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            if name == "fedseed":  # run from its sources
                found[name] = fedseed.__version__
    return found


@cache
def host() -> dict[str, Any]:
    """Returns what the machine is: system, processor, cores, memory, GPUs that torch sees (where torch is in use)."""
    memory = available_memory()
    found: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": None if memory is None else memory[0],
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return found


def command() -> str:
    """Returns this process' command line, its program by its last part; a token that it was given is left out."""
    first = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    words = ["***" if before == "--token" else word for before, word in pairwise(sys.argv)]
    return shlex.join([first, *words])


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()
