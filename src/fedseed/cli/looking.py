"""`fedseed new`, `explain`, `list`, `preview`, `partition`, `bench`: the commands to use before a
run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from fedseed.cli.common import (
    JsonOption,
    PluginOption,
    Reading,
    ReadingForDevice,
    RecipeArgument,
    Telling,
    answer,
    complete_keys,
    console,
    grouped,
    say,
)
from fedseed.cli.waiting import waiting
from fedseed.errors import FedseedError, RecipeError, StorageError
from fedseed.registry import Registry

if TYPE_CHECKING:
    from fedseed.recipe.keys import Key

# width of a list's column in a file; a longer cell shifts the next one
WIDEST = 60
TAGS = ("name", "kind")  # keys that choose a table's type
LISTED = Literal[
    "methods",
    "tasks",
    "metrics",
    "aggregation",
    "trackers",
    "models",
    "bases",
    "recipes",
    "sweeps",
    "keys",
]
HEADINGS = {"models": ("name", "about", "where"), "keys": ("key", "type", "default", "of")}
ENDINGS: Mapping[LISTED, str] = {
    "bases": "These are bases of random directions (method.basis). Models to tune: fedseed list "
    "models",
    "models": "Any folder or hub name of a transformers model is possible, too (model.base).",
    "recipes": "--all also shows those with the papers' published settings, which need the papers' "
    "models.",
    "keys": "fedseed explain KEY explains a key; docs/recipe.md has all keys.",
}
# two alternating shades show where a token ends
LEARNT = ("bold black on green", "bold black on bright_green")
OTHER = ("default", "dim")


def new(
    folder: Annotated[
        Path,
        typer.Argument(help="The folder to write to; made if it does not exist.", metavar="[DIR]"),
    ] = Path(),
    size: Annotated[
        str,
        typer.Option(
            "--bytes", help="What a client may send in a round, such as 3kB or 1MB: method.bytes."
        ),
    ] = "28kB",
) -> None:
    """Write a commented recipe and a folder with example data, to begin with.

    The recipe runs as it is.
    """
    from fedseed.methods.ferret import OVERHEAD, Ferret

    template = Path(str(files("fedseed") / "cli" / "template"))
    template_files = (
        path
        for path in sorted(template.rglob("*"))
        if path.is_file() and not path.name.startswith((".", "_"))
    )
    parts = [path.relative_to(template) for path in template_files]
    existing = [str(folder / part) for part in parts if (folder / part).exists()]
    if existing:
        raise FedseedError(
            f"{', '.join(existing)}: exists already; choose another folder: fedseed new DIR"
        )
    value: int | str = size
    if size.isdigit():
        value = int(size)
    try:
        Ferret(bytes=value)
    except ValueError as error:
        raise RecipeError(
            f"--bytes {size}: write 28kB, 1.5MB or a number of bytes, {OVERHEAD + 1} at least"
        ) from error
    toml_value = size if size.isdigit() else f'"{size}"'
    try:
        for part in parts:
            (folder / part).parent.mkdir(parents=True, exist_ok=True)
            text = (template / part).read_text(encoding="utf-8")
            (folder / part).write_text(
                text.replace('bytes = "28kB"', f"bytes = {toml_value}"), encoding="utf-8"
            )
    except OSError as error:
        raise StorageError(f"{error.filename}: can't be written: {error.strerror}") from error
    for part in parts:
        say(f"  {folder / part}")
    change_folder = f"cd {folder} && "
    if folder == Path():
        change_folder = ""
    say(f"Next: {change_folder}fedseed run recipe.toml")


def explain(
    key: Annotated[
        str,
        typer.Argument(
            help="A key, such as method.training.learning_rate, its end, or a table.",
            autocompletion=complete_keys,
        ),
    ],
    plugin: PluginOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain a recipe's key: meaning, type, default, and which methods or tasks have it."""
    with waiting("reading the keys of recipes"):
        from fedseed.recipe.keys import find_keys, list_keys, near_key
        from fedseed.recipe.settings import Recipe

        keys = list_keys(Recipe)
    matches = find_keys(keys, key)
    if not matches:
        hint = near_key(keys, key)
        raise RecipeError(
            f"{key}: recipes have no such key; {hint + ' ' if hint else ''}`fedseed list keys` has "
            "all"
        )
    if as_json:
        answer(
            [
                {
                    "key": k.key,
                    "type": k.kind,
                    "default": k.default,
                    "about": k.meaning,
                    "of": k.owners,
                }
                for k in matches
            ]
        )
        return
    explained, inside = _split_table(matches, key)
    for number, one in enumerate(explained):
        console.print(
            Text(f"{one.key}" if number == 0 else f"\n{one.key}", style="bold"), soft_wrap=True
        )
        say(f"  {one.meaning}")
        default = f"default {one.default}"
        if " " in one.default:
            default = one.default
        say(f"  {one.kind}; {default}")
        if one.owners:
            say(f"  of {', '.join(one.owners)}")
    if inside:
        say(f"\nIts keys, each of which `fedseed explain` explains: {', '.join(inside)}")


def _split_table(matches: Sequence["Key"], word: str) -> tuple[Sequence["Key"], list[str]]:
    """Return the keys to explain, and the names of the others if the word names a table.

    For a table, only the key that chooses its type (name or kind) is explained, if there is one.

    Args:
        matches: the keys that a word means.
        word: the requested word.
    """
    word = word.strip().strip("[]")
    tables = (f"{word}.", f"{word}[].")
    if len(matches) == 1 or not all(
        key.key.startswith(tables) or f".{word}." in key.key for key in matches
    ):
        return matches, []
    choosers = [
        key
        for key in matches
        if key.key.rpartition(".")[2] in TAGS
        and f".{key.key.rpartition('.')[0].removesuffix('[]')}".endswith(f".{word}")
    ][:1]
    names = dict.fromkeys(key.key for key in matches if key not in choosers)
    return choosers, list(names)


@grouped
def preview(
    recipe: RecipeArgument,
    client: Annotated[
        str | None, typer.Option(help="Whose examples are shown. Default: the first client's.")
    ] = None,
    examples: Annotated[int, typer.Option(min=0, help="How many are shown.")] = 2,
    *,
    reading: Reading,
) -> None:
    """Show examples as tokens, which tokens count for the loss, and which are cut.

    Needs the data and the tokenizer, no weights.
    """
    checked = reading.read_recipe(recipe, check_paths=True)
    with waiting("making tokens of the examples"):
        from fedseed.runs.preview import REST  # torch is imported from here on
        from fedseed.runs.preview import preview as look

        shown_examples, notes = look(checked, client, examples)
    for line in notes:
        say(line)
    for example in shown_examples:
        console.print(example.title, style="bold", highlight=False, soft_wrap=True)
        if example.pieces:
            console.print(_tokens_text(example.pieces, console.is_terminal), soft_wrap=True)
        if example.note:
            say(example.note)
        console.print()
    if shown_examples:
        legend = "[[...]] counts for the loss, | ends a token"
        if console.is_terminal:
            legend = "green counts for the loss"
        legend += "; ⏎ is a line's end"
        if any(text == REST for example in shown_examples for text, _ in example.pieces):
            legend += f"; {REST} is the rest of a character"
        console.print(legend, highlight=False, soft_wrap=True)


def _tokens_text(pieces: Sequence[tuple[str, bool]], coloured: bool) -> Text:
    """Return tokens in a row, those that count marked: by colours, or by `[[`, `]]` around them
    and `|` between.
    """
    text_out, is_marked = Text(), False
    for number, (text, learnt) in enumerate(pieces):
        visible, end = text.replace("\n", "⏎"), "\n" if text.endswith("\n") else ""
        if coloured:
            text_out.append(visible, (LEARNT if learnt else OTHER)[number % 2])
        else:
            text_out.append(
                (("|" if number else "") if is_marked == learnt else "[[" if learnt else "]]")
                + visible
            )
            is_marked = learnt
        text_out.append(end)
    if is_marked:
        return text_out.append("]]")
    return text_out


@grouped
def bench(
    recipe: RecipeArgument,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Tokens of an example, for estimating memory. Default: the longest possible.",
        ),
    ] = None,
    memory_only: Annotated[
        bool,
        typer.Option(
            "--memory",
            help="Estimate the memory from the base's shapes, without loading or timing anything.",
        ),
    ] = False,
    as_json: JsonOption = False,
    *,
    reading: ReadingForDevice,
) -> None:
    """Estimate a recipe's costs on this machine: seconds by phase, bytes and memory, from one round
    of it.
    """
    screen, checked = (
        Telling(as_json).screen(),
        reading.read_recipe(recipe, check_paths=not memory_only),
    )
    with waiting("reckoning the memory"):
        # torch is imported from here on
        from fedseed.experiments.bench import cost_table, fits, measure, memory_table, reckon
        from fedseed.models.loading import has_weights

        memory = reckon(checked, tokens)
    enough, verdict_text = fits(memory, checked.model.device)
    screen.print(*memory_table(memory), verdict_text, sep="\n", highlight=False)
    untimed, cost = None, None
    if memory_only:
        untimed = "--memory"
    elif not has_weights(checked.model.base):
        untimed = f"{checked.model.base} is a configuration without weights"
        screen.print(f"Nothing was timed: {untimed}.", highlight=False)
    elif not enough:
        untimed = "for want of memory"
        screen.print(f"Nothing was timed, {untimed}.", highlight=False)
    else:
        with screen.status("running one round, shortened"):
            cost = measure(checked)
        screen.print(*cost_table(cost), sep="\n", highlight=False)
    if as_json:
        reckoned = {**asdict(memory), "total": memory.total, "fits": enough}
        timed = None
        if cost is not None:
            timed = {**asdict(cost), "total_seconds": cost.total}
        answer({"memory": reckoned, "measured": timed, "untimed": untimed})


@grouped
def partition(
    recipe: RecipeArgument,
    picture: Annotated[
        Path | None, typer.Option("--out", help="PNG file for a picture of each client's data.")
    ] = None,
    as_json: JsonOption = False,
    *,
    reading: Reading,
) -> None:
    """Show how the data is divided: each client's examples by label. Needs the data, no model."""
    checked = reading.read_recipe(recipe)
    task = checked.task
    if picture is not None and picture.suffix != ".png":
        raise RecipeError(f"--out {picture}: give a .png file")
    with waiting("reading the data"):
        from fedseed.reports.partition import partition_statistics, partition_table
        from fedseed.runs.parties import load_present

        data = load_present(checked)
        statistics = partition_statistics(data)
    screen = Telling(as_json).screen()
    screen.print(*partition_table(statistics), *data.notes, sep="\n", highlight=False)
    if picture is not None:
        from fedseed.reports.plots import draw_partition  # Matplotlib takes a second to import

        picture.parent.mkdir(parents=True, exist_ok=True)
        title, dealing = str(task.name), getattr(task, "partition", None)
        # for example "dolly-15k, dirichlet: alpha = 0.5, minimum = 10"
        if dealing is not None:
            settings = [
                f"{key} = {value}"
                for key, value in dealing.model_dump(exclude={"kind"}).items()
                if value != []
            ]
            title += f", {dealing.kind}"
            if settings:
                title += f": {', '.join(settings)}"
        draw_partition(statistics, title, picture)
        screen.print(f"Picture: {picture}")
    if as_json:
        rows = zip(statistics.clients, statistics.counts.tolist(), strict=True)
        clients = {name: dict(zip(statistics.labels, row, strict=True)) for name, row in rows}
        answer({"clients": clients, "skew": statistics.skew, "notes": list(data.notes)})


def list_(
    what: Annotated[LISTED, typer.Argument()],
    plugin: PluginOption = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also recipes with the papers' published settings.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List recipes, models, methods and other parts, and where each comes from."""
    rows, broken = _listing(what)
    if what == "recipes" and not every:
        rows = [row for row in rows if not row[0].startswith("published-")]
    if as_json:
        head = HEADINGS.get(what, ("name", "about", "origin"))
        answer([dict(zip(head, row, strict=False)) for row in rows])
        return
    if console.is_terminal:
        table = Table(box=None, show_header=False, pad_edge=False)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)
    else:
        # output to a file or a pipe has no width: nothing is cut or wrapped
        for line in _columns(rows):
            say(line)
    for line in broken:
        console.print(Text(line, style="yellow"), soft_wrap=True)
    if what in ENDINGS:
        console.print(Text(f"\n{ENDINGS[what]}"), soft_wrap=True)


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows as lines with aligned columns."""
    widths = [min(WIDEST, max(map(len, column))) for column in zip_longest(*rows, fillvalue="")]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in rows
    ]


def _listing(what: LISTED) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return rows of texts, and a line for each broken entry point. Only the modules that the list
    needs are imported.
    """
    with waiting(f"looking for {what}"):
        if what in ROWS:
            return ROWS[what](), []
        registry: Registry[Any] = import_module(ROOMS[what]).REGISTRY
        rows: list[tuple[str, ...]] = []
        # its own description, or the first line of its docstring
        for name, thing, origin in registry.entries():
            description = (
                getattr(thing, "about", None) or (thing.__doc__ or "").strip().partition("\n")[0]
            )
            rows.append((name, str(description), origin))
        return rows, [f"{name}: {reason}" for name, reason in registry.broken().items()]


def _rows_of_bases() -> list[tuple[str, ...]]:
    from fedseed.randomness import BASES

    return list(BASES.items())


def _rows_of_models() -> list[tuple[str, ...]]:
    from fedseed.models import PACKAGED

    return [(name, description, "comes with fedseed") for name, description in PACKAGED.items()]


def _rows_of_keys() -> list[tuple[str, ...]]:
    from fedseed.recipe.keys import list_keys
    from fedseed.recipe.settings import Recipe

    return [(key.key, key.kind, key.default, ", ".join(key.owners)) for key in list_keys(Recipe)]


def _rows_of_sweeps() -> list[tuple[str, ...]]:
    from fedseed.recipe.packaged import packaged_sweeps, titles

    return [*titles(packaged_sweeps())]


def _rows_of_recipes() -> list[tuple[str, ...]]:
    from fedseed.recipe.packaged import packaged_recipes, titles

    return [*titles(packaged_recipes())]


# the packages whose registries are listed
ROOMS: Mapping[LISTED, str] = {
    "methods": "fedseed.methods",
    "tasks": "fedseed.tasks",
    "metrics": "fedseed.tasks.metrics",
    "aggregation": "fedseed.aggregation",
    "trackers": "fedseed.tracking",
}
ROWS: Mapping[LISTED, Callable[[], list[tuple[str, ...]]]] = {
    "bases": _rows_of_bases,
    "models": _rows_of_models,
    "keys": _rows_of_keys,
    "sweeps": _rows_of_sweeps,
    "recipes": _rows_of_recipes,
}
