"""Results as they are kept: a line of JSON for each item, from which its files are made again.

docs/reproduced of the repository has PAPER.jsonl with such lines, the summary of all of them, and
the numbers of each seed. Pages, pictures and tables are made from the lines, when somebody asks for
them.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedseed.durable import write_whole
from fedseed_papers.catalogue import SCALES, TITLES, catalogue
from fedseed_papers.findings import (
    Finding,
    Subject,
    finding_page,
    index_page,
    read_finding,
    write_parts,
)

Result = dict[str, Any]  # the content of a result.json
SUMMARY = "index.md"
SEEDS = "seeds.csv"
HEAD = """# The papers' items, made again: a summary

`python scripts/reproduced.py` makes this page from the results beside it. An item's verdict is the
least favourable of its claims' ([verdicts](../reproduce.md#verdicts));
[the log](../../papers/log/papers.md) has each claim with its numbers.

- `make reproduced` makes a page for each item, with curves, tables and all claims, in
  `build/reproduced/index.html`. The site of `make docs` has these pages, too, and a release has
  them as `reproduced.zip`.
- [`seeds.csv`](seeds.csv) has the numbers of every seed; `PAPER.jsonl` has a line for each item
  with all that its page shows.
"""


def page_path(result: Mapping[str, Any]) -> str:
    """Return the path of an item's page below the folder of all pages."""
    return f"{result['name']}/{result['scale']}/page.html"


def in_order(results: Iterable[Result]) -> list[Result]:
    """Return results in the order of the catalogue, and of its scales."""
    places = {item.name: place for place, item in enumerate(catalogue())}
    return sorted(results, key=lambda r: (places[r["name"]], SCALES.index(r["scale"])))


def read_results(folder: Path) -> list[Result]:
    """Read the lines of all papers in a folder."""
    results: list[Result] = []
    for paper in TITLES:
        path = folder / f"{paper}.jsonl"
        if path.exists():
            results += map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return in_order(results)


def write_results(folder: Path, results: Sequence[Result]) -> None:
    """Write a file of lines for each paper, the summary, and the numbers of each seed."""
    folder.mkdir(parents=True, exist_ok=True)
    for paper in TITLES:
        lines = []
        for result in in_order(results):
            if result["name"].startswith(f"{paper}/"):
                lines.append(json.dumps(result, ensure_ascii=False) + "\n")
        write_whole(folder / f"{paper}.jsonl", "".join(lines).encode())
    write_whole(folder / SUMMARY, summary(results).encode())
    write_whole(folder / SEEDS, seeds_csv(results).encode())


def collect(folder: Path) -> Iterator[Result]:
    """Yield the results in a folder that `fedseed reproduce` has filled, without the names of its
    runs' folders.
    """
    for item in catalogue():
        for scale in SCALES:
            path = folder / item.paper / item.key / scale / "result.json"
            if path.exists():
                result: Result = json.loads(path.read_text(encoding="utf-8"))
                for line in result.get("lines", {}).values():
                    line.pop("folders", None)
                yield result


def summary(results: Sequence[Result], link_pages: bool = False) -> str:
    """Return a page of Markdown with a table for each paper.

    Args:
        results: of items.
        link_pages: whether an item's name is a link to its page, below the folder of the summary.
    """
    parts = [HEAD]
    for paper, title in TITLES.items():
        parts.append(f"\n## {title}\n\n| item | scale | verdict | claims | seeds | shows |\n")
        parts.append("|---|---|---|---|---|---|\n")
        for result in in_order(results):
            of_paper, _, name = result["name"].partition("/")
            if of_paper != paper:
                continue
            if link_pages:
                name = f"[{name}]({page_path(result)})"
            cells = (
                name,
                result["scale"],
                result["verdict"],
                _count_holding(result),
                _describe_seeds(result),
                result["shows"].replace("|", "\\|"),
            )
            parts.append(f"| {' | '.join(cells)} |\n")
    return "".join(parts)


def _count_holding(result: Result) -> str:
    holding = sum(claim["verdict"].startswith("holds") for claim in result["claims"])
    return f"{holding} of {len(result['claims'])} hold"


def _describe_seeds(result: Result) -> str:
    if isinstance(result["seeds"], str):
        return result["seeds"]
    return str(len(result["seeds"])) if result["seeds"] else "-"


def seeds_csv(results: Sequence[Result]) -> str:
    """Return the numbers of every seed, a line each: item, scale, line, seed, measure, value.

    They are those of the items' tables that have a column "seed".
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("item", "scale", "line", "seed", "measure", "value"))
    for result in in_order(results):
        for sheet in result["sheets"]:
            head = list(sheet["head"])
            if "seed" not in head:
                continue
            place = head.index("seed")
            for row in sheet["rows"]:
                line = " ".join(row[:place])
                for measure, value in zip(head[place + 1 :], row[place + 1 :], strict=True):
                    writer.writerow(
                        (result["name"], result["scale"], line, row[place], measure, value)
                    )
    return text.getvalue()


def write_files(folder: Path, subject: Subject, finding: Finding, seconds: float) -> None:
    """Write an item's page, data, picture and tables.

    Args:
        folder: where they go; it is made.
        subject: what the item is.
        finding: what came of it.
        seconds: how long it took.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_parts(folder, finding.panels, finding.sheets)
    write_whole(folder / "page.html", finding_page(subject, finding, seconds).encode())


def write_index(
    folder: Path, results: Sequence[Result], missing: Sequence[tuple[str, str]] = ()
) -> Path:
    """Write index.html, which links the pages of results in a folder.

    Args:
        folder: where the pages are.
        results: of the items that have one.
        missing: items that could not be made, and why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{**result, "page": page_path(result)} for result in results]
    page = index_page("The papers' figures and tables, made again", rows, missing)
    write_whole(folder / "index.html", page.encode())
    return folder / "index.html"


def write_pages(out: Path, results: Sequence[Result]) -> None:
    """Write the files of all results again, and their index."""
    for result in results:
        write_files((out / page_path(result)).parent, *read_finding(result))
    write_index(out, results)
