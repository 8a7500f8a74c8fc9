"""A federation over NATS on one machine: what a step costs beyond the computation, memory, bytes on
the wire.

    python benchmarks/federation.py steps [--steps 2000] [--processes 1] [--clients 5] [--signed]
    python benchmarks/federation.py memory                   1,000 clients hosted by one process
    python benchmarks/federation.py wire                     bytes per client and round, beside the
    payload

nats-server, coordinator and clients are separate processes; the server's store is in a temporary
folder (--store).
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

METHODS: dict[str, dict[str, Any]] = {
    "feedsign": {"name": "feedsign", "basis": "rademacher", "learning_rate": 1e-3, "batch": 4},
    "zo-fedsgd": {"name": "zo-fedsgd", "basis": "rademacher", "learning_rate": 1e-3, "batch": 4},
    "ferret": {
        "name": "ferret",
        "directions": 7000,
        "basis": "hadamard",
        "blocks": "one",
        "seeds": "shared",
        "allocation": "size",
        "training": {"optimizer": "sgd", "learning_rate": 0.1, "steps": 2, "batch": 4},
    },
    "fedkseed": {
        "name": "fedkseed",
        "candidates": 4096,
        "steps": 200,
        "learning_rate": 1e-4,
        "batch": 4,
    },
    "fedavg": {
        "name": "fedavg",
        "training": {"optimizer": "sgd", "learning_rate": 0.1, "steps": 2, "batch": 4},
    },
}
SIZES = {"trivial": (20, 32, 5), "million": (512, 1024, 512)}


def recipe(method: str, rounds: int, every: int) -> Any:
    """A recipe whose model and data come from `loaded`."""
    from fedseed.recipe.settings import Recipe

    return Recipe.model_validate(
        {
            "seed": 3,
            "rounds": rounds,
            "method": METHODS[method],
            "evaluation": {"every": every, "rouge": False},
        }
    )


def federation(recipe: Any, count: int, size: str) -> Any:
    """A two-layer network and `count` clients with 20 examples each."""
    import torch
    from torch.nn.functional import cross_entropy

    from fedseed import Federation
    from fedseed.objectives.losses import Supervised
    from fedseed.tasks.data import ClientData

    wide, hidden, classes = SIZES[size]
    g = torch.Generator().manual_seed(1)
    teacher = torch.randn(wide, classes, generator=g)

    def data(n: int) -> list[Any]:
        x = torch.randn(n, wide, generator=g)
        return [(row, (row @ teacher).argmax()) for row in x]

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(wide, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, classes)
    )
    objective = Supervised(lambda out, y: cross_entropy(out, y, reduction="none"))
    test = data(100)
    clients = [ClientData(f"client-{i:04d}", data(20)) for i in range(count)]
    return Federation(
        model,
        clients,
        recipe.method,
        objective,
        recipe.rounds,
        seed=recipe.seed,
        evaluation={"": test},
    )


class Watch:
    """Notes when each round was over."""

    def __init__(self) -> None:
        self.times: list[float] = []

    @contextmanager
    def running(self, name: str, rounds: int) -> Iterator[None]:
        """The run begins."""
        yield

    def round(self, line: Any) -> None:
        """A round with a line of its own."""
        if line.round:
            self.times.append(time.perf_counter())

    def advance(self, number: int) -> None:
        """A round without."""
        self.times.append(time.perf_counter())

    def note(self, text: str) -> None:
        """Nothing."""

    def warn(self, text: str) -> None:
        """Shown."""
        print("warning", text, file=sys.stderr)


def coordinator(a: argparse.Namespace) -> None:
    """The coordinator's process: no torch in it."""
    from fedseed.reports.machine import resident_memory
    from fedseed.runs.network import NetworkRun
    from fedseed.transport import transport
    from fedseed.transport.base import Access

    watch = Watch()
    way = transport(Access(a.nats, a.key), "bench")
    served = NetworkRun(
        recipe(a.method, a.steps, a.every), "bench", way, Path(a.out), progress=watch
    )
    began = time.perf_counter()
    summary = served.run(resume=True).summary
    seconds = time.perf_counter() - began
    assert "torch" not in sys.modules and "transformers" not in sys.modules
    served.close()
    gaps = [b - a for a, b in zip(watch.times, watch.times[1:], strict=False)]
    memory = {"memory": resident_memory(), "peak_memory": resident_memory(peak=True)}
    payload = {k: summary[k] for k in ("payload_bytes_up", "payload_bytes_down", "weights_digest")}
    print(
        json.dumps(
            {
                "times": watch.times,
                "step": median(gaps) if gaps else 0,
                "seconds": seconds,
                **memory,
                **payload,
            }
        )
    )


def host(a: argparse.Namespace) -> None:
    """A process that hosts clients."""
    from fedseed.federation.client.network import NetworkClient
    from fedseed.federation.client.state import Hosted
    from fedseed.transport import transport
    from fedseed.transport.base import Access

    names = [f"client-{i:04d}" for i in range(a.first, a.first + a.count)]
    checked = recipe(a.method, a.steps, a.every)
    way = transport(Access(a.nats, a.key), "bench")

    def load() -> Hosted:
        whole = federation(checked, a.clients, a.size).hosted
        return replace(whole, items={name: whole.items[name] for name in names})

    joined = NetworkClient(way, "bench", load, checked.rounds)
    worker, spent = joined.hosted.worker, []
    for name in ("train_all", "apply"):
        original = getattr(worker, name)

        def timed(*arguments: Any, _original: Any = original) -> Any:
            begin = time.perf_counter()
            try:
                return _original(*arguments)
            finally:
                spent.append(time.perf_counter() - begin)

        setattr(worker, name, timed)
    digest = joined.run()
    both = [sum(pair) for pair in zip(spent[0::2], spent[1::2], strict=False)]
    print(json.dumps({"digest": digest, "computation": median(both) if both else 0}))


class Forwarder:
    """Passes a TCP connection on and counts its bytes in both directions."""

    def __init__(self, port: int) -> None:
        self.seen: list[tuple[float, str, int]] = []  # when, which way, how many bytes
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._server.accept()
            far = socket.create_connection(("127.0.0.1", self._port))
            threading.Thread(target=self._pass, args=(near, far, "up"), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, "down"), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, way: str) -> None:
        while data := source.recv(1 << 16):
            self.seen.append((time.perf_counter(), way, len(data)))
            target.sendall(data)
        target.close()


def run(
    a: argparse.Namespace,
    method: str,
    steps: int,
    clients: int,
    processes: int,
    size: str,
    every: int,
    count: bool = False,
) -> dict[str, Any]:
    """Start server, coordinator and hosts; returns what they measured."""
    with tempfile.TemporaryDirectory(dir=a.store) as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        command = [
            "nats-server",
            "-a",
            "127.0.0.1",
            "-p",
            str(port),
            "-js",
            "-sd",
            f"{folder}/store",
            "-l",
            f"{folder}/log",
        ]
        server = subprocess.Popen(command)
        started = [server]
        try:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    time.sleep(0.05)
            forwarder = Forwarder(port) if count else None

            # the server asks for no key here: what signatures cost is all that is added
            if a.signed:
                from fedseed.transport.keys import make

                names = ",".join(f"client-{i:04d}" for i in range(clients))
                make("bench", Path(folder) / "keys", [f"all={names}"], ["localhost"], port)

            def start(role: str, *arguments: str, at: int = port) -> subprocess.Popen[str]:
                if a.signed:
                    key = "coordinator" if role == "coordinator" else "all"
                    arguments = (*arguments, "--key", f"{folder}/keys/{key}.nk")
                common = [
                    "--method",
                    method,
                    "--steps",
                    str(steps),
                    "--every",
                    str(every),
                    "--clients",
                    str(clients),
                ]
                process = subprocess.Popen(
                    [
                        sys.executable,
                        __file__,
                        role,
                        "--nats",
                        f"nats://127.0.0.1:{at}",
                        "--size",
                        size,
                        *common,
                        *arguments,
                    ],
                    stdout=subprocess.PIPE,
                    text=True,
                )
                started.append(process)
                return process

            serving = start("coordinator", "--out", f"{folder}/run")
            each = clients // processes
            hosts = [
                start(
                    "host",
                    "--first",
                    str(i * each),
                    "--count",
                    str(each),
                    at=forwarder.port if forwarder and i == 0 else port,
                )
                for i in range(processes)
            ]
            told = [json.loads(p.communicate()[0].splitlines()[-1]) for p in hosts]
            result = json.loads(serving.communicate()[0].splitlines()[-1])
        finally:
            for process in started:
                process.kill()
                process.wait()
    assert {t["digest"] for t in told} == {result["weights_digest"]}, "digests differ"
    result["computation"] = max(t["computation"] for t in told)
    if forwarder is not None:
        between = list(zip(result["times"], result["times"][1:], strict=False))
        for way in ("up", "down"):
            result[f"wire_{way}"] = median(
                sum(size for when, w, size in forwarder.seen if w == way and a <= when < b)
                for a, b in between
            )
    return result


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["steps", "memory", "wire", "coordinator", "host"])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--method", choices=[*METHODS], help="default: feedsign; wire: all")
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--size", default="trivial")
    parser.add_argument("--store", default=None)
    parser.add_argument(
        "--signed", action="store_true", help="with keys: everything is signed and checked"
    )
    parser.add_argument("--nats")
    parser.add_argument("--key", type=Path)
    parser.add_argument("--out")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    a = parser.parse_args()
    if a.what in ("coordinator", "host"):
        return {"coordinator": coordinator, "host": host}[a.what](a)
    if a.what == "steps":
        a.method = a.method or "feedsign"
        r = run(a, a.method, a.steps, a.clients, a.processes, a.size, a.every)
        print(
            f"{a.method}, {a.clients} clients in {a.processes} process(es), {a.steps} steps in "
            f"{r['seconds']:.1f} s"
        )
        print(
            f"a step {r['step'] * 1e3:.2f} ms, computation {r['computation'] * 1e3:.2f} ms "
            f"(medians): {(r['step'] - r['computation']) * 1e3:.2f} ms beyond it"
        )
        print(
            f"coordinator {r['peak_memory'] / 1e6:.0f} MB at its peak; load "
            f"{os.getloadavg()[0]:.1f}"
        )
    elif a.what == "memory":
        r = run(a, "feedsign", 20 if a.steps == 2000 else a.steps, 1000, 1, "trivial", 10)
        print(
            f"1,000 clients, a round {r['step'] * 1e3:.0f} ms, computation "
            f"{r['computation'] * 1e3:.0f} ms"
        )
        print(
            f"coordinator {r['peak_memory'] / 1e6:.0f} MB at its peak, {r['memory'] / 1e6:.0f} MB "
            "at the end"
        )
    else:
        print("| method | payload up | wire up | payload down | wire down |\n|---|---|---|---|---|")
        for method in [a.method] if a.method else METHODS:
            # one of two processes is looked at, which hosts one client: medians over rounds
            every = 10**6 if method in ("feedsign", "zo-fedsgd") else 1
            y = run(
                a,
                method,
                100 if every > 1 else 8,
                2,
                2,
                "million" if method == "fedavg" else "trivial",
                every,
                True,
            )
            up, down = y["wire_up"], y["wire_down"]
            cells = (y["payload_bytes_up"], up, y["payload_bytes_down"], down)
            print(
                f"| {method} | " + " | ".join(f"{cell:,.0f}" for cell in cells) + " |", flush=True
            )
    return None


if __name__ == "__main__":
    main()
