"""`fedseed reproduce`: the papers' figures and tables from one command."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from fedseed.cli.common import SetOption, Telling, answer, grouped, interruptible
from fedseed.experiments.sweeps import parse_seeds

app = typer.Typer(add_completion=False)


@app.command()
@grouped
def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            metavar="list|all|PAPER|PAPER/ITEM", help="ferret/figure-7; list says what there is."
        ),
    ],
    scale: Annotated[
        Literal["exact", "small", "published"] | None,
        typer.Option(
            help="exact: needs no training; small: on the bases that come along; published: "
            "your copies of the papers' models and data. Default: the first of these that the "
            "item has."
        ),
    ] = None,
    target: Annotated[
        Path, typer.Option("--out", help="Folder; what lies there is not made again.")
    ] = Path("runs/reproduce"),
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time; the cores are shared out.")] = 1,
    seeds: Annotated[
        str | None, typer.Option(help="Of the runs, such as 1,2,3. Default: the item's own.")
    ] = None,
    set_: SetOption = None,
    *,
    telling: Telling,
) -> None:
    """Make figures and tables of the papers again: data, picture or table, and a page with a
    verdict on each claim.
    """
    from fedseed_papers.catalogue import catalogue, choose_items, scale_of

    screen = telling.screen()
    if what == "list":
        rows = [item for item in catalogue() if scale is None or scale in item.scales]
        if telling.as_json:
            answer(
                [
                    {
                        "name": i.name,
                        "state": i.state,
                        "scales": i.scales,
                        "minutes": i.minutes,
                        "shows": i.shows,
                        "wants": i.wants,
                    }
                    for i in rows
                ]
            )
            return
        table = Table(box=None, pad_edge=False)
        for head in ("item", "state", "time", "shows"):
            table.add_column(head, no_wrap=head != "shows")
        for item in rows:
            table.add_row(
                *map(Text, (item.name, item.state, _time(item.minutes, item.state), item.shows))
            )
        screen.print(table)
        screen.print(
            Text(
                "\nTime: of the small scale, on two cores. Exact items take seconds. fedseed "
                "reproduce ITEM"
            )
        )
        return
    items = choose_items(what)
    several = len(items) > 1 or what.strip("/") in ("all", items[0].paper)
    scale_wanted = None
    if not several:
        scale_wanted = scale_of(items[0], scale)
    numbers = None
    if seeds is not None:
        numbers = parse_seeds(seeds)
    from fedseed_papers.findings import check_folder
    from fedseed_papers.reproducing import Making

    def say(text: str) -> None:
        screen.print(text, highlight=False, soft_wrap=True, markup=False)

    check_folder(target)
    making = Making(target, say, jobs, set_ or [], numbers)
    with interruptible():
        if scale_wanted is None:
            try:
                results = making.make_all(items, scale)
            finally:
                say(f"Index: {target / 'index.html'}")
        else:
            results = [making.make(items[0], scale_wanted)]
            making.write_index()
    if telling.as_json:
        answer(results[0] if scale_wanted is not None else results)
        return
    for result in results if scale_wanted is not None else ():
        for claim in result["claims"]:
            say(f"\n{claim['verdict']}\n  Paper: {claim['says']}\n  Here: {claim['here']}")


def _time(minutes: float | None, state: str) -> str:
    if state == "exact":
        return "seconds"
    if minutes is None:
        return "-"
    return f"{minutes:g} min"
