"""`fedseed verify`: a party computes again what a run's record says that it has sent."""

import secrets
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedseed.cli.common import JsonOption, ReadingForDevice, Telling, answer, grouped, say, stepping
from fedseed.errors import RecipeError, plural


@grouped
def verify(
    run: Annotated[Path, typer.Argument(help="The run's folder, with recipe.toml, model.orbit and answers.jsonl.")],
    client: Annotated[list[str], typer.Option(help='Whose answers are computed again; repeatable, "*" for all.')],
    data: Annotated[
        Path | None, typer.Option(help="The one client's own data, a file or a folder. Default: where the recipe says.")
    ] = None,
    sample: Annotated[str, typer.Option(help='How many answers of each client; "all".')] = "20",
    seed: Annotated[int | None, typer.Option(min=0, help="Draws them. Default: nobody can know it beforehand.")] = None,
    as_json: JsonOption = False,
    *,
    reading: ReadingForDevice,
) -> None:
    """Compute again what a run's record says that a client has sent, from its own data; 1: something was forged."""
    from fedseed.models.loading import quiet
    from fedseed.orbit import Orbit
    from fedseed.runs.answers import FILE, read_answers
    from fedseed.runs.joining import Loading
    from fedseed.runs.spec import RunSpec
    from fedseed.runs.verification import verify as verified
    from fedseed.tasks.data import OwnData

    if sample != "all" and not (sample.isdecimal() and int(sample)):
        raise RecipeError(f'--sample {sample}: a whole number above 0, or "all"')
    screen = Telling(as_json).screen()
    recipe = reading.read(str(run / "recipe.toml"))
    orbit, answers = Orbit.open(run / "model.orbit"), read_answers(run / FILE)
    quiet()
    hosted = Loading(recipe, client, own=None if data is None else OwnData(data))()
    drawn = secrets.randbits(63) if seed is None else seed
    with stepping(screen, orbit.last) as tell:
        spec = RunSpec.of(recipe, per_round=recipe.federation.count(len(answers.names)))
        found = verified(
            orbit, answers, spec, hosted, None if sample == "all" else int(sample), drawn,
            lambda number: tell(number, orbit.last),
        )  # fmt: skip
    if as_json:
        answer({**vars(found), "checked": list(map(vars, found.checked)), "seed": drawn})
    else:
        _show(found, hosted.items, drawn, screen)
    if found.forged:
        raise typer.Exit(1)


def _show(found: Any, names: Any, seed: int, screen: Any) -> None:
    known = found.steps - len(found.missing)
    say(f"{known - len(found.unlike):,} of {plural(found.steps, 'step')} follow from the answers on record", screen)
    for rounds, what in ((found.unlike, "do not"), (found.missing, "can't be judged: no answers are on record")):
        if rounds:
            more = f" and {len(rounds) - 20} more" if len(rounds) > 20 else ""
            say(f"  {what}: rounds {', '.join(map(str, rounds[:20]))}{more}", screen)
    table = Table("round", "client", "on record", "computed", "apart at most", "verdict", box=None, pad_edge=False)
    for name in names:
        theirs = [one for one in found.checked if one.client == name]
        right = sum(one.verdict != "forged" for one in theirs)
        near = sum(one.verdict == "open" for one in theirs)
        more = f"; of {near} of them a sign is within the noise of zero and may be either" if near else ""
        again = f"{right} of {plural(len(theirs), 'answer')} computed again (--seed {seed}) are right"
        say(f"{name}: {again}{more}", screen)
        if theirs and not right:
            say("  none is: is this the data that was trained on? (fedseed run on a folder splits it otherwise than a "
                "site splits its own: leave --data out)", screen)  # fmt: skip
        for one in theirs:
            if one.verdict == "forged":
                numbers = [f"{number:.6g}" for number in (one.logged, one.computed, one.allowed)]
                table.add_row(str(one.round), name, *numbers, f"forged {one.why}".strip())
    if table.row_count:
        screen.print(table)
    say(f"weights digest: {found.digest}", screen)
    say(f"record: {found.record} (the same for all who verify this log and these answers)", screen)
