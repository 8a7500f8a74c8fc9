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
    """Return a number of bytes with a unit, three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            if unit == "B" or count >= 100:
                return f"{count:.0f} {unit}"
            return f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def plain_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], widest: int | None = 32
) -> Table:
    """Return a table for a console, the first column on the left and the others on the right.

    Args:
        head: the columns' names; if all are empty, no head is shown.
        rows: a text for each column.
        widest: greatest width of the first column; None: no limit.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, show_header=any(head))
    for number, name in enumerate(head):
        table.add_column(
            name,
            justify="right" if number else "left",
            no_wrap=True,
            max_width=None if number else widest,
        )
    for row in rows:
        table.add_row(*row)
    return table


def privacy_spent(spent: Mapping[str, Any]) -> str:
    """Return a private run's spent budget, from its summary or status: "epsilon per vote 0.5, votes
    48".
    """
    return ", ".join(
        f"{name.replace('_', ' ')} {value if isinstance(value, str) else f'{value:.4g}'}"
        for name, value in spent.items()
    )


def mean_and_deviation(values: Sequence[float], digits: int) -> str:
    """Return mean and sample deviation of a few numbers.

    Numbers that are not finite are counted separately.
    """
    finite = [v for v in values if isfinite(v)]
    if not finite:
        return "-"
    deviation = ""
    if len(finite) > 1:
        deviation = f" ± {stdev(finite):.{digits}f}"
    lost = ""
    if len(finite) < len(values):
        lost = f" ({len(values) - len(finite)} not finite)"
    return f"{mean(finite):,.{digits}f}{deviation}{lost}"


@dataclass(frozen=True)
class Sheet:
    """A table of texts, to be written in several forms."""

    title: str  # what it shows
    head: Sequence[str]  # the columns' names
    # a text for each column; the first column is on the left, the others on the right
    rows: Sequence[Sequence[str]]
    note: str = ""  # notes for readers

    def table(self) -> Table:
        """Return the table for a console, each column's name on two lines."""
        heads = [name.replace(" ", "\n", 1) if " " in name else f"\n{name}" for name in self.head]
        table = plain_table(heads, self.rows, widest=None)
        table.title, table.caption, table.show_edge = self.title, self.note, False
        table.title_justify = table.caption_justify = "left"
        return table

    def show(self, console: Console) -> None:
        """Print the table.

        On a console that is too narrow it is printed as plain text with wrapped lines.
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
        """Return the table as plain text, columns padded."""
        lines = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

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
        """Return the table in Markdown."""
        lines = [self.head, ["---", *["---:"] * (len(self.head) - 1)], *self.rows]
        table = list(map(_markdown_row, lines))
        return (
            "\n".join([f"**{self.title}**", "", *table, *(["", self.note] if self.note else [])])
            + "\n"
        )


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def human_seconds(seconds: float) -> str:
    """Return a time with a unit; "-" if it is not known."""
    if isnan(seconds):
        return "-"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
