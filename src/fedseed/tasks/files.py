"""Reads rows of data from files in several formats, from saved data sets, and from the hub.

Errors name the file and the line. A few bytes of a parquet file can hold a billion rows, so the
unpacked size is limited in proportion to the file.
"""

import csv
import io
import json
import shlex
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

from fedseed.durable import is_irregular
from fedseed.errors import RecipeError, to_install
from fedseed.tasks.arrow import ArrowColumns
from fedseed.text import first_line, show_text

ENDINGS = (".jsonl", ".csv", ".tsv", ".parquet", ".json")
# every folder written by `save_to_disk` has one of these
SAVED = ("dataset_dict.json", "state.json")
# rows of a parquet file to unpack at a time
BATCH = 1024
# bytes that any parquet file may unpack to, plus further bytes for each byte of the file
FREE_BYTES, INFLATION = 64 << 20, 100
# cells that any parquet file may have, plus one more for each byte of the file
FREE_CELLS = 1 << 20
csv.field_size_limit(1 << 30)  # because a text may be long

KIND_NAMES: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a JSON object",
}


@dataclass(frozen=True)
class FileRow:
    """One row of a file."""

    place: str  # its file and line, for messages
    values: Mapping[str, Any]  # its fields by name
    # for fields of class numbers: the names of all classes, in order
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def field(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """Return the value of a required field.

        Args:
            name: the field's name.
            kind: the allowed type or types. true and false are accepted only if `bool` is one of
                them.

        Raises:
            RecipeError: the field is missing or has another type.
        """
        if name not in self.values:
            raise RecipeError(f'{self.place}: no "{name}"')
        value = self.values[name]
        kinds = kind if isinstance(kind, tuple) else (kind,)
        # JSON's true and false are not numbers, although Python's bool is an int
        if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kinds):
            expected = " or ".join(KIND_NAMES[k] for k in kinds)
            raise RecipeError(f'{self.place}: "{name}" = {_short(value)}: expected {expected}')
        return value

    def record(self, name: str) -> "FileRow":
        """Return a field that is an object itself.

        Raises RecipeError if it is missing or not an object.
        """
        return FileRow(f"{self.place}: {name}", self.field(name, dict))

    def records(self, name: str) -> "list[FileRow]":
        """Return a field that is a list of objects.

        Raises RecipeError if it is missing or not such a list.
        """
        records = []
        for index, values in enumerate(self.field(name, list)):
            place = f"{self.place}: {name}[{index}]"
            if not isinstance(values, dict):
                raise RecipeError(f"{place}: expected a JSON object, not {_short(values)}")
            records.append(FileRow(place, values))
        return records


def _short(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    try:
        return show_text(repr(value), 60)
    # the value is nested too deeply, or a number has too many digits
    except (RecursionError, ValueError):
        return type(value).__name__


def data_folder(path: str, hint: str) -> Path:
    """Return the folder that `task.path` names.

    Raises RecipeError, with the hint, if it is missing.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise RecipeError(f'task.path = "{path}": there is no such folder; {hint}')
    return folder


def read_text(path: Path, hint: str = "", encoding: str = "utf-8") -> str:
    """Return the text of a file.

    Args:
        path: the file.
        hint: what to do if it is missing.
        encoding: the file's encoding, because old data sets are not always in UTF-8.

    Raises:
        RecipeError: the file is missing or unreadable, has another encoding, or is a pipe or a
            device.
    """
    if is_irregular(path):
        raise RecipeError(
            f"{path}: not a regular file (but a pipe or a device, or a link to one), which may "
            "never end; replace it by a file"
        )
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise RecipeError(f"{path}: there is no such file{'; ' if hint else ''}{hint}") from error
    except OSError as error:
        raise RecipeError(f"{path}: can't be read: {error.strerror}") from error
    try:
        # some editors write this mark at the beginning of a file
        text = data.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        begin = data.rfind(b"\n", 0, error.start) + 1
        raise RecipeError(
            f"{path} line {data.count(10, 0, error.start) + 1}: not {encoding.upper()} text: byte "
            f"0x{data[error.start]:02x} at the line's byte {error.start - begin + 1}; "
            f"{_conversion(path, data, encoding.upper())}"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _conversion(path: Path, data: bytes, encoding: str) -> str:
    """Return what to do with a file whose bytes are in another encoding than the expected one."""
    likely, condition = "ENCODING", "convert it from the encoding that it has"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        likely, condition = "UTF-16", "if it is UTF-16, convert it"
    else:
        # Windows-1252 has quotation marks, dashes and the euro sign where Latin-1 has control
        # characters; all else is the same in both, so this conversion is right for either
        with suppress(UnicodeDecodeError):
            data.decode("windows-1252")
            likely, condition = "WINDOWS-1252", "if it is Windows-1252 or Latin-1, convert it"
    name, better = shlex.quote(path.name), shlex.quote(f"{path.stem}.converted")
    return f"{condition}: iconv -f {likely} -t {encoding} {name} > {better} && mv {better} {name}"


def read_json(path: Path, hint: str = "") -> FileRow:
    """Return a UTF-8 file's JSON object.

    `hint`: what to do if the file is missing. Raises RecipeError if it is missing or holds no JSON
    object.
    """
    content = parse_json(read_text(path, hint), f"{path}: not valid JSON")
    if not isinstance(content, dict):
        raise RecipeError(f"{path}: expected a JSON object")
    return FileRow(str(path), content)


def parse_json(text: str, problem: str, hint: str = "") -> Any:
    """Return the value of a JSON text.

    Raises RecipeError if it can't be parsed or used. The message begins with `problem` and ends
    with `hint`.
    """
    try:
        value = json.loads(text)
        # a text may have half of a surrogate pair, which tokenizers reject
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = "lists and objects are nested too deeply"
        if isinstance(error, ValueError):
            reason = str(error)
        if isinstance(error, UnicodeEncodeError):
            reason = (
                f"it has half of a surrogate pair (\\u{ord(error.object[error.start]):x}): "
                "take it out"
            )
        elif isinstance(error, json.JSONDecodeError) and error.lineno == 1:
            reason = f"{error.msg} at column {error.colno}"
        raise RecipeError(f"{problem}: {reason}{hint}") from error
    return value


def read_records(path: Path, columns: Sequence[str] | None = None) -> list[FileRow]:
    """Return the rows of a table, without empty lines.

    A `.jsonl` file has one object in each line, and a `.json` file has a list of objects or one
    object in each line. Any other file is read as GLUE's tsv: a header line, tabs, no quoting.

    Args:
        path: a UTF-8 file.
        columns: the columns' names, for a csv file without a header; None: another kind of file.

    Raises:
        RecipeError: the file is missing or unreadable, or a row is malformed; the message names the
            line.
    """
    quoting: Literal[0, 3] = csv.QUOTE_NONE if columns is None else csv.QUOTE_MINIMAL
    is_json = path.suffix in (".json", ".jsonl")
    return sound_rows(_json(path) if is_json else _table(path, quoting, columns))


def sound_rows(rows: Iterable[FileRow | RecipeError]) -> list[FileRow]:
    """Return the rows, if none is malformed.

    Raises:
        RecipeError: a row is malformed; the message describes the first one.
    """
    records = []
    for row in rows:
        if isinstance(row, RecipeError):
            raise row
        records.append(row)
    return records


def each_row(place: Path, split: str = "train") -> Iterable[FileRow | RecipeError]:
    """Return the rows of one file or saved data set.

    A malformed row is replaced by an error that describes it.

    Args:
        place: the file or the data set's folder.
        split: the part to read, if a data set has several.

    Raises:
        RecipeError: the file is missing, unreadable, empty, or has an unknown format.
    """
    if is_saved(place):
        return _saved(place, split)
    if not place.is_file():
        raise RecipeError(f"{place}: there is no such file")
    ending = place.suffix.lower()
    if ending not in ENDINGS:
        raise RecipeError(
            f"{place}: expected a file that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"
        )
    if ending == ".parquet":
        return _parquet(place)
    if ending in (".jsonl", ".json"):
        return _json(place)
    return _table(place, csv.QUOTE_MINIMAL)


def _json(path: Path) -> Iterator[FileRow | RecipeError]:
    text, hint = read_text(path), "; each line must be one JSON object"
    is_list = path.suffix.lower() == ".json" and text.lstrip().startswith("[")
    # not splitlines: it would also split at other characters that texts contain
    rows = parse_json(text, f"{path}: not valid JSON") if is_list else text.split("\n")
    if not text.strip() or not rows:
        raise RecipeError(f"{path}: the file is empty")
    for number, row in enumerate(rows, 1):
        place = f"{path} {'item' if is_list else 'line'} {number}"
        if not is_list and not row.strip():
            continue
        try:
            values = row
            if not is_list:
                values = parse_json(row, f"{place}: not valid JSON", hint)
            if not isinstance(values, dict):
                raise RecipeError(f"{place}: expected a JSON object, not {_short(values)}")
            yield FileRow(place, values)
        except RecipeError as error:
            yield error


def _table(
    path: Path, quoting: Literal[0, 3], columns: Sequence[str] | None = None
) -> Iterator[FileRow | RecipeError]:
    """Yield a file's rows.

    Tabs separate fields. In a .csv file it is the separator that is most frequent in the header, or
    a comma.
    """
    text = read_text(path)
    header = ""
    if columns is None:
        header = text.lstrip("\n").partition("\n")[0]
    separator = "\t"
    if path.suffix.lower() == ".csv":
        separator = max((",", ";", "\t"), key=header.count)
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, strict=True, quoting=quoting
    )
    begin = 0
    try:
        for fields in reader:
            place, begin = f"{path} line {begin + 1}", reader.line_num
            if not any(field.strip() for field in fields):
                continue
            if columns is None:
                columns = [field.strip() for field in fields]
                name, times = Counter(columns).most_common(1)[0]
                if times > 1:
                    raise RecipeError(f'{place}: two columns have the name "{name}"')
            elif len(fields) == len(columns):
                yield FileRow(place, dict(zip(columns, fields, strict=True)))
            else:
                names = show_text(", ".join(columns[:30])) + (", ..." if len(columns) > 30 else "")
                yield RecipeError(
                    f"{place}: found {len(fields)} columns, expected {len(columns)}: {names}"
                )
    except csv.Error as error:  # it is not known where the next row begins
        raise RecipeError(f"{path} line {begin + 1}: not valid CSV: {error}") from error
    if columns is None:
        raise RecipeError(f"{path}: the file is empty")


def _parquet(path: Path) -> list[FileRow | RecipeError]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise RecipeError(
            f"{path}: reading a parquet file needs pyarrow: {to_install('parquet')}"
        ) from error
    rows: list[dict[str, Any]] = []

    def check(unpacked: int, cells: int) -> None:
        if unpacked > FREE_BYTES + INFLATION * size or cells > FREE_CELLS + size:
            raise RecipeError(
                f"{path}: {size:,} bytes become {cells:,} cells of {unpacked:,} bytes, which is "
                "too much for real data; if this is what you want, convert the file to .jsonl"
            )

    try:
        size, unpacked = path.stat().st_size, 0
        with parquet.ParquetFile(path) as file:
            metadata, width = file.metadata, len(file.schema_arrow.names)
            columns = ArrowColumns(file.schema_arrow)
            groups = (
                metadata.row_group(number).total_byte_size
                for number in range(metadata.num_row_groups)
            )
            check(sum(groups), metadata.num_rows * width)
            for batch in file.iter_batches(BATCH):
                unpacked += batch.nbytes
                check(unpacked, (len(rows) + batch.num_rows) * width)
                rows += batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise RecipeError(
            f"{path}: not a parquet file, or damaged ({first_line(error)})"
        ) from error
    if not rows:
        raise RecipeError(f"{path}: the file is empty")
    return _arrow_records(str(path), rows, columns)


def is_saved(place: Path) -> bool:
    """Return whether a folder is a data set written by `save_to_disk`."""
    return any((place / name).is_file() for name in SAVED)


def is_hub_name(path: str) -> bool:
    """Return whether a text looks like a data set's name on the hub, "owner/name"."""
    owner, slash, rest = path.partition("/")
    return (
        bool(slash)
        and "/" not in rest
        and owner not in ("", ".", "..", "~")
        and not Path(rest).suffix
    )


def hub_rows(path: str, split: str, config: str | None, hint: str) -> list[FileRow | RecipeError]:
    """Return the rows of a data set on the hub, or of a folder in the hub's form (parquet).

    Args:
        path: the path in the recipe.
        split: the part's name on the hub.
        config: the data set's configuration on the hub; ignored if the data set does not have it.
        hint: what `path` may be, as a text for messages.

    Raises:
        RecipeError: they can't be found or read.
    """
    setting, is_folder = f'task.path = "{path}"', Path(path).expanduser().is_dir()
    if not is_folder and not is_hub_name(path):
        raise RecipeError(f"{setting}: there is no such file or folder; {hint}")
    reason = "no such file or folder here, and loading a name from the hub needs"
    if is_folder:
        reason = "reading parquet files needs"
    datasets = _library(f"{setting}: {reason}", hint)
    from huggingface_hub import constants

    try:
        if not is_folder and not getproxies():  # a proxy may resolve names that this machine can't
            socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError:
        # use only the cache for the rest of the process, because a failing look-up takes half a
        # minute
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        configs = datasets.get_dataset_config_names(path)
        dataset = datasets.load_dataset(path, config if config in configs else None, split=split)
    except (OSError, ValueError) as error:
        content = "no such file or folder here, nor on the hub"
        if is_folder:
            content = "the datasets library can't read it"
        raise RecipeError(f"{setting}: {content} ({first_line(error)}); {hint}") from error
    return dataset_rows(f"{path} ({split})", dataset)


def _saved(folder: Path, split: str) -> list[FileRow | RecipeError]:
    datasets = _library(f"{folder}: reading a saved data set needs", "")
    try:
        dataset = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise RecipeError(f"{folder}: the datasets library can't read it ({error})") from error
    if not isinstance(dataset, datasets.DatasetDict):
        return dataset_rows(str(folder), dataset)
    if split not in dataset:
        raise RecipeError(
            f'{folder}: it has no part "{split}" (task.split); its parts are {", ".join(dataset)}'
        )
    return dataset_rows(f"{folder} ({split})", dataset[split])


def is_dataset(rows: Any) -> bool:
    """Return whether `rows` is a data set of the `datasets` library."""
    # a single column (`dataset["text"]`) is a sequence of values, not a data set
    return type(rows).__module__.partition(".")[0] == "datasets" and hasattr(rows, "with_format")


def dataset_rows(place: str, dataset: Any) -> list[FileRow | RecipeError]:
    """Return the rows of a `datasets.Dataset` or `IterableDataset`, numbered from 1.

    Args:
        place: the name of their source, for messages.
        dataset: the data set.
    """
    features = dataset.features
    schema = None
    if features is not None:
        schema = features.arrow_schema
    plain = dataset.with_format(None)
    return _arrow_records(place, plain, ArrowColumns(schema, is_decoded=True))


def _library(purpose: str, hint: str) -> Any:
    """Import the `datasets` library. Raises RecipeError if it is not installed."""
    try:
        import datasets
    except ImportError as error:
        raise RecipeError(
            f"{purpose} the datasets library ({to_install('hub')}){'; ' if hint else ''}{hint}"
        ) from error
    datasets.disable_progress_bars()
    return datasets


def _arrow_records(
    location: str, rows: Iterable[Mapping[str, Any]], columns: ArrowColumns
) -> list[FileRow | RecipeError]:
    """Return the rows of an Arrow table, with an error in place of each malformed row."""
    records: list[FileRow | RecipeError] = []
    for number, row in enumerate(rows, 1):
        place = f"{location} row {number}"
        try:
            records.append(FileRow(place, columns.values_of(row), columns.class_names))
        except RecipeError as error:
            records.append(RecipeError(f"{place}: {error}"))
    return records
