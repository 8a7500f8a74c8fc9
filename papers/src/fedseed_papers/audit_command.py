"""`fedseed audit`: attacks on a recipe's own runs."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedseed.cli.common import (
    Reading,
    ReadingForDevice,
    RecipeArgument,
    Telling,
    ThreadsOption,
    answer,
    grouped,
)
from fedseed.errors import FedseedError, RecipeError

if TYPE_CHECKING:
    from fedseed.recipe.settings import Recipe
    from fedseed_papers.audits.page import Audit

app = typer.Typer(
    help="Attack a recipe's own runs: does the model remember an example, do messages give one "
    "away?",
    no_args_is_help=True,
    add_completion=False,
)
SeedOption = Annotated[
    int,
    typer.Option(min=0, help="Draws what the audit plants or attacks; apart from the recipe's."),
]


@dataclass(frozen=True)
class CanaryOptions:
    """What is planted, and what the attack has."""

    runs: Annotated[int, typer.Option(min=1, help="Runs with a canary; as many without one.")] = 10
    candidates: Annotated[int, typer.Option(min=2, help="Canaries of which one is planted.")] = 100
    copies: Annotated[
        int, typer.Option(min=1, help="Examples of the client that are the canary.")
    ] = 1
    client: Annotated[
        str | None, typer.Option(help="Who has the canary. Default: the first client.")
    ] = None
    by: Annotated[
        Literal["model", "orbit"],
        typer.Option(help="What the attack has: the last model, or every step (FeedSign)."),
    ] = "model"
    seed: SeedOption = 1


@dataclass(frozen=True)
class AttackOptions:
    """Which messages are attacked, and how hard."""

    methods: Annotated[
        str,
        typer.Option(
            "--methods", help="Whose messages, of ferret, fedkseed, feedsign, fedsgd, fedavg."
        ),
    ] = "ferret,fedkseed,feedsign,fedsgd"
    numbers: Annotated[
        str, typer.Option("--numbers", help="K, the numbers that a message has, such as 64,256.")
    ] = "8,32,64,128,256,512,1024"
    examples: Annotated[
        int, typer.Option(min=1, help="Pictures that are attacked, each alone.")
    ] = 3
    batches: Annotated[
        str, typer.Option("--batches", help="Pictures behind one message, in a second series.")
    ] = "2,4,8"
    steps: Annotated[int, typer.Option(min=1, help="Of the search for a picture.")] = 300
    linear: Annotated[
        bool,
        typer.Option(
            "--linear", help="One softmax layer on the pixels in place of the recipe's model."
        ),
    ] = False
    seed: SeedOption = 1


@dataclass(frozen=True)
class InputOptions:
    """Whose messages are attacked, and how many of them are added up."""

    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            help="Whose messages, of fedsgd, ferret, ferret-bits, subspace, subspace-bits.",
        ),
    ] = "fedsgd,ferret,ferret-bits,subspace,subspace-bits"
    numbers: Annotated[
        str, typer.Option("--numbers", help="K, the numbers of Ferret's messages.")
    ] = "256,7000"
    ranks: Annotated[str, typer.Option("--ranks", help="r, subspace's ranks.")] = "16"
    clients: Annotated[
        str, typer.Option("--clients", help="Clients in a sum; 1: a message by itself.")
    ] = "1,8"
    examples: Annotated[int, typer.Option(min=1, help="Examples of a client's one step.")] = 1
    candidates: Annotated[
        int, typer.Option(min=2, help="Clients whose messages the attacker can make.")
    ] = 20
    seeds: Annotated[int, typer.Option(min=1, help="How often everything is drawn anew.")] = 8
    seed: SeedOption = 1


@dataclass(frozen=True)
class Keeping:
    """Where an audit's files go, and how it is computed."""

    out: Annotated[
        Path | None,
        typer.Option(help="Folder for page, pictures and data. Default: runs/AUDIT/RECIPE."),
    ] = None
    threads: ThreadsOption = None


@app.command()
@grouped
def canary(
    recipe: RecipeArgument,
    *,
    options: CanaryOptions,
    keeping: Keeping,
    reading: ReadingForDevice,
    telling: Telling,
) -> None:
    """Plant a canary in one client's data and guess from the model which it was.

    A lower bound on epsilon.
    """
    audited = _Audited("canary", recipe, keeping, telling)
    checked = reading.read_recipe(recipe)
    from fedseed_papers.audits import canary_page  # torch from here on
    from fedseed_papers.audits.canary import Planned, canary_test

    planned = Planned(**vars(options))
    audited.say(
        f"{audited.name}: {planned.runs} runs with one of {planned.candidates} canaries, "
        f"{planned.runs} without"
    )
    test = audited.computed(lambda: canary_test(checked, planned, audited.say))
    page = canary_page.build_canary_page(
        test, audited.name, audited.facts(checked, reading.changes)
    )
    audited.write(page, canary_page.canary_data(test))
    if test.contradicts:
        raise FedseedError(
            f"epsilon is at least {test.epsilon_at_least:.2f}, and the account says "
            f"{test.epsilon:.2f} for exchanging these examples: the run is not as private as it "
            "says (or this is the one audit in twenty that errs)"
        )


@app.command()
@grouped
def reconstruct(
    recipe: RecipeArgument,
    *,
    options: AttackOptions,
    keeping: Keeping,
    reading: Reading,
    telling: Telling,
) -> None:
    """Reconstruct a picture from a client's message, over the numbers that it has.

    On the recipe's model and data.
    """
    audited = _Audited("reconstruct", recipe, keeping, telling)
    counts, several = _whole("--numbers", options.numbers), _whole("--batches", options.batches)
    on_cpu = 'model.device="cpu"'
    checked = reading.read_recipe(recipe, on_cpu)
    from fedseed.durable import write_whole
    from fedseed_papers.audits import reconstruct_page  # torch from here on
    from fedseed_papers.audits.reconstruct import Attacked, reconstruction

    methods = [word.strip() for word in options.methods.split(",") if word.strip()]
    attacked = Attacked(
        methods, counts, options.examples, several, options.steps, options.seed, options.linear
    )
    result = audited.computed(lambda: reconstruction(checked, attacked, audited.say))
    audited.folder.mkdir(parents=True, exist_ok=True)
    picture = audited.folder / "reconstructed.png"
    reconstruct_page.draw_pictures(result, picture)
    write_whole(audited.folder / "attempts.csv", reconstruct_page.attempts_csv(result).encode())
    name = f"{audited.name}{', one layer on the pixels' * options.linear}"
    page = reconstruct_page.build_reconstruction_page(
        result, name, audited.facts(checked, [*reading.changes, on_cpu]), picture
    )
    audited.write(page, reconstruct_page.reconstruction_data(result))


@app.command()
@grouped
def inputs(
    recipe: RecipeArgument,
    *,
    options: InputOptions,
    keeping: Keeping,
    reading: Reading,
    telling: Telling,
) -> None:
    """Find the tokens, or pictures, behind a message or a sum of messages.

    By the span of a layer's gradient, on the recipe's model and data.
    """
    audited = _Audited("inputs", recipe, keeping, telling)
    counts, ranks = _whole("--numbers", options.numbers), _whole("--ranks", options.ranks)
    clients = _whole("--clients", options.clients)
    on_cpu = 'model.device="cpu"'
    checked = reading.read_recipe(recipe, on_cpu)
    from fedseed.durable import write_whole
    from fedseed_papers.audits import inputs_page  # torch from here on
    from fedseed_papers.audits.inputs import Attacked, find_inputs

    kinds = [word.strip() for word in options.methods.split(",") if word.strip()]
    seeds = range(options.seed, options.seed + options.seeds)
    attacked = Attacked(kinds, counts, ranks, clients, options.examples, options.candidates, seeds)
    result = audited.computed(lambda: find_inputs(checked, attacked, audited.say))
    audited.folder.mkdir(parents=True, exist_ok=True)
    write_whole(audited.folder / "attempts.csv", inputs_page.attempts_csv(result).encode())
    page = inputs_page.audit(
        result, audited.name, audited.facts(checked, [*reading.changes, on_cpu])
    )
    audited.write(page, inputs_page.numbers(result))


class _Audited:
    """What all audits do before and after the attack.

    Args:
        kind: the audit's name.
        recipe: its file or name.
        keeping: where the files go.
        telling: what is said.
    """

    def __init__(self, kind: str, recipe: str, keeping: Keeping, telling: Telling) -> None:
        from fedseed_papers.audits.page import check_free

        self._began = time.perf_counter()
        self._screen = telling.screen()
        self._as_json = telling.as_json
        self._threads = keeping.threads
        self.name = Path(recipe).stem
        self.folder = keeping.out or Path("runs") / kind / self.name
        check_free(self.folder)

    def say(self, text: str) -> None:
        """Show a line."""
        self._screen.print(text, highlight=False, soft_wrap=True)

    def computed(self, attack: Callable[[], Any]) -> Any:
        """Return what an attack finds, with as many threads as were asked for."""
        from fedseed.weights.devices import limited

        with limited(self._threads):
            return attack()

    def facts(self, recipe: "Recipe", changes: list[str]) -> dict[str, str]:
        """Return where the page's numbers come from."""
        from fedseed_papers.audits.page import facts_of

        return facts_of(self.name, recipe, changes)

    def write(self, page: "Audit", numbers: Mapping[str, Any]) -> None:
        """Write the files, and say what was found."""
        from fedseed_papers.audits.page import write_audit

        result = write_audit(self.folder, page, numbers, time.perf_counter() - self._began)
        for answer_given in page.answers:
            self.say(f"\n{answer_given.asks} {answer_given.short}\n  {answer_given.says}")
        self.say(f"\nPage: {self.folder / 'page.html'}")
        if self._as_json:
            answer({**result, "folder": str(self.folder)})


def _whole(option: str, text: str) -> list[int]:
    """Return whole numbers with commas. Raises RecipeError."""
    try:
        numbers = [int(word) for word in text.split(",") if word.strip()]
    except ValueError as error:
        raise RecipeError(f"{option} {text}: write whole numbers, such as 64,256") from error
    if any(number < 1 for number in numbers) or (not numbers and option == "--numbers"):
        raise RecipeError(f"{option} {text}: write whole numbers from 1 on, such as 64,256")
    return numbers
