"""Reading data sets in their original files. What is wrong is named with its file and place."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedseed.errors import RecipeError


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
            kind: the type or types it may have.

        Raises:
            RecipeError: it is missing or of another type.
        """
        if name not in self.values:
            raise RecipeError(f'{self.where}: no "{name}"')
        value = self.values[name]
        if not isinstance(value, kind) or isinstance(value, bool):  # JSON's true is no number
            kinds = kind if isinstance(kind, tuple) else (kind,)
            expected = " or ".join({str: "text", int: "a whole number", list: "a list"}[k] for k in kinds)
            raise RecipeError(f'{self.where}: "{name}" = {_short(value)}: {expected} is expected')
        return value


def _short(value: Any) -> str:
    text = repr(value)
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


def read_text(path: Path, hint: str = "") -> str:
    """A text file.

    Args:
        path: a UTF-8 file.
        hint: what to do if it is missing.

    Raises:
        RecipeError: missing, unreadable or not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RecipeError(f"{path}: there is no such file{'; ' if hint else ''}{hint}") from error
    except OSError as error:
        raise RecipeError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text: {error}") from error


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
        return json.loads(text)
    except ValueError as error:
        raise RecipeError(f"{path}: not valid JSON: {error}") from error


def read_records(path: Path) -> list[Record]:
    """The rows of a table, empty lines left out.

    A `.jsonl` file has an object a line; any other is taken for GLUE's tsv: a header line, tabs, no quoting.

    Args:
        path: a UTF-8 file.

    Raises:
        RecipeError: missing, unreadable, or a row is malformed; names the line.
    """
    lines = read_text(path).split("\n")  # not splitlines: texts hold other characters that would end a line there
    rows = [(f"{path} line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise RecipeError(f"{path}: it is empty")
    return _jsonl(rows) if path.suffix == ".jsonl" else _tsv(rows)


def _tsv(rows: list[tuple[str, str]]) -> list[Record]:
    columns = rows[0][1].split("\t")
    records = []
    for where, line in rows[1:]:
        fields = line.split("\t")
        if len(fields) != len(columns):
            raise RecipeError(f"{where}: {len(fields)} columns, the header has {len(columns)}: {', '.join(columns)}")
        records.append(Record(where, dict(zip(columns, fields, strict=True))))
    return records


def _jsonl(rows: list[tuple[str, str]]) -> list[Record]:
    records = []
    for where, line in rows:
        try:
            values = json.loads(line)
        except ValueError as error:
            raise RecipeError(f"{where}: not valid JSON: {error}") from error
        if not isinstance(values, dict):
            raise RecipeError(f"{where}: a JSON object is expected, not {_short(values)}")
        records.append(Record(where, values))
    return records
