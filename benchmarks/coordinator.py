"""What a client costs the coordinator, by how many there are: microseconds a client, without a
wire.

    python benchmarks/coordinator.py [--clients 100 1000 10000 100000] [--method feedsign] [--times
    3]
    python benchmarks/coordinator.py --drawn        # table and picture of the rows that were stored

The clients are puppets in the coordinator's process. Each is a process of its own to it, and
answers at once what it is asked; their messages are made beforehand, and not counted. The collector
of garbage leaves these alone, and looks at others as rarely as in `fedseed serve`. As over NATS,
others have their turn after eight messages. All counts of clients take turns, small ones several
times in each, so that what else the machine does meets all of them. Rows have the processor's time
and the clock's.

    join       a client says who it is, and hello; by name, and (enrol) where whoever comes takes
    part
    round      its update is checked and counted, and becomes a step with the others'
    report     it says which weights it has, and what its work cost
"""

import argparse
import asyncio
import base64
import csv
import gc
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from statistics import median

from fedseed.aggregation import Mean
from fedseed.federation.control import Attach, Beat, Hello, Report
from fedseed.federation.coordinator.network import NetworkCoordinator
from fedseed.federation.coordinator.session import CoordinatorSettings
from fedseed.federation.cost import Cost
from fedseed.federation.messages import Message, MessageKind
from fedseed.methods import REGISTRY, Method
from fedseed.orbit import Header
from fedseed.orbit.file import begin
from fedseed.reports.progress import Progress
from fedseed.reports.results import RoundLine
from fedseed.transport.base import QUIET, Receive, Rejected
from fedseed.transport.memory import MemoryCoordinator, Shared
from fedseed.weights.heap import collect_rarely
from fedseed.weights.layout import Layout, TensorEntry

# messages that are looked at before others have their turn (`fedseed.transport.nats_hearing`)
IN_A_ROW = 8
UPDATES = {"feedsign": b"\x01", "zo-fedsgd": b"\x00\x00\x80?"}  # payloads
PHASES = ("join", "enrol", "round", "report")
DOCS = Path(__file__).parent.parent / "docs"
ROWS, PICTURE = DOCS / "figures" / "coordinator.csv", DOCS / "pictures" / "coordinator.png"
ONCE = 10_000  # clients of a turn, at least: a hundred of them answer too soon for a clock
LAYOUT = Layout((TensorEntry("w", (4, 4), "float32"),), (0, 16))


class Puppets(MemoryCoordinator):
    """A coordinator's end with clients that answer each broadcast by messages that were made
    before.
    """

    # the answers to the next broadcast: client, kind, message
    said: Sequence[tuple[str, str, bytes]] = ()

    async def listen(
        self, receive: Receive, status: Callable[[], bytes], rejected: Rejected
    ) -> None:
        self._hear = receive

    async def broadcast(self, data: bytes, to: Collection[str] | None = None) -> None:
        said, self.said = self.said, ()
        self._saying = asyncio.create_task(self._say(said))

    async def _say(self, said: Sequence[tuple[str, str, bytes]]) -> None:
        for number, (client, what, data) in enumerate(said):
            await self._hear(client, what, data)
            if number % IN_A_ROW == IN_A_ROW - 1:
                await asyncio.sleep(0)


class Clock:
    """Seconds of the processor and of the clock since it was made."""

    def __init__(self) -> None:
        self.began = time.process_time(), time.perf_counter()

    def read(self) -> tuple[float, float]:
        """Returns both."""
        return time.process_time() - self.began[0], time.perf_counter() - self.began[1]


async def measured(method: Method, count: int, enrols: bool) -> dict[str, tuple[float, float]]:
    """Returns seconds of each phase, the processor's and the clock's."""
    names = [f"client-{number:06d}" for number in range(count)]
    end = Puppets(Shared("bench"), None, QUIET)
    known = () if enrols else tuple(names)
    settings = CoordinatorSettings(names=known, enrols=enrols, start_with=count, dead_after=1e6)
    talk = NetworkCoordinator(end, "bench", method, 0, 100, settings, Progress())
    start = base64.b64encode(
        begin(Header("base", "ab" * 16, "float32", LAYOUT, method, 0))
    ).decode()
    seconds, said = {}, []
    for name in names:
        said.append((name, "attach", Attach(client=name, host=name, examples=20).encode()))
        about = Hello(host=name, header=start, names=[name], names_matter=False, at=0)
        said.append((name, "hello", about.encode()))
    end.said = said
    gc.collect()
    gc.freeze()  # what is there by now is no work of the coordinator's
    clock = Clock()
    await talk.start(fresh=False, has_files=False)
    seconds["enrol" if enrols else "join"] = clock.read()
    coordinator = await talk.open(count, Mean())
    assert (
        talk.rounds is not None
        and talk.roster.names == names
        and len(talk.roster.present()) == count
    )
    epoch = talk.session.incarnation
    for number in (1, 2):  # the second counts
        end.said = [
            (
                name,
                "update",
                Message(MessageKind.UPDATE, method.code, number, at, UPDATES[method.name]).encode(),
            )
            for at, name in enumerate(names)
        ]
        clock = Clock()
        gathered = await talk.rounds.gather(number)
        coordinator.close()
        seconds["round"] = clock.read()
        assert len(gathered.update_bytes) == count and not gathered.refused
    for name in names:
        await talk.receive(name, "beat", Beat(at=2, epoch=epoch).encode())
    spent = Cost({"local": 1.0}, forward_passes=4, losses=2.5, counted=1)
    report = Report(at=2, epoch=epoch, round=2, digest="cd" * 16, spent=spent).encode()
    end.said = [(name, "report", report) for name in names]
    clock = Clock()
    digest = await talk.inquiry.ask(RoundLine(2), evaluate=False)
    seconds["report"] = clock.read()
    assert digest == "cd" * 16
    await talk.close()
    gc.unfreeze()
    return seconds


def turn(method: Method, count: int) -> dict[str, tuple[float, float]]:
    """Returns microseconds a client of each phase, the processor's and the clock's."""
    sums = {phase: [0.0, 0.0, 0.0] for phase in PHASES}
    for _ in range(max(1, ONCE // count)):
        for enrols in (False, True):
            for phase, seconds in asyncio.run(measured(method, count, enrols)).items():
                sums[phase] = [a + b for a, b in zip(sums[phase], (*seconds, count), strict=True)]
    return {
        phase: (1e6 * busy / clients, 1e6 * wall / clients)
        for phase, (busy, wall, clients) in sums.items()
    }


def medians(rows: Sequence[Sequence[str]]) -> dict[int, dict[str, tuple[float, float]]]:
    """Returns by count and phase the median microseconds a client, the processor's and the
    clock's.
    """
    found: dict[int, dict[str, tuple[float, float]]] = {}
    for count in sorted({int(row[0]) for row in rows}):
        of = {
            phase: [row for row in rows if (int(row[0]), row[1]) == (count, phase)]
            for phase in PHASES
        }
        found[count] = {
            phase: (median(float(row[3]) for row in mine), median(float(row[4]) for row in mine))
            for phase, mine in of.items()
        }
    return found


def draw(found: dict[int, dict[str, tuple[float, float]]], path: Path) -> None:
    """A line for each phase: the processor's time solid, the clock's dotted."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    from fedseed.reports.plots import COLOURS

    figure = Figure(figsize=(6.4, 3.8))
    axes = figure.subplots()
    for phase, colour in zip(PHASES, COLOURS, strict=False):
        for at, dashes in enumerate(("-", ":")):
            points = [values[phase][at] for values in found.values()]
            label = phase if at == 0 else None
            axes.plot(
                list(found), points, dashes, color=colour, marker="o", markersize=3.5, label=label
            )
    axes.set(
        xscale="log", yscale="log", ylim=(5, 1000), xlabel="clients", ylabel="microseconds a client"
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.legend(title="processor (dotted: clock)", ncols=4, loc="center")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measures, stores rows, and prints and draws what they say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="*", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--method", choices=UPDATES, default="feedsign")
    parser.add_argument("--times", type=int, default=3, help="turns")
    parser.add_argument("--rows", type=Path, default=ROWS, help="CSV of what was measured")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument(
        "--drawn", action="store_true", help="measure nothing: of the rows that are there"
    )
    asked = parser.parse_args()
    if not asked.drawn:
        method = REGISTRY.get(asked.method)()
        collect_rarely()
        turn(method, min(asked.clients))  # imports, and what Python keeps
        with asked.rows.open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["clients", "phase", "turn", "processor_us", "wall_us"])
            for at in range(asked.times):
                for count in asked.clients:
                    for phase, (busy, wall) in turn(method, count).items():
                        rows.writerow([count, phase, at + 1, f"{busy:.1f}", f"{wall:.1f}"])
                    file.flush()
    with asked.rows.open(newline="") as file:
        found = medians(list(csv.reader(file))[1:])
    print("| clients | " + " | ".join(PHASES) + " |\n|" + "---|" * (1 + len(PHASES)))
    for count, values in found.items():
        print(
            f"| {count:,} | "
            + " | ".join(f"{busy:.0f} ({wall:.0f})" for busy, wall in values.values())
            + " |"
        )
    ratios = [[v[phase][0] for v in found.values()] for phase in PHASES]
    print("| largest / smallest | " + " | ".join(f"{max(r) / min(r):.2f}" for r in ratios) + " |")
    draw(found, asked.picture)
    print(f"Picture: {asked.picture}")


if __name__ == "__main__":
    main()
