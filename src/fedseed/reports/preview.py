"""Tokens for a person's eyes: by colours on a terminal, by signs elsewhere."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

SHOWN_CLIENTS = 24
NEWLINE = "⏎"
# two shades in turn, so that it is seen where a token ends
LEARNT = ("bold black on green", "bold black on bright_green")
OTHER = ("default", "dim")


def tokens_text(pieces: Sequence[Any], coloured: bool) -> Text:
    """Returns tokens in a row, those that count for the loss marked; a line ends where one of them ends it.

    Args:
        pieces: tokens (`text`, `learnt`).
        coloured: by colours; else `|` stands between tokens, and `[[`, `]]` around those that count.
    """
    made = Text()
    before = False
    for at, piece in enumerate(pieces):
        text = piece.text.replace("\n", NEWLINE)
        if coloured:
            made.append(text, (LEARNT if piece.learnt else OTHER)[at % 2])
        else:
            made.append(_between(at > 0, before, piece.learnt) + text)
            before = piece.learnt
        if piece.text.endswith("\n"):
            made.append("\n")
    if before:
        made.append("]]")
    return made


def _between(inside: bool, before: bool, learnt: bool) -> str:
    if before == learnt:
        return "|" if inside else ""
    return "[[" if learnt else "]]"


def clients_table(clients: Sequence[Any]) -> Table:
    """Returns what each client has: examples, tokens, and how many of these count."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in ("client", "examples", "left out", "parts", "cut", "median", "longest", "count"):
        table.add_column(name, justify="left" if name == "client" else "right", no_wrap=True)
    for one in clients[:SHOWN_CLIENTS]:
        table.add_row(one.name, *_numbers(one))
    if len(clients) > SHOWN_CLIENTS:
        table.add_row(f"{len(clients) - SHOWN_CLIENTS:,} more", *[""] * 7)
    return table


def _numbers(one: Any) -> list[str]:
    values = (one.examples, one.dropped, one.items, one.cut, one.median, one.longest)
    share = f"{one.learnt / one.tokens:.0%}" if one.tokens else "-"
    return [*(f"{value:,}" for value in values), share]
