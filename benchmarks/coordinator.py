"""What a client costs the coordinator, by how many there are: processor time in microseconds a client, without a wire.

    python benchmarks/coordinator.py [--clients 100 1000 10000 100000] [--method feedsign] [--times 3]

The clients are puppets in the coordinator's process. Each is a process of its own to it, and answers at once what it is
asked; their messages are made beforehand, and not counted. As over NATS, others have their turn after eight messages.

    join       a client says who it is, and hello; by name, and (enrol) where whoever comes takes part
    round      its update is checked and counted, and becomes a step with the others'
    report     it says which weights it has, and what its work cost
"""

import argparse
import asyncio
import base64
import time
from collections.abc import Callable, Collection, Sequence

from fedseed.aggregation import Mean
from fedseed.federation.control import Attach, Beat, Hello, Report
from fedseed.federation.cost import Cost
from fedseed.federation.messages import Message, MessageKind
from fedseed.federation.network_coordinator import NetworkCoordinator
from fedseed.federation.session import CoordinatorSettings
from fedseed.methods import REGISTRY, Method
from fedseed.orbit import Header
from fedseed.orbit.file import begin
from fedseed.reports.progress import Silent
from fedseed.reports.results import RoundLine
from fedseed.transport.base import QUIET, Receive, Rejected
from fedseed.transport.memory import MemoryCoordinator, Shared
from fedseed.weights.layout import Layout, TensorEntry

IN_A_ROW = 8  # messages that are looked at before others have their turn (`fedseed.transport.nats_hearing`)
UPDATES = {"feedsign": b"\x01", "zo-fedsgd": b"\x00\x00\x80?"}  # payloads
LAYOUT = Layout((TensorEntry("w", (4, 4), "float32"),), (0, 16))


class Puppets(MemoryCoordinator):
    """A coordinator's end with clients that answer each broadcast by messages that were made before."""

    said: Sequence[tuple[str, str, bytes]] = ()  # the answers to the next broadcast: client, kind, message

    async def listen(self, receive: Receive, status: Callable[[], bytes], rejected: Rejected) -> None:
        self._hear = receive

    async def broadcast(self, data: bytes, to: Collection[str] | None = None) -> None:
        said, self.said = self.said, ()
        self._saying = asyncio.create_task(self._say(said))

    async def _say(self, said: Sequence[tuple[str, str, bytes]]) -> None:
        for number, (client, what, data) in enumerate(said):
            await self._hear(client, what, data)
            if number % IN_A_ROW == IN_A_ROW - 1:
                await asyncio.sleep(0)


async def measured(method: Method, count: int, enrols: bool) -> dict[str, float]:
    """Returns processor seconds of each phase."""
    names = [f"client-{number:06d}" for number in range(count)]
    end = Puppets("bench", Shared(), None, QUIET)
    known = () if enrols else tuple(names)
    settings = CoordinatorSettings(names=known, enrols=enrols, start_with=count, dead_after=1e6)
    talk = NetworkCoordinator(end, "bench", method, 0, 100, settings, Silent())
    start = base64.b64encode(begin(Header("base", "ab" * 16, "float32", LAYOUT, method, 0))).decode()
    seconds, said = {}, []
    for name in names:
        said.append((name, "attach", Attach(client=name, host=name, examples=20).encode()))
        about = Hello(host=name, header=start, names=[name], names_matter=False, at=0)
        said.append((name, "hello", about.encode()))
    end.said = said
    began = time.process_time()
    await talk.start(fresh=False, known=False)
    seconds["enrol" if enrols else "join"] = time.process_time() - began
    coordinator = await talk.open(count, Mean())
    assert talk.rounds is not None and talk.roster.names == names and len(talk.roster.present()) == count
    epoch = talk.session.incarnation
    for number in (1, 2):  # the second counts
        end.said = [
            (name, "update", Message(MessageKind.UPDATE, method.code, number, at, UPDATES[method.name]).encode())
            for at, name in enumerate(names)
        ]
        began = time.process_time()
        gathered = await talk.rounds.gather(number)
        coordinator.close()
        seconds["round"] = time.process_time() - began
        assert len(gathered.update_bytes) == count and not gathered.refused
    for name in names:
        await talk.receive(name, "beat", Beat(at=2, epoch=epoch).encode())
    spent = Cost({"local": 1.0}, forward_passes=4, losses=2.5, counted=1)
    report = Report(at=2, epoch=epoch, round=2, digest="cd" * 16, spent=spent).encode()
    end.said = [(name, "report", report) for name in names]
    began = time.process_time()
    digest = await talk.inquiry.ask(RoundLine(2), evaluate=False)
    seconds["report"] = time.process_time() - began
    assert digest == "cd" * 16
    await talk.close()
    return seconds


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="*", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--method", choices=UPDATES, default="feedsign")
    parser.add_argument("--times", type=int, default=3, help="the lowest of so many counts")
    asked = parser.parse_args()
    method = REGISTRY.get(asked.method)()
    print(f"{'clients':>8} {'join':>8} {'enrol':>8} {'round':>8} {'report':>8}   us a client", flush=True)
    for count in asked.clients:
        runs = [asyncio.run(measured(method, count, enrols)) for _ in range(asked.times) for enrols in (False, True)]
        best = [min(run[phase] for run in runs if phase in run) for phase in ("join", "enrol", "round", "report")]
        print(f"{count:>8,}" + "".join(f" {1e6 * seconds / count:>8.1f}" for seconds in best), flush=True)


if __name__ == "__main__":
    main()
