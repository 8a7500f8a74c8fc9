"""The documentation as a site: `make docs`."""

import os
import re
import runpy
import subprocess
import sys

import pytest

import fedseed
from support.documents import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "first-run.ipynb"


@pytest.mark.slow
def test_it_is_built_without_a_warning_and_is_whole(tmp_path):
    """With the notebook's stored outputs. A link that leads nowhere is a warning (mkdocs.yml)."""
    words = ["-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(ROOT / "mkdocs.yml")]
    more = {"FEDSEED_SITE_NOTEBOOK": "stored", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, *words, "--site-dir", str(tmp_path)], env=os.environ | more, capture_output=True, text=True
    )
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text("utf-8") for path in tmp_path.rglob("*.html")}
    assert {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")} <= set(pages)
    assert {"notebooks/first-run.html", "project/CONTRIBUTING.html", "project/benchmarks/index.html"} <= set(pages)
    styles = "".join(path.read_text("utf-8") for path in tmp_path.rglob("*.css"))
    for text in (styles, *pages.values()):  # nobody is asked for anything when it is read
        needs = (
            r"(?:url\(|@import )[\"']?https?:|<(?:img|script)[^>]* src=[\"']?https?:|<link[^>]*stylesheet[^>]*https?:"
        )
        assert not re.search(needs, text)
    for name in fedseed.__all__:
        assert re.search(rf'id="[\w.]*\b{name}"', pages["api.html"]), name
    assert "<img" in pages["notebooks/first-run.html"]


@pytest.mark.slow
def test_the_notebook_runs():
    """As `make docs` and `make notebook` run it; its last cell compares the digests."""
    run = runpy.run_path(str(ROOT / "scripts" / "run_notebook.py"))["executed"]
    code = [cell for cell in run(NOTEBOOK).cells if cell.cell_type == "code"]
    said = ["".join(str(output.get("text", "")) for output in cell.outputs) for cell in code]
    before, after = map(float, re.findall(r"(?:before|after) ([\d.]+)", said[1]))
    assert after < 0.5 * before
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)
    assert re.fullmatch(r"[0-9a-f]{32}\n", said[-1])
    assert not [o for cell in code for o in cell.outputs if o.get("name") == "stderr"]
