"""How much faster a simulation takes all clients' votes of a step from one batch than client by
client.

    python benchmarks/votes.py [--clients 25] [--steps 5] [--batch 2]

FeedSign on the project's small base; both ways in one process, in turn, medians.
"""

import argparse
import time
from statistics import median

from fedseed.recipe.reading import read_recipe
from fedseed.runs.assembly import build


def main() -> None:
    """Print seconds per step both ways, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=25)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=2, help="examples in a client's batch")
    args = parser.parse_args()
    recipe = read_recipe(
        "small-feedsign",
        [
            f"task.clients={args.clients}",
            "task.families_per_client=1",
            f"federation.per_round={args.clients}",
            f"method.batch={args.batch}",
            "task.examples=20",
        ],
    )
    federation = build(recipe)
    coordinator, worker, items = federation.coordinator, federation.worker, federation.items
    seconds: dict[str, list[float]] = {"together": [], "one by one": []}
    for number in range(1, args.steps + 2):
        clients = coordinator.open(number)
        plans = [coordinator.plan(c) for c in clients]
        mine = [items[c] for c in clients]
        start = time.perf_counter()
        together = worker.train_all(plans, clients, mine)
        middle = time.perf_counter()
        alone = [worker.train(p, c, i) for p, c, i in zip(plans, clients, mine, strict=True)]
        if number > 1:  # the first step compiles and warms up
            seconds["together"].append(middle - start)
            seconds["one by one"].append(time.perf_counter() - middle)
        differ = sum(a.message != b.message for a, b in zip(together, alone, strict=True))
        if differ:
            print(
                f"step {number}: {differ} of {len(clients)} votes differ (projections within float "
                "noise of 0)"
            )
        for client, answer in zip(clients, together, strict=True):
            assert answer.message is not None
            coordinator.receive(answer.message, client)
        worker.apply(coordinator.close().encode())
    for name, each in seconds.items():
        print(f"{name:>10}: {median(each):.3f} s a step")
    ratio = median(seconds["one by one"]) / median(seconds["together"])
    print(f"{args.clients} clients, batch {args.batch}: {ratio:.1f} times faster together")


if __name__ == "__main__":
    main()
