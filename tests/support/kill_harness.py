"""Sessions of a run that kill themselves at a chosen moment, for tests/runs/test_kill.py."""

import json
import os
import signal
from collections import Counter

import torch

from fedseed.federation.client.worker import Worker
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.objectives.losses import Supervised
from fedseed.runs import costs
from support.worker_runs import federation

METHODS = {  # of `worker_runs`
    "ferret": {"rounds": 5},
    "fedkseed": {"rounds": 4},
    "feedsign": {"rounds": 11, "evaluate_every": 4},
    "fedavg": {"rounds": 4},
}
MOMENTS = ("training", "aggregation", "writing", "evaluation")


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
        self.around(costs, "merge_rounds", "evaluation")
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


def session(name, folder, kind=None, number=0, counts=None):
    """Run, or go on with, the run in the folder, and die or end.

    Then say how many moments of each kind there were.
    """
    torch.set_num_threads(1)
    points = Points(kind, number)
    points.install()
    recipe = "rounds = 1\n[method]\nname = 'test'\n"  # only looked at for being the same
    federation(name, out=folder, recipe_text=recipe, **METHODS[name]).run(resume=True)
    if counts is not None:
        counts.write_text(json.dumps(points.seen))
