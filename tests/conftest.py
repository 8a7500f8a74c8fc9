import os

# as the command line sets it; before torch is imported
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# side by side with others: a thread each, or they wait for each other's
if "PYTEST_XDIST_WORKER" in os.environ:
    for threads in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(threads, "1")

import asyncio
import inspect
import signal
from collections import Counter
from functools import partial

import pytest
from hypothesis import settings

# what imports torch, fixtures import: the process that deals out tests to others never needs it
from support.classification_files import write_original
from support.instruction_files import WRITERS, write_natural_instructions
from support.tiers import SLOW

# a shell's background job: what tests start must hear Ctrl-C
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _state_elsewhere(tmp_path_factory):
    """What clients keep of their runs lies in the tests' folder, not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


def pytest_sessionstart(session):
    """Without a GPU, Triton's interpreter stands in for one: Triton asks when a module with kernels
    is imported.
    """
    if getattr(session.config.option, "dist", "no") != "no":
        return  # this process runs no test
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A test that is a coroutine has an event loop of its own."""
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        asyncio.run(
            pyfuncitem.obj(
                **{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
            )
        )
        return True
    return None


# No deadline: a busy machine is no bug. The same examples each time, so that it takes a change to
# make a test fail; the slow tier looks at others, and at more. A failure prints what repeats it.
settings.register_profile(
    "fedseed",
    deadline=None,
    derandomize=not SLOW,
    print_blob=True,
    max_examples=100 if SLOW else 40,
)
settings.load_profile("fedseed")


# -- tiers: see support/tiers.py
# -----------------------------------------------------------------------------------

PROCESSES = {"server", "shared_server", "network"}  # fixtures that make a test a long one
HINTS = {"slow": "make slow", "long": "make test"}
left_out = Counter()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        if PROCESSES & set(getattr(item, "fixturenames", ())):
            item.add_marker("long")
    if not SLOW:
        slow = [item for item in items if item.get_closest_marker("slow")]
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
        if slow:
            config.hook.pytest_deselected(items=slow)


def pytest_deselected(items):
    for item in items:
        left_out[next((tier for tier in HINTS if item.get_closest_marker(tier)), "other")] += 1


def pytest_sessionfinish(session):
    # all that a worker can tell the process that reports
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    left_out.update(
        {
            k: n - left_out[k]
            for k, n in getattr(node, "workeroutput", {}).get("left_out", {}).items()
        }
    )


def pytest_terminal_summary(terminalreporter):
    for tier, hint in HINTS.items():
        if left_out[tier]:
            terminalreporter.write_line(
                f"{left_out[tier]} {tier} cases were left out: {hint} runs them"
            )


# -- the base
# ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def small():
    """The project's small base and its tokenizer; do not train this one."""
    from fedseed.models.loading import load_model

    return load_model("small")


@pytest.fixture
def natural_instructions(tmp_path):
    """Writes a small Natural Instructions folder and returns it."""
    return lambda **tasks: write_natural_instructions(
        tmp_path / "natural-instructions-2.8", **tasks
    )


@pytest.fixture
def instruction_data(tmp_path):
    """Writes a small data set of instructions in its original form, by its task's name, and returns
    its path.
    """
    return {name: partial(write, tmp_path) for name, write in WRITERS.items()}


# -- data sets in their original files, made by us
# -----------------------------------------------------------------


@pytest.fixture
def original(tmp_path):
    """Writes a small data set in its original files and returns the folder."""
    return lambda name, **counts: write_original(name, tmp_path / name, **counts)


@pytest.fixture(scope="session")
def masked_base(tmp_path_factory):
    """The folder of a small random RoBERTa, whose tokenizer has the label words as tokens."""
    from support.published_bases import roberta

    folder = tmp_path_factory.mktemp("masked") / "base"
    roberta(folder, hidden_size=32, max_position_embeddings=130, initializer_range=0.2)
    return folder


@pytest.fixture
def image_base(tmp_path):
    """Writes the folder of a tiny image classifier, "vit" or "resnet", and returns it."""

    def write(kind="vit", backbone=False, processor=True, **settings):
        from transformers import ViTImageProcessor

        from support.pictures import tiny_classifier

        folder = tmp_path / f"{kind}{'-backbone' if backbone else ''}"
        model = tiny_classifier(kind, **settings)
        (model.base_model if backbone else model).save_pretrained(folder)
        if processor:
            ViTImageProcessor(
                size={"height": 16, "width": 16}, image_mean=[0.4] * 3
            ).save_pretrained(folder)
        return folder

    return write


@pytest.fixture
def make_problem():
    from support.problem import Problem

    return Problem


@pytest.fixture
def problem(make_problem):
    return make_problem()


@pytest.fixture
def without_pictures(monkeypatch):
    """Runs that leave out what takes half a second each, where a test does not look at it."""
    from fedseed.runs import network
    from fedseed.runs.loop import Run

    monkeypatch.setattr(Run, "draw", lambda self, folder, metrics: None)
    monkeypatch.setattr(network, "draw_apart", lambda *_: None)


@pytest.fixture
def quickly(without_pictures):
    """Without pictures, and without threads that such small networks only wait for."""
    from fedseed.weights.devices import limited

    with limited(1):
        yield


# -- networks ------------------------------------------------------------------------------------


def nats_server(folder):
    from support.network import Server

    made = Server(folder)
    yield made
    made.kill()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory):
    """A nats-server for tests that leave it alone."""
    yield from nats_server(tmp_path_factory.mktemp("nats"))


@pytest.fixture
def server(tmp_path):
    """A nats-server of the test's own, to be killed."""
    yield from nats_server(tmp_path / "nats")


@pytest.fixture
def network(tmp_path, request):
    """Makes networks, and ends their processes."""
    from support.network import Network

    made = []

    def make(server, recipe, **common):
        name = "".join(c if c.isalnum() else "_" for c in request.node.name)
        made.append(Network(server, tmp_path, recipe, run=name, **common))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def in_process():
    """Runs a recipe here, with one thread as the network's processes do: first-order training sums
    by threads.
    """
    from fedseed.weights.devices import limited
    from support.network import in_process

    with limited(1):
        yield in_process
