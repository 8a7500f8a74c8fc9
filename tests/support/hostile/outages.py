"""A broker that goes away while a federation runs: killed and started again, or stopped as a machine that hangs."""

import math
import random
import signal
import time
from dataclasses import dataclass

from support.network import Network, Server, until

PATIENCE = 600.0  # seconds for the next step, before a run counts as hung


@dataclass(frozen=True)
class Outage:
    """One outage.

    Args:
        way: "killed" (SIGKILL, and started again), "ended" (SIGTERM, and started again), "stopped" (SIGSTOP, SIGCONT).
        seconds: how long it lasts.
        pause: seconds after a step until it begins.
    """

    way: str
    seconds: float
    pause: float


def drawn(seed, count, shortest=0.2, longest=60.0):
    """Outages; their lengths are spread evenly over orders of magnitude, the shortest and the longest among them.

    Args:
        seed: of the draw.
        count: how many.
        shortest: seconds.
        longest: seconds.
    """
    rng = random.Random(f"outages {seed}")
    low, high = math.log(shortest), math.log(longest)
    lengths = [math.exp(low + (high - low) * i / max(1, count - 1)) for i in range(count)]
    rng.shuffle(lengths)
    return [Outage(rng.choice(["killed", "ended", "stopped"]), s, rng.uniform(0, 0.2)) for s in lengths]


@dataclass
class Weathered:
    """What became of a run.

    Args:
        recoveries: seconds from each outage's end to the next step; of those that came before the run was over.
        digest: of all.
        repeated: rounds that were begun again.
    """

    recoveries: list[float]
    digest: str
    repeated: int


def weather(starter, problem, folder, recipe, outages, expected, inline=None, dead_after=30.0):
    """A run through outages: everybody waits and goes on, and the digest is that of an undisturbed run.

    Args:
        starter: of processes.
        problem: the small problem.
        folder: a new one.
        recipe: a method and so on; three rounds for each outage, and three more, are run.
        outages: see `drawn`.
        expected: makes the summary of an undisturbed run of a whole recipe.
        inline: bytes from which on messages go through the object store; None: as usual.
        dead_after: seconds of silence after which a client counts as gone.
    """
    server = Server(folder / "nats")
    patient = {"minimum": 5, "per_round": 5, "deadline": 3600.0, "dead_after": dead_after}
    whole = {**recipe, "rounds": 3 * len(outages) + 3, "evaluation": {"every": 3}, "federation": patient}
    more = {} if inline is None else {"inline": inline}
    net = Network(starter, server, folder, whole, run="weather", **more)
    try:
        coordinator = net.coordinator()
        hosts = [net.host(0, 1, 2, slow=0.3), net.host(3, 4, slow=0.3)]
        recoveries = []
        for outage in outages:
            if not any(host.ended() for host in hosts):  # on a busy machine rounds go by before one looks
                recoveries.append(_weather(server, coordinator, hosts, outage))
        digest = net.check(problem, coordinator, hosts, expected(net.recipe))
        return Weathered(recoveries, digest, net.summary()["repeated_rounds"])
    finally:
        net.stop()
        server.process.send_signal(signal.SIGCONT)
        server.kill()


def _steps(host):
    """The last step that a process says it has applied."""
    return max((int(line.split()[1]) for line in host.said.splitlines() if line.startswith("round ")), default=0)


def _weather(server, coordinator, hosts, outage):
    processes = [coordinator, *hosts]

    def gone_on(since):
        for one in processes:
            assert not one.ended() or one.code == 0, f"after {outage}: {one.said[-2000:]}{one.text}"
        return all(host.code is not None or _steps(host) > since for host in hosts)

    since = max(map(_steps, hosts))
    until(lambda: gone_on(since), PATIENCE, "the run does not go on")
    time.sleep(outage.pause)
    if outage.way == "stopped":
        server.process.send_signal(signal.SIGSTOP)
    else:
        server.process.send_signal(signal.SIGTERM if outage.way == "ended" else signal.SIGKILL)
        server.process.wait()
    time.sleep(outage.seconds)
    since = max(map(_steps, hosts))
    began = time.monotonic()
    if outage.way == "stopped":
        server.process.send_signal(signal.SIGCONT)
    else:
        server.start()
    until(lambda: gone_on(since), PATIENCE, f"the run does not go on after {outage}")
    return time.monotonic() - began
