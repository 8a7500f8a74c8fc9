"""A federation of parties: each has its own file and no other's; the coordinator knows who takes part."""

import json
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from fedseed.errors import FedseedError, RecipeError
from fedseed.federation.held_out import averaged
from fedseed.orbit import Orbit
from fedseed.reports.progress import Silent
from fedseed.runs.assembly import build
from fedseed.runs.joining import Loading, joining
from fedseed.runs.keeping import keep, orbit_place
from fedseed.runs.network import coordinate
from fedseed.runs.recipe import Recipe
from fedseed.runs.threads import limited
from fedseed.tasks.data import OwnData
from fedseed.transport import transport as transport_at
from fedseed.transport.base import Access
from fedseed.transport.memory import Hub
from fedseed.weights.digest import base_digest
from support.network import until

NAMES = ("north", "south", "east")  # not in the order of the alphabet
PATIENCE = 300.0


def rows(name, count):
    return [{"prompt": f"{name} {i}:", "completion": f" {i * 7 % 10}"} for i in range(count)]


def write(path, found):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with all three files, for one process; and a folder for each site, with its own only."""
    folder = tmp_path_factory.mktemp("parties")
    chat = [{"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "3"}]} for i in "abcd"]
    for place in ("all", "south"):
        write(folder / place / "south.jsonl", [{"instruction": f"Say {i}.", "output": f"{i}"} for i in range(6)])
    for place in ("all", "east"):
        write(folder / place / "east.jsonl", chat[:2] + rows("east", 0) + chat[2:])
    for place in ("all", "north"):
        write(folder / place / "north.jsonl", rows("north", 12))
    return folder


def recipe(method="feedsign", rounds=4, task=(), **federation):
    settings = {"name": "feedsign", "batch": 2}
    if method == "fedavg":
        settings = {"name": "fedavg", "training": {"learning_rate": 1e-3, "steps": 1, "batch": 2, "accumulation": 1}}
    if not federation:
        federation = {"clients": list(NAMES)}
    return Recipe.model_validate({
        "rounds": rounds, "seed": 5, "task": {"name": "files", "evaluation": 0.25, **dict(task)},
        "federation": {"joint": False, "dead_after": 30.0, **federation}, "method": settings,
        "evaluation": {"every": 2, "rouge": False},
    })  # fmt: skip


class Said(Silent):
    """Keeps what is said, and acts when a round is over."""

    def __init__(self, at=None, act=None):
        self.lines, self.at, self.act = [], at, act

    def note(self, text):
        self.lines.append(text)

    warn = note

    def round(self, line):
        self.advance(line["round"])

    def advance(self, number):
        if self.at is not None and number >= self.at:
            self.at = None
            self.act()


class Sites:
    """Sites in threads of this process, at a hub or a server."""

    def __init__(self, checked, way, folder):
        self.checked, self.way, self.folder = checked, way, folder
        self.digests, self.failures, self.said, self.clients = {}, {}, {}, {}
        self._threads = []

    def site(self, name, own, out=None, checked=None):
        self.said[name] = Said()

        def live():
            torch.set_num_threads(1)
            try:
                orbit = None if out is None else orbit_place(out)
                self.clients[name] = client = joining(
                    checked or self.checked, "run", self.way(), [name], progress=self.said[name], own=own, orbit=orbit
                )
                digest = client.run()
                if out is not None:
                    keep(client, digest, out)
                self.digests[name] = digest
            except Exception as error:
                self.failures[name] = error

        self._start(live)

    def coordinator(self, progress=None):
        self.coordinating = progress or Said()

        def run():
            try:
                self.result = coordinate(self.checked, "run", self.way(), self.folder, progress=self.coordinating)
            except Exception as error:
                self.failures["coordinator"] = error

        self._start(run)

    def _start(self, act):
        self._threads.append(threading.Thread(target=act, daemon=True))
        self._threads[-1].start()

    def status(self):
        import asyncio

        async def ask():
            end = await self.way().watcher()
            try:
                answer = await end.status(5)
                return None if answer is None else {**json.loads(answer), "log": await end.log_end()}
            finally:
                await end.close()

        return asyncio.run(ask())

    def wait(self, expected=()):
        for thread in self._threads:
            thread.join(PATIENCE)
            assert set(self.failures) <= set(expected), self.failures
        return set(self.digests.values())


def at_hub(checked, folder):
    hub = Hub()
    return Sites(checked, lambda: hub.transport("run"), folder)


@contextmanager
def files_opened():
    """The .jsonl files that are opened meanwhile, by the folder they lie in."""
    found, watching = set(), [True]

    def note(event, arguments):
        if event == "open" and watching and str(arguments[0]).endswith(".jsonl"):
            found.add(Path(str(arguments[0])))

    sys.addaudithook(note)  # for ever: there is no way to remove it
    yield found
    watching.clear()


@pytest.fixture(scope="module")
def ended(data, tmp_path_factory):
    """A run of three sites that keep what comes of it; the first is alone for a while."""
    folder = tmp_path_factory.mktemp("run")
    sites = at_hub(recipe(), folder / "run")
    with limited(1), files_opened() as opened:
        sites.coordinator()
        sites.site("north", OwnData(data / "north" / "north.jsonl"), folder / "north")
        until(lambda: "here" in str((sites.status() or {}).get("waiting")) and sites.status()["waiting"]["here"] == 1,
              PATIENCE, "north is not seen")  # fmt: skip
        until(lambda: any("waits for clients: 1 of 3" in line for line in sites.said["north"].lines), PATIENCE,
              "north is not told")  # fmt: skip
        alone = sites.status()
        sites.site("south", OwnData(data / "south"), folder / "south")
        sites.site("east", OwnData(data / "east", evaluation_file=data / "all" / "south.jsonl", evaluation=None),
                   folder / "east", recipe(task={"evaluation": 0.5}))  # fmt: skip
        sites.wait()
    sites.alone, sites.opened, sites.out = alone, opened, folder
    return sites


def test_the_first_to_arrive_alone_waits(ended):
    assert ended.alone["waiting"] == {"here": 1, "wanted": 3} and ended.alone["log"] is None
    assert ended.alone["round"] == 0 and ended.alone["clients"] == 3
    assert any("1 of 3 clients are here; to come: east, south" in line for line in ended.coordinating.lines)
    assert "welcome to run run: 3 clients" in ended.said["north"].lines


def test_all_end_with_the_same_weights_and_keep_the_model(ended):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert set(ended.digests) == set(NAMES) and len(set(ended.digests.values())) == 1
    assert ended.result.summary["weights_digest"] == ended.digests["north"]
    for name in NAMES:
        folder = ended.out / name
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert AutoTokenizer.from_pretrained(folder)("a b").input_ids
        assert (folder / "model.orbit").read_bytes() == (ended.out / "run" / "model.orbit").read_bytes()
        assert not (folder / ".model.orbit").exists() and ended.digests[name] in (folder / "README.md").read_text()
        assert Orbit.open(folder / "model.orbit").replay(_base()) == ended.digests[name] == base_digest(model)
    with pytest.raises(FedseedError, match="holds a model already"):
        orbit_place(ended.out / "north")


def _base():
    from fedseed.models.loading import load_model

    return load_model("small")[0]


def test_each_evaluates_on_its_own_and_the_mean_is_weighted(ended):
    metrics, summary = ended.result.metrics, ended.result.summary
    lines = [line for line in metrics if "by_client" in line]
    assert [line["round"] for line in lines] == [0, 2, 4]
    for line in lines:
        found = line["by_client"]
        assert list(found) == list(NAMES)
        # a quarter of 12 and of 6; south's file in place of what east would hold out
        assert {name: figures["held_out"] for name, figures in found.items()} == {"north": 3, "south": 2, "east": 6}
        weighted = sum(f["held_out"] * f["loss"] for f in found.values()) / 11
        assert line["loss"] == pytest.approx(weighted) and len({f["loss"] for f in found.values()}) == 3
    assert summary["by_client"]["east"] == {
        "baseline": lines[0]["by_client"]["east"],
        "final": lines[-1]["by_client"]["east"],
    }
    assert summary["final"]["loss"] == lines[-1]["loss"]
    mine = [line["by_client"] for line in ended.clients["south"].evaluations]
    assert mine == [{"south": line["by_client"]["south"]} for line in lines]


def test_nobody_opens_anothers_file(ended, data):
    own = {data / "north" / "north.jsonl", data / "south" / "south.jsonl", data / "east" / "east.jsonl"}
    assert {path for path in ended.opened if data in path.parents} == own | {data / "all" / "south.jsonl"}


def test_the_result_is_that_of_one_process(ended, data):
    """Without east's evaluation file, which changes what it trains on."""
    checked = recipe(rounds=2, task={"path": str(data / "all")})
    with limited(1):
        expected = build(checked).run()
        sites = at_hub(recipe(rounds=2), None)
        sites.checked = recipe(rounds=2)
        for name in NAMES:
            sites.site(name, OwnData(data / name))
        sites.coordinator()
        assert sites.wait() == {expected.summary["weights_digest"]}
    assert [line.get("by_client") for line in sites.result.metrics] == [
        line.get("by_client") for line in expected.metrics
    ]
    assert sites.result.summary["final"] == expected.summary["final"]
    assert [client for client in expected.metrics[-1]["by_client"]] == list(NAMES)
