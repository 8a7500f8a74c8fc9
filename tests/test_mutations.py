"""The table of the mutation check speaks of what there is: files, functions, tests, and changes that are tried."""

import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MUTATE = runpy.run_path(str(ROOT / "scripts" / "mutate.py"))
SERVER = runpy.run_path(str(ROOT / "scripts" / "mutation_server.py"))
TABLE = tomllib.loads(MUTATE["TABLE"].read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TABLE)
def test_a_target_is_there_and_its_excuses_are_of_changes_that_are_tried(name):
    target = TABLE[name]
    made = MUTATE["mutants"](ROOT / target["file"], target.get("functions", []))
    assert made
    for test in target["tests"][: target["tests"].index("-k") if "-k" in target["tests"] else None]:
        assert (ROOT / test.partition("::")[0]).exists()
    for one in target.get("equivalent", ()):
        alone = {**target, "equivalent": [one]}
        assert any(MUTATE["explained"](alone, mutant) for mutant in made), one["change"]


def test_what_is_changed_in_a_function(tmp_path):
    path = tmp_path / "code.py"
    path.write_text('def f(x):\n    """0 < x"""\n    if x <= 3 and not x:\n        x += 1\n    return max(x, 2.0)\n')
    text = path.read_text()
    found = {m.change: text[: m.start] + m.text + text[m.stop :] for m in MUTATE["mutants"](path, ["f"])}
    assert set(found) == {
        "x <= 3 -> x < 3", "3 -> 4", "x <= 3 and (not x) -> x <= 3 or not x", "not x -> x", "without: x += 1",
        "x += 1 -> x -= 1", "1 -> 0", "max(x, 2.0) -> min(x, 2.0)", "2.0 -> 4.0",
        "condition turned round: x <= 3 and (not x)",
    }  # fmt: skip
    for changed in found.values():
        compile(changed, "code", "exec")
        assert changed != text
    made = MUTATE["mutants"](path, ["f"])
    assert MUTATE["drawn"](made, None) == MUTATE["drawn"](made, 99) == made
    some = MUTATE["drawn"](made, 3)
    assert len(some) == 3 and some == [mutant for mutant in made if mutant in some] == MUTATE["drawn"](made, 3)
    with pytest.raises(SystemExit, match="there is no function g; there are: f"):
        MUTATE["mutants"](path, ["g"])


def test_only_what_has_changed_since_a_commit_is_tried(tmp_path):
    path = tmp_path / "code.py"
    path.write_text("def f(x):\n    y = x + 1\n    z = x * 2\n    return y - z\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    since = MUTATE["changed_since"]
    assert since("HEAD", "code.py", tmp_path) == set()
    # one line has gone, one is another, one is longer
    path.write_text("def f(x):\n    z = x * 3\n    return (\n        x\n        - z\n    )\n")
    lines = since("HEAD", "code.py", tmp_path)
    assert lines == {2, 3, 4, 5, 6}
    touching, made = MUTATE["touching"], MUTATE["mutants"](path, [])
    assert touching(made, path, lines) == made and touching(made, path, {1}) == []
    assert {m.change for m in touching(made, path, {2})} == {"x * 3 -> x / 3", "3 -> 4"}
    assert {m.change for m in touching(made, path, {5})} == {"x - z -> x + z"}  # begins a line before


def test_what_survived_is_tried_again(tmp_path):
    made = MUTATE["mutants"](ROOT / TABLE["rounding"]["file"], [])
    lines = [
        MUTATE["line_of"]("rounding", TABLE["rounding"], mutant, MUTATE["Found"](outcome))
        for mutant, outcome in zip(made, ("passed", "killed", "timeout", "broken", "passed"), strict=False)
    ]
    MUTATE["save"](lines, tmp_path)
    again = MUTATE["tried"]("rounding", TABLE["rounding"], None, tmp_path / "mutants.json")
    assert again == [made[0], made[3], made[4]]
    assert MUTATE["tried"]("stream", TABLE["stream"], None, tmp_path / "mutants.json") == []


FORKED = """
import os, runpy, signal, sys, time
server = runpy.run_path(sys.argv[1])

def loop():
    while True:
        pass

def kill():
    os.kill(os.getpid(), signal.SIGSEGV)

for body, seconds, processor in (
    (loop, 900, 0.1), (lambda: time.sleep(900), 0.1, 900), (lambda: os._exit(3), 900, 900), (kill, 900, 900)
):
    print(server["forked"]({"seconds": seconds, "processor": processor}, body)[0])
"""


def test_loops_are_known_by_the_processors_time_and_waits_by_the_clock():
    done = subprocess.run(
        [sys.executable, "-c", FORKED, MUTATE["SERVER"]], capture_output=True, text=True, check=True, timeout=900
    )
    assert [int(code) for code in done.stdout.split()] == [SERVER["KILLED"], SERVER["KILLED"], 3, -11]


HELD = """
from functools import cached_property

def f(x, more=1):
    return [x + y for y in (1, 2)]

class A:
    @property
    def p(self):
        return 2 + 3

    @cached_property
    def c(self):
        return super().__init__() is None and 4 < 5
"""


def test_a_functions_code_is_swapped_whoever_holds_the_function():
    module = {"__name__": "held"}
    exec(compile(HELD, "held.py", "exec"), module)
    f, a = module["f"], module["A"]
    functions = [f, a.__dict__["p"].fget, a.__dict__["c"].func]

    def swap(old, new, name):
        assert old in HELD
        return SERVER["swap"](functions, HELD.replace(old, new), name)

    assert not swap("more=1", "more=2", "f")  # no code of the function's
    assert swap("x + y", "x - y", "f") and f(5) == [4, 3]
    assert swap("2 + 3", "2 * 3", "A.p") and a().p == 6
    assert swap("4 < 5", "4 > 5", "A.c") and a().c is False
    assert swap("x + y", "x + y", "f") and f(5) == [6, 7]
    assert not swap("x + y", "x+y", "f") and f(5) == [6, 7]
    assert not SERVER["swap"](functions, HELD.replace("x + y", "x / y") + "# njit", "f")  # is compiled by others
