"""Somebody who asks a coordinator how it is going, again and again, in a process where nothing else delays it.

    python -m support.hostile.asker URL KEY CA RUN PID

writes a line of JSON for each question: the seconds until the answer, the processor seconds of process PID meanwhile,
its largest memory so far, and whether there was an answer. It ends with PID.
"""

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from fedseed.errors import NetworkError
from fedseed.transport import transport
from fedseed.transport.base import Access

PATIENCE = 60.0  # seconds for an answer
PAUSE = 0.25  # between questions
TICKS = os.sysconf("SC_CLK_TCK")


def look(pid):
    """A process's processor seconds so far and its largest resident memory, bytes; None: it is over."""
    with suppress(OSError, ValueError, IndexError):
        found = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if "VmHWM" in found:  # else it has ended, and nobody has taken note
            return (int(parts[11]) + int(parts[12])) / TICKS, 1024 * int(found["VmHWM"].split()[0])
    return None


async def keep_asking(url, key, ca, run, pid):
    """Until the process is over."""
    end = await transport(Access(url, Path(key), Path(ca)), run).watcher()
    while (before := look(pid)) is not None:
        began = time.monotonic()
        with suppress(NetworkError):
            answer = await end.status(PATIENCE)
            took, after = time.monotonic() - began, look(pid)
            if after is not None and (answer or took >= PATIENCE):  # or it has let go of the server, at its end
                told = {"took": took, "computed": after[0] - before[0], "memory": after[1], "answered": bool(answer)}
                print(json.dumps(told), flush=True)
        await asyncio.sleep(PAUSE)
    await end.close()


if __name__ == "__main__":
    asyncio.run(keep_asking(*sys.argv[1:]))
