"""Processes that fedseed starts run nothing that lies in the working folder."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedseed
from fedseed.reports.pictures import draw_apart

SOURCE = Path(fedseed.__file__).parent
PLANTED = ("json", "importlib", "matplotlib", "numpy", "peft", "torch", "fedseed", "sitecustomize")


def plant(folder):
    """Modules that leave a file when they are imported."""
    for name in PLANTED:
        (folder / f"{name}.py").write_text(f"open({str(folder / 'ran')!r}, 'a').write({name!r})\n")


@pytest.mark.long
def test_a_module_of_the_working_folder_is_not_run(tmp_path, monkeypatch):
    plant(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", ".")])
    run = tmp_path / "run"
    run.mkdir()
    lines = [{"round": number, "loss": 2.0 - number, "bytes_up": number} for number in range(2)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = {
        "method": "ferret",
        "parameters": 9,
        "clients": 2,
        "clients_per_round": 2,
        "baseline": {"loss": 2.0},
        "final": {"loss": 1.0},
        "payload_bytes_up": 1.0,
        "payload_bytes_down": 1.0,
    }
    draw_apart(run, summary)
    left = {"metrics.jsonl", "metrics.png", "report.html"}
    assert {path.name for path in run.iterdir()} == left and not (tmp_path / "ran").exists()


SCRIPT = """
import sys
sys.path[:] = {path}
print("the script runs")
import beside
from fedseed import processes
processes.IMPORTED = ["fedseed.errors", "beside"]
process, connection = processes.start(beside.live, "a")
print(connection.recv())
process.join()
"""


def test_a_forked_process_is_no_other(tmp_path):
    """It runs nothing of the working folder and no script again, finds what this one finds, and is
    deaf to Ctrl-C.

    Nobody hears of a lock that it has left.
    """
    place, found = tmp_path / "place", tmp_path / "found"
    place.mkdir()
    found.mkdir()
    plant(place)
    (found / "beside.py").write_text(
        "import multiprocessing, os, signal\nmade = os.getpid()\ndef live(heard, say, word):\n"
        "    lock = multiprocessing.get_context('spawn').RLock()\n"
        "    deaf = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])\n"
        "    same = {'PYTHONPATH', 'PYTHONSAFEPATH'} & set(os.environ)\n"
        "    say([word, os.getcwd(), made == os.getppid(), deaf, same])\n"
    )
    path = [str(found), *(entry for entry in sys.path if entry not in ("", "."))]
    (found / "script.py").write_text(SCRIPT.format(path=path))
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONSAFEPATH")
    }
    done = subprocess.run(
        [sys.executable, "-P", found / "script.py"],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == (
        f"the script runs\n['a', '{place}', True, True, set()]\n",
        "",
    )
    assert not (place / "ran").exists()


def test_every_process_is_started_so():
    started = re.compile(r"sys\.executable|get_context\(|os\.fork\(")
    assert [path.name for path in SOURCE.rglob("*.py") if started.search(path.read_text())] == [
        "processes.py"
    ]
