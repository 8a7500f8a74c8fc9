"""`fedseed preview`: a recipe's examples as tokens."""

from typing import Annotated

import typer

from fedseed.cli.common import PluginOption, SetOption, TrustOption
from fedseed.reports.screen import Screen

console = Screen()


def preview(
    recipe: Annotated[str, typer.Argument(help="A TOML file, or the name of a packaged recipe.")],
    client: Annotated[str | None, typer.Option(help="Whose examples are shown. Default: the first client's.")] = None,
    examples: Annotated[int, typer.Option(min=0, help="How many are shown.")] = 2,
    held_out: Annotated[bool, typer.Option("--held-out", help="Show held-out examples.")] = False,
    set_: SetOption = None,
    plugin: PluginOption = None,
    trust_plugins: TrustOption = False,
) -> None:
    """Show examples as tokens, what counts for the loss, what is cut. Needs the data and the tokenizer, no weights."""
    from fedseed.reports.preview import clients_table, tokens_text
    from fedseed.runs.recipe import read_recipe

    checked = read_recipe(recipe, set_ or [], plugin or [], trust_plugins)
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
    )  # fmt: skip
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


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(preview)
