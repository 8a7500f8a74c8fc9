"""Where the rows of the user's own data lie: files of several formats, saved data sets, names on the hub."""

import csv
import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fedseed.errors import RecipeError
from fedseed.tasks.files import Record, as_record, each_record, read_text
from fedseed.tasks.hub import is_saved, saved_rows
from fedseed.tasks.parquet import read_parquet

CLIENT_ENDINGS = (".jsonl", ".csv", ".tsv", ".parquet")  # of a client's file; .json is often something else's settings
ENDINGS = (*CLIENT_ENDINGS, ".json")
HINT = (
    "give a folder with a file (.jsonl, .csv, .tsv or .parquet) or a folder for each client, one such file, a saved "
    'data set, or its name on the hub, such as "owner/name" (see docs/data.md)'
)
csv.field_size_limit(1 << 30)  # a text may be long


def each_row(place: Path, split: str) -> Iterator[Record | RecipeError]:
    """The rows of one file or saved data set; in the place of a malformed one, what is wrong with it.

    Args:
        place: the file or the data set's folder.
        split: which part of a data set, where it has several.

    Raises:
        RecipeError: missing, unreadable as a whole, empty, or of another format.
    """
    if is_saved(place):
        return iter(saved_rows(place, split))
    if not place.is_file():
        raise RecipeError(f"{place}: there is no such file")
    if place.suffix in (".jsonl", ".json"):
        return each_record(place)
    if place.suffix in (".csv", ".tsv"):
        return _table(place)
    if place.suffix == ".parquet":
        rows = read_parquet(place)[0]
        if not rows:
            raise RecipeError(f"{place}: it is empty")
        return (Record(f"{place} row {number}", values) for number, values in enumerate(rows, 1))
    raise RecipeError(f"{place}: a file that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]} is expected")


def sources_in(place: Path) -> list[Path]:
    """The files and saved data sets of a folder that is one client's, in order."""
    if not place.is_dir() or is_saved(place):
        return [place]
    return [file for file in sorted(place.iterdir()) if file.suffix in CLIENT_ENDINGS or is_saved(file)]


def clients_in(folder: Path, besides: Path | None = None) -> tuple[dict[str, list[Path]], list[str]]:
    """A folder's clients with their files, by name: a file each, or a folder each where there is no such file.

    Args:
        folder: the folder.
        besides: what in it is no client's.

    Returns:
        The clients, and the names of what looks like data but belongs to none.

    Raises:
        RecipeError: two of them have the same name.
    """
    other = None if besides is None else besides.resolve()
    found = (entry for entry in sorted(folder.iterdir()) if not entry.name.startswith("."))
    entries = [entry for entry in found if entry.resolve() != other]
    files = [entry for entry in entries if entry.is_file() and entry.suffix in CLIENT_ENDINGS]
    folders = [entry for entry in entries if entry.is_dir() and sources_in(entry)]
    chosen = files or folders
    clients: dict[str, list[Path]] = {}
    for entry in chosen:
        name = entry.stem if entry in files else entry.name
        if name in clients:
            raise RecipeError(f'{folder}: two files are for the client "{name}": {clients[name][0].name}, {entry.name}')
        clients[name] = sources_in(entry)
    aside = [entry.name for entry in entries if entry not in chosen and (entry.suffix == ".json" or entry in folders)]
    return clients, aside


def _table(path: Path) -> Iterator[Record | RecipeError]:
    """The rows of a file with a header; separated by tabs, or by what the header has most of, comma or semicolon."""
    text = read_text(path)
    header = text.lstrip("\n").partition("\n")[0]
    between = "\t" if path.suffix == ".tsv" else max((",", ";", "\t"), key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=between, strict=True)
    columns: list[str] | None = None
    begin = 0
    try:
        for fields in reader:
            where, begin = f"{path} line {begin + 1}", reader.line_num
            if not any(field.strip() for field in fields):
                continue
            if columns is not None:
                yield as_record(where, columns, fields)
                continue
            columns = [field.strip() for field in fields]
            twice = sorted(name for name, times in Counter(columns).items() if times > 1)
            if twice:
                raise RecipeError(f'{where}: two columns are called "{twice[0]}"')
    except csv.Error as error:  # nobody knows where the next row begins
        raise RecipeError(f"{path} line {begin + 1}: not valid CSV: {error}") from error
    if columns is None:
        raise RecipeError(f"{path}: it is empty")


def own_place(path: str, name: str, alone: bool, besides: Path | None = None) -> str:
    """The file, folder or data set that is a party's own.

    Args:
        path: where it says its data lies, or where that of all lies.
        name: the party. In a folder a file or folder that is called like it is its only one.
        alone: whether all that lies there is the party's own; otherwise it is a folder that parties share.
        besides: a file with evaluation examples, which may lie there.

    Raises:
        RecipeError: nothing says where, or nothing there is this party's.
    """
    if not path:
        raise RecipeError(
            f"{name}: where is its data? `fedseed join --data FILE` says it; in one process task.path, a folder with a "
            "file for each client"
        )
    place = Path(path).expanduser()
    if not place.is_dir() or is_saved(place):
        if not alone:
            raise RecipeError(f'data of {name}: "{path}": a folder with a file for each client is expected')
        return path
    clients, _ = clients_in(place, None if besides is None else besides.expanduser())
    if name in clients:
        return str(place / name if (place / name).is_dir() else clients[name][0])
    if not alone:
        raise RecipeError(f'data of {name}: "{path}": the folder has no file or folder of this name')
    return path
