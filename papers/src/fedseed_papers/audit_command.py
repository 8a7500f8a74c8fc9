"""`fedseed audit`: attacks on a recipe's own runs."""

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedseed.cli.common import (
    DeviceOption,
    JsonOption,
    OverwriteOption,
    PluginOption,
    QuietOption,
    RecipeArgument,
    SetOption,
    ThreadsOption,
    TrustOption,
    answer,
    settings,
    talking,
)
from fedseed.errors import FedseedError, RecipeError
from fedseed.reports.screen import Screen

app = typer.Typer(
    help="Attack a recipe's own runs: does the model remember an example, do messages give one away?",
    no_args_is_help=True,
    add_completion=False,
)
console = Screen()
SeedOption = Annotated[
    int, typer.Option(min=0, help="Draws what the audit plants or attacks; apart from the recipe's.")
]


@app.command()
def canary(
    recipe: RecipeArgument,
    out: Annotated[
        Path | None, typer.Option(help="Folder for page, picture and data. Default: runs/canary/RECIPE.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs with a canary; as many without one.")] = 10,
    candidates: Annotated[int, typer.Option(min=2, help="Canaries of which one is planted.")] = 100,
    copies: Annotated[int, typer.Option(min=1, help="Examples of the client that are the canary.")] = 1,
    client: Annotated[str | None, typer.Option(help="Who has the canary. Default: the first client.")] = None,
    by: Annotated[
        Literal["model", "orbit"],
        typer.Option(help="What the attack has: the last model, or every step (FeedSign)."),
    ] = "model",
    seed: SeedOption = 1,
    set_: SetOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    plugin: PluginOption = None,
    trust_plugins: TrustOption = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Plant a canary in one client's data and guess from the model which it was; a lower bound on epsilon."""
    from fedseed.runs.recipe import read_recipe
    from fedseed_papers.audits.writing import check_free, facts_of, write_audit

    shown, began = talking(console, as_json, quiet), time.perf_counter()
    folder, changes = out or Path("runs/canary") / Path(recipe).stem, settings(set_, device)
    check_free(folder, overwrite)
    checked = read_recipe(recipe, changes, plugin or [], trust_plugins)
    from fedseed.models.loading import quiet as loading_quietly
    from fedseed.runs.threads import limited
    from fedseed_papers.audits import canary_page  # torch from here on
    from fedseed_papers.audits.canary import canary_test

    def say(text: str) -> None:
        shown.print(text, highlight=False, soft_wrap=True)

    loading_quietly()
    name = Path(recipe).stem
    say(f"{name}: {runs} runs with one of {candidates} canaries, {runs} without")
    with limited(threads):
        test = canary_test(checked, runs, candidates, copies, client, seed, say, by)
    page = canary_page.audit(test, name, facts_of(name, checked, changes))
    result = write_audit(folder, page, canary_page.numbers(test), time.perf_counter() - began)
    for found in page.answers:
        say(f"\n{found.asks} {found.short}\n  {found.says}")
    say(f"\nPage: {folder / 'page.html'}")
    if as_json:
        answer({**result, "folder": str(folder)})
    if test.contradicts:
        raise FedseedError(
            f"epsilon is at least {test.epsilon_at_least:.2f}, and the account says {test.epsilon:.2f}: the run is not "
            "as private as it says, or the account is not about exchanging these examples"
        )


@app.command()
def reconstruct(
    recipe: RecipeArgument,
    out: Annotated[
        Path | None, typer.Option(help="Folder for page, pictures and data. Default: runs/reconstruct/RECIPE.")
    ] = None,
    methods: Annotated[
        str, typer.Option("--methods", help="Whose messages, of ferret, fedkseed, feedsign, fedsgd, fedavg.")
    ] = "ferret,fedkseed,feedsign,fedsgd",
    numbers: Annotated[
        str, typer.Option("--numbers", help="K, the numbers that a message has, such as 64,256.")
    ] = "8,32,64,128,256,512,1024",
    examples: Annotated[int, typer.Option(min=1, help="Pictures that are attacked, each alone.")] = 3,
    batches: Annotated[
        str, typer.Option("--batches", help="Pictures behind one message, in a second series.")
    ] = "2,4,8",
    steps: Annotated[int, typer.Option(min=1, help="Of the search for a picture.")] = 300,
    linear: Annotated[
        bool, typer.Option("--linear", help="One softmax layer on the pixels in place of the recipe's model.")
    ] = False,
    seed: SeedOption = 1,
    set_: SetOption = None,
    threads: ThreadsOption = None,
    plugin: PluginOption = None,
    trust_plugins: TrustOption = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Reconstruct a picture from a client's message, over the numbers that it has; on the recipe's model and data."""
    from fedseed.runs.recipe import read_recipe
    from fedseed_papers.audits.writing import check_free, embedded, facts_of, write_audit

    shown, began = talking(console, as_json, quiet), time.perf_counter()
    folder, changes = out or Path("runs/reconstruct") / Path(recipe).stem, settings(set_, "cpu")
    check_free(folder, overwrite)
    counts, several = _whole("--numbers", numbers), _whole("--batches", batches)
    checked = read_recipe(recipe, changes, plugin or [], trust_plugins)
    from fedseed.durable import write_whole
    from fedseed.models.loading import quiet as loading_quietly
    from fedseed.runs.threads import limited
    from fedseed_papers.audits import reconstruct_page  # torch from here on
    from fedseed_papers.audits.reconstruct import reconstruction

    def say(text: str) -> None:
        shown.print(text, highlight=False, soft_wrap=True)

    loading_quietly()
    name = f"{Path(recipe).stem}{', one layer on the pixels' * linear}"
    chosen = [word.strip() for word in methods.split(",") if word.strip()]
    with limited(threads):
        found = reconstruction(checked, chosen, counts, examples, several, steps, seed, linear, say)
    folder.mkdir(parents=True, exist_ok=True)
    reconstruct_page.draw_pictures(found, folder / "reconstructed.png")
    write_whole(folder / "attempts.csv", reconstruct_page.attempts_csv(found).encode())
    images = [("The true picture, and what was found from so many numbers", embedded(folder / "reconstructed.png"))]
    page = reconstruct_page.audit(found, name, facts_of(name, checked, changes), images)
    result = write_audit(folder, page, reconstruct_page.numbers(found), time.perf_counter() - began)
    for told in page.answers:
        say(f"\n{told.asks} {told.short}\n  {told.says}")
    say(f"\nPage: {folder / 'page.html'}")
    if as_json:
        answer({**result, "folder": str(folder)})


def _whole(option: str, text: str) -> list[int]:
    """Whole numbers with commas. Raises RecipeError."""
    try:
        found = [int(word) for word in text.split(",") if word.strip()]
    except ValueError as error:
        raise RecipeError(f"{option} {text}: write whole numbers, such as 64,256") from error
    if any(number < 1 for number in found) or (not found and option == "--numbers"):
        raise RecipeError(f"{option} {text}: write whole numbers from 1 on, such as 64,256")
    return found
