"""How much longer a run over NATS takes for one client of five that means harm, with a real
nats-server.

    python benchmarks/hostile.py silent [--method zo-fedsgd] [--rounds 400]   says nothing in a
    phase of secure sums
    python benchmarks/hostile.py edge       answers just before each deadline, where the others take
    0.2 s
    python benchmarks/hostile.py consumers  asks the server for 300 consumers of the log each
    second, in vain

Prints seconds with and without it. Processes and server are those of the tests (`tests/support`).
"""

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fedseed.transport.base import Access
from fedseed.transport.nats_connection import connect
from fedseed.transport.subjects import Subjects
from support.network import Network, Server, keyed_server
from support.problem import METHODS

PHASES = ("KEYS", "SHARES", "DELIVER", "CONFIRM", "OPEN")
SUMS: dict[str, dict[str, Any]] = {
    "ferret": {
        "name": "ferret",
        "directions": 60,
        "blocks": "tensor",
        "seeds": "shared",
        "allocation": "previous",
        "training": {"learning_rate": 0.3, "batch": 8, "accumulation": 2, "steps": 5},
    },
    "zo-fedsgd": {
        "name": "zo-fedsgd",
        "basis": "rademacher",
        "seeds": "shared",
        "learning_rate": 1e-2,
        "batch": 8,
    },
    "feedsign": {"name": "feedsign", "basis": "rademacher", "learning_rate": 1e-2, "batch": 8},
    "fedkseed": {
        "name": "fedkseed",
        "candidates": 64,
        "steps": 4,
        "learning_rate": 1e-2,
        "batch": 8,
    },
}


def run(
    recipe: dict[str, Any], orders: list[dict[str, Any]], attack: Any = None
) -> tuple[float, set[str], str]:
    """Runs a federation of five processes.

    Returns its seconds, whom `status` has named as late, what was said.
    """
    with tempfile.TemporaryDirectory() as folder:
        keyed, names = attack is not None, [f"client-{n}" for n in range(5)]
        server = (
            keyed_server(Path(folder) / "nats", "test", names)
            if keyed
            else Server(Path(folder) / "nats")
        )
        net = Network(
            server, Path(folder), recipe, **({"ca": str(server.keys / "ca.pem")} if keyed else {})
        )
        key = lambda name: {"key": str(server.keys / f"{name}.nk")} if keyed else {}  # noqa: E731
        stop, late = threading.Event(), set[str]()
        try:
            coordinator = net.coordinator(**key("coordinator"))
            for number, order in enumerate(orders):
                net.host(number, **order, **key(f"client-{number}"))
            if attack is not None:
                threading.Thread(target=attack, args=(server, stop), daemon=True).start()
            while not coordinator.ended():
                if not keyed:
                    late |= set((net.status() or {}).get("late", []))
                time.sleep(0.5)
            coordinator.wait()
            return net.summary()["seconds"]["total"], late, coordinator.said
        finally:
            stop.set()
            net.stop()
            server.kill()


def ask_for_consumers(server: Any, stop: threading.Event) -> None:
    """Asks for six consumers fifty times a second, with a client's key."""

    async def go() -> None:
        subjects = Subjects("test")
        access = Access(server.url, server.keys / "client-4.nk", server.keys / "ca.pem")
        connection, number = await connect(access, subjects, "client-4"), 0
        while not stop.is_set():
            for stream in (
                subjects.stream,
                f"OBJ_{subjects.bucket()}",
                f"OBJ_{subjects.bucket('client-4')}",
            ):
                for way in ("CREATE", "DURABLE.CREATE"):
                    name, number = f"x{number}", number + 1
                    config = {
                        "ack_policy": "explicit",
                        "ack_wait": 1_000_000,
                        "max_deliver": -1,
                        "deliver_subject": f"_INBOX.{name}",
                        "durable_name": name,
                        "name": name,
                    }
                    asked = json.dumps({"stream_name": stream, "config": config}).encode()
                    await connection.publish(f"$JS.API.CONSUMER.{way}.{stream}.{name}", asked)
            await asyncio.sleep(0.02)

    asyncio.run(go())


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("silent", "edge", "consumers"))
    parser.add_argument("--method", choices=SUMS, nargs="*", default=list(SUMS))
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--phases", choices=PHASES, nargs="*", default=list(PHASES))
    asked = parser.parse_args()
    if asked.what == "silent":
        for method in asked.method:
            recipe = {
                "method": SUMS[method],
                "rounds": asked.rounds,
                "evaluation": {"every": asked.rounds},
                "federation": {"deadline": 3.0},
                "secure_sums": {"threshold": 3, "ahead": 2},
            }
            alone = run(recipe, [{}] * 5)[0]
            print(f"{method}: {alone:.1f} s", flush=True)
            for phase in asked.phases:
                took, _, said = run(recipe, [{}, {}, {"silent": phase}, {}, {}])
                named = f"client-2 has not answered {phase}" in said
                print(
                    f"  silent at {phase}: {took:.1f} s, {took / alone:.2f} times; named: {named}",
                    flush=True,
                )
        return
    edge = asked.what == "edge"
    rounds, deadline = (200, 10.0) if edge else (asked.rounds, 600.0)
    recipe = {
        "method": METHODS["feedsign"],
        "rounds": rounds,
        "evaluation": {"every": 50},
        "federation": {"deadline": deadline},
    }
    for _ in range(2):
        if edge:
            (alone, _, _), (took, late, _) = (
                run(recipe, [{"slow": 0.2}] * 4 + [{"slow": last}]) for last in (0.2, 9.0)
            )
            print(
                f"alone {alone:.1f} s, with it {took:.1f} s, {took / alone:.2f} times; status "
                f"names {sorted(late)}"
            )
        else:
            alone, took = (
                run(recipe, [{}] * 5, way)[0] for way in (lambda *_: None, ask_for_consumers)
            )
            print(
                f"rounds a second: alone {rounds / alone:.1f}, with it {rounds / took:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
