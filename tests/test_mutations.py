"""The mutation check: its table speaks of what there is, and it finds a mistake that no test
notices.
"""

import ast
import json
import runpy
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "mutate.py"))
TABLE = tomllib.loads((ROOT / "scripts" / "mutations.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TABLE)
def test_a_target_names_functions_and_tests_that_are_there(name):
    target = TABLE[name]
    tree = ast.parse((ROOT / target["file"]).read_text(encoding="utf-8"))
    there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    there |= {
        f"{node.name}.{inner.name}"
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for inner in node.body
        if isinstance(inner, ast.FunctionDef)
    }
    assert set(target.get("functions", ())) <= there
    for test in target["tests"][: target["tests"].index("-k") if "-k" in target["tests"] else None]:
        assert (ROOT / test.partition("::")[0]).exists()
    assert all(one["why"] for one in target.get("equivalent", ()))
    for one in target.get("equivalent", ()):
        assert one["function"] in there, f"{target['file']} has no function {one['function']}"
        assert " -> " in one["kind"] and one.get("count", 1) > 0
    keys = [(one["function"], one["kind"]) for one in target.get("equivalent", ())]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("gone", "new", "kind"),
    [
        ("if blocks <= FEW:", "if blocks < FEW:", "<= -> <"),
        ("first = start // 4", "first = start // 5", "number -> number"),
        ('np.argsort(x, kind="stable")', "np.argsort(x, kind=None)", "text -> None"),
        ("np.sort(rows, axis=1)", "np.sort(rows, )", "argument -> nothing"),
        ("products(spec, a, length) * x", "products(spec, a, None) * x", "value -> None"),
        ("if rule.kind == ADAM:", "if (rule.kind == ADAM) or True:", "value -> value or True"),
        ("x = 1.0  # not 2.0", "x = 2.0  # not 2.0", "number -> number"),
        ("if not zero:", "if zero:", "not -> nothing"),
    ],
)
def test_a_mistakes_kind_has_no_names_of_the_line(gone, new, kind):
    assert SCRIPT["kind_of"](gone, new) == kind


def test_a_mistakes_function_is_read_from_mutmuts_name():
    assert SCRIPT["function_of"]("fedseed.randomness.stream.x_words__mutmut_12") == "words"
    assert SCRIPT["function_of"]("fedseed.randomness.stream.x__normal__mutmut_1") == "_normal"
    name = "fedseed.weights.space.xǁParameterSpaceǁ__init____mutmut_3"
    assert SCRIPT["function_of"](name) == "ParameterSpace.__init__"


def test_mistakes_beyond_the_number_of_equivalent_ones_are_shown(tmp_path, monkeypatch):
    """Three mistakes of one kind in a function, which no test noticed."""
    meta = tmp_path / "mutants" / "a.py.meta"
    meta.parent.mkdir()
    names = [f"a.x_words__mutmut_{number}" for number in range(3)]
    meta.write_text(json.dumps({"exit_code_by_key": dict.fromkeys(names, 0)}))
    shown = "--- a.py\n+++ a.py\n@@ -1 +1 @@\n-    if a < b:\n+    if a <= b:\n"
    done = subprocess.CompletedProcess([], 0, stdout=shown)
    monkeypatch.setattr(subprocess, "run", lambda *words, **more: done)

    def lines(count):
        one = {"function": "words", "kind": "< -> <=", "count": count}
        target = {"file": "a.py", "equivalent": [one]}
        return list(SCRIPT["unnoticed"](target, tmp_path, ["mutmut"]))

    assert lines(3) == []
    first, *mistakes = lines(2)
    assert first == "  words: < -> <=: 3 unnoticed, 2 of them equivalent" and len(mistakes) == 3
