"""Random operators: what everybody says and does after a server was sealed, cut, restarted without
JetStream, set back, paused or given an expired certificate, after a disk of somebody was full or a
clock jumped, with a real nats-server.

    python benchmarks/operators.py --seconds 600 [--seed 0]

Prints each trial, and at the end how often each act was done, how many trials there were and how
many failed: exit code 1 if any. Full disks need root, for a tmpfs, and clocks that jump Debian's
package faketime; otherwise a line says that they are left out. A nats-server keeps the machine's
clock, as Go programs ask the kernel for the date. Processes, server and operator are those of the
tests (`tests/support/operators.py`).
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch

from support.operators import operate


def main() -> int:
    """Run trials for as long as asked; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first trial")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        count, failures, acts = operate(
            asked.seconds, Path(folder), asked.seed, lambda text: print(text, flush=True)
        )
    for act, number in sorted(acts.items()):
        print(f"{act:24} {number:4}")
    print(f"{count} trials, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
