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


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site with the notebook's stored outputs: a warning would end the build."""
    folder = tmp_path_factory.mktemp("site")
    words = ["-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(ROOT / "mkdocs.yml")]
    more = {"FEDSEED_SITE_NOTEBOOK": "stored", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, *words, "--site-dir", str(folder)], env=os.environ | more, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return {path: Read(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}, folder


@pytest.mark.long
def test_it_is_whole_and_asks_nobody_for_anything(site):
    pages, folder = site
    names = {path.relative_to(folder).as_posix() for path in pages}
    for path in (ROOT / "docs").glob("*.md"):
        assert f"{path.stem}.html" in names
    assert {"notebooks/first-run.html", "project/CONTRIBUTING.html", "project/benchmarks/index.html"} <= names
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for target in page.needs + page.links:
            parts = urlsplit(target)
            if parts.scheme in ("http", "https"):
                assert target in page.links and target not in page.needs, f"{path}: {target}"
                continue
            at = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert at.is_file(), f"{path}: {target}"
            if parts.fragment and at in pages:
                assert unquote(parts.fragment) in pages[at].names, f"{path}: {target}"
    for sheet in (*folder.rglob("*.css"), *pages):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"(?:url\(|@import )[\"']?https?:", text), sheet


@pytest.mark.long
def test_the_api_has_every_public_name_with_its_arguments(site):
    pages, folder = site
    page = (folder / "api.html").read_text(encoding="utf-8")
    for name in fedseed.__all__:
        assert any(found.rpartition(".")[2] == name for found in pages[folder / "api.html"].names), name
    assert "pairs that replace values of the recipe" in page
    notebook = (folder / "notebooks" / "first-run.html").read_text(encoding="utf-8")
    assert "<img" in notebook and "bytes up a client and round" in notebook


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
