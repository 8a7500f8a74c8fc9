"""Recognises the nulls that Arrow has put into rows that came back from it.

Rows of a file that `Dataset.to_json` has written, or of `list(dataset)`, have the filler nulls of
`fedseed.tasks.arrow`, but not Arrow's schema, which would tell what they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedseed.errors import RecipeError
from fedseed.tasks.arrow import without_nulls
from fedseed.tasks.files import FileRow


def without_fillers(
    rows: Sequence[FileRow | RecipeError],
) -> tuple[Sequence[FileRow | RecipeError], bool]:
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
        row if isinstance(row, RecipeError) else replace(row, values=without_nulls(row.values))
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
