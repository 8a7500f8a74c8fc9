"""Compare runs in tables and sentences. It needs no torch."""

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

    label: str  # its name in the tables
    summaries: Sequence[Summary]  # summaries of the finished runs
    mark: str = ""  # text after the label in the table of results, such as the chosen values
    failed: int = 0  # number of its failed runs


def _mean_text(key: str, form: Callable[[float], str], summaries: Sequence[Summary]) -> str:
    return form(fmean(summary[key] for summary in summaries))


def _total_seconds(summaries: Sequence[Summary]) -> list[float]:
    return [summary["seconds"]["total"] for summary in summaries]


def results_sheet(
    title: str, lines: Sequence[Compared], seeds: int = 1, brief: bool = False
) -> Sheet:
    """Return a table of the results of each line's runs, with those of the untuned base (zero-shot)
    first.

    Args:
        title: above the table; "": a sentence on the clients of the runs, and the number of tuned
            parameters.
        lines: its lines.
        seeds: number of runs that a line should have.
        brief: leave out passes and memory, so that the table fits a terminal.
    """
    # an adapter's new parameters can change a model's results before any tuning: the base is the
    # start of most runs
    starts = [line.summaries[0] for line in lines if line.summaries]
    counted = Counter(str(summary["baseline"]) for summary in starts)
    summary_known = max(starts, key=lambda summary: counted[str(summary["baseline"])], default=None)
    measured = []
    if summary_known is not None:
        measured = shown_metrics(summary_known["final"])
    columns: dict[str, Callable[[Sequence[Summary]], str]] = {
        "rounds": partial(_mean_text, "rounds", "{:g}".format),
        **{metric_title(name, unit=not brief): partial(_score, name) for name in measured},
        "bytes up": partial(_mean_text, "payload_bytes_up", human_bytes),
        "bytes down": partial(_mean_text, "payload_bytes_down", human_bytes),
    }
    if brief:
        columns["time"] = lambda summaries: human_seconds(fmean(_total_seconds(summaries)))
    else:
        columns["forward"] = partial(_mean_text, "forward_passes", "{:,.0f}".format)
        columns["backward"] = partial(_mean_text, "backward_passes", "{:,.0f}".format)
        columns["memory"] = partial(_mean_text, "peak_memory_bytes", human_bytes)
        columns["seconds"] = lambda summaries: mean_and_deviation(_total_seconds(summaries), 0)
    rows = []
    if summary_known is not None:
        base = [metric_text(name, summary_known["baseline"][name]) for name in measured]
        rows.append(["zero-shot", "0", *base, *["-"] * (len(columns) - 1 - len(base))])
    for line in lines:
        lost = ""
        if line.summaries and line.failed:
            lost = f" ({line.failed} failed)"
        cells = [tell(line.summaries) if line.summaries else "failed" for tell in columns.values()]
        rows.append([f"{line.label}{line.mark}{lost}", *cells])
    note = []
    if seeds > 1:
        note = [f"Mean ± deviation over {seeds} seeds, on test examples."]
    note.append("Bytes: payload per client and round in which it takes part.")
    if not brief:
        note.append(
            "Passes: micro-batches, all clients and rounds. Memory: peak of the whole process."
        )
    if any(name.startswith("unseen_") for name in measured):
        note.append("Unseen: tasks that no client holds.")
    note += _privacy_notes(lines)
    return Sheet(title or _describe_clients(lines), ["method", *columns], rows, " ".join(note))


def _privacy_notes(lines: Sequence[Compared]) -> list[str]:
    """Return a sentence about each line whose runs are private."""
    notes = []
    for line in lines:
        if line.summaries and line.summaries[0].get("privacy"):
            spent = privacy_spent(line.summaries[0]["privacy"])
            notes.append(f"Privacy spent by {line.label}: {spent}.")
    return notes


def _score(name: str, summaries: Sequence[Summary]) -> str:
    return mean_and_deviation(
        [s["final"].get(name, nan) for s in summaries], metric_of(name)[1].digits
    )


def _describe_clients(lines: Sequence[Compared]) -> str:
    """Return a sentence about the clients and the number of parameters that each method tunes."""
    lines = [line for line in lines if line.summaries]
    if not lines:
        return "Comparison"
    first = lines[0].summaries[0]
    clients_text = f"{plural(first['clients'], 'client')}, {first['clients_per_round']:,} a round"
    tuned: dict[int, list[str]] = {}
    for line in lines:
        tuned.setdefault(line.summaries[0]["parameters"], []).append(line.label)
    if len(tuned) == 1:
        adapter = " of an adapter" if first.get("adapter") else ""
        return f"{plural(first['parameters'], 'parameter')}{adapter}, {clients_text}"
    return f"{clients_text}; parameters: " + ", ".join(
        f"{count:,} ({', '.join(names)})" for count, names in tuned.items()
    )


def _mean_of(tables: Sequence[Mapping[str, Any]], key: str, default: float) -> float:
    return fmean(float(table.get(key, default)) for table in tables)


def _seconds_a_round(summary: Summary) -> float:
    """Return the seconds of all phases in a round, of all clients together."""
    seconds = sum(summary["seconds"].get(phase, 0.0) for phase in PHASES)
    return float(seconds / max(1, summary["rounds"]))


def costs_sheet(title: str, lines: Sequence[Compared]) -> Sheet:
    """Return a table of what a round costs a client, as in Ferret's Tables 4, 5 and 10, and a
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
        summaries = line.summaries
        if not summaries:
            continue
        of_client = [s.get("seconds_per_client") or {} for s in summaries]
        phases = [_mean_of(of_client, phase, nan) for phase in PHASES]
        every = fmean(map(_seconds_a_round, summaries))
        seconds_shown = map(human_seconds, (*phases, sum(phases)))
        rows.append(
            [
                line.label,
                *seconds_shown,
                _exchanged(summaries[0].get("exchanged")),
                human_seconds(every),
            ]
        )
    note = (
        "Seconds and scalars (parameters, both ways) of one client in a round in which it takes "
        "part. Local and projection are Ferret's local update; aggregation, the answers to a "
        "step, and rebuild, the step to weights, its global aggregation. All clients: a simulated "
        "round, its clients one after the other."
    )
    return Sheet(title, head, rows, note)


def _exchanged(numbers: Mapping[str, float] | None) -> str:
    """Return the scalars that a client and the coordinator exchange in a round, or votes."""
    if not numbers:
        return "-"
    bits, scalars = (
        numbers["bits_up"] + numbers["bits_down"],
        numbers["scalars_up"] + numbers["scalars_down"],
    )
    if bits and not scalars:
        return f"{bits:,.3g} bits"
    if scalars < 1e6:
        return f"{scalars:,.0f}"
    return f"{scalars:.1e}"


def comparison_lines(lines: Sequence[Compared]) -> list[str]:
    """Return a sentence for each line that compares it with the line whose clients send most.

    Lines without finished runs, without a loss or without sent bytes are left out.
    """
    bytes_up, numbers_sent, gains = {}, {}, {}
    for line in lines:
        if line.summaries and "loss" in line.summaries[0]["final"]:
            bytes_up[line.label] = fmean(s["payload_bytes_up"] for s in line.summaries)
            numbers_sent[line.label] = bytes_up[line.label] + fmean(
                s["payload_bytes_down"] for s in line.summaries
            )
            gains[line.label] = fmean(
                s["baseline"]["loss"] - s["final"]["loss"] for s in line.summaries
            )
    dearest = max(bytes_up, key=lambda label: bytes_up[label], default="")
    lines_text = []
    for label, gain in gains.items():
        if label == dearest or not numbers_sent[label] or not gains[dearest] > 0:
            continue
        least_sent, most_sent = sorted((numbers_sent[label], numbers_sent[dearest]))
        ratio, word = (
            most_sent / least_sent,
            "fewer" if numbers_sent[label] <= numbers_sent[dearest] else "more",
        )
        times = f"{ratio:,.0f} times {word}"
        if ratio < 10:
            times = f"{ratio:.1f} times {word}"
        share_text = f"{label} keeps {gain / gains[dearest]:.0%} of {dearest}'s loss improvement"
        lines_text.append(f"{share_text} with {'about as many' if ratio < 1.05 else times} bytes.")
    return lines_text
