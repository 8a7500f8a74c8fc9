"""Runs side by side as files: compare.txt, .md, .tex, .json and .html. Free of torch and Matplotlib."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fedseed.durable import write_whole
from fedseed.metrics import metric_of, metric_title, shown_metrics
from fedseed.reports.results import PHASES, read_summary
from fedseed.reports.tables import (
    Sheet,
    comparison_lines,
    human_bytes,
    human_seconds,
    mean_and_deviation,
    parameters_exchanged,
    phases_of,
)

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Compared:
    """A line of a comparison: one recipe with its settings, run with one seed or several.

    Args:
        label: what the tables call it.
        summaries: of the finished runs.
        mark: said after the label in the table of results, such as what was chosen.
        failed: how many of its runs failed.
    """

    label: str
    summaries: Sequence[Summary]
    mark: str = ""
    failed: int = 0


def results_sheet(title: str, lines: Sequence[Compared], seeds: int = 1) -> Sheet:
    """Returns what each line's runs came to, zero-shot first.

    Args:
        title: above the table.
        lines: its lines.
        seeds: how many runs a line was to have.
    """
    # an adapter's new parameters can change what a model says before any tuning: the base is what most runs begin with
    starts = [line.summaries[0] for line in lines if line.summaries]
    counted = Counter(str(summary["baseline"]) for summary in starts)
    known = max(starts, key=lambda summary: counted[str(summary["baseline"])], default=None)
    measured = [] if known is None else shown_metrics(known["final"])
    head = ["method", "rounds", *(metric_title(name, unit=True) for name in measured), "bytes up", "bytes down",
            "forward", "backward", "memory", "seconds"]  # fmt: skip
    rows = []
    if known is not None:
        rows.append(["zero-shot", "0", *(_score(m, [known["baseline"][m]]) for m in measured), *["-"] * 6])
    for line in lines:
        found, label = line.summaries, f"{line.label}{line.mark}"
        if not found:
            rows.append([label, *["failed"] * (len(head) - 1)])
            continue

        def mean(key: str, found: Sequence[Summary] = found) -> float:
            return fmean(summary[key] for summary in found)

        rows.append(
            [
                label + (f" ({line.failed} failed)" if line.failed else ""),
                f"{mean('rounds'):g}",
                *(_score(m, [s["final"].get(m, float("nan")) for s in found]) for m in measured),
                human_bytes(mean("payload_bytes_up")),
                human_bytes(mean("payload_bytes_down")),
                f"{mean('forward_passes'):,.0f}",
                f"{mean('backward_passes'):,.0f}",
                human_bytes(mean("peak_memory_bytes")),
                mean_and_deviation([s["seconds"]["total"] for s in found], 0),
            ]
        )
    over = f"Mean ± deviation over {seeds} seeds, on test examples. " if seeds > 1 else ""
    note = (
        f"{over}Bytes: payload per client and round in which it takes part. Passes: micro-batches, all clients and "
        "rounds. Memory: peak of the whole process."
    )
    return Sheet(title, head, rows, note)


def costs_sheet(title: str, lines: Sequence[Compared]) -> Sheet:
    """Returns what a round costs a client, as in Ferret's Tables 4, 5 and 10, and the whole of a simulation."""
    head = ("method", "local", "projection", "aggregation", "rebuild", "together", "parameters", "bytes both ways",
            "all clients")  # fmt: skip
    rows = []
    for line in lines:
        found = line.summaries
        if found:
            phases = [fmean(seconds) for seconds in zip(*map(phases_of, found), strict=True)]
            both = fmean(summary["payload_bytes_up"] + summary["payload_bytes_down"] for summary in found)
            every = fmean(
                sum(summary["seconds"].get(phase, 0.0) for phase in PHASES) / max(1, summary["rounds"])
                for summary in found
            )
            rows.append(
                [line.label, *map(human_seconds, phases), parameters_exchanged(found[0]), human_bytes(both),
                 human_seconds(every)]
            )  # fmt: skip
    note = (
        "Seconds, parameters (scalars both ways) and payload bytes of one client in a round in which it takes part. "
        "Local and projection are Ferret's local update; aggregation, the answers to a step, and rebuild, the step to "
        "weights, its global aggregation. All clients: a simulated round, its clients one after the other."
    )
    return Sheet(title, head, rows, note)


def _score(metric: str, values: Sequence[float]) -> str:
    return mean_and_deviation(values, metric_of(metric)[1].digits)


# -- files -------------------------------------------------------------------------------------------------------------


Folders = Mapping[str, Mapping[str, Sequence[Path]]]  # of finished runs, by scenario ("": there is one only) and label


def write_comparison(
    out: Path, title: str, folders: Folders, sheets: Sequence[Sheet], content: Any, lines: Sequence[str] = ()
) -> None:
    """Write compare.txt, .md, .tex, .json, .html and .png.

    Args:
        out: the folder.
        title: of the page.
        folders: of the runs whose curves are shown.
        sheets: the tables.
        content: everything, for programs.
        lines: what the numbers come to, in a sentence each.
    """
    from fedseed.reports.charts import curves
    from fedseed.reports.pages import comparison_page  # Jinja and Matplotlib take a while to import
    from fedseed.reports.plots import draw
    from fedseed.reports.view import view_folder

    said = "".join(f"{line}\n" for line in lines)
    text = [sheet.text() for sheet in sheets] + ([said] if said else [])
    marked = [sheet.markdown() for sheet in sheets] + ([said] if said else [])
    write_whole(out / "compare.txt", "\n".join(text).encode())
    write_whole(out / "compare.md", "\n".join(marked).encode())
    write_whole(out / "compare.tex", "\n".join(sheet.latex() for sheet in sheets).encode())
    write_whole(out / "compare.json", (json.dumps(content, indent=1) + "\n").encode())
    views = {
        scenario: {label: [view_folder(folder) for folder in seeds] for label, seeds in runs.items() if seeds}
        for scenario, runs in folders.items()
    }
    panels = []
    for scenario, runs in views.items():
        panels += curves({label: [view.lines for view in seeds] for label, seeds in runs.items()}, scenario)
    draw(panels, out / "compare.png", across=4)
    write_whole(out / "compare.html", comparison_page(title, views, sheets, lines).encode())


def compare_runs(folders: Mapping[str, Path], title: str = "Comparison") -> tuple[list[Sheet], list[str], list[Any]]:
    """Puts finished runs side by side: tables, sentences, and everything for programs in the form that sweeps have.

    Args:
        folders: each run's, by label.
        title: above the first table.
    """
    summaries = {label: read_summary(folder) for label, folder in folders.items()}
    compared = [Compared(label, [summary]) for label, summary in summaries.items()]
    sheets = [results_sheet(title, compared), costs_sheet("Costs of a round", compared)]
    content = [
        {"scenario": "", "label": label, "chosen": [], "tried": [], "failed": {}, "folder": str(folders[label]),
         "summaries": {str(_seed(folders[label])): summary}}
        for label, summary in summaries.items()
    ]  # fmt: skip
    return sheets, comparison_lines(list(summaries.items())), content


def write_runs(out: Path, folders: Mapping[str, Path], title: str = "Comparison") -> None:
    """Write the files of a comparison of finished runs, one with each label."""
    sheets, lines, content = compare_runs(folders, title)
    write_comparison(out, title, {"": {label: [folder] for label, folder in folders.items()}}, sheets, content, lines)


def _seed(folder: Path) -> int:
    from fedseed.reports.view import view_folder

    return int(view_folder(folder).settings.get("seed", 0))
