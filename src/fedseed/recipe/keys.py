"""The keys of tables of settings, read off their classes: type, default, meaning.

And what is wrong with a table.

The fields of the classes say what is allowed, their descriptions or the "Args" of the docstrings
what they mean; so `fedseed explain`, `fedseed list keys`, docs/recipe.md and errors know what the
code knows, plug-ins included.
"""

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from fedseed.errors import closest, did_you_mean
from fedseed.randomness.stream import SEEDS
from fedseed.registry import Registry
from fedseed.text import shown

BOUNDS = {"gt": "above {}", "ge": "from {}", "lt": "below {}", "le": "to {}"}
TAGS = ("name", "kind")  # keys that say which class a table is
MUST, NOT_SET = "must be given", "not set"
TYPES: dict[Any, str] = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    Any: "anything",
}
SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True)
class ByName:
    """Marks a field whose table becomes the class of a registry that its `name` says.

    Plug-ins can add classes.
    """

    registry: Registry[Any]  # the classes
    base: type[BaseModel]  # what all of them are
    # the name of a table without one; None: it must have one
    default: str | None = None

    def __hash__(self) -> int:
        return id(self.registry)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._read)

    def models(self) -> list[type[BaseModel]]:
        """Returns all classes, the default first."""
        entries = sorted(self.registry.entries(), key=lambda entry: entry.name != self.default)
        return [entry.thing for entry in entries]

    def _read(self, value: Any) -> BaseModel:
        if isinstance(value, self.base):
            return value
        if not isinstance(value, Mapping):
            raise PydanticKnownError("dict_type")
        name = value.get("name", self.default)
        kind = self.registry.find(name)
        if kind is None:
            known = {"known": self.registry.unknown(name), "name": name}
            raise PydanticCustomError(
                "missing_name" if name is None else "unknown_name", "unknown name", known
            )
        # its errors become this field's
        made: BaseModel = kind.model_validate({"name": name, **value})
        return made


@dataclass(frozen=True)
class Key:
    """A key of a recipe."""

    # dotted, such as "method.training.learning_rate"; tables of a list are "tracking[]"
    key: str
    # the type and its bounds, or the values to choose from, in words
    kind: str
    # as TOML would have it; "not set", or "must be given"
    default: str
    about: str  # what it means, one paragraph
    # which tables have it where a name or kind decides, such as methods; none: all of them
    of: tuple[str, ...] = ()


def keys_of(whole: type[BaseModel]) -> list[Key]:
    """Returns all keys of a class of settings, in the fields' order.

    One that several tables share is there once.
    """
    # each key without its owners, and its owners in order
    found: dict[Key, dict[str, None]] = {}
    for key in _keys(whole, "", ()):
        found.setdefault(replace(key, of=()), {}).update(dict.fromkeys(key.of))
    return [replace(key, of=tuple(of)) for key, of in found.items()]


def find_keys(keys: Sequence[Key], word: str) -> list[Key]:
    """Returns the keys that a word means: a whole dotted key, the end of some, or the table in
    front of some.

    Args:
        keys: all there are.
        word: such as "method.training.learning_rate", "learning_rate" or "federation".

    Returns:
        The keys, the best kind of match only; none: there is no such key.
    """
    word = word.strip().strip("[]")
    for fits in (
        lambda key: key == word,
        lambda key: key.endswith(f".{word}"),
        lambda key: key.startswith((f"{word}.", f"{word}[].")),
        lambda key: f".{word}." in key,
    ):
        if found := [key for key in keys if fits(key.key)]:
            inside = [
                other for other in keys if any(other.key.startswith(f"{key.key}.") for key in found)
            ]
            return [*found, *(other for other in inside if other not in found)]
    return []


def near_key(keys: Sequence[Key], word: str) -> str:
    """Returns a question about a key that does not exist, "did you mean learning_rate?", or ""."""
    names = [key.key for key in keys]
    return did_you_mean(word, names, "") or did_you_mean(
        word, [name.rpartition(".")[2] for name in names], ""
    )


def _keys(model: type[BaseModel], prefix: str, of: tuple[str, ...]) -> Iterator[Key]:
    documents = documented(model)
    for name, field in model.model_fields.items():
        if name in TAGS and len(get_args(field.annotation)) == 1:
            # this key chooses among tables, which the table's own key lists
            continue
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("internal"):
            continue  # another table of a recipe says it
        key, inside = prefix + (field.alias or name), among(field.annotation, field.metadata)
        about = field.description or documents.get(name, "")
        if not inside:
            value = MUST if field.is_required() else field.get_default(call_default_factory=True)
            if value is not MUST:
                value = (
                    NOT_SET
                    if value is None
                    else f"{value:g}"
                    if isinstance(value, float)
                    else json.dumps(value)
                )
            yield Key(key, _kind(field.annotation, field.metadata), value, about, of)
            continue
        several = get_origin(field.annotation) is list
        key += "[]" if several else ""
        if len(inside) == 1:
            yield from _keys(inside[0], f"{key}.", of)
            continue
        tag = next(tag for tag in TAGS if tag in inside[0].model_fields)
        names = [str(choice.model_fields[tag].default) for choice in inside]
        chosen = MUST if several or field.is_required() else NOT_SET
        if isinstance(field.default, BaseModel):
            chosen = json.dumps(getattr(field.default, tag))
        yield Key(f"{key}.{tag}", f"one of {', '.join(map(json.dumps, names))}", chosen, about, of)
        for choice, tagged in zip(inside, names, strict=True):
            yield from _keys(choice, f"{key}.", (tagged,))


def among(annotation: Any, marks: Sequence[Any]) -> list[type[BaseModel]]:
    """Returns the classes that a setting may be: none of a plain value.

    Several where a name or kind decides.
    """
    for mark in marks:
        if isinstance(mark, ByName):
            return mark.models()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is Annotated:
        return among(get_args(annotation)[0], get_args(annotation)[1:])
    return [model for part in get_args(annotation) for model in among(part, ())]


def documented(model: type[BaseModel]) -> dict[str, str]:
    """Return the descriptions of fields under "Args" in the docstrings of a class and its parents,
    by name.

    Children go first.
    """
    found: dict[str, str] = {}
    for parent in model.__mro__:
        doc = inspect.cleandoc(parent.__dict__.get("__doc__") or "") + "\n"
        section = re.search(r"\nArgs.*\n((?: {4}.*\n|\n)*)", doc)
        for name, text in re.findall(
            r"^ {4}(\w+): (.*(?:\n {5}.*)*)", section[1] if section else "", re.MULTILINE
        ):
            found.setdefault(name, re.sub(r"\bNone: ", "not set: ", " ".join(text.split())))
    return found


def _kind(annotation: Any, marks: Sequence[Any] = ()) -> str:
    """Returns a type and its bounds in words."""
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
        for mark in chain.from_iterable(
            mark.metadata if isinstance(mark, FieldInfo) else [mark] for mark in marks
        )
        for name, text in BOUNDS.items()
        if (limit := getattr(mark, name, None)) is not None
    ]
    name = TYPES.get(annotation, getattr(annotation, "__name__", str(annotation)))
    return " ".join([name, *bounds])


def told(text: str) -> PydanticCustomError:
    """Returns an error whose text says everything, key and value included."""
    return PydanticCustomError("told", "{text}", {"text": text})


def explain(error: ValidationError, data: Mapping[str, Any], whole: type[BaseModel]) -> str:
    """Returns the first thing that is wrong, in one line: key, value, what is allowed.

    Args:
        error: what pydantic says.
        data: what was read.
        whole: what it should be.
    """
    problems = error.errors(include_url=False)
    # a misspelt key is what a missing one most often comes from: it goes first
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    path = _path(first["loc"], data)
    key, given, context = ".".join(path) or "recipe", first["input"], first.get("ctx", {})
    message = first["msg"].removeprefix("Value error, ")
    match first["type"]:
        case "told":
            text = message
        case "unknown_name":  # of something that others can add to
            text = f"{key}.name = {context['name']!r}: {context['known']}"
        case "missing_name":
            text = f"{key}.name: missing; {context['known']}"
        case "extra_forbidden":
            before = "".join(f"{part}." for part in path[:-1])
            keys = [one for one, _ in own_fields(whole, data)]
            inside = [one.removeprefix(before) for one in keys if one.startswith(before)]
            allowed = [one for one in inside if "." not in one]
            near, meant = closest(path[-1], allowed), ""
            owners = _owners(whole, data, path)
            above = "" if len(path) == 1 else f"{path[0]}."
            if owners:
                meant = (
                    f" of {_named(data, path)}: it is a key of {', '.join(owners)}; leave it out "
                    f"(--unset {key})"
                )
            elif near:
                meant = f" (did you mean {near}?)"
            elif found := [
                one for one in keys if one.endswith(f".{path[-1]}") and one.startswith(above)
            ]:
                meant = f" (there is {' and '.join(found)})"  # in another table
            text = (
                f"{key} = {shown(repr(given), SHOWN)}: unknown key{meant}; allowed here: "
                f"{', '.join(allowed)}"
            )
        case "missing":
            text = f"{key}: missing"
        case "union_tag_invalid" | "union_tag_not_found":
            tag = context["discriminator"].strip("'")  # "kind" of a partition
            field = dict(own_fields(whole, data))[key]
            names = [_tag(model, tag) for model in among(field.annotation, field.metadata)]
            value = given.get(tag) if isinstance(given, Mapping) else given
            there = (
                f" = {value!r}: {did_you_mean(value, names)}"
                if value is not None
                else ": missing; "
            )
            text = f"{key}.{tag}{there}choose one of {', '.join(names)}"
        case kind:
            words = re.findall(r"'([^']*)'", message) if kind == "literal_error" else []
            of_keys = kind == "value_error" and isinstance(given, Mapping)  # named in the message
            value = "" if of_keys else f" = {shown(repr(given), SHOWN)}"
            text = f"{key}{value}: {did_you_mean(given, words)}{message[0].lower()}{message[1:]}"
    rest = len({p["loc"] for p in problems}) - 1
    return " ".join(text.split()) + (f" (and {rest} more)" if rest > 0 else "")


def _owners(whole: type[BaseModel], data: Mapping[str, Any], path: Sequence[str]) -> list[str]:
    """Return the names of the other tables of the same kind, such as methods, that have a key.

    Args:
        whole: what was to be read.
        data: what was given.
        path: the parts of the key.
    """
    table = ".".join(path[:-1])
    field = dict(own_fields(whole, data)).get(table)
    models = [] if field is None else among(field.annotation, field.metadata)
    tag = next((tag for tag in TAGS if models and tag in models[0].model_fields), None)
    if tag is None or len(models) < 2:
        return []
    return [_tag(model, tag) for model in models if path[-1] in model.model_fields]


def _named(data: Mapping[str, Any], path: Sequence[str]) -> str:
    """Return the name that a table gives as its kind."""
    table: Any = data
    for part in path[:-1]:
        table = table[int(part)] if isinstance(table, list) else table.get(part, {})
    names = [table.get(tag) for tag in TAGS] if isinstance(table, Mapping) else []
    return str(next((name for name in names if name), "this table"))


def _path(loc: Sequence[int | str], data: Mapping[str, Any]) -> list[str]:
    """Returns the parts of a key that an error is about: pydantic's, without a table's kind or a
    value's type.
    """
    path: list[str] = []
    here: Any = data
    # whether pydantic's path is past the kind of the table that is looked into
    passed = True
    for at, part in enumerate(loc):
        if isinstance(here, list) and isinstance(part, int) and part < len(here):
            path.append(str(part))
            here, passed = here[part], True
        elif isinstance(here, Mapping):
            if not passed and part == here.get("kind"):
                passed = True
            elif part in here or at == len(loc) - 1:
                path.append(str(part))
                here, passed = here.get(str(part)), False
    return path


def own_fields(
    model: type[BaseModel], table: Any, prefix: str = ""
) -> Iterator[tuple[str, FieldInfo]]:
    """Returns the dotted keys, with fields, that a table and those in it may have by their names
    and kinds.
    """
    for name, field in model.model_fields.items():
        key = field.alias or name
        yield prefix + key, field
        found: Any = table.get(key) if isinstance(table, Mapping) else None
        for number, part in enumerate(found) if isinstance(found, list) else [("", found)]:
            if models := among(field.annotation, field.metadata):
                before = f"{prefix}{key}." if number == "" else f"{prefix}{key}.{number}."
                tags = [
                    tag
                    for tag in TAGS
                    if len(models) > 1 and isinstance(part, Mapping) and tag in part
                ]
                named = (
                    model for tag in tags for model in models if _tag(model, tag) == str(part[tag])
                )
                # the first if it says none
                yield from own_fields(next(named, models[0]), part, before)


def _tag(model: type[BaseModel], tag: str) -> str:
    return str(model.model_fields[tag].default) if tag in model.model_fields else ""
