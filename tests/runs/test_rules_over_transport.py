"""Step rules and global optimisers over a transport: sites that hold a model each end with the simulation's bits."""

import json
import threading

import pytest

from fedseed import Orbit
from fedseed.federation.network_client import NetworkClient
from fedseed.runs.assembly import build
from fedseed.runs.joining import Loading
from fedseed.runs.network import coordinate
from fedseed.runs.recipe import Recipe
from fedseed.transport.memory import Hub
from support.tiers import mark

NAMES = ("east", "north")
TRAINING = {"steps": 1, "batch": 2, "accumulation": 1, "learning_rate": 0.1}
FERRET = {"name": "ferret", "directions": 64, "training": TRAINING, "blocks": 4}
METHODS = {
    "ferret-adam-fixed": {**FERRET, "server": "adam", "seeds": "fixed", "global_rate": 0.01, "allocation": "size"},
    "ferret-rms-nesterov": {**FERRET, "block_rate": "rms", "server": "nesterov", "global_rate": 1e-3},
    "zo-deviation": {"name": "zo-fedsgd", "divide_by": "deviation", "optimizer": "momentum", "batch": 2},
    "zo-scalar-decay": {
        "name": "zo-fedsgd", "seeds": "shared", "divide_by": "scalar", "decay": 0.01, "small_steps": "from-base",
        "learning_rate": 1e-4, "batch": 2,
    },
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", mark(METHODS, lambda name: name != "ferret-adam-fixed"))
def test_a_federation_over_a_transport_is_the_simulation(name, tmp_path):
    for client in NAMES:
        rows = [{"prompt": f"{client} {n}:", "completion": f" {n * 7 % 10}"} for n in range(8)]
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{client}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = Recipe.model_validate({
        "rounds": 4, "task": {"name": "files", "path": str(tmp_path / "data"), "evaluation": 0.25},
        "federation": {"joint": False}, "evaluation": {"every": 2, "rouge": False}, "method": METHODS[name],
    })  # fmt: skip
    expected = build(recipe).run().summary
    hub, digests, threads = Hub(), {}, []
    for client in NAMES:
        site = NetworkClient(hub.transport("run"), "run", Loading(recipe, [client]), 4)
        threads.append(threading.Thread(target=lambda site=site, client=client: digests.update({client: site.run()})))
        threads[-1].start()
    result = coordinate(recipe, "run", hub.transport("run"), tmp_path / "run").summary
    for thread in threads:
        thread.join()
    assert set(digests.values()) == {expected["weights_digest"]} == {result["weights_digest"]}
    kept = Orbit.open(tmp_path / "run" / "model.orbit").header.method
    assert all(getattr(kept, key) == value for key, value in METHODS[name].items() if key != "training")
