"""Puts runs side by side: tables, and sentences about them. Free of torch."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from statistics import fmean
from typing import Any

from fedseed.errors import plural
from fedseed.metrics import metric_of, metric_text, metric_title, shown_metrics
from fedseed.reports.results import PHASES
from fedseed.reports.tables import (
    Sheet,
    human_bytes,
    human_seconds,
    mean_and_deviation,
    privacy_spent,
)

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Compared:
    """A line of a comparison: one recipe with its settings, run with one seed or several."""

    label: str  # what the tables call it
    summaries: Sequence[Summary]  # of the finished runs
    mark: str = ""  # said after the label in the table of results, such as what was chosen
    failed: int = 0  # how many of its runs failed


def results_sheet(
    title: str, lines: Sequence[Compared], seeds: int = 1, brief: bool = False
) -> Sheet:
    """Returns a table of what each line's runs came to, with what the untuned base measures
    (zero-shot) first.

    Args:
        title: above the table; "": who took part in the runs, and how many parameters each tunes.
        lines: its lines.
        seeds: how many runs a line was to have.
        brief: leave out passes and memory, so that the table fits a terminal.
    """
    # an adapter's new parameters can change what a model says before any tuning: the base is what
    # most runs begin with
    starts = [line.summaries[0] for line in lines if line.summaries]
    counted = Counter(str(summary["baseline"]) for summary in starts)
    known = max(starts, key=lambda summary: counted[str(summary["baseline"])], default=None)
    measured = [] if known is None else shown_metrics(known["final"])
    columns: dict[str, Callable[[Sequence[Summary]], str]] = {
        "rounds": lambda found: f"{fmean(s['rounds'] for s in found):g}",
        **{metric_title(name, unit=not brief): partial(_score, name) for name in measured},
        "bytes up": lambda found: human_bytes(fmean(s["payload_bytes_up"] for s in found)),
        "bytes down": lambda found: human_bytes(fmean(s["payload_bytes_down"] for s in found)),
    }
    if brief:
        columns["time"] = lambda found: human_seconds(fmean(s["seconds"]["total"] for s in found))
    else:
        columns["forward"] = lambda found: f"{fmean(s['forward_passes'] for s in found):,.0f}"
        columns["backward"] = lambda found: f"{fmean(s['backward_passes'] for s in found):,.0f}"
        columns["memory"] = lambda found: human_bytes(fmean(s["peak_memory_bytes"] for s in found))
        columns["seconds"] = lambda found: mean_and_deviation(
            [s["seconds"]["total"] for s in found], 0
        )
    rows = []
    if known is not None:
        base = [metric_text(name, known["baseline"][name]) for name in measured]
        rows.append(["zero-shot", "0", *base, *["-"] * (len(columns) - 1 - len(base))])
    for line in lines:
        lost = f" ({line.failed} failed)" if line.summaries and line.failed else ""
        cells = [tell(line.summaries) if line.summaries else "failed" for tell in columns.values()]
        rows.append([f"{line.label}{line.mark}{lost}", *cells])
    note = [f"Mean ± deviation over {seeds} seeds, on test examples."] if seeds > 1 else []
    note.append("Bytes: payload per client and round in which it takes part.")
    if not brief:
        note.append(
            "Passes: micro-batches, all clients and rounds. Memory: peak of the whole process."
        )
    if any(name.startswith("unseen_") for name in measured):
        note.append("Unseen: tasks that no client holds.")
    for line in lines:
        if line.summaries and (spent := line.summaries[0].get("privacy")):
            note.append(f"Privacy spent by {line.label}: {privacy_spent(spent)}.")
    return Sheet(title or _who(lines), ["method", *columns], rows, " ".join(note))


def _score(name: str, found: Sequence[Summary]) -> str:
    return mean_and_deviation([s["final"].get(name, nan) for s in found], metric_of(name)[1].digits)


def _who(lines: Sequence[Compared]) -> str:
    """Returns who took part, and how many parameters each method tunes."""
    lines = [line for line in lines if line.summaries]
    if not lines:
        return "Comparison"
    first = lines[0].summaries[0]
    who = f"{plural(first['clients'], 'client')}, {first['clients_per_round']:,} a round"
    tuned: dict[int, list[str]] = {}
    for line in lines:
        tuned.setdefault(line.summaries[0]["parameters"], []).append(line.label)
    if len(tuned) == 1:
        adapter = " of an adapter" if first.get("adapter") else ""
        return f"{plural(first['parameters'], 'parameter')}{adapter}, {who}"
    return f"{who}; parameters: " + ", ".join(
        f"{count:,} ({', '.join(names)})" for count, names in tuned.items()
    )


def costs_sheet(title: str, lines: Sequence[Compared]) -> Sheet:
    """Returns a table of what a round costs a client, as in Ferret's Tables 4, 5 and 10, and a
    simulated round.
    """
    head = (
        "method",
        "local",
        "projection",
        "aggregation",
        "rebuild",
        "together",
        "scalars",
        "all clients",
    )
    rows = []
    for line in lines:
        if not (found := line.summaries):
            continue
        of_client = [s.get("seconds_per_client") or {} for s in found]
        phases = [
            fmean(float(seconds.get(phase, nan)) for seconds in of_client) for phase in PHASES
        ]
        every = fmean(
            sum(s["seconds"].get(phase, 0.0) for phase in PHASES) / max(1, s["rounds"])
            for s in found
        )
        shown = map(human_seconds, (*phases, sum(phases)))
        rows.append(
            [line.label, *shown, _exchanged(found[0].get("exchanged")), human_seconds(every)]
        )
    note = (
        "Seconds and scalars (parameters, both ways) of one client in a round in which it takes "
        "part. Local and "
        "projection are Ferret's local update; aggregation, the answers to a step, and rebuild, "
        "the step to weights, "
        "its global aggregation. All clients: a simulated round, its clients one after the other."
    )
    return Sheet(title, head, rows, note)


def _exchanged(found: Mapping[str, float] | None) -> str:
    """Returns the scalars that a client and the coordinator exchange in a round, or votes."""
    if not found:
        return "-"
    bits, scalars = (
        found["bits_up"] + found["bits_down"],
        found["scalars_up"] + found["scalars_down"],
    )
    if bits and not scalars:
        return f"{bits:,.3g} bits"
    return f"{scalars:,.0f}" if scalars < 1e6 else f"{scalars:.1e}"


def comparison_lines(lines: Sequence[Compared]) -> list[str]:
    """Returns what the numbers say of each line beside that whose clients send most: a sentence
    each.

    Lines are left out whose runs have failed, measure no loss or send nothing.
    """
    up, sent, gained = {}, {}, {}
    for line in lines:
        if line.summaries and "loss" in line.summaries[0]["final"]:
            up[line.label] = fmean(s["payload_bytes_up"] for s in line.summaries)
            sent[line.label] = up[line.label] + fmean(
                s["payload_bytes_down"] for s in line.summaries
            )
            gained[line.label] = fmean(
                s["baseline"]["loss"] - s["final"]["loss"] for s in line.summaries
            )
    most = max(up, key=lambda label: up[label], default="")
    said = []
    for label, own in gained.items():
        if label == most or not sent[label] or not gained[most] > 0:
            continue
        few, many = sorted((sent[label], sent[most]))
        ratio, word = many / few, "fewer" if sent[label] <= sent[most] else "more"
        times = f"{ratio:.1f} times {word}" if ratio < 10 else f"{ratio:,.0f} times {word}"
        kept = f"{label} keeps {own / gained[most]:.0%} of {most}'s loss improvement"
        said.append(f"{kept} with {'about as many' if ratio < 1.05 else times} bytes.")
    return said
