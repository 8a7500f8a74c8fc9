"""pytest's workers as forks of one process that has imported what takes long, in place of new ones that import it each.

`conftest.py` calls `preload`. xdist starts a worker by a command; here it is `hand_over`, which gives its pipes to the
process that has everything and lives as long as the worker that this forks. Nothing of it is needed for a test to pass.
"""

import atexit
import contextlib
import io
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

# those that start no thread when they are imported: pandas does, and so does what imports it
MODULES = ("torch", "torch._dynamo", "scipy.optimize", "scipy.stats", "transformers.modeling_utils",
           "transformers.trainer_utils", "peft", "matplotlib.pyplot", "support.command_line",
           "fedseed.experiments.bench")  # fmt: skip
SETTINGS = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}  # as `conftest.py` has them
DEVICES = ("/dev/nvidiactl", "/dev/kfd")  # a library that has looked at a GPU cannot be forked


def preload(specs):
    """Have xdist's workers forked, where that is safe.

    Args:
        specs: execnet's of the workers; changed.

    Returns:
        What ends the process, to be called when there are no more workers.
    """
    if len(specs) < 2 or sys.platform != "linux" or any(map(os.path.exists, DEVICES)):
        return lambda: None
    folder = tempfile.TemporaryDirectory()
    address = str(Path(folder.name, "socket"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from support.preloaded import serve; exec(serve({listener.fileno()}))"
    )
    server = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, pass_fds=[listener.fileno()],
                              env={**SETTINGS, **os.environ})  # fmt: skip
    listener.close()
    for spec in specs:
        spec.python = f"'{sys.executable}' -S '{__file__}' '{address}'"

    def end():
        server.communicate()  # its standard input ends, and so does it
        folder.cleanup()

    return end


def serve(listening):
    """Fork a worker for each that hands over its pipes; a worker whose `hand_over` is killed is killed.

    Args:
        listening: the file descriptor of a socket.

    Returns:
        In a worker: the code that it was started with. The process itself ends with its standard input.
    """
    import gc
    import importlib

    with contextlib.redirect_stderr(io.StringIO()):  # libraries tell of others that they miss
        for name in MODULES:
            importlib.import_module(name)
    compiled = importlib.import_module("support.compiled")
    assert compiled.threads() == 1, "forking is safe without threads only"
    compiled.load()
    gc.collect()
    gc.freeze()  # what is there stays: workers need no copies of it to see that
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the workers
    listener, workers = socket.socket(fileno=listening), {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        while True:
            key = selector.select()[0][0]
            if key.fileobj == 0:
                os._exit(0)
            if key.fileobj is listener:
                connection, _ = listener.accept()
                code, pipes, _, _ = socket.recv_fds(connection, 1 << 16, 3)
                pid = os.fork()
                if pid == 0:
                    signal.signal(signal.SIGINT, interrupted)
                    atexit.register(gc.unfreeze)  # libraries tell of what is left when a process ends
                    for number, pipe in enumerate(pipes):
                        os.dup2(pipe, number)
                    others = [other for handle, (_, it) in workers.items() for other in (handle, it.fileno())]
                    for file in (*pipes, *others, connection.detach(), listener.detach()):
                        os.close(file)
                    importlib.import_module("support.forked").plant()
                    return code.decode()
                for pipe in pipes:
                    os.close(pipe)
                connection.send(b"1")
                handle = os.pidfd_open(pid)
                workers[handle] = pid, connection
                selector.register(handle, selectors.EVENT_READ)
                selector.register(connection, selectors.EVENT_READ, pid)
            elif key.data is not None:  # killed: so is its worker
                selector.unregister(key.fileobj)
                os.kill(key.data, signal.SIGKILL)
            else:  # a worker has ended: so does its `hand_over`
                pid, connection = workers.pop(key.fileobj)
                os.waitpid(pid, 0)
                for file in (key.fileobj, connection):
                    with contextlib.suppress(KeyError):
                        selector.unregister(file)
                os.close(key.fileobj)
                connection.close()


def hand_over(address, *options):
    """What xdist starts: `python OPTIONS` done by a fork that has this one's pipes; by this one, if there is none."""
    with socket.socket(socket.AF_UNIX) as connection:
        forked = b""
        with contextlib.suppress(OSError):
            connection.connect(address)
            socket.send_fds(connection, [options[-1].encode()], [0, 1, 2])
            forked = connection.recv(1)
        if not forked:
            os.execv(sys.executable, [sys.executable, *options])
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for pipe in (0, 1):
            os.close(pipe)
        connection.recv(1)  # until it is closed


if __name__ == "__main__":
    hand_over(*sys.argv[1:])
