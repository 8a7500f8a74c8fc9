"""Worker processes in milliseconds: forks of one that has imported torch, in place of new ones that do."""

import os
from multiprocessing.connection import Connection
from types import SimpleNamespace

from support.forked import start


class Forked:
    """What `Workers` uses of a `subprocess.Popen`."""

    def __init__(self, command, pass_fds, **_):
        theirs = Connection(os.dup(pass_fds[0]))
        self._process = start(live, theirs)
        theirs.close()
        self.pid = self._process.pid
        self.kill = self._process.kill

    def poll(self):
        return self._process.exitcode

    def wait(self):
        self._process.join()
        return self._process.exitcode


def live(connection):
    """A worker's life."""
    from fedseed.runs.worker_process import main

    main(connection.fileno())


SUBPROCESS = SimpleNamespace(Popen=Forked, DEVNULL=-3)  # in place of the module
