"""Nodes of the small problem as processes of their own, which can be killed, also by themselves."""

import os
import signal
import sys
import traceback
from pathlib import Path

import torch

from fedseed.decentralised.history import History
from fedseed.decentralised.model import MeshModel
from fedseed.decentralised.node import Node
from fedseed.decentralised.pace import PaceSettings
from fedseed.decentralised.process import MeshProcess
from fedseed.durable import Appender
from fedseed.reports.progress import Progress
from fedseed.runs.mesh import keep_result
from fedseed.transport.base import Access
from fedseed.transport.nats_mesh import NatsMesh
from support.forked import start
from support.mesh import METHODS, Nodes
from support.network import until

PACE = {"deadline_seconds": 120.0, "silence_seconds": 3.0, "beat_seconds": 0.2}
# moments to die in: what is called then
MOMENTS = {
    "before-the-disk": (Appender, "append"),
    "sending": (Node, "_pass_on"),
    "listening": (History, "take"),
    "undoing": (MeshModel, "_undo"),
    "training": (MeshModel, "train"),
    "combining": (MeshModel, "_combine"),
}


class Written(Progress):
    """Writes what is said into a file."""

    def __init__(self, path):
        self.file = open(path, "a", buffering=1)  # noqa: SIM115

    def note(self, text):
        self.file.write(f"note {text}\n")

    def warn(self, text):
        self.file.write(f"warning {text}\n")


def die_at(owner, name, count):
    """Kill this process when a function is called for the count-th time; half of the times after
    it has returned.
    """
    original, seen = getattr(owner, name), []

    def wrapped(*arguments, **options):
        seen.append(name)
        if len(seen) == count and count % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **options)
        if len(seen) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, wrapped)


def live(order):
    """Live as a node does, to the end of this process."""
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    code = 1
    try:
        if order.get("moment"):
            owner, name = MOMENTS[order["moment"]]
            die_at(owner, name, order["count"])
        folder = Path(order["folder"])
        pace = PaceSettings(**PACE, farewell_seconds=order.get("farewell", 120.0))
        nodes = Nodes(order["nodes"], METHODS[order["method"]], order["rounds"], folder, pace=pace)
        node = nodes.make(order["name"], order["neighbours"], order.get("now") or clock())
        transport = NatsMesh(Access(order["nats"]), "mesh", order.get("servers"))
        process = MeshProcess(node, transport, Written(order["log"] + ".said"))
        result = process.run()
        keep_result(folder / order["name"], node.model, result)
        Path(order["log"] + ".digest").write_text(result.digest)
        code = 0
    except BaseException as error:
        traceback.print_exc()
        print(f"{type(error).__name__}: {error}")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def clock():
    """The seconds of the clock that a process uses."""
    import time

    return time.monotonic()


class NodeProcess:
    """A node as a process; started again it goes on.

    Args:
        folder: for all nodes' logs; what this one says lies beside.
        order: see `live`.
    """

    def __init__(self, folder, **order):
        self.order = {"folder": str(folder), "method": "own", **order}
        self.name = order["name"]
        self.folder = folder / self.name
        self.log = folder / f"{self.name}.log"
        self.process = None

    def start(self, **more):
        self.process = start(live, {**self.order, "log": str(self.log), **more})
        return self

    def kill(self):
        self.process.kill()
        self.process.join()

    @property
    def code(self):
        return self.process.exitcode

    @property
    def said(self):
        return Path(f"{self.log}.said").read_text() if Path(f"{self.log}.said").exists() else ""

    @property
    def text(self):
        return self.log.read_text() if self.log.exists() else ""

    def own_entries(self):
        """The bytes of its own log on disk."""
        path = self.folder / "logs" / f"{self.name}.log"
        return path.read_bytes() if path.exists() else b""

    def copy_of(self, other):
        """The bytes of what it has of another's log."""
        path = self.folder / "logs" / f"{other.name}.log"
        return path.read_bytes() if path.exists() else b""

    def reach(self, size, seconds=240):
        """Wait until its own log has so many bytes."""
        until(
            lambda: len(self.own_entries()) >= size or self.code is not None,
            seconds,
            f"{self.name} makes no steps: {self.said}{self.text}",
        )

    def digest(self, seconds=300):
        """Its digest at the end."""
        until(
            lambda: self.code is not None, seconds, f"{self.name} goes on: {self.said}{self.text}"
        )
        assert self.code == 0, f"{self.said}{self.text}"
        return Path(f"{self.log}.digest").read_text()
