"""The table of the mutation check speaks of what there is: files, functions, tests, and changes that are tried."""

import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MUTATE = runpy.run_path(str(ROOT / "scripts" / "mutate.py"))
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
    with pytest.raises(SystemExit, match="there is no function g; there are: f"):
        MUTATE["mutants"](path, ["g"])
