"""What an audit found, as files and as a page: answers in a sentence, curves, pictures, tables."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedseed.durable import write_whole
from fedseed.errors import FedseedError
from fedseed.recipe.settings import Recipe
from fedseed.reports.charts import Panel
from fedseed.reports.pages import framed_page
from fedseed.reports.tables import Sheet
from fedseed_papers.findings import check_folder, show_results, surroundings, write_parts

RESULT = "audit.json"
Mark = Literal["good", "warn", "soft"]


@dataclass(frozen=True)
class Answer:
    """One thing that was asked.

    Args:
        asks: the question.
        says: the answer, in numbers.
        short: in a word or two.
        mark: how it looks: "warn" where something is given away, "good" where nothing was found.
    """

    asks: str
    says: str
    short: str
    mark: Mark = "soft"


@dataclass(frozen=True)
class Audit:
    """An audit.

    Args:
        kind: "canary", "reconstruct" or "inputs".
        title: what was audited.
        what: what was done, in a sentence or two.
        answers: what came of it.
        panels: curves.
        sheets: tables.
        images: titles and PNG pictures as data: addresses.
        limits: what it does not show.
        facts: recipe, machine, command and the like, by name.
    """

    kind: str
    title: str
    what: str
    answers: Sequence[Answer]
    panels: Sequence[Panel] = ()
    sheets: Sequence[Sheet] = ()
    images: Sequence[tuple[str, str]] = ()
    limits: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


def audit_page(audit: Audit, seconds: float) -> str:
    """Return a page about an audit: one file that asks for nothing."""
    return framed_page(
        audit.title,
        "audit.html",
        "fedseed_papers",
        audit=audit,
        **show_results(audit.panels, audit.sheets, seconds),
    )


def embedded(picture: Path) -> str:
    """Return a PNG file as an address that a page carries in itself."""
    return f"data:image/png;base64,{b64encode(picture.read_bytes()).decode()}"


def audit_json(audit: Audit, numbers: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return what audit.json holds.

    Args:
        audit: the audit.
        numbers: what was measured, by name.
        seconds: how long it took.
    """
    answers = [{"asks": a.asks, "says": a.says, "short": a.short} for a in audit.answers]
    facts = {"answers": answers, "limits": list(audit.limits), "facts": dict(audit.facts)}
    return {
        "audit": audit.kind,
        "title": audit.title,
        **numbers,
        **facts,
        "seconds": round(seconds, 2),
    }


def check_free(folder: Path) -> None:
    """Check that an audit may be written there.

    Raises:
        RecipeError: it is a file.
        FedseedError: an audit is there.
    """
    check_folder(folder)
    if (folder / RESULT).exists():
        raise FedseedError(f"{folder} holds an audit; name another folder with --out, or delete it")


def facts_of(name: str, recipe: Recipe, settings: list[str]) -> dict[str, str]:
    """Return what a page says of where its numbers come from."""
    facts = {"recipe": name, "settings": " ".join(settings) or "as the recipe has them"}
    return {**facts, "method": recipe.method.name, "rounds": str(recipe.rounds), **surroundings()}


def write_audit(
    folder: Path, audit: Audit, numbers: Mapping[str, Any], seconds: float
) -> dict[str, Any]:
    """Write an audit's files: page.html, data.csv, picture.png, table-1.csv, ..., and audit.json,
    last.

    Args:
        folder: the folder.
        audit: the audit.
        numbers: what was measured, for audit.json.
        seconds: how long it took.

    Returns:
        What audit.json holds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result = audit_json(audit, numbers, seconds)
    write_parts(folder, audit.panels, audit.sheets)
    write_whole(folder / "page.html", audit_page(audit, seconds).encode())
    write_whole(folder / RESULT, (json.dumps(result, indent=1) + "\n").encode())
    return result
