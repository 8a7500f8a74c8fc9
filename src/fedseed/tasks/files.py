"""Reading data sets in their original files. What is wrong is named with its file and place."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedseed.errors import RecipeError
from fedseed.text import shown

KIND_NAMES: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a JSON object",
}


@dataclass(frozen=True)
class Record:
    """One row of a file.

    Args:
        where: its file and line, for messages.
        values: its fields by name.
    """

    where: str
    values: Mapping[str, Any]

    def field(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """A field that must be there.

        Args:
            name: its name.
            kind: the type or types it may have; true and false are numbers only if `bool` is one of them.

        Raises:
            RecipeError: it is missing or of another type.
        """
        if name not in self.values:
            raise RecipeError(f'{self.where}: no "{name}"')
        value = self.values[name]
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kinds):  # JSON's true is no number
            expected = " or ".join(KIND_NAMES[k] for k in kinds)
            raise RecipeError(f'{self.where}: "{name}" = {_short(value)}: {expected} is expected')
        return value

    def record(self, name: str) -> "Record":
        """A field that is an object itself.

        Raises:
            RecipeError: it is missing or no object.
        """
        return Record(f"{self.where}: {name}", self.field(name, dict))

    def records(self, name: str) -> "list[Record]":
        """A field that is a list of objects.

        Raises:
            RecipeError: it is missing, no list, or holds something else than objects.
        """
        found = []
        for index, values in enumerate(self.field(name, list)):
            where = f"{self.where}: {name}[{index}]"
            if not isinstance(values, dict):
                raise RecipeError(f"{where}: a JSON object is expected, not {_short(values)}")
            found.append(Record(where, values))
        return found


def _short(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or a number of too many digits
        text = type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."


def data_folder(path: str, hint: str) -> Path:
    """The folder that `task.path` names.

    Args:
        path: as the recipe has it; relative to the working directory, "~" allowed.
        hint: what the folder should be and where to get it.

    Raises:
        RecipeError: there is no such folder.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise RecipeError(f'task.path = "{path}": there is no such folder; {hint}')
    return folder


def read_text(path: Path, hint: str = "", encoding: str = "utf-8") -> str:
    """A text file.

    Args:
        path: the file.
        hint: what to do if it is missing.
        encoding: what it is written in; of old data sets not always UTF-8.

    Raises:
        RecipeError: missing, unreadable or in another encoding.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise RecipeError(f"{path}: there is no such file{'; ' if hint else ''}{hint}") from error
    except OSError as error:
        raise RecipeError(f"{path}: can't be read: {error.strerror}") from error
    try:
        text = data.decode(encoding).removeprefix("\ufeff")  # some editors begin a file with this mark
    except UnicodeDecodeError as error:
        begin = data.rfind(b"\n", 0, error.start) + 1
        raise RecipeError(
            f"{path} line {data.count(10, 0, error.start) + 1}: not {encoding.upper()} text: byte "
            f"0x{data[error.start]:02x} at the line's byte {error.start - begin + 1}; {_convert(path, data, encoding)}"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _convert(path: Path, data: bytes, encoding: str) -> str:
    """What to do about a file in another encoding."""
    guess = "UTF-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "ISO-8859-1"
    likely = "Latin-1" if guess == "ISO-8859-1" else guess
    name, better = shlex.quote(path.name), shlex.quote(f"{path.stem}.converted")
    return (
        f"if it is {likely}, convert it: iconv -f {guess} -t {encoding.upper()} {name} > {better} && mv {better} {name}"
    )


def read_json(path: Path, hint: str = "") -> Any:
    """A JSON file's content.

    Args:
        path: a UTF-8 file.
        hint: what to do if it is missing.

    Raises:
        RecipeError: missing, unreadable or not JSON.
    """
    text = read_text(path, hint)
    try:
        return parse_json(text)
    except ValueError as error:
        raise RecipeError(f"{path}: not valid JSON: {error}") from error


def parse_json(text: str) -> Any:
    """What a JSON text says. Raises ValueError: it is none, or lists in lists without an end, or a number without."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its lists and objects are nested too deeply") from error


def read_records(path: Path) -> list[Record]:
    """The rows of a table, empty lines left out.

    A `.jsonl` file has an object a line, a `.json` file a list of objects (or an object a line); any other is taken
    for GLUE's tsv: a header line, tabs, no quoting.

    Args:
        path: a UTF-8 file.

    Raises:
        RecipeError: missing, unreadable, or a row is malformed; names the line.
    """
    records = []
    for row in each_record(path):
        if isinstance(row, RecipeError):
            raise row
        records.append(row)
    return records


def each_record(path: Path) -> Iterator[Record | RecipeError]:
    """The rows of a table as `read_records` has them; in the place of a malformed one, what is wrong with it.

    Raises:
        RecipeError: missing or unreadable as a whole.
    """
    text = read_text(path)
    if path.suffix == ".json" and text.lstrip().startswith("["):
        return _json(path, text)
    lines = text.split("\n")  # not splitlines: texts hold other characters that would end a line there
    rows = [(f"{path} line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise RecipeError(f"{path}: it is empty")
    return map(_json_line, rows) if path.suffix in (".json", ".jsonl") else _tsv(rows)


def _json(path: Path, text: str) -> Iterator[Record | RecipeError]:
    try:
        rows = parse_json(text)
    except ValueError as error:
        raise RecipeError(f"{path}: not valid JSON: {error}") from error
    if not rows:
        raise RecipeError(f"{path}: it is empty")
    return (_record(f"{path} item {number}", values) for number, values in enumerate(rows, 1))


def _tsv(rows: list[tuple[str, str]]) -> Iterator[Record | RecipeError]:
    columns = rows[0][1].split("\t")
    return (as_record(where, columns, line.split("\t")) for where, line in rows[1:])


def as_record(where: str, columns: Sequence[str], fields: Sequence[str]) -> Record | RecipeError:
    """A row of a table with a header, or what is wrong with it."""
    if len(fields) != len(columns):
        return RecipeError(f"{where}: {len(fields)} columns, the header has {len(columns)}: {_columns(columns)}")
    return Record(where, dict(zip(columns, fields, strict=True)))


def _columns(columns: Sequence[str]) -> str:
    return shown(", ".join(columns[:30])) + (", ..." if len(columns) > 30 else "")


def _json_line(row: tuple[str, str]) -> Record | RecipeError:
    where, line = row
    try:
        return _record(where, parse_json(line))
    except ValueError as error:
        reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        return RecipeError(f"{where}: not valid JSON: {reason}; each line must be one JSON object")


def _record(where: str, values: Any) -> Record | RecipeError:
    if not isinstance(values, dict):
        return RecipeError(f"{where}: a JSON object is expected, not {_short(values)}")
    return Record(where, values)
