"""How threads of torch's OpenMP wait for each other.

By default a waiting thread spins on and on. On a machine that is busy with something else, it spins
in place of the thread that it waits for, and a round takes several times as long. A thread that
sleeps at once must be woken up for each operation, which costs a little on a free machine.
"""

import os
from collections.abc import MutableMapping

# what somebody who knows better has set; one of these is enough to leave all as it is
CHOSEN_BY_USERS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
WAITING = {
    # turns of GNU's OpenMP, which torch's packages bring: some tens of microseconds
    "GOMP_SPINCOUNT": "1000",
    # milliseconds of LLVM's and Intel's, which torch from conda has
    "KMP_BLOCKTIME": "0",
}


def let_waiting_threads_sleep(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let threads of OpenMP that wait sleep soon, in this process and those that it starts.

    It does nothing once torch has been imported, nor where a user has chosen how threads wait.

    Args:
        environment: what is changed.
    """
    if not any(name in environment for name in CHOSEN_BY_USERS):
        environment.update(WAITING)
