"""What mkdocs does not do by itself for the site (mkdocs.yml names this file).

- Pages outside of docs/ that a page links to (CONTRIBUTING.md, benchmarks/README.md, ...) become
  pages of the site, under project/; links to other files there become their path in the sources.
- The results in docs/reproduced become pages, which their summary links.
- The notebook is run anew, and shown as a page. FEDSEED_SITE_NOTEBOOK=stored takes the outputs that
it was stored with.
"""

import base64
import os
import posixpath
import re
import runpy
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PROJECT = "project"
LINES = sorted((ROOT / "docs" / "reproduced").glob("*.jsonl"))  # not for a site's readers
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]+)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside of docs/, and the notebooks as pages.

    Args:
        files: what mkdocs has found in docs/.
        config: mkdocs' settings.

    Returns:
        The same and the new ones.
    """
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            files.remove(file)
            for made in _notebook(file, config):
                files.append(made)
    for made in _reproduced(files, config):
        files.append(made)
    sources = sorted((ROOT / "docs").rglob("*.md"))
    taken: set[str] = set()
    while sources:
        path = sources.pop()
        for target in _outside(path):
            if target.endswith(".md") and target not in taken:
                taken.add(target)
                sources.append(ROOT / target)
                text = (ROOT / target).read_text(encoding="utf-8")
                # in no menu: reached by links
                page = File.generated(config, f"{PROJECT}/{target}", content=text)
                page.inclusion = page.inclusion.NOT_IN_NAV
                files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at where their targets are on the site.

    Args:
        markdown: the page's text.
        page: the page.
        config: mkdocs' settings.
        files: all files of the site.

    Returns:
        The text with other links.
    """
    here = page.file.src_uri
    place = here.removeprefix(f"{PROJECT}/") if here.startswith(f"{PROJECT}/") else f"docs/{here}"

    def moved(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target:
            return match[0]
        in_sources = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
        on_site = (
            in_sources.removeprefix("docs/")
            if in_sources.startswith("docs/")
            else f"{PROJECT}/{in_sources}"
        )
        on_site = on_site.replace(".ipynb", ".md")
        if files.get_file_from_path(on_site) is None:
            if (ROOT / in_sources).exists() and not in_sources.startswith("docs/"):
                return (
                    f"{words} (`{in_sources}` in the sources)"
                    if words != f"`{in_sources}`"
                    else words
                )
            return match[0]  # mkdocs will warn
        return f"[{words}]({posixpath.relpath(on_site, posixpath.dirname(here) or '.')}{anchor})"

    pictures = re.sub(
        r"(!\[[^\]]*\]\()((?:\.\./)+docs/)",
        lambda m: m[1] + "../" * here.count("/"),
        markdown,
    )
    return _outside_of_code(pictures, lambda text: LINK.sub(moved, text))


def _outside_of_code(text: str, change: Any) -> str:
    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def _outside(path: Path) -> list[str]:
    """Files of the repository outside of docs/ that a page links to."""
    found = []
    for match in LINK.finditer(path.read_text(encoding="utf-8")):
        if "://" not in match[2]:
            target = posixpath.normpath(
                posixpath.join(path.parent.relative_to(ROOT).as_posix(), match[2])
            )
            if not target.startswith("docs/") and (ROOT / target).is_file():
                found.append(target)
    return found


def _reproduced(files: Files, config: MkDocsConfig) -> list[File]:
    """The pages of the papers' items, and their summary with links to them."""
    from fedseed_papers.findings import finding_page, read_finding
    from fedseed_papers.records import page_path, read_results, summary

    results = read_results(ROOT / "docs" / "reproduced")
    for name in ("reproduced/index.md", *(f"reproduced/{path.name}" for path in LINES)):
        file = files.get_file_from_path(name)
        if file is not None:
            files.remove(file)
    text = summary(results, link_pages=True)
    made = [File.generated(config, "reproduced/index.md", content=text)]
    for result in results:
        page = finding_page(*read_finding(result))
        made.append(File.generated(config, f"reproduced/{page_path(result)}", content=page))
    return made


def _notebook(file: File, config: MkDocsConfig) -> list[File]:
    """A notebook as a page, and its pictures."""
    import nbformat

    path = Path(str(file.abs_src_path))
    if os.environ.get("FEDSEED_SITE_NOTEBOOK") == "stored":
        notebook = nbformat.read(path, as_version=4)
    else:
        notebook = runpy.run_path(str(ROOT / "scripts" / "run_notebook.py"))["executed"](path)
    made: list[File] = []
    parts: list[str] = []
    for cell in notebook.cells:
        parts.append(
            cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```"
        )
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{Path(file.src_uri).stem}-{len(made)}.png"
                made.append(
                    File.generated(
                        config, f"{posixpath.dirname(file.src_uri)}/{name}", content=_png(data)
                    )
                )
                parts.append(f"![what the cell draws]({name})")
            elif said := output.get("text") or data.get("text/plain"):
                parts.append(f"```text\n{said.rstrip()}\n```")
    page = File.generated(config, file.src_uri.replace(".ipynb", ".md"), content="\n\n".join(parts))
    return [page, *made]


def _png(data: dict[str, str]) -> bytes:
    return base64.b64decode(data["image/png"])
