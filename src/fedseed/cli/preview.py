"""`fedseed preview`: a recipe's examples as tokens."""

from typing import Annotated

import typer

from fedseed.cli.common import RecipeArgument, console
from fedseed.cli.groups import Reading, grouped


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
    from fedseed.reports.preview import clients_table, tokens_text

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
