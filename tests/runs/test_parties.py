"""A federation of parties: each has its own file and no other's.

The coordinator knows who takes part.
"""

import json

import pytest
import torch

from fedseed.errors import FedseedError
from fedseed.models.loading import load_model
from fedseed.orbit import Orbit
from fedseed.recipe.settings import Recipe
from fedseed.runs.assembly import build
from fedseed.runs.joining import prepare_orbit_file
from fedseed.tasks.data import OwnData
from fedseed.transport import transport as transport_at
from fedseed.transport.base import Access
from fedseed.weights.devices import limited
from fedseed.weights.digest import base_digest
from support.instruction_files import rows, write_lines
from support.network import until
from support.sites import PATIENCE, Said, Sites, at_hub

NAMES = ("north", "south", "east")  # not in the order of the alphabet
pytestmark = pytest.mark.long  # models are loaded, and tuned


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with all three files, for one process.

    And a folder for each site, with its own only.
    """
    folder = tmp_path_factory.mktemp("parties")
    chat = [
        {"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "3"}]}
        for i in "abcd"
    ]
    said = [{"instruction": f"Say {i}.", "output": f"{i}"} for i in range(6)]
    for name, own in (("south", said), ("east", chat), ("north", rows("north", 12))):
        for place in ("all", name):
            write_lines(folder / place / f"{name}.jsonl", own)
    write_lines(folder / "east" / "test" / "asked.jsonl", rows("asked", 3))
    return folder


LITTLE = {"steps": 1, "batch": 2, "accumulation": 1}
METHODS = {
    "feedsign": {"batch": 2},
    "fedavg": {"training": {"learning_rate": 1e-3, **LITTLE}},
    "fedit": {"training": LITTLE},
}


def recipe(method="feedsign", rounds=4, task=(), **federation):
    federation = federation or {"clients": list(NAMES)}
    return Recipe.model_validate(
        {
            "rounds": rounds,
            "seed": 5,
            "task": {"name": "files", "evaluation": 0.25, **dict(task)},
            "federation": {"joint": False, "dead_after": 30.0, **federation},
            "method": {"name": method, **METHODS[method]},
            "evaluation": {"every": 2, "rouge": False},
        }
    )


@pytest.fixture(scope="module")
def ended(data, tmp_path_factory):
    """A run of three sites that keep what comes of it; the first is alone for a while."""
    folder = tmp_path_factory.mktemp("run")
    sites = at_hub(recipe())
    with limited(1):
        sites.coordinator(folder / "run")
        sites.site("north", OwnData(data / "north" / "north.jsonl"), folder / "north")
        until(
            lambda: any("waits for clients: 1 of 3" in line for line in sites.said["north"].said),
            PATIENCE,
            "north is not told",
        )
        sites.site("south", OwnData(data / "south"), folder / "south")
        sites.site("east", OwnData(data / "east"), folder / "east")
        sites.wait()
    sites.out = folder
    return sites


def test_all_end_with_the_same_weights_and_keep_the_model(ended):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert set(ended.digests) == set(NAMES) and len(set(ended.digests.values())) == 1
    assert ended.result.summary["weights_digest"] == ended.digests["north"]
    for name in NAMES:
        folder, base = ended.out / name, load_model("small")[0]
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert AutoTokenizer.from_pretrained(folder)("a b").input_ids
        assert (folder / "model.orbit").read_bytes() == (
            ended.out / "run" / "model.orbit"
        ).read_bytes()
        assert (
            not (folder / ".model.orbit").exists()
            and ended.digests[name] in (folder / "README.md").read_text()
        )
        assert (
            Orbit.open(folder / "model.orbit").replay(base)
            == ended.digests[name]
            == base_digest(model)
        )
    with pytest.raises(FedseedError, match="holds a model already"):
        prepare_orbit_file(ended.out / "north")


def test_each_evaluates_on_its_own_and_the_mean_is_weighted(ended):
    metrics, summary = ended.result.metrics, ended.result.summary
    lines = [line for line in metrics if "by_client" in line]
    assert [line["round"] for line in lines] == [0, 2, 4]
    for line in lines:
        found = line["by_client"]
        assert list(found) == list(NAMES)
        # a quarter of 12, of 6 and of 4
        assert {name: figures["held_out"] for name, figures in found.items()} == {
            "north": 3,
            "south": 2,
            "east": 1,
        }
        weighted = sum(f["held_out"] * f["loss"] for f in found.values()) / 6
        assert (
            line["loss"] == pytest.approx(weighted)
            and len({f["loss"] for f in found.values()}) == 3
        )
    first, last = (line["by_client"]["east"] for line in (lines[0], lines[-1]))
    assert summary["by_client"]["east"] == {"baseline": first, "final": last}
    assert summary["final"]["loss"] == lines[-1]["loss"]
    mine = [line["by_client"] for line in ended.clients["south"].evaluations]
    assert mine == [{"south": line["by_client"]["south"]} for line in lines]


def test_the_result_is_that_of_one_process(ended, data):
    with limited(1):
        expected = build(recipe(task={"path": str(data / "all")})).run()
    assert expected.summary["weights_digest"] == ended.digests["north"]
    assert expected.summary["final"] == ended.result.summary["final"]
    ours, theirs = (
        [line.get("by_client") for line in one.metrics] for one in (expected, ended.result)
    )
    assert ours == theirs and list(ours[-1]) == list(NAMES)


def test_a_site_that_is_late_catches_up(data, shared_server, tmp_path):
    """Over a real server, with whole weights; the orbit of a run that has none is not written."""
    checked = recipe(
        "fedavg", rounds=4, clients=list(NAMES), start_with=2, minimum=2, dead_after=PATIENCE
    )
    sites = Sites(checked, lambda: transport_at(Access(shared_server.url), "late"))

    def east_is_here():
        return any("welcome" in line for line in sites.said["east"].said) or sites.failures

    with limited(1):
        sites.coordinator(tmp_path / "run")
        sites.said["east"] = Said()
        sites.site("south", OwnData(data / "south"))
        sites.site("north", OwnData(data / "north"), hold=east_is_here)
        until(lambda: sites.said["north"].at is None, PATIENCE, "no round")
        sites.site("east", OwnData(data / "east"), tmp_path / "east")
        assert len(sites.wait()) == 1 and set(sites.digests) == set(NAMES)
    took_part = [line["clients"] for line in sites.result.metrics[1:]]
    assert took_part[0] == ["north", "south"] and took_part[-1] == list(NAMES)
    assert list(sites.result.metrics[-1]["by_client"]) == list(NAMES)
    from transformers import AutoModelForCausalLM

    kept = AutoModelForCausalLM.from_pretrained(tmp_path / "east")
    assert base_digest(kept) == sites.digests["east"] and not list(
        (tmp_path / "east").glob("*.orbit")
    )


def test_those_who_enrol_before_the_start_take_part(data, tmp_path):
    checked = recipe(rounds=2, enrolment="open", start_with=2, dead_after=PATIENCE)
    sites = at_hub(checked)
    west = write_lines(tmp_path / "west.jsonl", rows("west", 4))
    with limited(1):
        sites.coordinator(tmp_path / "run")
        sites.site("south", OwnData(data / "south"))
        until(lambda: (sites.status() or {}).get("alive") == 1, PATIENCE, "south is not seen")
        assert (
            sites.status()["waiting"] == {"here": 1, "wanted": 2} and sites.status()["log"] is None
        )
        sites.site("north", OwnData(data / "north"), hold=lambda: "west" in sites.failures)
        until(lambda: sites.said["north"].at is None, PATIENCE, "no round")
        sites.site("west", OwnData(west))
        assert len(sites.wait(["west"])) == 1
    assert (
        "this run has no client west: it has north, south; the run has begun, so no more clients"
    ) in str(sites.failures["west"])
    # by their names, not as they came
    assert list(sites.result.metrics[-1]["by_client"]) == ["north", "south"]
    assert json.loads((tmp_path / "run" / "clients.json").read_text()) == ["north", "south"]


def test_an_adapter_is_kept_too(data, tmp_path):
    """As `peft` has it. One process hosts all clients, which lie in a folder as a file each."""
    from peft import PeftModel

    sites = at_hub(recipe("fedit", rounds=1))
    with limited(1):
        sites.coordinator(tmp_path / "run")
        sites.site("north", OwnData(data / "all"), tmp_path / "kept", clients=["*"])
        digest = sites.wait().pop()
    assert list(sites.result.metrics[-1]["by_client"]) == list(NAMES)
    model = PeftModel.from_pretrained(load_model("small")[0], tmp_path / "kept")
    mine = sites.clients["north"].replica.hosted.worker.space
    found = {name: tensor for name, tensor in model.named_parameters() if "lora" in name}
    assert found and sites.result.summary["weights_digest"] == digest == mine.digest()
    for name, tensor in mine.model.named_parameters():
        if "lora" in name:
            assert torch.equal(found[name], tensor)
