"""Bytes of a mesh beside the coordinator's way, and a partition that heals.

    python benchmarks/mesh.py [bytes] [faults] [picture] [--rounds 60]

Nodes are those of `fedseed mesh` in one process on simulated time, on handwritten digits: the last
layer of the project's ResNet, ZO-FedSGD with own seeds or FeedSign.

    bytes     what a node sends in a round, by purpose, without faults, on graphs of 5 and 25
              nodes; beside it what a client and the coordinator send
    faults    a fifth of the links down at random and 30 s of partition: digests, rounds taken back,
              seconds until all nodes agree
    picture   docs/pictures/mesh.png: steps and digests of five nodes before, during and after a
              partition
"""

import argparse
from pathlib import Path
from typing import Any

from fedseed.decentralised import messages
from fedseed.decentralised.simulation import MeshSimulation, NetworkSettings, Partition
from fedseed.federation.messages import FRAME_BYTES
from fedseed.models.loading import quiet
from fedseed.recipe.reading import read_recipe
from fedseed.recipe.settings import Recipe
from fedseed.runs.mesh import SimulatedMesh, SimulatedResult, list_names, simulate

PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "mesh.png"
PARTS = ("bytes", "faults", "picture")
METHODS = {"zo-fedsgd": ["method.seeds=own"], "feedsign": []}
PAYLOADS = {"zo-fedsgd": 8, "feedsign": 1}  # bytes of an update
SECONDS = 30.0  # of a partition
BEGIN = 10.0
STEP_SECONDS = (0.5, 1.0)  # so that the sides come apart


def recipe_of(method: str, nodes: int, rounds: int) -> Recipe:
    """Return the recipe of one run."""
    return read_recipe(
        f"digits-{method}",
        [
            f"rounds={rounds}",
            f"task.clients={nodes}",
            f"federation.per_round={nodes}",
            f"evaluation.every={rounds}",
            *METHODS[method],
        ],
    )


def step_payload(method: str, nodes: int) -> int:
    """Return the bytes of a step that a coordinator makes of all nodes' updates."""
    return PAYLOADS[method] * (nodes if method == "zo-fedsgd" else 1)


def show_bytes(rounds: int) -> None:
    """Print what a node sends in a round, beside the coordinator's way."""
    print(
        "| method | nodes | neighbours | steps | upkeep | client up | client down | coordinator |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for method in METHODS:
        for nodes, degree in ((5, None), (5, 2.0), (25, None), (25, 4.0)):
            result = simulate(recipe_of(method, nodes, rounds), SimulatedMesh(degree=degree))
            check(result)
            neighbours = 2 * len(result.links) / nodes
            flooded = mean_of(result, "bytes_steps") / rounds
            summary = messages.HEAD.size + messages.SUMMARY.size + nodes * messages.LINE.size
            upkeep = summary * neighbours
            up = FRAME_BYTES + PAYLOADS[method]
            # the plan, which is a frame alone, and the step
            down = 2 * FRAME_BYTES + step_payload(method, nodes)
            print(
                f"| {method} | {nodes} | {neighbours:.1f} | {flooded:,.0f} | {upkeep:,.0f} a s | "
                f"{up} | {down} | {nodes * down:,} |"
            )


def show_faults(rounds: int) -> None:
    """Print what becomes of meshes whose links fail."""
    print("| method | nodes | links | digests | undone | repairs, B a node | healed after |")
    print("|---|---|---|---|---|---|---|")
    for method in METHODS:
        for nodes in (5, 25):
            recipe = recipe_of(method, nodes, rounds)
            side = frozenset(list_names(recipe)[: nodes // 2])
            network = NetworkSettings(
                down=0.2,
                step_seconds=STEP_SECONDS,
                partitions=[Partition(BEGIN, BEGIN + SECONDS, side)],
            )
            healing = Healing()
            result = simulate(recipe, SimulatedMesh(network, degree=4.0), events=healing.begin)
            check(result)
            undone = sorted(int(node["undone_rounds"]) for node in result.nodes)
            print(
                f"| {method} | {nodes} | {len(result.links)} | {len(set(result.digests.values()))} "
                f"| {undone[0]} to {undone[-1]} | {mean_of(result, 'bytes_repairs'):,.0f} | "
                f"{healing.seconds:.1f} s |"
            )


class Healing:
    """Measures how long it takes after a partition until all nodes have what it kept from them."""

    def __init__(self) -> None:
        self.seconds = float("nan")
        self._made: list[int] = []  # entries of each node when the partition ended

    def begin(self, simulation: MeshSimulation) -> None:
        """Start all nodes, and look from the partition's end on."""
        for name in simulation.names:
            simulation.start(name)
        simulation.schedule(BEGIN + SECONDS, lambda: self._note(simulation))

    def _note(self, simulation: MeshSimulation) -> None:
        histories = [node.history for node in simulation.nodes.values()]
        self._made = [max(counts) for counts in zip(*(h.counts for h in histories), strict=True)]
        self._look(simulation)

    def _look(self, simulation: MeshSimulation) -> None:
        for node in simulation.nodes.values():
            counts = zip(node.history.counts, self._made, strict=True)
            if any(count < made for count, made in counts):
                simulation.schedule(simulation.now + 0.1, lambda: self._look(simulation))
                return
        self.seconds = simulation.now - BEGIN - SECONDS


def check(result: SimulatedResult) -> None:
    """Stop if nodes have ended with different weights."""
    if len(set(result.digests.values())) != 1:
        raise SystemExit(f"different digests: {result.digests}")


def mean_of(result: SimulatedResult, name: str) -> float:
    """Return the mean of a figure over the nodes."""
    return sum(float(node.get(name, 0)) for node in result.nodes) / len(result.nodes)


class Watch:
    """Looks at a simulation every half a second of its time."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.times: list[float] = []
        self.steps: dict[str, list[int]] = {name: [] for name in names}
        self.digests: list[int] = []

    def begin(self, simulation: MeshSimulation) -> None:
        """Start all nodes, and look from then on."""
        for name in self.names:
            simulation.start(name)
        for number in range(1, 200):
            simulation.schedule(number / 2, lambda: self._look(simulation))

    def _look(self, simulation: MeshSimulation) -> None:
        self.times.append(simulation.now)
        for name in self.names:
            node = simulation.nodes[name]
            self.steps[name].append(node.history.logs[node.number].last_round)
        # as each node's weights would be now, after all that it has heard
        self.digests.append(len(set(simulation.digests().values())))


def draw(rounds: int) -> None:
    """Draw a partition that heals."""
    import matplotlib.pyplot as plt

    recipe = recipe_of("zo-fedsgd", 5, rounds)
    names = list_names(recipe)
    side = names[:2]
    network = NetworkSettings(
        step_seconds=STEP_SECONDS,
        partitions=[Partition(BEGIN, BEGIN + SECONDS, frozenset(side))],
    )
    watch = Watch(names)
    result = simulate(recipe, SimulatedMesh(network), events=watch.begin)
    check(result)
    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(8, 5), height_ratios=(3, 1), layout="constrained"
    )
    for name in names:
        colour = "tab:orange" if name in side else "tab:blue"
        above.plot(watch.times, watch.steps[name], color=colour, alpha=0.8, label=name)
    above.set_ylabel("own steps")
    above.legend(frameon=False, fontsize=8)
    below.step(watch.times, watch.digests, color="black", where="post")
    below.set_ylabel("digests")
    below.set_yticks(range(1, max(watch.digests) + 1))
    below.set_xlabel("seconds")
    for axes in (above, below):
        axes.axvspan(BEGIN, BEGIN + SECONDS, color="0.9", zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURE, dpi=110)
    print(f"Picture: {PICTURE}; {summary_of(watch, result)}")


def summary_of(watch: Watch, result: SimulatedResult) -> dict[str, Any]:
    """Return the figures that the page about the picture has."""
    return {
        "most digests": max(watch.digests),
        "digests at the end": len(set(result.digests.values())),
        "undone": [node["undone_rounds"] for node in result.nodes],
        "seconds": round(result.seconds, 1),
    }


def main() -> None:
    """Do the parts that are asked for; all by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    quiet()
    acts = {"bytes": show_bytes, "faults": show_faults, "picture": draw}
    for part in args.parts:
        acts[part](args.rounds)


if __name__ == "__main__":
    main()
