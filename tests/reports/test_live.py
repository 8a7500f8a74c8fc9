"""`fedseed watch`: the page of a run that goes on, by server-sent events."""

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from fedseed.reports.live import LivePage, follow_run, stamp_of
from support.command import refused
from support.problem import Problem


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    problem = Problem()
    problem.federation(problem.ferret(), rounds=4, out=folder).run()
    return folder


def get(address):
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


async def test_each_change_is_an_event_and_the_end_is_said(tmp_path, finished):
    folder = tmp_path / "run"
    events = follow_run(folder, look_seconds=0.01)
    assert json.loads((await anext(events)).removeprefix("data: ")) == {"over": False}
    folder.mkdir()
    for name in ("recipe.toml", "metrics.jsonl"):
        # a run without a recipe in TOML has no such file
        (folder / name).write_text("" if name == "recipe.toml" else "{}")
        assert json.loads((await anext(events)).removeprefix("data: ")) == {"over": False}
    shutil.copy(finished / "summary.json", folder / "summary.json")
    assert json.loads((await anext(events)).removeprefix("data: ")) == {"over": True}
    assert (await anext(events)).startswith("event: over\n")
    assert [one async for one in events] == []


async def test_while_nothing_changes_there_are_signs_of_life(tmp_path):
    events = follow_run(tmp_path, look_seconds=0.01, keep_seconds=0.0)
    await anext(events)
    assert (await anext(events)).startswith(": ")
    await events.aclose()


def test_the_page_is_the_report_as_far_as_the_run_has_come(tmp_path, finished):
    page = LivePage(tmp_path / "nothing")
    assert "The run has written nothing yet" in page.text()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "progress.jsonl").touch()
    assert "The run has written nothing yet" in LivePage(tmp_path / "begun").text()
    going = tmp_path / "going"
    shutil.copytree(finished, going)
    (going / "summary.json").unlink()
    lines = (finished / "metrics.jsonl").read_text().splitlines(keepends=True)
    (going / "metrics.jsonl").write_text("".join(lines[:2]))
    before = stamp_of(going)
    early = LivePage(going).text()
    (going / "metrics.jsonl").write_text("".join(lines))
    assert stamp_of(going) != before and LivePage(going).text() != early


@pytest.fixture
def served(finished):
    """A `fedseed watch` of its own process, and its address."""
    words = [sys.executable, "-m", "fedseed", "watch", str(finished), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().partition(" ")[0]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.mark.long
def test_the_command_serves_the_page_and_its_events(served):
    kind, index = get(served)
    assert kind.startswith("text/html") and index.count("<script>") == 1
    assert 'new EventSource("events")' in index
    assert "<script" not in get(f"{served}page")[1]
    kind, events = get(f"{served}events")
    assert kind.startswith("text/event-stream") and "event: over" in events


@pytest.mark.long
def test_a_browser_shows_it_and_takes_over_what_is_new(served):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"]
    done = subprocess.run(
        [browser, *words, "--dump-dom", served], capture_output=True, text=True, timeout=300
    )
    assert re.search("rounds", done.stdout) and done.stdout.count("<footer") == 1


def test_what_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    refused(2, "no such folder; give that of a run", "watch", tmp_path / "file")
    assert not Path(tmp_path / "new").exists()
