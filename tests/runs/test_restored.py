"""What was taken out and is wanted: --overwrite, transports of others, limits for rewards."""

import threading
from typing import ClassVar

import pytest

import fedseed
from fedseed.errors import FedseedError, RecipeError
from fedseed.registry import load_plugin
from fedseed.runs.folder import RunFolder
from fedseed.tasks.data import Example
from fedseed.tasks.rewards import Judge, RewardSettings
from fedseed.transport import REGISTRY, transport
from fedseed.transport.base import Access, Transport
from fedseed.transport.memory import Hub
from support.command import refused, well
from support.problem import Problem

PROBLEM = Problem()


def test_overwriting_leaves_a_fresh_run_and_what_is_somebody_elses(tmp_path, without_pictures):
    folder = tmp_path / "run"
    first = PROBLEM.federation(PROBLEM.ferret(), rounds=4, out=folder).run()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(FedseedError, match="holds a run already"):
        PROBLEM.federation(PROBLEM.ferret(), rounds=2, out=folder).run()
    again = PROBLEM.federation(PROBLEM.ferret(), rounds=2, out=folder).run(overwrite=True)
    fresh = PROBLEM.federation(PROBLEM.ferret(), rounds=2, out=tmp_path / "fresh").run()
    assert again.summary["weights_digest"] == fresh.summary["weights_digest"]
    assert again.summary["weights_digest"] != first.summary["weights_digest"]
    assert (folder / "model.orbit").read_bytes() == (tmp_path / "fresh/model.orbit").read_bytes()
    assert (folder / "notes.txt").read_text() == "mine"
    # a folder that is empty, or not there, is fine as well
    PROBLEM.federation(PROBLEM.ferret(), rounds=1, out=tmp_path / "new").run(overwrite=True)


def test_nothing_is_overwritten_where_a_run_goes_on_or_links_lead_elsewhere(
    tmp_path, without_pictures
):
    folder, other = tmp_path / "run", tmp_path / "precious"
    PROBLEM.federation(PROBLEM.ferret(), rounds=1, out=folder).run()
    held = RunFolder(tmp_path / "going")
    try:
        with pytest.raises(FedseedError, match="another process is running"):
            PROBLEM.federation(PROBLEM.ferret(), rounds=1, out=held.path).run(overwrite=True)
    finally:
        held.release()
    other.mkdir()
    (other / "kept").write_text("kept")
    (folder / "adapter").symlink_to(other)
    PROBLEM.federation(PROBLEM.ferret(), rounds=1, out=folder).run(overwrite=True)
    assert (other / "kept").read_text() == "kept" and not (folder / "adapter").exists()


def test_overwriting_does_not_go_with_resuming_or_without_a_folder(tmp_path):
    with pytest.raises(RecipeError, match="overwrite needs a folder"):
        PROBLEM.federation(PROBLEM.ferret(), rounds=1).run(overwrite=True)
    refused(
        2,
        "--overwrite begins again and --resume continues",
        "run",
        "quickstart-ferret",
        "--resume",
        "--overwrite",
    )


def test_a_wrong_recipe_deletes_nothing(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "summary.json").write_text("{}")
    words = ["--set", "model.base=./nowhere", "--out", folder, "--overwrite"]
    refused(2, "there is no such folder", "run", "quickstart-ferret", *words)
    assert (folder / "summary.json").exists()


class Pigeons(Transport):
    """A hub that addresses pigeon://... lead to."""

    schemes: ClassVar = ("pigeon",)
    hub: ClassVar = Hub()

    def __init__(self, access, run):
        self.way = self.hub.transport(run)

    async def coordinator(self, events=None):
        return await self.way.coordinator()

    async def client(self, name, events=None):
        return await self.way.client(name)

    async def watcher(self):
        return await self.way.watcher()


@pytest.fixture
def registered():
    fedseed.register_transport(Pigeons)
    yield
    REGISTRY._entries.pop("Pigeons", None)


def test_an_address_leads_to_a_transport_of_others(registered):
    assert isinstance(transport(Access("pigeon://loft"), "run"), Pigeons)
    with pytest.raises(RecipeError, match=r"pigeon://\.\.\."):
        transport(Access("dove://loft"), "run")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: type("Bare", (Pigeons,), {"schemes": ()}), "has no schemes"),
        (lambda: type("Text", (Pigeons,), {"schemes": "pigeon"}), "has no schemes"),
        (lambda: type("Taken", (Pigeons,), {"schemes": ("nats",)}), "fedseed itself has nats://"),
        (lambda: type("Second", (Pigeons,), {"schemes": ("pigeon",)}), "scheme pigeon:// of"),
        (lambda: int, "is no subclass of fedseed.transport.base.Transport"),
        (lambda: type("Half", (Transport,), {"schemes": ("half",)}), "leaves out"),
    ],
)
def test_what_is_no_transport_is_refused(registered, made, said):
    with pytest.raises(RecipeError, match=said):
        fedseed.register_transport(made())


def test_a_plugin_may_register_one(tmp_path):
    file = tmp_path / "doves.py"
    file.write_text(
        "import fedseed\n"
        "from fedseed.transport.memory import MemoryTransport\n"
        "class Doves(MemoryTransport):\n"
        "    schemes = ('dove',)\n"
        "fedseed.register_transport(Doves)\n"
    )
    load_plugin(file)
    assert "Doves" in REGISTRY.names()
    REGISTRY._entries.pop("Doves")


def test_a_reward_that_takes_too_long_ends_with_an_error_that_names_the_answer():
    release = threading.Event()
    example = Example("Add:", "3")

    def slow(prompt, answer, example):
        if answer == "slow":
            release.wait()
        if answer == "wrong":
            raise KeyError(answer)
        return 1.0

    judge = Judge(slow, seconds=0.2)
    assert judge([example], ["fast"]) == [1.0]
    with pytest.raises(
        FedseedError, match=r"took more than reward\.seconds = 0\.2; prompt 'Add:', answer 'slow'"
    ):
        judge([example], ["slow"])
    with pytest.raises(FedseedError, match="raised KeyError: 'wrong'"):
        judge([example], ["wrong"])
    release.set()
    # without a limit it is called in the thread that asks
    assert Judge(lambda *_: threading.get_ident())([example], ["x"]) == [threading.get_ident()]
    assert RewardSettings(name="exact_match").seconds is None


def test_a_recipe_sets_the_limit():
    assert "seconds that a function may take" in well("explain", "reward.seconds").stdout
