"""The documentation as a site: `make docs`."""

import os
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

import fedseed
from support.documents import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "first-run.ipynb"


class Read(HTMLParser):
    """A page's names, what it links to, and what it needs to be shown."""

    def __init__(self, text):
        super().__init__()
        self.names, self.links, self.needs = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.names |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag in ("img", "script") and given.get("src"):
            self.needs.append(given["src"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect"):
            self.needs.append(given["href"])


@pytest.mark.slow
def test_it_is_built_without_a_warning_and_is_whole(tmp_path):
    """With the notebook's stored outputs."""
    words = ["-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(ROOT / "mkdocs.yml")]
    more = {"FEDSEED_SITE_NOTEBOOK": "stored", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, *words, "--site-dir", str(tmp_path)], env=os.environ | more, capture_output=True, text=True
    )
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    pages = {path: Read(path.read_text(encoding="utf-8")) for path in tmp_path.rglob("*.html")}
    names = {path.relative_to(tmp_path).as_posix() for path in pages}
    assert {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")} <= names
    assert {"notebooks/first-run.html", "project/CONTRIBUTING.html", "project/benchmarks/index.html"} <= names
    for path, page in pages.items():
        if path.name != "404.html":
            links_lead_somewhere(path, page, pages)
    for file in (*tmp_path.rglob("*.css"), *pages):  # nobody is asked for anything when it is read
        assert not re.search(r"(?:url\(|@import )[\"']?https?:", file.read_text(encoding="utf-8")), file
    api = pages[tmp_path / "api.html"]
    for name in fedseed.__all__:
        assert any(found.rpartition(".")[2] == name for found in api.names), name
    assert "pairs that replace values of the recipe" in (tmp_path / "api.html").read_text(encoding="utf-8")
    notebook = (tmp_path / "notebooks" / "first-run.html").read_text(encoding="utf-8")
    assert "<img" in notebook and "bytes up a client and round" in notebook


def links_lead_somewhere(path, page, pages):
    for target in page.needs + page.links:
        parts = urlsplit(target)
        if parts.scheme == "data":  # it is in the page
            continue
        if parts.scheme in ("http", "https"):
            assert target not in page.needs, f"{path}: {target}"
            continue
        at = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        assert at.is_file(), f"{path}: {target}"
        if parts.fragment and at in pages:
            assert unquote(parts.fragment) in pages[at].names, f"{path}: {target}"


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
