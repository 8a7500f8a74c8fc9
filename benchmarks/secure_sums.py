"""What secure sums cost: bytes and seconds, with and without, and the coordinator's and clients' own share.

    python benchmarks/secure_sums.py [--clients 10] [--ahead 1 16]

The project's small base, as many rounds of each method in simulation as keys are agreed on for; means over rounds. The
conversation is held between clients and a coordinator of one process, so that no network's time is in it: over one, a
round has two exchanges more, and one with new keys three more.
"""

import argparse
from typing import Any

from fedseed.privacy.secure.settings import SecureSums
from fedseed.runs.assembly import build
from fedseed.runs.recipe import read_recipe

RECIPES = {
    "ferret": ["small-ferret", "method.seeds=shared", "method.allocation=size", "method.training.steps=2"],
    "zo-fedsgd": ["small-zo-fedsgd", "method.seeds=shared", "method.batch=2"],
    "feedsign": ["small-feedsign", "method.batch=2"],
    "fedkseed": ["small-fedkseed", "method.steps=2"],
}


def rounds(settings: list[str], sums: SecureSums | None, args: argparse.Namespace) -> list[dict[str, Any]]:
    """What each round cost."""
    source, *overrides = settings
    common = [
        f"task.clients={args.clients}", "task.families_per_client=1", "task.examples=20", f"rounds={args.rounds}",
        f"federation.per_round={args.clients}", f"evaluation.every={args.rounds}",
    ]  # fmt: skip
    recipe = read_recipe(source, [*overrides, *common])
    federation = build(recipe.model_copy(update={"secure_sums": sums}))
    lines: list[dict[str, Any]] = []
    for number in range(1, args.rounds + 1):
        gathered = federation.gather(number)
        step = federation.coordinator.close()
        federation.worker.apply(step)
        taking = len(gathered.clients)
        lines.append({
            "up": (sum(gathered.update_bytes) + gathered.secure_up) / taking,
            "vector": sum(gathered.update_bytes) / taking,
            "down": gathered.secure_down / taking,
            "seconds": gathered.spent.seconds.get("secure_sums", 0.0),
        })  # fmt: skip
    return lines


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--ahead", type=int, nargs="+", default=[1, 16])
    args = parser.parse_args()
    args.rounds = max(args.ahead)
    threshold = args.clients // 2 + 1
    print(f"{args.clients} clients, {threshold} open a sum; bytes of a client and round, seconds of all together")
    print("method     keys for  up, plain  masked vector  all up  asked  seconds")
    for name, settings in RECIPES.items():
        plain = rounds(settings, None, args)
        for ahead in args.ahead:
            found = rounds(settings, SecureSums(threshold=threshold, ahead=ahead), args)
            every = {key: sum(line[key] for line in found) / len(found) for key in found[0]}
            print(
                f"{name:<10} {ahead:>8}  {plain[0]['up']:>9,.0f}  {every['vector']:>13,.0f}  {every['up']:>6,.0f}  "
                f"{every['down']:>5,.0f}  {every['seconds']:>7.4f}"
            )


if __name__ == "__main__":
    main()
