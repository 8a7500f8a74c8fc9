"""The mutation check: its table speaks of what there is, and it finds a mistake that no test
notices.
"""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
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
