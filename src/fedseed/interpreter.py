"""Other Python processes of fedseed's: they find the modules that this one finds, and no others.

`python -m` and `python -c` put the working folder before everything else, and then a `peft.py` or `json.py` that lies
there with somebody's data would be run. The command `fedseed` does not look there, so what it starts does not either.
A notebook, which does, hands it on: a module beside it is found in its workers, too.
"""

import json
import os
import sys

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from importlib import import_module; "
    "getattr(import_module(sys.argv[2]), sys.argv[3])(*sys.argv[4:])"
)


def command(module: str, function: str, *words: str) -> list[str]:
    """The command line of a process that calls a function.

    Args:
        module: its full name.
        function: its name there.
        words: what it is called with.
    """
    path = json.dumps([os.fspath(entry) for entry in sys.path])
    # -P: the working folder is not there even before the path is ours
    return [sys.executable, "-P", "-c", _START, path, module, function, *words]
