"""An honest federation with keys, as docs/federation.md sets one up, and hostile keys beside it.

The coordinator is the real `fedseed serve`, so that its memory is what a user's is. One client of five, and the
watcher, are hostile; `undisturbed` is the same federation in one process, where that client has no examples.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from safetensors.numpy import load_file

from fedseed import Orbit
from fedseed.errors import NetworkError
from fedseed.runs.joining import part_of
from fedseed.runs.learner import limited
from fedseed.runs.recipe import Recipe
from fedseed.runs.weights_file import KEPT
from fedseed.transport import transport
from fedseed.transport.base import Access, end_task
from fedseed.transport.keys import make
from support.hostile.client import HostileClient
from support.hostile.watcher import HostileWatcher
from support.network import Network, Server, free_port
from support.problem import Problem

NAMES = [f"client-{number}" for number in range(5)]
TRAINING = {"learning_rate": 0.3, "batch": 8, "accumulation": 2, "steps": 5}
METHODS = {
    "feedsign": {"name": "feedsign", "basis": "rademacher", "learning_rate": 1e-2, "batch": 8},
    "ferret": {"name": "ferret", "directions": 300, "basis": "hadamard", "blocks": "one", "seeds": "shared",
               "allocation": "previous", "training": TRAINING},
    "fedavg": {"name": "fedavg", "global_rate": 1.5, "training": TRAINING},
    "fedadam": {"name": "fedavg", "server": "adam", "global_rate": 0.01, "training": TRAINING},
    "fedsgd": {"name": "fedsgd", "learning_rate": 0.1, "batch": 8},
    "fedkseed": {"name": "fedkseed", "basis": "hadamard", "basis_size": 64, "candidates": 64, "steps": 6,
                 "learning_rate": 1e-2, "scale": 1e-3, "batch": 8, "importance": True},
}  # fmt: skip
SAME = ("round", "clients", "bytes_up", "bytes_down", "weights_digest", "rounds")  # in metrics.jsonl
TESTS = Path(__file__).parents[2]


def recipe_of(method, rounds, every):
    """A recipe that waits for everybody, however slow the machine is.

    Args:
        method: one of METHODS.
        rounds: how many.
        every: rounds between evaluations.
    """
    patient = {"minimum": 5, "deadline": 3600.0, "dead_after": 3600.0, "joint": False, "per_round": 5}
    return {"seed": 3, "rounds": rounds, "evaluation": {"every": every}, "method": METHODS[method],
            "federation": patient}  # fmt: skip


def toml(table, prefix=""):
    """A recipe as TOML."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += [f"[{prefix}{key}]", toml(value, f"{prefix}{key}.")]
    return "\n".join(lines)


class KeyedServer(Server):
    """A nats-server with TLS, and the keys of five clients, as `fedseed keys` makes them."""

    def __init__(self, folder, run, clients=NAMES):
        self.keys = Path(folder) / "keys"
        port = free_port()
        Path(folder).mkdir(parents=True, exist_ok=True)
        make(run, self.keys, clients, ["localhost", "127.0.0.1"], port)
        super().__init__(Path(folder), self.keys / "nats-server.conf", port)
        self.url = f"tls://127.0.0.1:{port}"


@dataclass
class Watched:
    """What was seen of the coordinator while it ran.

    Args:
        memory: its largest resident memory, bytes.
        answers: seconds that each question for the status took.
        computed: processor seconds of the coordinator between a question and its answer.
        unanswered: questions without an answer.
    """

    memory: int = 0
    answers: list[float] = field(default_factory=list)
    computed: list[float] = field(default_factory=list)
    unanswered: int = 0


class Coordinator:
    """`fedseed serve` as a process, and somebody who asks it how it is going."""

    def __init__(self, server, run, recipe, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.out, self._log, self._run = self.folder / "run", self.folder / "serve.log", run
        path = self.folder / "recipe.toml"
        path.write_text(toml(recipe))
        words = ["serve", path, "--run", run, "--nats", server.url, "--key", server.keys / "coordinator.nk",
                 "--ca", server.keys / "ca.pem", "--server-log", server.folder / "server.log",
                 "--out", self.out]  # fmt: skip
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from fedseed.cli.app import main; main()", *map(str, words)],
                stdout=log, stderr=log, env={**os.environ, "COLUMNS": "200"},
            )  # fmt: skip
        self._reach = Access(server.url, server.keys / "watcher.nk", server.keys / "ca.pem")
        self._asker = None

    @property
    def text(self):
        """What it has said."""
        return self._log.read_text(errors="replace")

    async def ask(self, patience=60.0):
        """Its status, None if no answer comes, or it is over."""
        end = await transport(self._reach, self._run).watcher()
        try:
            answer = await end.status(patience)
            return None if answer is None else json.loads(answer)
        finally:
            await end.close()

    def begin_asking(self):
        """From here on a process asks it how it is going."""
        words = [self._reach.url, self._reach.key, self._reach.ca, self._run, self.process.pid]
        with open(self.folder / "asked.jsonl", "wb") as said:
            self._asker = subprocess.Popen(
                [sys.executable, "-m", "support.hostile.asker", *map(str, words)], stdout=said,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
            )  # fmt: skip

    def watched(self):
        """What that process has seen."""
        self._asker.wait(100)
        lines = [json.loads(line) for line in (self.folder / "asked.jsonl").read_text().splitlines()]
        answered = [line for line in lines if line["answered"]]
        return Watched(max((line["memory"] for line in lines), default=0), [line["took"] for line in answered],
                       [line["computed"] for line in answered], len(lines) - len(answered))  # fmt: skip

    def kill(self):
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._asker is not None and self._asker.poll() is None:
            self._asker.kill()
            self._asker.wait()


@dataclass
class Result:
    """What hostile keys must not change.

    Args:
        model: each step's payload and digest, or the tensors' bytes by name.
        digests: of the weights that the processes ended with.
        lines: of metrics.jsonl, what depends on the steps alone.
    """

    model: object
    digests: set[str]
    lines: list[dict]


@dataclass
class Ended:
    """What a federation came to.

    Args:
        result: its steps and weights.
        summary: the run's.
        said: what the coordinator said.
        watched: see there.
        hostile: the client.
        watcher: the hostile watcher, if there was one.
        seconds: from the first round on.
        let_go: how often the server has ended a connection that did not read fast enough; what waited there is lost.
    """

    result: Result
    summary: dict
    said: str
    watched: Watched
    hostile: HostileClient
    watcher: HostileWatcher
    seconds: float
    let_go: int


def result_of(out, digests):
    """What stands in a run's folder."""
    if (out / "model.orbit").exists():
        model = [(step.round, step.payload, step.digest) for step in Orbit.open(out / "model.orbit").steps()]
    else:
        tensors = load_file(out / "model.safetensors").items()  # of a simulation also the optimiser's state
        model = {name: tensor.tobytes() for name, tensor in tensors if not name.startswith(KEPT)}
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    compared = [{key: line.get(key) for key in SAME} for line in lines]
    for line, seen in zip(lines, compared, strict=True):
        seen["skipped"] = [one["client"] for one in line.get("skipped", [])]  # the reason may be one more refusal
    return Result(model, digests, compared)


def _simulation(recipe, problem, **more):
    checked = Recipe.model_validate(recipe)
    return problem.federation(checked.method, rounds=checked.rounds, seed=checked.seed, joint=False, per_round=5,
                              evaluate_every=checked.evaluation.every, digest=checked.model.digest,
                              **more)  # fmt: skip


def undisturbed(recipe, folder, hostile=3):
    """The same federation in one process; the hostile client, a number, has nothing to send."""
    problem = Problem()
    problem.clients[hostile] = []
    with limited(1):  # as the others' processes
        summary = _simulation(recipe, problem, out=Path(folder)).run().summary
    return result_of(Path(folder), {summary["weights_digest"]})


def run(starter, folder, recipe, seed, acts=0, hostile=3, seconds=None, early=0, heavy=False):
    """Run a federation to its end with one hostile client.

    Args:
        starter: forks honest processes (`support.network.Starter`).
        folder: a new one.
        recipe: of `recipe_of`.
        seed: of what hostile keys do.
        acts: what the client does in each round and at each question; 0: nothing that an honest one would not.
        hostile: the number of the client.
        seconds: how long it goes on all in all, over the rounds, instead of `acts`.
        early: what it does before the run begins.
        heavy: thousands of messages and megabytes, too.
    """
    server = KeyedServer(Path(folder) / "nats", "run")
    try:
        return asyncio.run(_run(starter, server, Path(folder), recipe, seed, acts, hostile, seconds, early, heavy))
    finally:
        server.kill()


async def _run(starter, server, folder, recipe, seed, acts, hostile, seconds, early, heavy):
    keys = server.keys
    net = Network(starter, server, folder, recipe, run="run", ca=str(keys / "ca.pem"))
    name = NAMES[hostile]
    bad = HostileClient(server, "run", part_of(_simulation(net.recipe, Problem()), [name]), seed, acts, heavy)
    watcher = HostileWatcher(server, "run", bad.honest, seed, heavy)
    coordinator = Coordinator(server, "run", net.recipe, folder)
    honest = [number for number in range(5) if number != hostile]
    tasks = []
    try:
        await _until(partial(_listens, coordinator), coordinator, "the coordinator does not begin")
        await bad.early(early)
        hosts = [net.host(number, key=str(keys / f"{NAMES[number]}.nk")) for number in honest]
        await _until(partial(_present, coordinator, 4), coordinator, "the honest clients do not come")
        began = time.monotonic()
        if seconds is not None:
            bad.until, bad.share = began + seconds, seconds / recipe["rounds"]
        coordinator.begin_asking()
        tasks = [asyncio.create_task(work) for work in (bad.live(), watcher.keep_going())]
        while coordinator.process.poll() is None:
            if tasks[0].done():
                tasks[0].result()
            for host in hosts:
                assert not host.ended() or host.code == 0, f"an honest client ends: {host.said}{host.text}"
            await asyncio.sleep(0.05)
        took = time.monotonic() - began
        assert coordinator.process.returncode == 0, coordinator.text
        watched = await asyncio.to_thread(coordinator.watched)
        digests = {await asyncio.to_thread(lambda host=host: host.digest) for host in hosts}
    finally:
        for task in tasks:
            await end_task(task)
        await asyncio.gather(*tasks, return_exceptions=True)
        coordinator.kill()
        net.stop()
    summary = json.loads((coordinator.out / "summary.json").read_text())
    result = result_of(coordinator.out, digests)
    let_go = server.log.count("Slow Consumer Detected")
    return Ended(result, summary, coordinator.text, watched, bad, watcher, took, let_go)


async def _until(true, coordinator, what, seconds=240):
    end = time.monotonic() + seconds
    while not await true():
        assert coordinator.process.poll() is None, coordinator.text
        assert time.monotonic() < end, f"{what}: {coordinator.text}"
        await asyncio.sleep(0.1)


async def _listens(coordinator):
    with suppress(NetworkError):
        return await coordinator.ask(2.0) is not None


async def _present(coordinator, count):
    status = await coordinator.ask()
    return status is not None and status["alive"] >= count
