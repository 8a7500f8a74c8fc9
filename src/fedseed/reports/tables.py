"""Tables for a terminal, a document or a paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan
from statistics import mean, stdev
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table


def human_bytes(count: float) -> str:
    """Returns a number of bytes with a unit, three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def plain_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], widest: int | None = 32
) -> Table:
    """Returns a table for a console, the first column on the left and the others on the right.

    Args:
        head: the columns' names; no name in it: it is not shown.
        rows: a text for each column.
        widest: how wide the first column may be; None: as wide as it is.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, show_header=any(head))
    for number, name in enumerate(head):
        made.add_column(
            name,
            justify="right" if number else "left",
            no_wrap=True,
            max_width=None if number else widest,
        )
    for row in rows:
        made.add_row(*row)
    return made


def privacy_spent(spent: Mapping[str, Any]) -> str:
    """Returns what a private run has spent, of its summary or status: "epsilon per vote 0.5, votes
    48".
    """
    return ", ".join(
        f"{name.replace('_', ' ')} {value if isinstance(value, str) else f'{value:.4g}'}"
        for name, value in spent.items()
    )


def mean_and_deviation(values: Sequence[float], digits: int) -> str:
    """Returns mean and sample deviation of a few numbers.

    Those that are not finite are counted apart.
    """
    finite = [v for v in values if isfinite(v)]
    if not finite:
        return "-"
    deviation = f" ± {stdev(finite):.{digits}f}" if len(finite) > 1 else ""
    lost = f" ({len(values) - len(finite)} not finite)" if len(finite) < len(values) else ""
    return f"{mean(finite):,.{digits}f}{deviation}{lost}"


@dataclass(frozen=True)
class Sheet:
    """A table of texts, to be written in several forms."""

    title: str  # what it shows
    head: Sequence[str]  # the columns' names
    # a text for each column; the first column is on the left, the others on the right
    rows: Sequence[Sequence[str]]
    note: str = ""  # what to know when reading it

    def table(self) -> Table:
        """Returns the table for a console, each column's name on two lines."""
        heads = [name.replace(" ", "\n", 1) if " " in name else f"\n{name}" for name in self.head]
        shown = plain_table(heads, self.rows, widest=None)
        shown.title, shown.caption, shown.show_edge = self.title, self.note, False
        shown.title_justify = shown.caption_justify = "left"
        return shown

    def show(self, console: Console) -> None:
        """Prints the table.

        On a console too narrow for it as plain text, whose lines are broken but not cut.
        """
        table = self.table()
        if (
            Measurement.get(console, console.options.update(width=1000), table).maximum
            <= console.width
        ):
            console.print(table, highlight=False)
        else:
            console.print(self.text(), highlight=False, soft_wrap=True)

    def text(self) -> str:
        """Returns the table as plain text, columns padded."""
        lines = [self.head, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]

        def padded(line: Sequence[str]) -> str:
            rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
            return "  ".join((line[0].ljust(widths[0]), *rest)).rstrip()

        ruled = [
            padded(self.head),
            "  ".join("-" * width for width in widths),
            *map(padded, self.rows),
        ]
        return "\n".join([self.title, "", *ruled, *(["", self.note] if self.note else [])]) + "\n"

    def markdown(self) -> str:
        """Returns the table for a document."""
        lines = [self.head, ["---", *["---:"] * (len(self.head) - 1)], *self.rows]
        table = [
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        ]
        return (
            "\n".join([f"**{self.title}**", "", *table, *(["", self.note] if self.note else [])])
            + "\n"
        )


def human_seconds(seconds: float) -> str:
    """Returns a time with a unit; "-" if it is not known."""
    if isnan(seconds):
        return "-"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
