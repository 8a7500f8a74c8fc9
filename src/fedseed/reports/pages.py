"""Makes pages: report.html of one run, and of several side by side.

Each is a file that loads no other.

Pages are made with Jinja from the templates beside this file; charts are SVG by Matplotlib. No page
has a script.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import fedseed
from fedseed.metrics import metric_text, metric_title, shown_metrics
from fedseed.reports.charts import ROUND, Axis, Panel, Series, curves
from fedseed.reports.plots import COLOURS, DARK_COLOURS, chart, swatch
from fedseed.reports.tables import Sheet, human_bytes, human_seconds
from fedseed.reports.view import RunView
from fedseed.text import flat

MOST_CLIENTS = 200  # rows of the table
# a number in a table: 0.139 ± 0.025, 5.43 ms, 17.2 kB
NUMBER = re.compile(r"[\d.,]+( ± [\d.,]+)?( [a-zA-Z]{1,3})?")
Drawn = tuple[str, Markup, str, list[tuple[str, Markup]]]
PHASE_NAMES = {
    "local": "local training",
    "projection": "projection",
    "aggregation": "aggregation",
    "rebuild": "rebuilding the weights",
    "evaluation": "evaluation",
}


def run_page(view: RunView) -> str:
    """Returns a run's report, as far as the run has come."""
    clients = view.clients()
    columns = list(
        dict.fromkeys(
            name for row in clients for name in row.metrics if not name.endswith("perplexity")
        )
    )
    return framed_page(
        view.title,
        "run.html",
        view=view,
        tiles=_tiles(view),
        charts=_run_charts(view),
        clients=clients[:MOST_CLIENTS],
        client_columns=columns,
        more_clients=max(0, len(clients) - MOST_CLIENTS),
        phases=PHASE_NAMES,
        digest=next(
            (line.weights_digest for line in reversed(view.lines) if line.weights_digest), None
        ),
        summary=view.summary or {},
    )


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
        lines: sentences, each of which says something that the numbers show.
    """
    labels = list(dict.fromkeys(label for runs in blocks.values() for label in runs))
    firsts = {
        " ".join(filter(None, (scenario, label))): views[0]
        for scenario, runs in blocks.items()
        for label, views in runs.items()
        if views
    }
    tables = [flat(view.settings) for view in firsts.values()]
    values = {
        key: [str(table.get(key, "-")) for table in tables]
        for key in sorted({k for t in tables for k in t})
    }
    return framed_page(
        title,
        "comparison.html",
        count=sum(len(views) for runs in blocks.values() for views in runs.values()),
        legend=[(label, swatch(number)) for number, label in enumerate(labels)],
        blocks=[
            (
                scenario,
                drawn(
                    curves(
                        {label: [view.lines for view in runs.get(label, ())] for label in labels}
                    )
                ),
            )
            for scenario, runs in blocks.items()
        ],
        sheets=sheets,
        lines=lines,
        labels=list(firsts),
        differences=[
            (key, row) for key, row in values.items() if len(set(row)) > 1 and key != "title"
        ],
        digests=[
            (label, (view.summary or {}).get("weights_digest", "not finished"))
            for label, view in firsts.items()
        ],
    )


def framed_page(title: str, template: str, package: str = "fedseed.reports", **content: Any) -> str:
    """Returns a page in the frame that all pages have.

    Args:
        title: the page's title, which its template is given, too.
        template: the name of a file in the package's folder `templates`, for what stands on the
            page.
        package: the name of the package that the template is in.
        content: what the template is given; besides it gets `made`, which fedseed made the page,
            and when.
    """
    made = f"fedseed {fedseed.__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    body = _environment(package).get_template(template).render(made=made, title=title, **content)
    # Jinja has escaped what goes into the body
    return (
        _environment("fedseed.reports")
        .get_template("report.html")
        .render(title=title, body=Markup(body))
    )


def _tiles(view: RunView) -> list[tuple[str, str, str]]:
    """Returns the headline figures: what, how much, and a word about it."""
    tiles, summary = [], view.summary or {}
    for name in shown_metrics(dict.fromkeys(view.measured))[:4]:
        before, after = view.before_and_after(name)
        beside = "" if before is None else f"{metric_text(name, before)} before tuning"
        tiles.append((metric_title(name), metric_text(name, after), beside))
    if (payload := view.payload()) is not None:
        up, down = payload
        beside = f"a client: {human_bytes(up)} up, {human_bytes(down)} down"
        tiles.append(("bytes a round", human_bytes(up + down), beside))
        whole = summary.get("fedavg_bytes")
        if whole and up + down > 0:
            ratio = whole / (up + down)
            times = f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.2g} times"
            tiles.append(("whole weights would take", times, f"{human_bytes(whole)} both ways"))
    seconds = summary.get("seconds", {}).get("total")
    spent = sum(view.seconds().values()) if seconds is None else seconds
    tiles.append(("rounds", f"{view.round:,}", f"of {view.rounds:,}" if view.rounds else ""))
    if spent:
        tiles.append(
            ("time", human_seconds(spent), f"{human_seconds(spent / max(1, view.round))} a round")
        )
    if summary.get("peak_memory_bytes"):
        tiles.append(("peak memory", human_bytes(summary["peak_memory_bytes"]), "of this process"))
    return tiles


def _run_charts(view: RunView) -> list[Drawn]:
    """Returns the curves of a run."""
    panels, local = [], view.curve("train_loss")
    for name in shown_metrics(view.measured):
        series = [Series(metric_title(name), view.curve(name))]
        if name == "loss" and local:
            series.append(Series("clients' local loss", local, number=1))
        panels.append(
            Panel(metric_title(name), series, ROUND, Axis(""), view.before_and_after(name)[0])
        )
    if "loss" not in view.measured:
        panels.append(Panel("clients' local loss", [Series("local loss", local)], ROUND, Axis("")))
    if view.payload() is not None:
        both = [
            Series("up", view.bytes_curve("bytes_up")),
            Series("down", view.bytes_curve("bytes_down"), number=1),
        ]
        panels.append(
            Panel("payload of a client that takes part, summed up", both, ROUND, Axis("", unit="B"))
        )
    spent = []
    for number, phase in enumerate(view.seconds()):
        lines = [line for line in view.lines if phase in line.seconds]
        each = [
            (line.round, line.seconds[phase] / (1 if phase == "evaluation" else line.rounds))
            for line in lines
        ]
        spent.append(Series(PHASE_NAMES.get(phase, phase), each, number=number))
    panels.append(Panel("seconds a round, by phase", spent, ROUND, Axis("", unit="s")))
    return drawn(panels)


def drawn(panels: Sequence[Panel]) -> list[Drawn]:
    """Returns what a page shows of each chart that shows anything: title, SVG, vertical axis,
    legend.
    """
    found = [
        (
            panel.title,
            chart(panel),
            panel.y.label,
            [(line.name, swatch(line.number)) for line in panel.series],
        )
        for panel in panels
    ]
    return [(title, svg, label, legend) for title, svg, label, legend in found if svg is not None]


@cache
def _environment(package: str) -> Environment:
    made = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # a number of a table with its deviation and unit stays on one line
    made.filters["unbroken"] = lambda cell: (
        cell.replace(" ", "\N{NO-BREAK SPACE}") if NUMBER.fullmatch(cell) else cell
    )
    made.globals.update(
        colours=COLOURS,
        dark_colours=DARK_COLOURS,
        human_seconds=human_seconds,
        number=metric_text,
        metric_title=metric_title,
        human_bytes=human_bytes,
    )
    return made
