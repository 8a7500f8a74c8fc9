"""Make pages: report.html of one run, and of several side by side. Each page is a single file.

Pages are made with Jinja from the templates in this folder; charts are SVG by Matplotlib. No page
has a script.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import chain
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import fedseed
from fedseed.metrics import metric_text, metric_title, shown_metrics
from fedseed.reports.charts import ROUND, Axis, Panel, Series, curves
from fedseed.reports.plots import COLOURS, DARK_COLOURS, chart, swatch
from fedseed.reports.results import RoundLine
from fedseed.reports.tables import Sheet, human_bytes, human_seconds
from fedseed.reports.view import RunView
from fedseed.text import flat

MOST_CLIENTS = 200  # most rows of the table
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
    """Return a run's report, with its rounds so far."""
    clients = view.clients()
    names = dict.fromkeys(chain.from_iterable(row.metrics for row in clients))
    columns = [name for name in names if not name.endswith("perplexity")]
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


def _lines_by_label(
    runs: Mapping[str, Sequence[RunView]], labels: Sequence[str]
) -> dict[str, list[list[RoundLine]]]:
    """Return the lines of metrics of each label's runs; none for a label without a run."""
    return {label: [view.lines for view in runs.get(label, ())] for label in labels}


def comparison_page(
    title: str,
    blocks: Mapping[str, Mapping[str, Sequence[RunView]]],
    sheets: Sequence[Sheet],
    lines: Sequence[str] = (),
) -> str:
    """Return a page with several runs side by side.

    Args:
        title: above the page.
        blocks: the runs of each seed, by scenario ("" if there is only one) and label.
        sheets: tables to show.
        lines: sentences about the numbers.
    """
    labels = list(dict.fromkeys(chain.from_iterable(blocks.values())))
    firsts = {}
    charts = []
    for scenario, runs in blocks.items():
        for label, views in runs.items():
            if views:
                firsts[" ".join(filter(None, (scenario, label)))] = views[0]
        charts.append((scenario, render_charts(curves(_lines_by_label(runs, labels)))))
    tables = [flat(view.settings) for view in firsts.values()]
    values = {}
    for key in sorted(set(chain.from_iterable(tables))):
        values[key] = [str(table.get(key, "-")) for table in tables]
    return framed_page(
        title,
        "comparison.html",
        count=sum(sum(map(len, runs.values())) for runs in blocks.values()),
        legend=[(label, swatch(number)) for number, label in enumerate(labels)],
        blocks=charts,
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
    """Return a page in the frame that all pages have.

    Args:
        title: the page's title, which is also passed to the template.
        template: the name of a file in the package's folder `templates`, for the page's body.
        package: the name of the package that the template is in.
        content: values for the template. It also gets `made`: fedseed's version and the time.
    """
    stamp_text = f"fedseed {fedseed.__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    body = (
        _environment(package).get_template(template).render(made=stamp_text, title=title, **content)
    )
    # Jinja has escaped what goes into the body
    return (
        _environment("fedseed.reports")
        .get_template("report.html")
        .render(title=title, body=Markup(body))
    )


def _tiles(view: RunView) -> list[tuple[str, str, str]]:
    """Return the headline figures: name, value, and a short remark."""
    tiles, summary = [], view.summary or {}
    for name in shown_metrics(dict.fromkeys(view.measured))[:4]:
        first, last = view.before_and_after(name)
        beside = ""
        if first is not None:
            beside = f"{metric_text(name, first)} before tuning"
        tiles.append((metric_title(name), metric_text(name, last), beside))
    payload = view.payload()
    if payload is not None:
        bytes_up, bytes_down = payload
        beside = f"a client: {human_bytes(bytes_up)} up, {human_bytes(bytes_down)} down"
        tiles.append(("bytes a round", human_bytes(bytes_up + bytes_down), beside))
        whole = summary.get("fedavg_bytes")
        if whole and bytes_up + bytes_down > 0:
            ratio = whole / (bytes_up + bytes_down)
            times = f"{ratio:.2g} times"
            if ratio >= 10:
                times = f"{ratio:,.0f} times"
            tiles.append(("whole weights would take", times, f"{human_bytes(whole)} both ways"))
    seconds = summary.get("seconds", {}).get("total")
    spent = seconds
    if seconds is None:
        spent = sum(view.seconds().values())
    tiles.append(("rounds", f"{view.round:,}", f"of {view.rounds:,}" if view.rounds else ""))
    if spent:
        # before the first round only the base was evaluated
        beside = f"{human_seconds(spent / view.round)} a round" if view.round else "so far"
        tiles.append(("time", human_seconds(spent), beside))
    if summary.get("peak_memory_bytes"):
        tiles.append(("peak memory", human_bytes(summary["peak_memory_bytes"]), "of this process"))
    return tiles


def _run_charts(view: RunView) -> list[Drawn]:
    """Return the curves of a run."""
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
        panels_of_bytes = [
            Series("up", view.bytes_curve("bytes_up")),
            Series("down", view.bytes_curve("bytes_down"), number=1),
        ]
        panels.append(
            Panel(
                "payload of a client that takes part, summed up",
                panels_of_bytes,
                ROUND,
                Axis("", unit="B"),
            )
        )
    spent = []
    for number, phase in enumerate(view.seconds()):
        lines = [line for line in view.lines if phase in line.seconds]
        charts = [
            (line.round, line.seconds[phase] / (1 if phase == "evaluation" else line.rounds))
            for line in lines
        ]
        spent.append(Series(PHASE_NAMES.get(phase, phase), charts, number=number))
    panels.append(Panel("seconds a round, by phase", spent, ROUND, Axis("", unit="s")))
    return render_charts(panels)


def render_charts(panels: Sequence[Panel]) -> list[Drawn]:
    """Return the parts of each chart that is not empty: title, SVG, vertical axis, legend."""
    charts = []
    for panel in panels:
        svg = chart(panel)
        if svg is not None:
            legend = [(line.name, swatch(line.number)) for line in panel.series]
            charts.append((panel.title, svg, panel.y.label, legend))
    return charts


@cache
def _environment(package: str) -> Environment:
    environment = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # a number of a table with its deviation and unit stays on one line
    environment.filters["unbroken"] = lambda cell: (
        cell.replace(" ", "\N{NO-BREAK SPACE}") if NUMBER.fullmatch(cell) else cell
    )
    environment.globals.update(
        colours=COLOURS,
        dark_colours=DARK_COLOURS,
        human_seconds=human_seconds,
        number=metric_text,
        metric_title=metric_title,
        human_bytes=human_bytes,
    )
    return environment
