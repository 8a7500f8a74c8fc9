"""Pages: report.html of a run, of several runs side by side, and the live page. Each is one file that asks for nothing.

Made with Jinja from the templates beside this file; charts are SVG by Matplotlib. No scripts but the live page's few
lines.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedseed.durable import write_whole
from fedseed.metrics import metric_text, metric_title, shown_metrics
from fedseed.reports.charts import ROUND, Axis, Panel, Series, curves
from fedseed.reports.plots import COLOURS, DARK_COLOURS, chart, swatch
from fedseed.reports.tables import Sheet, human_bytes, human_seconds
from fedseed.reports.view import RunView, view_folder

MOST_CLIENTS = 200  # rows of the table
NUMBER = re.compile(r"[\d.,]+( ± [\d.,]+)?( [a-zA-Z]{1,3})?")  # as a table has it: 0.139 ± 0.025, 5.43 ms, 17.2 kB
# what a summary says of the machine and the session, where it says it
SURROUNDINGS = ("versions", "host", "devices", "command", "started", "ended")
Drawn = tuple[str, Markup, str, list[tuple[str, Markup]]]
PHASE_NAMES = {"local": "local training", "projection": "projection", "aggregation": "aggregation",
               "rebuild": "rebuilding the weights", "evaluation": "evaluation"}  # fmt: skip


def run_page(view: RunView) -> str:
    """Returns a finished run's report, or what there is of one that goes on."""
    return _render("report.html", title=view.title, body=run_body(view), live=False)


def live_page(view: RunView) -> str:
    """Returns the live page: the same, and a few lines of script that ask this server for the newest body."""
    return _render("report.html", title=view.title, body=run_body(view), live=True)


def write_report(folder: Path, summary: Mapping[str, Any] | None = None) -> Path:
    """Write report.html into a run's folder.

    Args:
        folder: the run's.
        summary: of a run that is about to write it.

    Returns:
        The file.

    Raises:
        FedseedError: there is no run in the folder, or it can't be written.
    """
    page = folder / "report.html"
    write_whole(page, run_page(view_folder(folder, summary)).encode())
    return page


def run_body(view: RunView) -> Markup:
    """Returns what stands on a run's page."""
    clients = view.clients()
    columns = list(dict.fromkeys(name for row in clients for name in row.metrics if not name.endswith("perplexity")))
    summary = view.summary or {}
    text = _render(
        "run.html",
        view=view,
        tiles=_tiles(view),
        charts=_run_charts(view),
        clients=clients[:MOST_CLIENTS],
        client_columns=columns,
        skips=any(row.skipped for row in clients),
        more_clients=max(0, len(clients) - MOST_CLIENTS),
        phases=[(PHASE_NAMES.get(name, name), spent) for name, spent in view.seconds().items()],
        facts=_facts(view),
        surroundings=_surroundings(summary),
        notes=summary.get("data_notes", []),
        made=_made(),
    )
    return Markup(text)  # Jinja has escaped what goes in


def comparison_page(
    title: str,
    blocks: Mapping[str, Mapping[str, Sequence[RunView]]],
    sheets: Sequence[Sheet],
    lines: Sequence[str] = (),
) -> str:
    """Returns a page with several runs side by side.

    Args:
        title: above the page.
        blocks: by scenario ("" if there is one only) and label, the run with each seed.
        sheets: tables to show.
        lines: what the numbers come to, in a sentence each.
    """
    labels = list(dict.fromkeys(label for runs in blocks.values() for label in runs))
    firsts = {
        " ".join(filter(None, (scenario, label))): views[0]
        for scenario, runs in blocks.items()
        for label, views in runs.items()
        if views
    }
    body = _render(
        "comparison.html",
        title=title,
        count=sum(len(views) for runs in blocks.values() for views in runs.values()),
        legend=[(label, swatch(number)) for number, label in enumerate(labels)],
        blocks=[
            (scenario, drawn(curves({label: [view.lines for view in runs.get(label, ())] for label in labels})))
            for scenario, runs in blocks.items()
        ],
        sheets=sheets,
        lines=lines,
        labels=list(firsts),
        differences=_differences({label: view.settings for label, view in firsts.items()}),
        digests=[(label, (view.summary or {}).get("weights_digest", "not finished")) for label, view in firsts.items()],
        made=_made(),
    )
    return _render("report.html", title=title, body=Markup(body), live=False)


def framed_page(title: str, template: str, package: str, **content: Any) -> str:
    """Returns a page of another package in the frame that all pages have.

    Args:
        title: of the page, which its template is given, too.
        template: the name of a file in the package's folder `templates`, for what stands on the page.
        package: the package's name.
        content: what the template is given; besides it gets `made`, which fedseed made the page, and when.
    """
    body = Markup(_render(template, package, title=title, made=_made(), **content))
    return _render("report.html", title=title, body=body, live=False)


# -- what stands on a page ---------------------------------------------------------------------------------------------


def _tiles(view: RunView) -> list[tuple[str, str, str]]:
    """The headline figures: what, how much, and a word about it."""
    tiles, summary = [], view.summary or {}
    for name in shown_metrics(dict.fromkeys(view.measured))[:4]:
        before, after = view.before_and_after(name)
        tiles.append(
            (
                metric_title(name),
                metric_text(name, after),
                "" if before is None else f"{metric_text(name, before)} before tuning",
            )
        )
    payload = view.payload()
    if payload is not None:
        up, down = payload
        tiles.append(
            ("bytes a round", human_bytes(up + down), f"a client: {human_bytes(up)} up, {human_bytes(down)} down")
        )
        whole = summary.get("fedavg_bytes")
        if whole and up + down > 0:
            tiles.append(("whole weights would take", _times(whole / (up + down)), f"{human_bytes(whole)} both ways"))
    seconds = summary.get("seconds", {}).get("total")
    spent = sum(view.seconds().values()) if seconds is None else seconds
    tiles.append(("rounds", f"{view.round:,}", f"of {view.rounds:,}" if view.rounds else ""))
    if spent:
        tiles.append(("time", human_seconds(spent), f"{human_seconds(spent / max(1, view.round))} a round"))
    if summary.get("peak_memory_bytes"):
        tiles.append(("peak memory", human_bytes(summary["peak_memory_bytes"]), "of this process"))
    return tiles


def _times(ratio: float) -> str:
    """Returns how many times: "125 times", "1.3 times"."""
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.2g} times"


def _run_charts(view: RunView) -> list[Drawn]:
    """The curves of a run."""
    panels, local = [], view.curve("train_loss")
    for name in shown_metrics(view.measured):
        lines = [Series(metric_title(name), view.curve(name))]
        if name == "loss" and local:
            lines.append(Series("clients' local loss", local, number=1))
        panels.append(Panel(metric_title(name), lines, ROUND, Axis(""), view.before_and_after(name)[0]))
    if "loss" not in view.measured:
        panels.append(Panel("clients' local loss", [Series("local loss", local)], ROUND, Axis("")))
    if view.payload() is not None:
        both = [Series("up", view.bytes_curve("up")), Series("down", view.bytes_curve("down"), number=1)]
        title = f"payload of a client that takes part, {'summed up' if view.status is None else 'a round'}"
        panels.append(Panel(title, both, ROUND, Axis("", unit="bytes")))
    phases = dict.fromkeys(phase for line in view.lines for phase in line.seconds)
    spent = [
        Series(PHASE_NAMES.get(phase, phase), _phase_curve(view, phase), number=number)
        for number, phase in enumerate(phases)
    ]
    panels.append(Panel("seconds a round, by phase", spent, ROUND, Axis("", unit="s")))
    return drawn(panels)


def _phase_curve(view: RunView, phase: str) -> list[tuple[float, float]]:
    return [
        (line.round, line.seconds[phase] / (1 if phase == "evaluation" else line.rounds))
        for line in view.lines
        if phase in line.seconds
    ]


def drawn(panels: Sequence[Panel]) -> list[Drawn]:
    """Returns what a page shows of each chart that shows anything: title, SVG, vertical axis, legend."""
    found = [
        (panel.title, chart(panel), panel.y.label, [(line.name, swatch(line.number)) for line in panel.series])
        for panel in panels
    ]
    return [(title, svg, label, legend) for title, svg, label, legend in found if svg is not None]


def _differences(settings: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Keys of recipes in which the runs differ, with each run's value."""
    tables = {label: dict(_flat(table)) for label, table in settings.items()}
    keys = sorted({key for table in tables.values() for key in table} - {"title"})
    rows = [(key, [str(table.get(key, "-")) for table in tables.values()]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def _flat(table: Mapping[str, Any], head: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        found += _flat(value, f"{head}{key}.") if isinstance(value, Mapping) else [(f"{head}{key}", value)]
    return found


def _facts(view: RunView) -> list[tuple[str, str]]:
    """Returns what the run was, in names and digests."""
    summary, model = view.summary or {}, view.settings.get("model", {})
    newest = next((line.weights_digest for line in reversed(view.lines) if line.weights_digest), None)
    privacy = summary.get("privacy")
    facts: list[tuple[str, object]] = [
        ("method", view.method),
        ("base", model.get("base")),
        ("task", view.settings.get("task", {}).get("name")),
        ("parameters", f"{summary['parameters']:,}" if summary else None),
        ("clients", f"{summary['clients']:,}, {summary['clients_per_round']:,} a round" if summary else None),
        ("aggregation", (summary.get("aggregation") or {}).get("name")),
        ("adapter", None if not summary.get("adapter") else json.dumps(summary["adapter"])),
        ("attack", None if not summary.get("attack") else json.dumps(summary["attack"])),
        ("privacy spent", None if not privacy else json.dumps(privacy)),
        ("stopped early", None if not summary.get("stopped") else json.dumps(summary["stopped"])),
        ("seed", view.settings.get("seed")),
        ("orbit", human_bytes(summary["orbit_bytes"]) if summary.get("orbit_bytes") else None),
        ("digest of the base", summary.get("base_digest")),
        ("digest of the weights", summary.get("weights_digest") or newest),
    ]
    return [(name, str(value)) for name, value in facts if value not in (None, "")]


def _surroundings(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Versions, machine, command and times, as far as the summary has them."""
    found = []
    for name in SURROUNDINGS:
        value = summary.get(name)
        if isinstance(value, Mapping):
            found += [
                (key.removesuffix("_bytes"), human_bytes(inner) if key.endswith("_bytes") else str(inner))
                for key, inner in value.items()
                if inner not in (None, "")
            ]
        elif isinstance(value, list):
            found.append((name, ", ".join(map(str, value))))
        elif value:
            found.append((name, str(value)))
    return found


def _made() -> str:
    try:
        ours = version("fedseed")
    except PackageNotFoundError:  # run from its source
        ours = "from source"
    return f"fedseed {ours}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


# -- Jinja -------------------------------------------------------------------------------------------------------------


def _unbroken(cell: str) -> str:
    """A number of a table with its deviation and unit on one line."""
    return cell.replace(" ", "\N{NO-BREAK SPACE}") if NUMBER.fullmatch(cell) else cell


@cache
def _environment(package: str) -> Environment:
    made = Environment(
        loader=PackageLoader(package), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["unbroken"] = _unbroken
    made.globals.update(
        colours=COLOURS, dark_colours=DARK_COLOURS, human_seconds=human_seconds, number=metric_text,
        metric_title=metric_title,
    )  # fmt: skip
    return made


def _render(template: str, package: str = "fedseed.reports", **content: Any) -> str:
    return _environment(package).get_template(template).render(**content)
