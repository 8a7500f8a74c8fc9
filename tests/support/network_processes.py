"""Starts coordinators and hosts as processes of their own, in a process that has imported all. Driven by network.py.

It forks a child for each process that is wanted, which then starts in milliseconds, and starts no threads itself. What
to do comes in over a connection; what came of it is the answer.
"""

import os
import sys
import time
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
import torch._dynamo  # these are imported here so that the children need not

import fedseed.federation.introduction
import fedseed.randomness.kernels.cpu
import fedseed.runs.network
from fedseed.federation.network_client import NetworkClient
from fedseed.reports.progress import Silent
from fedseed.runs.joining import part_of
from fedseed.runs.network import coordinate
from fedseed.runs.recipe import Recipe
from fedseed.transport import transport
from fedseed.transport.base import Access
from fedseed.transport.nats_end import NatsEnd
from support.problem import Problem


def loader(recipe, other_base=False):
    """The small problem of conftest.py as a recipe's federation."""
    problem = Problem()
    model = problem.model
    if other_base:
        problem.model = lambda: moved(model())
    return problem.federation(recipe.method, rounds=recipe.rounds, seed=recipe.seed, joint=recipe.federation.joint,
                              per_round=recipe.federation.count(len(problem.clients)),
                              digest=recipe.model.digest, secure_sums=recipe.secure_sums)  # fmt: skip


def moved(model):
    """A model whose first weight is another one."""
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1
    return model


class Written(Silent):
    """Writes what is said into a file."""

    def __init__(self, path):
        self.file = open(path, "a", buffering=1)  # noqa: SIM115

    def round(self, line):
        self.file.write(f"round {line.round}\n")

    def advance(self, number):
        self.file.write(f"round {number}\n")

    def note(self, text):
        self.file.write(f"note {text}\n")

    def warn(self, text):
        self.file.write(f"warning {text}\n")


def access(order):
    files = (None if order.get(name) is None else Path(order[name]) for name in ("key", "ca", "server_log"))
    return Access(order["nats"], *files)


def coordinator(order, progress):
    if "inline" in order:
        NatsEnd.largest = order["inline"]
    way = transport(access(order), order["run"])
    if not order.get("pictures"):
        fedseed.runs.network.draw_apart = lambda *_: None
    result = coordinate(Recipe.model_validate(order["recipe"]), order["run"], way, Path(order["out"]),
                        order.get("fresh", False), progress)  # fmt: skip
    return result.summary["weights_digest"]


def host(order, progress):
    recipe = Recipe.model_validate(order["recipe"])
    if "skew" in order:
        clock = SimpleNamespace(**{**vars(time), "time": lambda: time.time() + order["skew"]})
        fedseed.federation.introduction.time = clock
    way = transport(access(order), order["run"])
    load = partial(loader, recipe, other_base=order.get("other_base", False))
    joined = NetworkClient(way, order["run"], lambda: part_of(load(), order["clients"]), recipe.rounds, progress)
    worker = joined.hosted.worker
    train_all, apply = worker.train_all, worker.apply

    def slow(*arguments):
        time.sleep(order.get("slow", 0))
        if order.get("hang_at") == joined.at + 1:
            time.sleep(3600)
        return train_all(*arguments)

    def wrong(step):
        result = apply(step)
        if order.get("drift_at") == joined.at + 1:
            with torch.no_grad():
                worker.space.parameters[0].view(-1)[0] += 1
        return result

    worker.train_all, worker.apply = slow, wrong
    return joined.run()


def child(order):
    """The child's whole life."""
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    if "inline" in order:  # messages above go through the object store
        NatsEnd.largest = order["inline"]
    code = 1
    try:
        digest = {"coordinator": coordinator, "host": host}[order["role"]](order, Written(order["log"] + ".said"))
        Path(order["log"] + ".digest").write_text(digest)
        code = 0
    except BaseException as error:
        traceback.print_exc()
        print(f"{type(error).__name__}: {error}")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(orders):
    """Carry out orders until the other end of the connection is closed."""
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "forking is safe without threads only"
    with suppress(EOFError):
        while True:
            order = orders.recv()
            if order["role"] == "wait":
                pid, status = os.waitpid(order["pid"], os.WNOHANG)
                orders.send(os.waitstatus_to_exitcode(status) if pid else None)
                continue
            pid = os.fork()
            if not pid:
                orders.close()
                child(order)
            orders.send(pid)
