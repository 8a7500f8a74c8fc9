"""An honest federation with keys, as docs/federation.md sets one up, and hostile keys beside it.

The coordinator is the real `fedseed serve`, so that its memory is what a user's is. One client of five, and the
watcher, are hostile; `undisturbed` is the same federation in one process, where that client has no examples.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import tomli_w
from safetensors.numpy import load_file

from fedseed import Orbit
from fedseed.errors import NetworkError
from fedseed.runs.joining import part_of
from fedseed.runs.learner import limited
from fedseed.runs.store import KEPT
from fedseed.transport import transport
from fedseed.transport.base import Access, end_task
from support.forked import start
from support.hostile import doing
from support.hostile.client import HostileClient, HostileWatcher
from support.network import Network, federation_of, keyed_server
from support.problem import METHODS, Problem

NAMES = [f"client-{number}" for number in range(5)]
SAME = ("round", "clients", "bytes_up", "bytes_down", "weights_digest", "rounds")  # in metrics.jsonl
MEMORY = 150 * 10**6  # bytes of the coordinator
COMPUTED = 1.0  # its processor seconds between a question for the status and the answer: the clock is the machine's
PATIENCE, PAUSE = 60.0, 0.25  # seconds for an answer, and between questions
SAID = 200_000  # characters on its terminal
NOBODY = ("watcher", "a watcher", "somebody")  # the server's own words prove no author
PERHAPS = ("somebody at ", "somebody as ")  # an address, or a name that nobody has proven
LATE = re.compile(  # what is said of an honest client's answer that comes twice, or when its round is over
    r"has answered round|no round is open|round \d+ was expected, round \d+ came|round \d+ attempt \d+ is not open"
    r"|attempt \d+ is open, this answers|is being closed|it came when its round was over"
)


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


# -- somebody who asks it how it is going, in a process where nothing else delays the answers ------------------------


def _look(pid):
    """A process's processor seconds so far and its largest resident memory, bytes; None: it is over."""
    with suppress(OSError, ValueError, IndexError):
        found = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if "VmHWM" in found:  # else it has ended, and nobody has taken note
            return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK"), 1024 * int(found["VmHWM"].split()[0])
    return None


async def _status(reach, patience):
    end = await transport(reach, "run").watcher()
    try:
        return await end.status(patience)
    finally:
        await end.close()


def keep_asking(reach, pid, path):
    """Writes a line for each question, until the process is over: what it took, computed, and had of memory."""

    async def ask():
        end = await transport(reach, "run").watcher()
        while (before := _look(pid)) is not None:
            began, answer = time.monotonic(), None
            with suppress(NetworkError):
                answer = await end.status(PATIENCE)
            took, after = time.monotonic() - began, _look(pid)
            if after is not None and (answer or took >= PATIENCE):  # or it has let go of the server, at its end
                told = {"took": took, "computed": after[0] - before[0], "memory": after[1], "answered": bool(answer)}
                with open(path, "a") as file:
                    file.write(json.dumps(told) + "\n")
            await asyncio.sleep(PAUSE)
        await end.close()

    asyncio.run(ask())


# -- the federation --------------------------------------------------------------------------------------------------


def result_of(out, digests):
    """What hostile keys must not change: steps or weights, the processes' digests, metrics that depend on steps."""
    if (out / "model.orbit").exists():
        model = [(step.round, step.payload, step.digest) for step in Orbit.open(out / "model.orbit").steps()]
    else:
        tensors = load_file(out / "model.safetensors").items()  # of a simulation also the optimiser's state
        model = {name: tensor.tobytes() for name, tensor in tensors if not name.startswith(KEPT)}
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    skipped = [
        [one["client"] for one in line.get("skipped", [])] for line in lines
    ]  # the reason may be one more refusal
    return {"model": model, "digests": digests, "skipped": skipped,
            "lines": [{key: line.get(key) for key in SAME} for line in lines]}  # fmt: skip


def undisturbed(recipe, folder, hostile=3):
    """The same federation in one process; the hostile client, a number, has nothing to send."""
    problem = Problem()
    problem.clients[hostile] = []
    with limited(1):  # as the others' processes
        summary = federation_of(problem, recipe, out=folder).run().summary
    return result_of(folder, {summary["weights_digest"]})


def run(folder, recipe, seed, acts=0, hostile=3, seconds=None, early=0, heavy=False):
    """Run a federation to its end with one hostile client.

    Args:
        folder: a new one.
        recipe: of `recipe_of`.
        seed: of what hostile keys do.
        acts: what the client does in each round and at each question; 0: nothing that an honest one would not.
        hostile: the number of the client.
        seconds: how long it goes on all in all, over the rounds, instead of `acts`.
        early: what it does before the run begins.
        heavy: thousands of messages and megabytes, too.
    """
    server = keyed_server(folder / "nats", "run", NAMES)
    try:
        return asyncio.run(_run(server, folder, recipe, seed, acts, hostile, seconds, early, heavy))
    finally:
        server.kill()


async def _run(server, folder, recipe, seed, acts, hostile, seconds, early, heavy):
    keys, ca, out, log = server.keys, server.keys / "ca.pem", folder / "run", folder / "serve.log"
    net = Network(server, folder, recipe, run="run", ca=str(ca))
    bad = HostileClient(
        server, "run", part_of(federation_of(Problem(), net.recipe), [NAMES[hostile]]), seed, acts, heavy
    )
    watcher = HostileWatcher(server, "run", bad.honest, seed, heavy)
    (folder / "recipe.toml").write_text(tomli_w.dumps(net.recipe))
    words = ["serve", folder / "recipe.toml", "--run", "run", "--nats", server.url, "--key", keys / "coordinator.nk",
             "--ca", ca, "--server-log", server.folder / "server.log", "--out", out]  # fmt: skip
    with open(log, "ab") as said:
        coordinator = subprocess.Popen(
            [sys.executable, "-c", "from fedseed.cli.app import main; main()", *map(str, words)],
            stdout=said, stderr=said, env={**os.environ, "COLUMNS": "200"},
        )  # fmt: skip
    reach, tasks, asker = Access(server.url, keys / "watcher.nk", ca), [], None

    async def until_alive(count, what):
        end = time.monotonic() + 240
        while True:
            with suppress(NetworkError):
                answer = await _status(reach, 60.0 if count else 2.0)
                if answer is not None and json.loads(answer)["alive"] >= count:
                    return
            assert coordinator.poll() is None and time.monotonic() < end, f"{what}: {log.read_text(errors='replace')}"
            await asyncio.sleep(0.1)

    try:
        await until_alive(0, "the coordinator does not begin")
        await doing.foreign_subject(bad, 1, 0)
        await bad.early(early)
        honest = [number for number in range(5) if number != hostile]
        hosts = [net.host(number, key=str(keys / f"{NAMES[number]}.nk")) for number in honest]
        await until_alive(4, "the honest clients do not come")
        if seconds is not None:
            bad.until, bad.share = time.monotonic() + seconds, seconds / recipe["rounds"]
        asker = start(keep_asking, reach, coordinator.pid, folder / "asked.jsonl", daemon=True)
        tasks = [asyncio.create_task(work) for work in (bad.live(), watcher.keep_going())]
        while coordinator.poll() is None:
            if tasks[0].done():
                tasks[0].result()
            for host in hosts:
                assert not host.ended() or host.code == 0, f"an honest client ends: {host.said}{host.text}"
            await asyncio.sleep(0.05)
        assert coordinator.returncode == 0, log.read_text(errors="replace")
        await asyncio.to_thread(asker.join, 100)
        digests = {await asyncio.to_thread(lambda host=host: host.digest) for host in hosts}
    finally:
        for task in tasks:
            await end_task(task)
        await asyncio.gather(*tasks, return_exceptions=True)
        coordinator.kill()
        coordinator.wait()
        if asker is not None:
            asker.kill()
        net.stop()
    asked = [json.loads(line) for line in (folder / "asked.jsonl").read_text().splitlines()]
    return SimpleNamespace(
        result=result_of(out, digests),
        said=log.read_text(errors="replace"),
        asked=asked,
        hostile=bad,
        watcher=watcher,
        refusals=net.summary()["refusals"],
        let_go=(server.folder / "server.log")
        .read_text(errors="replace")
        .count("Slow Consumer Detected"),  # connections that read too slowly: what waited is lost
    )


def check(ended, expected):
    """Compare what became of a federation with the same one in which nobody is hostile (`undisturbed`)."""
    for what, value in expected.items():
        assert ended.result[what] == value, what
    assert max(line["memory"] for line in ended.asked) < MEMORY
    assert all(line["answered"] for line in ended.asked) and len(ended.asked) > 2
    assert max(line["computed"] for line in ended.asked) < COMPUTED, ended.asked
    assert len(ended.said) < SAID and "Traceback" not in ended.said, ended.said[-5000:]
    assert not any(c in ended.said for c in "\x1b\x07\u202e"), "control characters"
    name = ended.hostile.name
    others = {of: reasons for of, reasons in ended.refusals.items() if of not in (name, *NOBODY)}
    others = {of: reasons for of, reasons in others.items() if not of.startswith(PERHAPS)}
    assert all(LATE.search(reason) for reasons in others.values() for reason in reasons), others
    counted = sum(sum(ended.refusals.get(of, {}).values()) for of in (name, f"somebody as {name}"))
    told = "\n".join(reason for of in ended.refusals.values() for reason in of)
    for said in ("it may not publish to ", "it may not subscribe to fedseed.run."):
        assert said in told, f"{said} is in no refusal"  # of the server itself: its log is read
    least = 0 if ended.let_go else ended.hostile.certain  # what the server has thrown away nobody can count
    assert least <= counted <= ended.hostile.sent + ended.hostile.foreign * 2 + 100, (
        f"{ended.hostile.certain} of {ended.hostile.sent} messages had to be refused, {counted} were"
    )
