"""Reads the values of Arrow tables in the form in which the data set's author wrote them.

Arrow stores the objects of a column with one set of fields for all rows. An object that lacks a
field gets null there. This module removes these filler nulls, because a model would learn them as
arguments of function calls. It removes nulls that the author wrote as well, because they look the
same. Text columns of type JSON keep what was written, including nulls, and are parsed.

It reads parquet files, folders of `save_to_disk`, data sets from the hub and `datasets.Dataset`.

Rows that went through Arrow and came back, such as a file of `Dataset.to_json` or `list(dataset)`,
have the filler nulls without Arrow's schema. `without_fillers` recognises them.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedseed.errors import RecipeError

if TYPE_CHECKING:
    from fedseed.tasks.files import FileRow

# the class number of a row without a class, as data sets on the hub write it
NO_CLASS = -1
Convert = Callable[[Any], Any]


class ArrowColumns:
    """Turns rows of an Arrow table back into the objects that the author wrote.

    Args:
        schema: the table's `pyarrow.Schema`; None: not known.
        is_decoded: whether columns of JSON text are objects already, as `datasets` returns them.
    """

    def __init__(self, schema: Any, is_decoded: bool = False) -> None:
        self._is_decoded = is_decoded
        self._converters: dict[str, Convert] | None = None
        # the class names of each column of class numbers
        self.class_names: Mapping[str, tuple[str, ...]] = {}
        if schema is not None:
            converters = {field.name: self._converter(field.type) for field in schema}
            self._converters = {name: one for name, one in converters.items() if one is not None}
            self.class_names = read_class_names(schema.metadata)

    def values_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row's values by column.

        Raises:
            RecipeError: a JSON text is invalid, or a class number is out of range.
        """
        if self._converters is None:
            return {name: _without_nulls(value) for name, value in row.items()}
        values = dict(row)
        for name, convert in self._converters.items():
            if values.get(name) is not None:
                values[name] = convert(values[name])
        for name, classes in self.class_names.items():
            if isinstance(values.get(name), int):
                values[name] = _class_name(values[name], name, classes)
        return values

    def _converter(self, kind: Any) -> Convert | None:
        """Return the function that converts values of an Arrow type; None if they need no
        conversion.
        """
        from pyarrow import types

        if getattr(kind, "extension_name", "") == "arrow.json":
            if self._is_decoded:
                return None
            return _parse_json
        if types.is_struct(kind):
            return _object_converter(
                {
                    field.name: self._converter(field.type)
                    for field in map(kind.field, range(kind.num_fields))
                }
            )
        if types.is_map(kind):
            return _map_converter(self._converter(kind.item_type))
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            return _list_converter(self._converter(kind.value_type))
        return None


def read_class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, tuple[str, ...]]:
    """Return the class names that `datasets` keeps in a schema's metadata, by column."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return {
            name: tuple(map(str, feature["names"]))
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (KeyError, TypeError, ValueError, AttributeError):  # another program's metadata
        return {}


def _class_name(number: int, column: str, classes: Sequence[str]) -> str:
    if number == NO_CLASS:
        return ""
    if not 0 <= number < len(classes):
        raise RecipeError(
            f'"{column}" = {number}: the data set has {len(classes)} classes, numbered from 0; '
            f"{NO_CLASS} means no class"
        )
    return classes[number]


def _parse_json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise RecipeError(f"this column of JSON text holds invalid JSON: {error}") from error


def _object_converter(fields: Mapping[str, Convert | None]) -> Convert:
    converters = {name: convert for name, convert in fields.items() if convert is not None}

    def convert_object(value: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: converters[name](part) if name in converters else part
            for name, part in value.items()
            if part is not None
        }

    return convert_object


def _list_converter(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in values]


def _map_converter(convert: Convert | None) -> Convert:
    def convert_map(value: Any) -> dict[str, Any]:
        pairs = value
        if isinstance(value, Mapping):
            pairs = value.items()
        return {
            str(name): part if convert is None or part is None else convert(part)
            for name, part in pairs
        }

    return convert_map


def without_fillers(
    rows: "Sequence[FileRow | RecipeError]",
) -> "tuple[Sequence[FileRow | RecipeError], bool]":
    """Return rows without Arrow's filler nulls, and whether they had any.

    They are recognised by what nobody writes by hand: a parameter of a function whose description
    is null, or calls of several functions that all have the same arguments, of which one is null
    whenever one of the functions is called. Then all null fields of objects are left out, as when
    the rows are read from Arrow itself.
    """
    values = [row.values for row in rows if not isinstance(row, RecipeError)]
    objects = [one for row in values for one in _objects_in(list(row.values()))]
    if not (any(map(_describes_null, objects)) or _are_filled_up(objects)):
        return rows, False
    return [
        row if isinstance(row, RecipeError) else replace(row, values=_without_nulls(row.values))
        for row in rows
    ], True


def _objects_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all objects inside a value."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _describes_null(description: Mapping[str, Any]) -> bool:
    """Return whether an object is a JSON schema with a property whose schema is null."""
    properties = description.get("properties")
    return isinstance(properties, Mapping) and None in properties.values()


def _are_filled_up(objects: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether calls of different functions have the same arguments, null where they are
    another function's.
    """
    calls = [
        (str(one.get("name")), one["arguments"])
        for one in objects
        if "name" in one and isinstance(one.get("arguments"), Mapping)
    ]
    if len({frozenset(arguments) for _, arguments in calls}) != 1:
        return False
    used: dict[str, set[str]] = {}
    for name, arguments in calls:
        used.setdefault(name, set()).update(
            key for key, value in arguments.items() if value is not None
        )
    return any(one != other for one in used.values() for other in used.values())


def _without_nulls(value: Any) -> Any:
    """Return a value without the null fields of its objects."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    if isinstance(value, list):
        return [_without_nulls(part) for part in value]
    return value
