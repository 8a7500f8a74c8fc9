"""The command line without a process of its own, which would take four seconds to import what this
one has.

`forked.py` has it as a process.
"""

import contextlib
import io
import os
import sys
from importlib import import_module
from types import SimpleNamespace
from unittest import mock


def fedseed(*words, cwd=None):
    """`fedseed WORDS` in this process: its exit code and what it says."""
    from fedseed.cli import app, main

    # so that the modules are there whose consoles are exchanged
    for command in app.OWN.values():
        import_module(f"fedseed.cli.{command.module}")

    said, errors = io.StringIO(), io.StringIO()
    code, before = 0, os.getcwd()  # noqa: PTH109
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "argv", ["fedseed", *map(str, words)]))
        stack.enter_context(mock.patch.dict(os.environ, {"COLUMNS": "80"}))
        stack.enter_context(contextlib.redirect_stdout(said))
        stack.enter_context(contextlib.redirect_stderr(errors))
        # a console knows the width from when it was made
        for name, module in list(sys.modules.items()):
            if name.startswith(("fedseed.cli.", "fedseed_papers.")) and hasattr(module, "console"):
                stack.enter_context(mock.patch.object(module, "console", type(module.console)()))
        stack.callback(os.chdir, before)
        os.chdir(cwd or before)
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return SimpleNamespace(returncode=code, stdout=said.getvalue(), stderr=errors.getvalue())


def well(*words, cwd=None):
    """The same of a command that ends well."""
    done = fedseed(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done


def refused(code, text, *words, cwd=None):
    """One that ends with this code, and says why in one line, in which the text is."""
    done = fedseed(*words, cwd=cwd)
    assert done.returncode == code and text in done.stderr and done.stderr.count("\n") == 1, (
        done.stderr
    )
