"""`fedseed preview`: a recipe's examples as tokens, by colours on a terminal, by signs elsewhere."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedseed.cli.common import Reading, RecipeArgument, console, grouped
from fedseed.reports.tables import plain_table

SHOWN_CLIENTS = 24
NEWLINE = "⏎"
# two shades in turn, so that it is seen where a token ends
LEARNT = ("bold black on green", "bold black on bright_green")
OTHER = ("default", "dim")


@grouped
def preview(
    recipe: RecipeArgument,
    client: Annotated[str | None, typer.Option(help="Whose examples are shown. Default: the first client's.")] = None,
    examples: Annotated[int, typer.Option(min=0, help="How many are shown.")] = 2,
    held_out: Annotated[bool, typer.Option("--held-out", help="Show held-out examples.")] = False,
    *,
    reading: Reading,
) -> None:
    """Show examples as tokens, what counts for the loss, what is cut. Needs the data and the tokenizer, no weights."""
    checked = reading.read(recipe)
    from fedseed.models.loading import quiet  # torch from here on
    from fedseed.runs.preview import preview as look

    quiet()
    found = look(checked, client, examples, held_out)
    for line in found.notes:
        console.print(line, highlight=False, soft_wrap=True)
    console.print(clients_table(found.clients))
    console.print(
        f"Parts: what is learnt from. Median, longest: their tokens; what is over {found.limit} is left out or cut. "
        "Count: the share of tokens that count for the loss.",
        highlight=False,
    )
    console.print()
    for shown in found.shown:
        console.print(shown.title, style="bold", highlight=False, soft_wrap=True)
        if shown.pieces:
            console.print(tokens_text(shown.pieces, console.is_terminal), soft_wrap=True)
        if shown.note:
            console.print(shown.note, highlight=False, soft_wrap=True)
        console.print()
    if found.shown:
        how = "green counts for the loss" if console.is_terminal else "[[...]] counts for the loss, | ends a token"
        console.print(f"{how}; ⏎ is a line's end", highlight=False)


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
            sign = ("|" if at else "") if before == piece.learnt else "[[" if piece.learnt else "]]"
            made.append(sign + text)
            before = piece.learnt
        if piece.text.endswith("\n"):
            made.append("\n")
    if before:
        made.append("]]")
    return made


def clients_table(clients: Sequence[Any]) -> Table:
    """Returns what each client has: examples, tokens, and how many of these count."""
    rows = []
    for one in clients[:SHOWN_CLIENTS]:
        values = (one.examples, one.dropped, one.items, one.cut, one.median, one.longest)
        share = f"{one.learnt / one.tokens:.0%}" if one.tokens else "-"
        rows.append([one.name, *(f"{value:,}" for value in values), share])
    if len(clients) > SHOWN_CLIENTS:
        rows.append([f"{len(clients) - SHOWN_CLIENTS:,} more", *[""] * 7])
    return plain_table(("client", "examples", "left out", "parts", "cut", "median", "longest", "count"), rows)
