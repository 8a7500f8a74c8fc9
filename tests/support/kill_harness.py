"""Kills runs with SIGKILL and resumes them: python kill_harness.py FOLDER EACH TIMED METHOD ..., for
test_kill.py.

A process of its own, because it forks: a child for each session of a run, so that torch is imported once. The parent
starts no threads. A session is killed by itself at a point that a wrapper around the code chose: in training, in
aggregation, in evaluation, before, in the middle of and after writes. Each method dies EACH times at each kind of
moment, however fast the machine is. Besides, TIMED sessions of each method are killed by their parent after a random
time, wherever they are then, if they are not over; these are not counted.
"""

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch._dynamo  # these are imported here so that the children need not
from safetensors import safe_open

import fedseed.reports.pages
import fedseed.reports.plots
import fedseed.reports.tables  # noqa: F401
from fedseed import FedAvg, FedKSeed, FeedSign, Ferret
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.worker import Worker
from fedseed.objectives.losses import Supervised
from fedseed.runs import loop as rounds
from support import compiled
from support.problem import TRAINING, Problem

METHODS = {
    "ferret": (Ferret(directions=60, basis="hadamard", blocks="one", seeds="shared", allocation="previous",
                      training=TRAINING), {"rounds": 5}),
    "fedkseed": (FedKSeed(basis="hadamard", basis_size=64, candidates=64, steps=6, learning_rate=1e-2, scale=1e-3,
                          batch=8, importance=True), {"rounds": 4}),
    "feedsign": (FeedSign(basis="rademacher", learning_rate=1e-2, batch=8, optimizer="momentum"),
                 {"rounds": 11, "evaluate_every": 4}),
    "fedavg": (FedAvg(training=TRAINING), {"rounds": 4}),
}  # fmt: skip
MOMENTS = ("training", "aggregation", "writing", "evaluation")
RECIPE = "rounds = 1\n[method]\nname = 'test'\n"  # only looked at for being the same


class Points:
    """Counts moments by kind, and kills the process at the chosen one.

    Args:
        kind: the kind to die in, None: don't.
        number: the how manieth moment of this kind.
    """

    def __init__(self, kind=None, number=0):
        self.kind, self.number, self.seen = kind, number, Counter()

    def at(self, kind):
        self.seen[kind] += 1
        if kind == self.kind and self.seen[kind] == self.number:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner, name, kind):
        original = getattr(owner, name)

        def wrapped(*args, **kwargs):
            self.at(kind)
            result = original(*args, **kwargs)
            self.at(kind)
            return result

        setattr(owner, name, wrapped)

    def install(self):
        self.around(Supervised, "losses", "training")
        self.around(Worker, "train_all", "training")
        self.around(Coordinator, "receive", "aggregation")
        self.around(Coordinator, "close", "aggregation")
        self.around(Worker, "apply", "aggregation")
        self.around(Worker, "catch_up", "aggregation")
        self.around(rounds, "merge_rounds", "evaluation")
        for name in ("fsync", "ftruncate", "replace"):
            self.around(os, name, "writing")
        pwrite = os.pwrite

        def torn(handle, data, position):
            done = 0
            for size in (len(data) // 3, len(data)):  # a death in the middle leaves a third of it
                self.at("writing")
                done += pwrite(handle, data[done:size], position + done)
            return done

        os.pwrite = torn


def session(name, folder, kind=None, number=0, out=None):
    """Fork; the child runs, or goes on with, the run in the folder, and dies or ends. Returns its process id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        torch.set_num_threads(1)
        points = Points(kind, number)
        points.install()
        method, settings = METHODS[name]
        Problem().federation(method, out=folder, recipe_text=RECIPE, **settings).run(resume=True)
        if out is not None:
            out.write_text(json.dumps(points.seen))
        code = 0
    finally:
        if code:
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
        os._exit(code)


def outcome(child):
    """True: it ended by itself. False: it was killed."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        return False
    assert os.WEXITSTATUS(status) == 0, "a session failed"
    return True


def result(folder):
    """What must be the same, however often the run was killed."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    for table in (*lines, summary):
        del table["seconds"]
    for key in ("peak_memory_bytes", "seconds_per_client", "started", "ended"):
        del summary[key]
    if (folder / "model.orbit").exists():
        model = (folder / "model.orbit").read_bytes()
    else:  # its metadata come in any order
        with safe_open(folder / "model.safetensors", framework="np") as file:
            model = file.metadata(), {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
    return {"metrics": lines, "summary": summary, "model": model, "files": sorted(p.name for p in folder.iterdir())}


def main(root, each, timed, names):
    assert compiled.threads() == 1, "forking is safe without threads only"
    compiled.load()
    generator = random.Random(20240607)
    report = {}
    for name in names:
        counts = root / f"{name}.json"
        began = time.monotonic()
        assert outcome(session(name, root / f"{name}-undisturbed", out=counts))
        duration = time.monotonic() - began
        undisturbed, seen = result(root / f"{name}-undisturbed"), json.loads(counts.read_text())
        left = [None] * timed + [kind for kind in MOMENTS for _ in range(each)]  # None: after a random time
        generator.shuffle(left)
        kills, runs, same = Counter(), 0, True
        while left:
            folder = root / f"{name}-{runs}"
            runs += 1
            finished = False
            while not finished:
                if not left:
                    finished = outcome(session(name, folder))
                elif left[0] is None:
                    del left[0]
                    child = session(name, folder)
                    time.sleep(generator.uniform(0, 0.8 * duration))
                    with suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
                    finished = outcome(child)
                else:  # a session that has fewer such moments before it than a whole run ends, and the next run has it
                    kind = left[0]
                    finished = outcome(session(name, folder, kind, generator.randint(1, max(1, seen[kind] // 2))))
                    if not finished:
                        kills[left.pop(0)] += 1
            same = same and result(folder) == undisturbed
        report[name] = {"kills": kills, "runs": runs, "same": same}
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
