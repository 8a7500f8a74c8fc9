"""The process in which scripts/mutate.py runs tests: what takes long to import is imported once, each run is a fork.

A line of JSON in, a line out: (outcome, seconds, seconds of the processor). How long a run may take is said in both: a
loop without end is known by the processor's, however busy the machine is; a wait without end by the clock's alone.

There are two ways to run tests with a mistake in the code:

    plain      the changed file stands in the copy of the source tree, which the fork imports
    swapped    tests and sources are imported already; the fork puts the changed function's code in the old one's place,
               which saves the seconds that the imports take

The second can't do everything (defaults of arguments, functions that numba compiles), and does not see what happens
while modules are imported; so what it finds no test to notice is run the first way, too.
"""

import contextlib
import gc
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
WARM = """numpy scipy.stats torch torch._dynamo transformers.modeling_utils numba hypothesis pytest pydantic.main
          sklearn anyio.pytest_plugin"""
KILLED, UNFIT = -1000, 98  # in place of an exit code: it took too long; the code can't be swapped
Order = dict[str, Any]
Answer = tuple[int, float, float]  # exit code, seconds, seconds of the processor


def serve() -> None:
    """Import what takes long, then take orders until the input ends."""
    for module in WARM.split():
        with contextlib.suppress(ImportError):
            __import__(module)
    gc.freeze()  # pytest collects garbage, which need not look at all that
    for line in sys.stdin:
        order = json.loads(line)
        if "prepare" not in order:
            say(*forked(order, partial(run_tests, order)))
            continue
        child = os.fork()  # which takes the orders that follow, until one says that it is done
        if not child:
            prepared(order)
        os.waitpid(child, 0)
        say(0, 0.0, 0.0)


def say(code: int, seconds: float, processor: float) -> None:
    """Answer an order."""
    print(json.dumps([code, seconds, processor]), flush=True)


def forked(order: Order, body: Callable[[], NoReturn]) -> Answer:
    """Run something that ends in an exit in a process of its own: its exit code, and the seconds it took."""
    began = time.monotonic()
    child = os.fork()
    if not child:
        os.setsid()  # what the tests start ends with them
        most = math.ceil(order["processor"])
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))
        body()
    late = False
    while True:
        done, status, used = os.wait4(child, 0 if late else os.WNOHANG)
        took = time.monotonic() - began
        if done:
            code = os.waitstatus_to_exitcode(status)
            stopped = late or (code < 0 and used.ru_utime + used.ru_stime >= order["processor"])
            return KILLED if stopped else code, took, used.ru_utime + used.ru_stime
        if took > order["seconds"]:
            os.killpg(child, signal.SIGKILL)
            late = True
        else:
            time.sleep(0.005)


def settle(order: Order) -> None:
    """Make this process one that tests a copy of the source tree, and writes to the log."""
    from hypothesis import Phase, settings

    # the same examples each time, and what fails need not be made small
    settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], derandomize=True, deadline=None)
    handle = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if order["folder"] not in sys.path:
        sys.path.insert(0, order["folder"])
    os.environ["PYTHONPATH"] = order["folder"]  # for processes that a test starts
    os.chdir(ROOT)


def pytest_main(order: Order, *more: str) -> int:
    """Run the tests of an order, or only collect them."""
    import pytest

    words = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow and not long"]
    words += ["--assert=plain", "--hypothesis-profile=mutants", *more, *order["tests"]]
    code = int(pytest.main(words))
    loaded = sys.modules.get("fedseed")
    if loaded is not None and not str(loaded.__file__).startswith(order["folder"]):
        code = 99  # the tests looked at another tree
    sys.stdout.flush()
    return code


def run_tests(order: Order) -> NoReturn:
    """The forked process's life."""
    settle(order)
    os._exit(pytest_main(order))


def run_swapped(order: Order, functions: list[FunctionType]) -> NoReturn:
    """The same where all is imported, with the code of an order's function swapped."""
    if order["text"] is not None and not swap(functions, order["text"], order["function"]):
        os._exit(UNFIT)
    run_tests(order)


def prepared(order: Order) -> NoReturn:
    """Import tests and sources, then run tests with the code of single functions swapped."""
    reply = os.dup(1)
    settle(order)
    code = pytest_main(order, "--collect-only")
    path = order["file"]
    functions = [f for f in gc.get_objects() if isinstance(f, FunctionType) and f.__code__.co_filename == path]
    gc.freeze()
    answer: Answer = (code, 0.0, 0.0)
    while True:
        os.write(reply, (json.dumps(answer) + "\n").encode())
        line = sys.stdin.readline()
        if not line:
            os._exit(0)
        order = json.loads(line)
        if "finish" in order:
            os._exit(0)
        answer = forked(order, partial(run_swapped, order, functions))


def swap(functions: list[FunctionType], text: str, name: str) -> bool:
    """Give a function the code that it has in another text of its module; False if it is the same, or it can't be done.

    Args:
        functions: all of the module's.
        text: the module's other text.
        name: the function, "f" or "Class.method".
    """
    if "njit" in text:
        return False
    swapped = False
    for code in codes(compile(text, "<mutant>", "exec", dont_inherit=True), name):
        for function in functions:
            old = function.__code__
            if old.co_qualname != name or old.co_firstlineno != code.co_firstlineno or same(old, code):
                continue
            if old.co_freevars == code.co_freevars:
                function.__code__ = code
                swapped = True
    return swapped


def codes(code: CodeType, name: str) -> list[CodeType]:
    """The code of all functions of a name."""
    found = [one for one in code.co_consts if isinstance(one, CodeType)]
    return [one for one in found if one.co_qualname == name] + [deep for one in found for deep in codes(one, name)]


def same(a: CodeType, b: CodeType) -> bool:
    """Whether two codes do the same, wherever they stand in a line."""
    if a.co_code != b.co_code or a.co_names != b.co_names or len(a.co_consts) != len(b.co_consts):
        return False
    return all(
        same(x, y) if isinstance(x, CodeType) and isinstance(y, CodeType) else (type(x), repr(x)) == (type(y), repr(y))
        for x, y in zip(a.co_consts, b.co_consts, strict=True)
    )


if __name__ == "__main__":
    serve()
