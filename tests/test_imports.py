import subprocess
import sys

import pytest

MODULES = [
    "fedseed",
    "fedseed.methods",
    "fedseed.federation.messages",
    "fedseed.orbit",
    "fedseed.federation.coordinator",
    "fedseed.runs.folder",
    "fedseed.runs.loop",
    "fedseed.federation.network_coordinator",
    "fedseed.runs.network",
    "fedseed.transport.memory",
    "fedseed.transport.nats",
    "fedseed.transport.keys",
    "fedseed.cli.network",
    "fedseed.runs.recipe",
    "fedseed.runs.roster",
    "fedseed.runs.site",
    "fedseed.federation.control",
    "fedseed.federation.log_orbit",
    "fedseed.cli.status",
    "fedseed.flower.server",
    "fedseed.tasks.instructions",
    "fedseed.tasks.natural_instructions",
    "fedseed.tasks.mezo",
    "fedseed.tasks.own",
    "fedseed.reports.partition",
    "fedseed.reports.pages",
    "fedseed.reports.comparison",
    "fedseed.reports.live",
    "fedseed.reports.prometheus",
    "fedseed.cli.pages",
    "fedseed.cli.app",
]


@pytest.mark.long
def test_the_coordinators_side_imports_neither_torch_nor_transformers():
    """One process for all: what none of them brings, nobody does."""
    code = f"""
import importlib, sys
for module in {MODULES}:
    importlib.import_module(module)
    print(module, *({{'torch', 'transformers'}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == [*MODULES, ""]


def test_a_coordinator_runs_a_whole_round_without_torch():
    """Updates are made by hand here; torch can't even be imported."""
    code = """
import sys
sys.modules["torch"] = None  # any import of it fails
import numpy as np
from fedseed.federation.coordinator import Coordinator
from fedseed.weights.layout import Layout, TensorEntry
from fedseed.federation.messages import MessageKind, Message
from fedseed.methods import Ferret
from fedseed.methods.ferret import Coefficients

method = Ferret(directions=4, blocks="one", basis="hadamard", seeds="shared", allocation="size")
layout = Layout((TensorEntry("w", (10,), "float32"),), (0, 10))
coordinator = Coordinator(method, layout, seed=1, examples=[5, 5, 5], per_round=2)
for number in (1, 2):
    for client in coordinator.open(number):
        plan = method.decode_plan(coordinator.state, Message.decode(coordinator.plan(client)).payload)
        update = Coefficients(plan.seed, (np.full(4, client + 1.0, dtype=np.float32),))
        coordinator.receive(Message(MessageKind.UPDATE, method.code, number, client, update.encode()).encode(), client)
    step = Message.decode(coordinator.close())
assert len(step.payload) == 8 + 4 + 16
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "done", done.stderr
