"""Tables for a terminal, a document or a paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan, nan
from statistics import mean, stdev
from typing import Any

from rich import box
from rich.table import Table

from fedseed.errors import plural
from fedseed.metrics import metric_text, metric_title, shown_metrics
from fedseed.reports.results import PHASES


def human_bytes(count: float) -> str:
    """Returns a number of bytes with a unit, three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def privacy_spent(spent: Mapping[str, Any]) -> str:
    """Returns what a private run has spent, of its summary or status: "epsilon per vote 0.5, votes 48"."""
    return ", ".join(
        f"{name.replace('_', ' ')} {value if isinstance(value, str) else f'{value:.4g}'}"
        for name, value in spent.items()
    )


def comparison_table(summaries: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """Runs side by side, zero-shot first.

    Args:
        summaries: (name, summary) of each run; all from the same base and data.
    """
    first = summaries[0][1]
    names = shown_metrics(first["baseline"])
    title = _title(summaries)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("\nmethod", no_wrap=True)
    headings = [metric_title(name).replace(" ", "\n", 1) for name in names]
    for heading in ("\nrounds", *headings, "bytes\nup", "bytes\ndown", "\ntime"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row("zero-shot", "0", *(metric_text(name, first["baseline"][name]) for name in names), "-", "-", "-")
    for name, summary in summaries:
        table.add_row(
            name,
            str(summary["rounds"]),
            *(metric_text(name, summary["final"].get(name)) for name in names),
            human_bytes(summary["payload_bytes_up"]),
            human_bytes(summary["payload_bytes_down"]),
            f"{summary['seconds']['total']:.0f} s",
        )
    table.caption = "Bytes: payload per client and round in which it takes part."
    if any(name.startswith("unseen_") for name in names):
        table.caption += " Unseen: tasks that no client holds."
    for name, summary in summaries:
        if spent := summary.get("privacy"):
            table.caption += f" Privacy spent by {name}: {privacy_spent(spent)}."
    table.caption_justify = "left"
    return table


def _title(summaries: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Returns what stands above runs side by side: who took part, and how many parameters each method tunes."""
    first = summaries[0][1]
    who = f"{plural(first['clients'], 'client')}, {first['clients_per_round']:,} a round"
    tuned: dict[int, list[str]] = {}
    for name, summary in summaries:
        tuned.setdefault(summary["parameters"], []).append(name)
    if len(tuned) == 1:
        return f"{plural(first['parameters'], 'parameter')}{' of an adapter' if first.get('adapter') else ''}, {who}"
    return f"{who}; parameters: " + ", ".join(f"{count:,} ({', '.join(names)})" for count, names in tuned.items())


def times_as_many(ours: float, theirs: float, unit: str = "bytes") -> str:
    """Compares one number with another another: "125 times fewer bytes", "1.5 times more bytes", "about as many bytes".

    Args:
        ours: positive.
        theirs: positive; what `ours` is compared with.
        unit: what is counted.
    """
    ratio, word = (theirs / ours, "fewer") if ours <= theirs else (ours / theirs, "more")
    if ratio < 1.05:
        return f"about as many {unit}"
    return f"{ratio:.1f} times {word} {unit}" if ratio < 10 else f"{ratio:,.0f} times {word} {unit}"


def cost_table(summaries: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """Returns what a round costs one client, with the columns of Ferret's Tables 4, 5 and 10.

    Args:
        summaries: (name, summary) of each run.
    """
    title = "A client's round: seconds, and parameters exchanged"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("\nmethod", no_wrap=True)
    for heading in ("\nlocal", "projec-\ntion", "aggre-\ngation", "\nrebuild", "\ntogether", "params\nup + down"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, summary in summaries:
        table.add_row(name, *map(human_seconds, phases_of(summary)), parameters_exchanged(summary))
    table.caption = (
        "Local and projection: a client's own (Ferret's \"local update\"). Aggregation and rebuild: the step, and what "
        'becomes of the weights ("global aggregation").'
    )
    table.caption_justify = "left"
    return table


def phases_of(summary: Mapping[str, Any]) -> list[float]:
    """Returns the seconds of a client's round: local, projection, aggregation, rebuild, and all of them."""
    found = summary.get("seconds_per_client") or {}
    phases = [float(found.get(phase, nan)) for phase in PHASES]
    return [*phases, sum(phases)]


def parameters_exchanged(summary: Mapping[str, Any]) -> str:
    """Returns the scalars that a client and the coordinator exchange in a round, or votes."""
    found = summary.get("exchanged")
    if not found:
        return "-"
    bits = found["bits_up"] + found["bits_down"]
    scalars = found["scalars_up"] + found["scalars_down"]
    if bits and not scalars:
        return f"{bits:,.3g} bits"
    return f"{scalars:,.0f}" if scalars < 1e6 else f"{scalars:.1e}"


def comparison_lines(summaries: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Returns what the numbers come to, each run against the most talkative one."""
    reference_name, reference = max(summaries, key=lambda s: s[1]["payload_bytes_up"])
    lines = []
    for name, summary in summaries:
        if name == reference_name or "loss" not in summary["final"]:
            continue
        gained = reference["baseline"]["loss"] - reference["final"]["loss"]
        own = summary["baseline"]["loss"] - summary["final"]["loss"]
        total = reference["payload_bytes_up"] + reference["payload_bytes_down"]
        sent = summary["payload_bytes_up"] + summary["payload_bytes_down"]
        if gained > 0 and sent > 0:
            lines.append(
                f"{name} keeps {own / gained:.0%} of {reference_name}'s loss improvement with "
                f"{times_as_many(sent, total)}."
            )
    return lines


def mean_and_deviation(values: Sequence[float], digits: int) -> str:
    """Returns mean and sample deviation of a few numbers; those that are not finite are counted apart."""
    finite = [v for v in values if isfinite(v)]
    if not finite:
        return "-"
    deviation = f" ± {stdev(finite):.{digits}f}" if len(finite) > 1 else ""
    lost = f" ({len(values) - len(finite)} not finite)" if len(finite) < len(values) else ""
    return f"{mean(finite):,.{digits}f}{deviation}{lost}"


@dataclass(frozen=True)
class Sheet:
    """A table of texts, to be written in several forms.

    Args:
        title: what it shows.
        head: the columns' names.
        rows: a text for each column; the first column is on the left, the others on the right.
        note: what to know when reading it.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def text(self) -> str:
        """Returns the table for a terminal, columns padded."""
        lines = [self.head, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]

        def padded(line: Sequence[str]) -> str:
            rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
            return "  ".join((line[0].ljust(widths[0]), *rest)).rstrip()

        ruled = [padded(self.head), "  ".join("-" * width for width in widths), *map(padded, self.rows)]
        return "\n".join([self.title, "", *ruled, *(["", self.note] if self.note else [])]) + "\n"

    def markdown(self) -> str:
        """Returns the table for a document."""
        lines = [self.head, ["---", *["---:"] * (len(self.head) - 1)], *self.rows]
        table = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
        return "\n".join([f"**{self.title}**", "", *table, *(["", self.note] if self.note else [])]) + "\n"

    def latex(self) -> str:
        """Returns the table for a paper; needs the package booktabs."""
        body = [" & ".join(map(_tex, line)) + r" \\" for line in self.rows]
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{_tex(' '.join([self.title + '.', self.note]).strip())}}}",
                rf"\begin{{tabular}}{{l{'r' * (len(self.head) - 1)}}}",
                r"\toprule",
                " & ".join(map(_tex, self.head)) + r" \\",
                r"\midrule",
                *body,
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )


_TEX = {"\\": r"\textbackslash{}", "±": r"$\pm$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        **{c: "\\" + c for c in "&%$#_{}"}}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in text)


def human_seconds(seconds: float) -> str:
    """Returns a time with a unit; "-" if it is not known."""
    if isnan(seconds):
        return "-"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
