"""The documentation as a site: `make docs`."""

import os
import re
import runpy
import subprocess
import sys

import pytest
import yaml

import fedseed
from support.documents import ROOT

NOTEBOOKS = ROOT / "docs" / "notebooks"
LOG = "project/papers/log/"
WORDS = 66_000
# pages that commands make
MADE = ("recipe.md", "api.md", "architectures.md", "versions.md")


def pages_of(menu):
    """The files that a menu of mkdocs.yml names."""
    for [(_, value)] in (entry.items() for entry in menu):
        yield from pages_of(value) if isinstance(value, list) else [value]


def test_the_index_for_language_models_names_every_page_once():
    """docs/llms.txt lies at the site's root: a heading, a summary, and links with a sentence
    each.
    """
    text = (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8")
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): [^\n]+\.$", text, re.MULTILINE)
    assert text.startswith("# fedseed\n\n> ") and len(links) == text.count("](")
    [menu] = re.findall(
        r"^nav:\n.*", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    named = list(pages_of(yaml.safe_load(menu)["nav"]))
    assert links == [
        f"{name.removesuffix('.md')}.html"
        for name in sorted(named, key=lambda n: n.startswith(LOG))
    ]
    for name in named:
        # pages from outside of docs/ are under project/ on the site
        page = (
            ROOT / name.removeprefix("project/")
            if name.startswith("project/")
            else ROOT / "docs" / name
        )
        assert page.is_file() or page.with_suffix(".ipynb").is_file(), name


def test_the_pages_stay_few():
    """What was measured, and when, belongs into papers/log."""
    pages = [path for path in (ROOT / "docs").glob("*.md") if path.name not in MADE]
    texts = [path.read_text(encoding="utf-8") for path in pages]
    assert sum(len(text.split()) for text in texts) <= WORDS
    assert not [
        path.name
        for path, text in zip(pages, texts, strict=True)
        if re.search(r"\b20\d\d-\d\d-\d\d\b", text)
    ]
    # the site has no search from a disk
    assert "make docs-serve" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_it_is_built_without_a_warning_and_is_whole(tmp_path):
    """With the notebook's stored outputs. A link that leads nowhere is a warning (mkdocs.yml)."""
    words = [
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--config-file",
        str(ROOT / "mkdocs.yml"),
    ]
    more = {"FEDSEED_SITE_NOTEBOOK": "stored", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, *words, "--site-dir", str(tmp_path)],
        env=os.environ | more,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    pages = {
        path.relative_to(tmp_path).as_posix(): path.read_text("utf-8")
        for path in tmp_path.rglob("*.html")
    }
    assert {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")} <= set(pages)
    made = (
        "notebooks/first-run notebooks/hosted-gpu project/papers/log/index project/CONTRIBUTING "
        "project/benchmarks/index"
    )
    assert {f"{page}.html" for page in made.split()} <= set(pages)
    styles = "".join(path.read_text("utf-8") for path in tmp_path.rglob("*.css"))
    for text in (styles, *pages.values()):  # nobody is asked for anything when it is read
        assert not re.search(
            r"(?:url\(|@import )[\"']?https?:|<link[^>]*stylesheet[^>]*https?:", text
        )
        assert not re.search(r"<(?:img|script)[^>]* src=[\"']?https?:", text)
    for name in fedseed.__all__:
        assert re.search(rf'id="[\w.]*\b{name}"', pages["api.html"]), name
    assert "<img" in pages["notebooks/first-run.html"] and (tmp_path / "llms.txt").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "gain"), [("first-run", 0.5), ("hosted-gpu", 0.95)])
def test_the_notebook_runs(name, gain):
    """As `make docs` and `make notebook` run it; its last cell compares the digests."""
    run = runpy.run_path(str(ROOT / "scripts" / "run_notebook.py"))["executed"]
    code = [cell for cell in run(NOTEBOOKS / f"{name}.ipynb").cells if cell.cell_type == "code"]
    said = ["".join(str(output.get("text", "")) for output in cell.outputs) for cell in code]
    before, after = map(float, re.findall(r"(?:before|after) ([\d.]+)", "".join(said)))
    assert after < gain * before
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)
    assert re.match(r"[0-9a-f]{32}\b", said[-1])
    assert not [o for cell in code for o in cell.outputs if o.get("name") == "stderr"]
