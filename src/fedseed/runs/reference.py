"""Every key that a recipe may have: type, default and meaning, read off the settings' classes. Free of torch.

The fields of the models say what is allowed, their descriptions or the "Args" of their classes' docstrings what they
mean; so `fedseed explain`, `fedseed list keys` and docs/recipe.md know what the code knows, plug-ins included.
"""

import inspect
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedseed.errors import did_you_mean
from fedseed.randomness.seed import SEEDS
from fedseed.runs.explain import models_of
from fedseed.runs.recipe import Recipe

BOUNDS = {"gt": "above {}", "ge": "from {}", "lt": "below {}", "le": "to {}"}
TAGS = ("name", "kind")  # keys that say which class a table is
MUST, NOT_SET = "must be given", "not set"
TYPES: dict[Any, str] = {int: "whole number", float: "number", str: "text", bool: "true or false", Any: "anything"}


@dataclass(frozen=True)
class Key:
    """A key of a recipe.

    Args:
        key: dotted, such as "method.training.learning_rate"; tables of a list are "tracking[]".
        kind: the type and its bounds, or the values to choose from, in words.
        default: as TOML would have it; "not set", or "must be given".
        about: what it means, one paragraph.
        of: which tables have it where a name or kind decides, such as methods; none: all of them.
    """

    key: str
    kind: str
    default: str
    about: str
    of: tuple[str, ...] = ()

    @property
    def table(self) -> str:
        """The key's first part, "" of one that stands outside of tables."""
        return self.key.partition(".")[0] if "." in self.key else ""


def recipe_keys() -> list[Key]:
    """All keys, in the order of the classes' fields; one that several methods or tasks share is there once."""
    found: dict[Key, dict[str, None]] = {}  # what all is equal in, and whose it is, in order
    for key in _keys(Recipe, "", ()):
        found.setdefault(replace(key, of=()), {}).update(dict.fromkeys(key.of))
    return [replace(key, of=tuple(of)) for key, of in found.items()]


def explain_key(word: str) -> list[Key]:
    """The keys that a word means: a whole dotted key, the end of some, or the table in front of some.

    Args:
        word: such as "method.training.learning_rate", "learning_rate" or "federation".

    Returns:
        The keys, the best kind of match only; none: there is no such key.
    """
    keys = recipe_keys()
    word = word.strip().strip("[]")
    for fits in (
        lambda key: key == word,
        lambda key: key.endswith(f".{word}"),
        lambda key: key.startswith((f"{word}.", f"{word}[].")),
        lambda key: f".{word}." in key,
    ):
        if found := [key for key in keys if fits(key.key)]:
            inside = [other for other in keys if any(other.key.startswith(f"{key.key}.") for key in found)]
            return [*found, *(other for other in inside if other not in found)]
    return []


def near_key(word: str) -> str:
    """A question for who gave a key that there is not: "did you mean learning_rate?", or ""."""
    keys = [key.key for key in recipe_keys()]
    return did_you_mean(word, keys, "") or did_you_mean(word, [key.rpartition(".")[2] for key in keys], "")


def _keys(model: type[BaseModel], prefix: str, of: tuple[str, ...]) -> Iterator[Key]:
    documents = documented(model)
    for name, field in model.model_fields.items():
        if name in TAGS and len(get_args(field.annotation)) == 1:
            continue  # chooses among tables: said of the table
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("internal"):
            continue  # another table of a recipe says it
        key, inside = prefix + (field.alias or name), models_of(field)
        about = field.description or documents.get(name, "")
        if not inside:
            yield Key(key, _kind(field.annotation, field.metadata), _default(field), about, of)
            continue
        several = get_origin(field.annotation) is list
        key += "[]" if several else ""
        if len(inside) == 1:
            yield from _keys(inside[0], f"{key}.", of)
            continue
        tag = next(tag for tag in TAGS if tag in inside[0].model_fields)
        names = [str(choice.model_fields[tag].default) for choice in inside]
        chosen = MUST if several else _chosen(field, tag)
        yield Key(f"{key}.{tag}", f"one of {', '.join(map(json.dumps, names))}", chosen, about, of)
        for choice, tagged in zip(inside, names, strict=True):
            yield from _keys(choice, f"{key}.", (tagged,))


def documented(model: type[BaseModel]) -> dict[str, str]:
    """What the docstrings of a class and its parents say of its fields under "Args", by name; children go first."""
    found: dict[str, str] = {}
    for parent in model.__mro__:
        for name, text in _arguments(inspect.cleandoc(parent.__dict__.get("__doc__") or "")).items():
            found.setdefault(name, re.sub(r"\bNone: ", "not set: ", text))
    return found


def _arguments(doc: str) -> dict[str, str]:
    """The arguments that a docstring in Google's style explains, each in one line."""
    _, head, rest = doc.partition("\nArgs")
    found: dict[str, str] = {}
    name = ""
    for line in rest.partition("\n")[2].splitlines() if head else ():
        if line.strip() and not line.startswith("    "):
            break
        begin = re.match(r"    (\w+): (.*)", line)
        if begin:
            name = begin[1]
            found[name] = begin[2]
        elif line.strip() and name:
            found[name] += f" {line.strip()}"
        elif not line.strip():
            name = ""
    return found


def _chosen(field: FieldInfo, tag: str) -> str:
    """Which of several tables a field is by default."""
    if isinstance(field.default, BaseModel):
        return json.dumps(getattr(field.default, tag))
    return MUST if field.is_required() else NOT_SET


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return MUST
    value = field.get_default(call_default_factory=True)
    if value is None:
        return NOT_SET
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def _kind(annotation: Any, marks: Sequence[Any] = ()) -> str:
    """A type and its bounds in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(parts[0], [*parts[1:], *marks])
    if origin is Literal:
        choices = ", ".join(map(json.dumps, parts))
        return f"one of {choices}" if len(parts) > 1 else choices
    if origin in (Union, UnionType):
        return " or ".join(_kind(part, marks) for part in parts if part is not type(None))
    if origin in (list, tuple):
        return f"list of {_kind(parts[0])}" if parts else "list"
    bounds = [
        text.format("2^64" if limit == SEEDS else f"{limit:,}")
        for mark in _flat(marks)
        for name, text in BOUNDS.items()
        if (limit := getattr(mark, name, None)) is not None
    ]
    name = TYPES.get(annotation, getattr(annotation, "__name__", str(annotation)))
    return " ".join([name, *bounds])


def _flat(marks: Sequence[Any]) -> Iterator[Any]:
    for mark in marks:
        yield from _flat(mark.metadata) if isinstance(mark, FieldInfo) else (mark,)
