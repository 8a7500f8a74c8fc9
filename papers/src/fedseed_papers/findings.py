"""What came of making a paper's figure or table again: claims with verdicts, curves, tables.

As files and as a page.
"""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedseed.durable import write_whole
from fedseed.errors import RecipeError
from fedseed.reports.charts import Axis, Panel, Series
from fedseed.reports.machine import command, host, versions
from fedseed.reports.pages import framed_page, render_charts
from fedseed.reports.tables import Sheet, human_seconds

Verdict = Literal["holds", "holds in kind", "can't be judged at this scale", "does not hold here"]
VERDICTS: tuple[Verdict, ...] = (
    "holds",
    "holds in kind",
    "can't be judged at this scale",
    "does not hold here",
)
UNKNOWN = VERDICTS[2]
MARKS = dict(zip(VERDICTS, ("good", "good", "soft", "warn"), strict=True))


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, and what became of it.

    Args:
        says: what the paper claims or reports.
        here: what was measured, in numbers.
        verdict: how they agree.
        seeds: that it rests on; 0 where nothing is random, or nothing known.
        interval: of the difference (or ratio, or number) it is about, with 95% confidence; an end
            without bound: "inf".
        p: two-sided, adjusted for the item's claims.
    """

    says: str
    here: str
    verdict: Verdict
    seeds: int = 0
    interval: tuple[float | str, float | str] | None = None
    p: float | None = None


@dataclass(frozen=True)
class Finding:
    """An item made again.

    Args:
        claims: what the paper says, each with a verdict.
        reason: why it came out so, in a sentence or two.
        panels: curves.
        sheets: tables.
        seeds: which were used, or a text about very many; none where nothing is random.
        deviations: in what this differs from the paper's own experiment.
    """

    claims: Sequence[Claim]
    reason: str
    panels: Sequence[Panel] = ()
    sheets: Sequence[Sheet] = ()
    seeds: Sequence[int] | str = ()
    deviations: Sequence[str] = ()

    @property
    def verdict(self) -> Verdict:
        """Return the least favourable of its claims'."""
        return max((claim.verdict for claim in self.claims), key=VERDICTS.index, default=UNKNOWN)


@dataclass(frozen=True)
class Subject:
    """What a page is about.

    Args:
        name: the item's, such as "ferret/figure-7".
        title: "Ferret, Figure 7".
        shows: what the paper's figure or table shows.
        scale: "exact", "small" or "published".
        facts: base, data, machine, command and the like, by name.
    """

    name: str
    title: str
    shows: str
    scale: str
    facts: Mapping[str, str] = field(default_factory=dict)


def judged(holds: bool, otherwise: Verdict = "does not hold here", kind: bool = False) -> Verdict:
    """Return a verdict of a condition.

    Args:
        holds: the condition.
        otherwise: the verdict without it.
        kind: the paper's numbers are of another size: with the condition it "holds in kind".
    """
    if not holds:
        return otherwise
    if kind:
        return "holds in kind"
    return "holds"


def count_verdicts(claims: Sequence[Claim]) -> str:
    """Return how many claims have which verdict: "3 of 4 hold, 1 does not hold here" in the
    verdicts' own words.
    """
    counts = Counter(claim.verdict for claim in claims)
    present = [verdict for verdict in VERDICTS if counts[verdict]]
    return ", ".join(f"{counts[verdict]} of {len(claims)}: {verdict}" for verdict in present)


# -- files
# ------------------------------------------------------------------------------------------------


def data_csv(panels: Sequence[Panel]) -> str:
    """Return all points of all curves, a line each: panel, series, x, y, low and high (of a band.

    Empty without).
    """
    rows = []
    for panel in panels:
        for series in panel.series:
            band = {x: (low, high) for x, low, high in series.band}
            points = ((x, y, *band.get(x, ("", ""))) for x, y in series.points)
            rows += [(panel.title, series.name, *map(str, point)) for point in points]
    return table_csv(Sheet("", ("panel", "series", "x", "y", "low", "high"), rows, ""))


def write_parts(folder: Path, panels: Sequence[Panel], sheets: Sequence[Sheet]) -> None:
    """Write data.csv and picture.png of curves, table-1.csv and so on, and tables.txt, into a
    folder.
    """
    if panels:
        from fedseed.reports.plots import draw  # matplotlib takes a while to import

        write_whole(folder / "data.csv", data_csv(panels).encode())
        draw(panels, folder / "picture.png")
    for number, sheet in enumerate(sheets, start=1):
        write_whole(folder / f"table-{number}.csv", table_csv(sheet).encode())
    if sheets:
        write_whole(folder / "tables.txt", "\n".join(sheet.text() for sheet in sheets).encode())


def surroundings() -> dict[str, str]:
    """Return what a page says of where its numbers come from."""
    machine = host()
    return {
        "command": command(),
        "machine": f"{machine['processor'] or machine['machine']}, {machine['cores']} cores, "
        f"{machine['system']}",
        "versions": ", ".join(f"{name} {number}" for name, number in versions().items()),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    }


def check_folder(folder: Path) -> None:
    """Raise RecipeError if files can't be written to a folder of that name."""
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"--out {folder}: this is a file; name a folder")


def table_csv(sheet: Sheet) -> str:
    """Return a table's head and rows."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([sheet.head, *sheet.rows])
    return buffer.getvalue()


def finding_json(
    subject: Subject, finding: Finding, seconds: float, finished: str
) -> dict[str, Any]:
    """Return the content of result.json: all that the page shows, for programs and for the index.

    `read_finding` is the inverse. A number that is not finite is a text ("inf", "nan"), as JSON has
    no other word for it.
    """
    return {
        **asdict(subject),
        "verdict": finding.verdict,
        "claims": [asdict(claim) for claim in finding.claims],
        "reason": finding.reason,
        "seeds": finding.seeds if isinstance(finding.seeds, str) else list(finding.seeds),
        "deviations": list(finding.deviations),
        "seconds": round(seconds, 2),
        "finished": finished,
        "panels": [_as_json(asdict(panel)) for panel in finding.panels],
        "sheets": [asdict(sheet) for sheet in finding.sheets],
    }


def _as_json(value: Any) -> Any:
    """Return nested tables and lists with texts in place of numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _as_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value


def read_finding(result: Mapping[str, Any]) -> tuple[Subject, Finding, float]:
    """Return what `finding_json` was given: the subject, the finding, and the seconds it took.

    Args:
        result: the content of result.json.
    """
    subject = Subject(*(result[name] for name in ("name", "title", "shows", "scale", "facts")))
    finding = Finding(
        [Claim(**claim) for claim in result["claims"]],
        result["reason"],
        [_read_panel(panel) for panel in result["panels"]],
        [Sheet(**sheet) for sheet in result["sheets"]],
        result["seeds"],
        result["deviations"],
    )
    return subject, finding, result["seconds"]


def _read_panel(panel: Mapping[str, Any]) -> Panel:
    lines = []
    for line in panel["series"]:
        points = [(float(x), float(y)) for x, y in line["points"]]
        band = [(float(x), float(low), float(high)) for x, low, high in line["band"]]
        lines.append(Series(line["name"], points, band, line["number"]))
    return Panel(panel["title"], lines, Axis(**panel["x"]), Axis(**panel["y"]), panel["start"])


# -- pages
# ------------------------------------------------------------------------------------------------


def show_results(
    panels: Sequence[Panel], sheets: Sequence[Sheet], seconds: float
) -> dict[str, Any]:
    """Return what templates are given of curves (SVG), tables, and the time that they took."""
    took = "under a second"
    if seconds >= 1:
        took = human_seconds(seconds)
    return {"charts": render_charts(panels), "sheets": sheets, "took": took}


def finding_page(subject: Subject, finding: Finding, seconds: float) -> str:
    """Return a page about an item: one file that asks for nothing."""
    return framed_page(
        f"{subject.title} ({subject.scale})",
        "finding.html",
        "fedseed_papers",
        subject=subject,
        finding=finding,
        marks=MARKS,
        counted=count_verdicts(finding.claims),
        seeds=finding.seeds
        if isinstance(finding.seeds, str)
        else ", ".join(map(str, finding.seeds)),
        **show_results(finding.panels, finding.sheets, seconds),
    )


def index_page(
    title: str, rows: Sequence[Mapping[str, Any]], missing: Sequence[tuple[str, str]] = ()
) -> str:
    """Return many items on a page, with links to theirs.

    Args:
        title: above the page.
        rows: what `finding_json` made of each item, and "page", the path of its page from here.
        missing: items that were not made, and why.
    """
    order = []
    for verdict in VERDICTS:
        order.append((verdict, sum(row["verdict"] == verdict for row in rows)))
    rows_by_paper: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        paper = row["name"].partition("/")[0]
        rows_by_paper.setdefault(paper, []).append(row)
    return framed_page(
        title,
        "findings.html",
        "fedseed_papers",
        papers=list(rows_by_paper.items()),
        order=[(verdict, count) for verdict, count in order if count],
        marks=MARKS,
        missing=missing,
        human_time=human_seconds,
    )
