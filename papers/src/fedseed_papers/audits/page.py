"""What an audit found, as a page: answers in a sentence, curves, pictures, tables. Free of torch and Matplotlib."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedseed.reports.charts import Panel
from fedseed.reports.pages import drawn, framed_page
from fedseed.reports.tables import Sheet, human_seconds

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
        kind: "canary" or "reconstruct".
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
    """A page about an audit: one file that asks for nothing."""
    return framed_page(
        audit.title,
        "audit.html",
        "fedseed_papers",
        audit=audit,
        charts=drawn(audit.panels),
        took=human_seconds(seconds) if seconds >= 1 else "under a second",
    )


def embedded(picture: Path) -> str:
    """A PNG file as an address that a page carries in itself."""
    return f"data:image/png;base64,{b64encode(picture.read_bytes()).decode()}"


def audit_json(audit: Audit, numbers: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """For programs.

    Args:
        audit: the audit.
        numbers: what was measured, by name.
        seconds: how long it took.
    """
    answers = [{"asks": a.asks, "says": a.says, "short": a.short} for a in audit.answers]
    facts = {"answers": answers, "limits": list(audit.limits), "facts": dict(audit.facts)}
    return {"audit": audit.kind, "title": audit.title, **numbers, **facts, "seconds": round(seconds, 2)}
