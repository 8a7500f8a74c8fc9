"""Reads the values of Arrow tables in the form in which the data set's author wrote them.

Arrow stores the objects of a column with one set of fields for all rows. An object that lacks a
field gets null there. This module removes these filler nulls, because a model would learn them as
arguments of function calls. It removes nulls that the author wrote as well, because they look the
same. Text columns of type JSON keep what was written, including nulls, and are parsed.

It reads parquet files, folders of `save_to_disk`, data sets from the hub and `datasets.Dataset`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedseed.errors import RecipeError

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
            return {name: without_nulls(value) for name, value in row.items()}
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


def without_nulls(value: Any) -> Any:
    """Return a value without the null fields of its objects."""
    if isinstance(value, Mapping):
        return {name: without_nulls(part) for name, part in value.items() if part is not None}
    if isinstance(value, list):
        return [without_nulls(part) for part in value]
    return value
