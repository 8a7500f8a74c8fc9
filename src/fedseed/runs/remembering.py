"""Where a simulation's clients keep what they remember from round to round (`fedseed.training.memory`)."""

import tempfile
import weakref
from pathlib import Path

from fedseed.errors import FedseedError
from fedseed.methods import Method
from fedseed.runs.folder import MEMORY
from fedseed.training.memory import Memory


def memory_of(run: object, method: Method, out: Path | None, shared: bool) -> Memory:
    """In the run's folder; without one in this process, or, for its workers, in a temporary folder.

    Args:
        run: a temporary folder goes when this does.
        method: the method.
        out: the run's folder.
        shared: whether several processes are to find it.
    """
    if not method.remembers or (out is None and not shared):
        return Memory()
    if out is not None:
        return Memory(out / MEMORY)
    folder = tempfile.TemporaryDirectory(prefix="fedseed-memory-")
    weakref.finalize(run, folder.cleanup)
    return Memory(Path(folder.name))


def check_memory(memory: Memory, method: Method, rounds: int) -> None:
    """Raise FedseedError if clients have kept something in `rounds` earlier rounds, and it is not there."""
    if method.remembers and rounds and memory.folder is not None and not memory.folder.is_dir():
        raise FedseedError(
            f"{memory.folder} is missing, and with it what clients had yet to send: the run can't go on; begin anew "
            "with --overwrite, or choose another folder with --out"
        )
