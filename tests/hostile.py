"""Hostile keys, outages of the broker and damaged input, for as long as one likes; each ends in a table.

    python tests/hostile.py attack [--seconds 1800] [--all | --methods feedsign ferret fedavg] [--seed 1]
    python tests/hostile.py outages [--count 40] [--longest 60] [--methods feedsign ferret fedavg fedadam]
    python tests/hostile.py fuzz [--seconds 600] [--rooms updates said ...]

Needs nats-server. The same seed does the same, but for what the clock decides.
"""

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import torch

from support.hostile import federation, fuzzing, outages
from support.hostile.check import check, refusals
from support.network import Starter, in_process
from support.problem import Problem

HOSTILE = (3, 0)  # number of the hostile client, in turn: the first client of all is the one that is asked to evaluate


def row(*cells):
    """A row of a table."""
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def attack(options):
    """A hostile client and a hostile watcher beside each method's federation."""
    starter, methods = Starter(), list(federation.METHODS) if options.all else options.methods
    row("method", "seconds", "acts", "sent", "refused", "by name", "server let go", "memory", "questions",
        "slowest answer", "computed", "same bits")  # fmt: skip
    row(*["---"] * 12)
    failed = []
    for number, method in enumerate(methods):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            recipe = federation.recipe_of(method, rounds=options.rounds, every=max(1, options.rounds // 4))
            hostile = HOSTILE[number % len(HOSTILE)]
            try:
                expected = federation.undisturbed(recipe, Path(folder) / "undisturbed", hostile)
                ended = federation.run(starter, Path(folder) / "disturbed", recipe, seed=options.seed, heavy=True,
                                       early=20, seconds=options.seconds / len(methods), hostile=hostile)  # fmt: skip
                attacked(method, ended, expected)
                check(ended, expected)
            except Exception as error:  # the other methods are tried all the same
                failed.append(f"{method}: {type(error).__name__}: {error}")
    starter.stop()
    if failed:
        raise SystemExit("\n".join(["", *failed]))


def attacked(method, ended, expected):
    """The row of a method."""
    watched, hostile = ended.watched, ended.hostile
    acts, refused = sum(hostile.done.values()) + sum(ended.watcher.done.values()), refusals(ended)
    by_name = ", ".join(f"{name}: {count:,}" for name, count in sorted(refused.items(), key=lambda item: -item[1]))
    row(method, f"{ended.seconds:.0f}", f"{acts:,}", f"{hostile.sent:,}", f"{sum(refused.values()):,}", by_name,
        ended.let_go, f"{watched.memory / 1e6:.0f} MB", f"{len(watched.answers):,}", f"{max(watched.answers):.2f} s",
        f"{max(watched.computed):.2f} s", "yes" if ended.result == expected else "NO")  # fmt: skip


def weather(options):
    """The broker goes away again and again."""
    starter, problem = Starter(), Problem()
    torch.set_num_threads(1)
    row("method", "outages", "of seconds", "killed, ended, stopped", "went on after at most", "rounds again", "same")
    row(*["---"] * 7)
    each = options.count // len(options.methods)
    for number, method in enumerate(options.methods):
        drawn = outages.drawn(options.seed + number, each, longest=options.longest)
        inline = 200 if method in ("fedavg", "fedadam") else None
        with tempfile.TemporaryDirectory() as folder:
            recipe = {"seed": 3, "method": federation.METHODS[method]}
            ended = outages.weather(starter, problem, Path(folder), recipe, drawn,
                                    lambda r: in_process(problem, r).summary, inline)  # fmt: skip
        ways = ", ".join(str(sum(one.way == way for one in drawn)) for way in ("killed", "ended", "stopped"))
        lengths = [one.seconds for one in drawn]
        row(method, len(ended.recoveries), f"{min(lengths):.1f} to {max(lengths):.1f}", ways,
            f"{max(ended.recoveries):.1f} s", ended.repeated, True)  # fmt: skip
    starter.stop()


def fuzz(options):
    """Damaged input."""
    row("room", "cases", "valid", "slowest", "most memory beyond what its size allows")
    row(*["---"] * 5)
    for room in options.rooms:
        with tempfile.TemporaryDirectory() as folder:
            report = fuzzing.drive(room, options.seed, seconds=options.seconds / len(options.rooms), folder=folder)
        row(room, f"{report.cases:,}", f"{report.taken:,}", f"{report.slowest:.2f} s", f"{report.largest / 1e6:.1f} MB")


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("attack")
    one.set_defaults(act=attack)
    one.add_argument("--seconds", type=float, default=1800)
    one.add_argument("--rounds", type=int, default=60)
    one.add_argument("--methods", nargs="+", default=["feedsign", "ferret", "fedavg"], choices=federation.METHODS)
    one.add_argument("--all", action="store_true", help="all methods, which share the seconds")
    one.add_argument("--folder", help="where servers and runs put their files while they run")
    one = commands.add_parser("outages")
    one.set_defaults(act=weather)
    one.add_argument("--count", type=int, default=40)
    one.add_argument("--longest", type=float, default=60)
    methods = ["feedsign", "ferret", "fedavg", "fedadam"]
    one.add_argument("--methods", nargs="+", default=methods, choices=federation.METHODS)
    one = commands.add_parser("fuzz")
    one.set_defaults(act=fuzz)
    one.add_argument("--seconds", type=float, default=600)
    one.add_argument("--rooms", nargs="+", default=list(fuzzing.ROOMS), choices=fuzzing.ROOMS)
    for one in commands.choices.values():
        one.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.act(options)


if __name__ == "__main__":
    main()
