"""The examples of docs/extending.md are true: their patches apply to this tree, touch few files,
and their tests pass.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATCHES = ROOT / "tests" / "patches"
GUIDE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
# the most files that such a thing may take, and the tests that the guide says to run
COST = {
    "method": (4, "tests/methods/test_clipped.py"),
    "rule": (2, "tests/aggregation"),
    "tracker": (2, "tests/tracking -k sqlite"),
    "transport": (2, "tests/transport/test_contract.py -k loopback"),
}


def files(name):
    """The files of a patch: (path, whether it is new, the lines that begin with + or -)."""
    text = (PATCHES / f"{name}.patch").read_text(encoding="utf-8")
    for part in re.split(r"^diff --git ", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n@@")
        path = re.match(r"a/(\S+) b/\1\n", head).group(1)
        yield (
            path,
            "new file mode" in head,
            [line for line in body.splitlines()[1:] if line[:1] in ("+", "-")],
        )


def test_there_is_a_patch_for_each_kind():
    assert {path.stem for path in PATCHES.glob("*.patch")} == set(COST)


@pytest.mark.parametrize("name", COST)
def test_the_guide_shows_the_patch(name):
    """A new file is a block with its text, a changed one a block with its changes.

    In the patch's order.
    """
    blocks = dict(
        re.findall(
            r"^`([^`\n]+)`[^\n]*:\n\n<!-- not run: [^\n]* -->\n```\w+\n(.*?)^```$",
            GUIDE,
            re.DOTALL | re.MULTILINE,
        )
    )
    for path, new, changes in files(name):
        expected = [line[1:] for line in changes] if new else changes
        assert blocks[path].splitlines() == expected, (
            f"{path}: docs/extending.md and {name}.patch differ"
        )
    most, tests = COST[name]
    assert len(list(files(name))) <= most and f"pytest {tests}\n" in GUIDE
    page = re.search(
        rf"^## Add an? [^\n]*{name}.*?(?=^## |\Z)", GUIDE, re.DOTALL | re.MULTILINE
    ).group()
    # what has settings is in docs/recipe/
    assert ("scripts/make_reference.py\n" in page) == (name != "transport")


@pytest.mark.parametrize("name", COST)
def test_a_patch_applies(name, tmp_path):
    """To a copy of those files that it changes."""
    for path, new, _ in files(name):
        if not new:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, tmp_path / path)
    apply(name, tmp_path)
    for path, _, changes in files(name):
        added = [line[1:] for line in changes if line.startswith("+")]
        assert set(added) <= set((tmp_path / path).read_text(encoding="utf-8").splitlines())


def apply(name, tree):
    for words in (["init", "-q"], ["apply", str(PATCHES / f"{name}.patch")]):
        done = subprocess.run(["git", *words], cwd=tree, capture_output=True, text=True)
        assert done.returncode == 0, (
            f"git {words[0]}: {done.stderr}make {name}.patch and docs/extending.md anew"
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", COST)
def test_the_tests_of_a_patch_pass(name, tmp_path):
    tree = tmp_path / "fedseed"
    # what is compiled of the sources goes with them
    ignore = shutil.ignore_patterns("golden", "patches")
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tree)
    apply(name, tree)
    tests = COST[name][1].split()
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", *tests]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
