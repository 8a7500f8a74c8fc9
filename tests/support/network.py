"""A real nats-server, real processes, and what must be true of a run whatever happened to it."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from fedseed import Orbit
from fedseed.federation.large import is_stored
from fedseed.federation.messages import Message
from fedseed.federation.protocol import Entry, read_step
from fedseed.runs.recipe import Recipe
from fedseed.transport import transport
from fedseed.transport.base import Access
from support.forked import CONTEXT, start

WITHOUT = "FEDSEED_WITHOUT_NATS"  # set it to leave out the tests that need nats-server


class Server:
    """A nats-server with JetStream on a free port."""

    def __init__(self, folder, config=None, port=None):
        assert shutil.which("nats-server"), (
            f"nats-server is missing: apt-get install nats-server, or set {WITHOUT}=1 to leave these tests out"
        )
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        self.config = config
        self.url = f"nats://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        command = ["nats-server", "-l", str(self.folder / "server.log")]
        if self.config is None:
            command += ["-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder / "store")]
        else:
            command += ["-c", str(self.config)]
        self.process = subprocess.Popen(command)
        until(lambda: reachable(self.port), 60, "nats-server does not start")

    def kill(self):
        self.process.kill()
        self.process.wait()

    @property
    def log(self):
        return (self.folder / "server.log").read_text()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def reachable(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def until(true, seconds, what):
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < end, what
        time.sleep(0.02)
    return value


async def until_async(true, seconds, what):
    """The same where an event loop goes on meanwhile."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.02)


class Starter:
    """Starts processes; see network_processes.py."""

    def __init__(self):
        self._orders, theirs = CONTEXT.Pipe()
        self._process = start(_take_orders, theirs, daemon=True)
        theirs.close()

    def order(self, **order):
        self._orders.send(order)
        return self._orders.recv()

    def stop(self):
        self._orders.close()
        self._process.join()


def _take_orders(orders):
    from support.network_processes import main

    main(orders)


class Child:
    """One of the processes."""

    def __init__(self, starter, log, **order):
        self.log, self._starter, self.code = log, starter, None
        self.pid = starter.order(log=str(log), **order)

    def signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        if self.code is None:
            self.signal(signal.SIGKILL)
            self.wait()

    def ended(self):
        if self.code is None:
            self.code = self._starter.order(role="wait", pid=self.pid)
        return self.code is not None

    def wait(self, seconds=240):
        until(self.ended, seconds, f"it does not end: {self.said}{self.text}")
        return self.code

    @property
    def said(self):
        path = Path(f"{self.log}.said")
        return path.read_text() if path.exists() else ""

    @property
    def text(self):
        return self.log.read_text() if self.log.exists() else ""

    @property
    def digest(self):
        assert self.wait() == 0, f"{self.said}{self.text}"
        return Path(f"{self.log}.digest").read_text()

    def reached(self, number):
        return any(line.startswith("round ") and int(line.split()[1]) >= number for line in self.said.splitlines())


class Network:
    """One run: its server, its coordinator and its hosts."""

    def __init__(self, starter, server, folder, recipe, run="test", **common):
        self.starter, self.server, self.folder, self.run = starter, server, folder, run
        self.recipe = {"seed": 3, "rounds": 6, "evaluation": {"every": 2}, **recipe}
        self.recipe["federation"] = {"joint": False, "dead_after": 30.0, **self.recipe.get("federation", {})}
        self.common = {"nats": server.url, **common}
        self.children = []
        self.out = folder / "run"

    def _start(self, role, name, **order):
        log = self.folder / f"{name}-{len(self.children)}.log"
        order = {"run": self.run, "recipe": self.recipe, **self.common, **order}
        child = Child(self.starter, log, role=role, **order)
        self.children.append(child)
        return child

    def coordinator(self, **order):
        return self._start("coordinator", "coordinator", **{"out": str(self.out), **order})

    def host(self, *numbers, **order):
        return self._start("host", f"host{numbers[0]}", clients=[f"client-{n}" for n in numbers], **order)

    def stop(self):
        for child in self.children:
            child.kill()

    def lines(self):
        return [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]

    def summary(self):
        return json.loads((self.out / "summary.json").read_text())

    def status(self, key=None, ca=None):
        from fedseed.cli.network import ask

        return asyncio.run(ask(Access(self.common["nats"], key, ca), self.run))

    def check(self, problem, coordinator, hosts, expected=None):
        """No step lost or doubled; every client's weights are the orbit's replay, and as expected."""
        digests = {coordinator.digest, *(host.digest for host in hosts)}
        assert len(digests) == 1, digests
        recipe = Recipe.model_validate(self.recipe)
        if not recipe.method.catch_up.replaces:
            orbit = Orbit.open(self.out / "model.orbit")
            assert orbit.complete and [r.round for r in orbit.steps()] == list(range(1, recipe.rounds + 1))
            assert {orbit.replay(problem.model())} == digests
            if not self.stores_steps():  # otherwise the log has references to them
                assert [m.payload for m in self.steps()] == [r.payload for r in orbit.steps()]
        lines = self.lines()
        assert sum(line.get("rounds", 0) for line in lines) == recipe.rounds
        assert lines[-1]["weights_digest"] in digests
        if expected is not None:
            assert digests == {expected["weights_digest"]}
        return digests.pop()

    def steps(self):
        """The step messages of the server's log, in order; each stands there once."""
        entries = asyncio.run(self._entries())
        steps = [Message.decode(read_step(e)[1]) for e in entries if e.kind == "T" and read_step(e)[1][:2] == b"FS"]
        assert [s.round for s in steps] == list(range(1, len(steps) + 1))
        return steps

    def stores_steps(self):
        """Whether steps were so large that the object store has them."""
        return any(e.kind == "T" and is_stored(read_step(e)[1]) for e in asyncio.run(self._entries()))

    async def _entries(self):
        key, ca = (self.common.get(name) and Path(self.common[name]) for name in ("key", "ca"))
        end = await transport(Access(self.common["nats"], key, ca), self.run).coordinator()
        last, found = (await end.log()).last, []
        stop = await end.follow(0, lambda number, data: found.append(Entry.decode(data)))
        while len(found) < last:
            await asyncio.sleep(0.01)
        await stop()
        await end.close()
        return found


def repeats(refusals):
    """Whether nothing was refused but answers that came twice: where all is slow, a plan goes out once more."""
    return all("has answered round" in reason for reasons in refusals.values() for reason in reasons)


def in_process(problem, recipe, per_round=None):
    """The summary and metrics of the same run in one process."""
    checked = Recipe.model_validate(recipe)
    result = problem.federation(
        checked.method,
        rounds=checked.rounds,
        seed=checked.seed,
        per_round=checked.federation.count(len(problem.clients)),
        evaluate_every=checked.evaluation.every,
        joint=checked.federation.joint,
        digest=checked.model.digest,
        digest_every=checked.evaluation.digest_every,
        secure_sums=checked.secure_sums,
        aggregation=checked.aggregation,
    ).run()
    return result
