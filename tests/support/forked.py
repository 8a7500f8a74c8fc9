"""Processes in milliseconds: forks of one that has imported torch and the command line, in place of
new ones that do.

No thread of torch's or numba's is there yet (`forked_ready.py`). A test of what a process imports,
or of its start, needs a new one."""

import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch

from fedseed import processes

CONTEXT = processes.CONTEXT
processes.IMPORTED = ["support.forked_ready"]  # one server for the tests and for what they test


def start(target, *args):
    """A process that does `target(*args)`, which is a function of a module."""
    alone = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    environment = {**os.environ, **alone, "COLUMNS": "200"}
    process = CONTEXT.Process(target=_begin, args=(environment, target, *args))
    # a server with threads could not fork
    with mock.patch.dict(os.environ, alone), processes.serving():
        process.start()
    return process


def _begin(environment, target, *args):
    """The server says nothing of what it can't import: every process would, for seconds."""
    os.environ.clear()
    os.environ.update(environment)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    assert "support.forked_ready" in sys.modules, "support.forked_ready can't be imported"
    target(*args)


def forked(function, *args):
    """What a function of a module returns in a process of its own."""
    ours, theirs = CONTEXT.Pipe()
    process = start(_answer, theirs, function, *args)
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


def _answer(connection, function, *args):
    connection.send(function(*args))


def fedseed_forked(*words, cwd=None, path=(), before=None, beside=None):
    """`fedseed WORDS` in a process of its own.

    Args:
        words: of the command line.
        cwd: its working directory.
        path: folders from which it imports as well.
        before: a function of a test's module, called first.
        beside: a `subprocess.Popen` without which it would wait for ever: killed when that has
            failed.

    Returns:
        Its `returncode`, negative after a signal, `stdout` and `stderr`.
    """
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder, name) for name in ("out", "err")]
        process = start(_live, [*map(str, words)], cwd, [*map(str, path)], said, before)
        while process.exitcode is None:
            process.join(None if beside is None else 0.1)
            if beside is not None and beside.poll():
                process.kill()
        texts = [file.read_text() if file.exists() else "" for file in said]
    return SimpleNamespace(returncode=process.exitcode, stdout=texts[0], stderr=texts[1])


def _live(words, cwd, path, said, before):
    """The command's life."""
    for number, file in enumerate(said, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    torch.set_num_threads(1)  # gradients are sums, and threads decide their order
    with contextlib.ExitStack() as stack:
        stack.callback(sys.stderr.flush)
        stack.callback(sys.stdout.flush)
        sys.path[:0] = path
        sys.argv = ["fedseed", *words]
        if cwd is not None:
            os.chdir(cwd)
        if before is not None:
            before()
        from fedseed.cli import main

        main()
