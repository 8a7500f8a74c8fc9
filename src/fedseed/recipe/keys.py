"""List the keys of tables of settings with type, default and meaning, and describe faults of a
table.

Types and bounds come from the fields of the classes, meanings from the fields' descriptions or the
"Args" of the docstrings. So `fedseed explain`, `fedseed list keys`, docs/recipe/ and errors always
match the code, plug-ins included.
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
from fedseed.text import show_text

BOUNDS = {"gt": "above {}", "ge": "from {}", "lt": "below {}", "le": "to {}"}
TAGS = ("name", "kind")  # keys whose value chooses the class of a table
MUST, NOT_SET = "must be given", "not set"
TYPES: dict[Any, str] = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    Any: "anything",
}
SHOWN = 60  # most characters of a value that a message shows


@dataclass(frozen=True)
class ByName:
    """Marks a field whose table becomes the class that its `name` has in a registry.

    Plug-ins can add classes.
    """

    registry: Registry[Any]  # the classes
    base: type[BaseModel]  # the base of these classes
    # the name that is used if the table has none; None: the table must have one
    default: str | None = None

    def __hash__(self) -> int:
        return id(self.registry)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def models(self) -> list[type[BaseModel]]:
        """Return all classes, the default first."""
        entries = sorted(self.registry.entries(), key=lambda entry: entry.name != self.default)
        return [entry.thing for entry in entries]

    def _validate(self, value: Any) -> BaseModel:
        if isinstance(value, self.base):
            return value
        if not isinstance(value, Mapping):
            raise PydanticKnownError("dict_type")
        name = value.get("name", self.default)
        kind = self.registry.find(name)
        if kind is None:
            context = {"known": self.registry.unknown(name), "name": name}
            raise PydanticCustomError(
                "missing_name" if name is None else "unknown_name", "unknown name", context
            )
        # its errors are shown for this field
        settings: BaseModel = kind.model_validate({"name": name, **value})
        return settings


@dataclass(frozen=True)
class Key:
    """A key of a recipe."""

    # dotted, such as "method.training.learning_rate"; tables of a list are "tracking[]"
    key: str
    # the type and its bounds, or the values to choose from, in words
    kind: str
    # as written in TOML; or "not set", or "must be given"
    default: str
    meaning: str  # its meaning, in one paragraph
    # the tables that have the key, if a name or kind chooses the table (such as methods); empty:
    # all
    owners: tuple[str, ...] = ()


def list_keys(whole: type[BaseModel]) -> list[Key]:
    """Return all keys of a class of settings, in the fields' order.

    A key that several tables share is listed once.
    """
    # from each key, without its owners, to its owners in order
    owners_by_key: dict[Key, dict[str, None]] = {}
    for key in _keys(whole, "", ()):
        owners_by_key.setdefault(replace(key, owners=()), {}).update(dict.fromkeys(key.owners))
    return [replace(key, owners=tuple(owners)) for key, owners in owners_by_key.items()]


def find_keys(keys: Sequence[Key], word: str) -> list[Key]:
    """Return the keys that match a word: a whole dotted key, the end of keys, or the table that has
    them.

    Args:
        keys: all keys.
        word: such as "method.training.learning_rate", "learning_rate" or "federation".

    Returns:
        The keys that match best; empty: there is no such key.
    """
    word = word.strip().strip("[]")
    for fits in (
        lambda key: key == word,
        lambda key: key.endswith(f".{word}"),
        lambda key: key.startswith((f"{word}.", f"{word}[].")),
        lambda key: f".{word}." in key,
    ):
        matches = [key for key in keys if fits(key.key)]
        if matches:
            tables = tuple(f"{key.key}." for key in matches)
            inside = [key for key in keys if key.key.startswith(tables) and key not in matches]
            return [*matches, *inside]
    return []


def near_key(keys: Sequence[Key], word: str) -> str:
    """Return a question about a key that does not exist, "did you mean learning_rate?", or ""."""
    names = [key.key for key in keys]
    return did_you_mean(word, names, "") or did_you_mean(
        word, [name.rpartition(".")[2] for name in names], ""
    )


def _keys(model: type[BaseModel], prefix: str, owners: tuple[str, ...]) -> Iterator[Key]:
    documents = read_descriptions(model)
    for name, field in model.model_fields.items():
        if name in TAGS and len(get_args(field.annotation)) == 1:
            # this key chooses the table's type, which is listed at the table's own key
            continue
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("internal"):
            continue  # the key belongs to another table of the recipe
        key, inside = (
            prefix + (field.alias or name),
            possible_models(field.annotation, field.metadata),
        )
        meaning = field.description or documents.get(name, "")
        if not inside:
            kind = _kind(field.annotation, field.metadata)
            yield Key(key, kind, _describe_default(field), meaning, owners)
            continue
        several = get_origin(field.annotation) is list
        if several:
            key += "[]"
        if len(inside) == 1:
            yield from _keys(inside[0], f"{key}.", owners)
            continue
        tag = next(tag for tag in TAGS if tag in inside[0].model_fields)
        names = [str(choice.model_fields[tag].default) for choice in inside]
        default = NOT_SET
        if several or field.is_required():
            default = MUST
        if isinstance(field.default, BaseModel):
            default = json.dumps(getattr(field.default, tag))
        yield Key(
            f"{key}.{tag}", f"one of {', '.join(map(json.dumps, names))}", default, meaning, owners
        )
        for choice, tagged in zip(inside, names, strict=True):
            yield from _keys(choice, f"{key}.", (tagged,))


def _describe_default(field: FieldInfo) -> str:
    """Return a field's default as TOML has it, `NOT_SET` or `MUST`."""
    if field.is_required():
        return MUST
    value = field.get_default(call_default_factory=True)
    if value is None:
        return NOT_SET
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value)


def possible_models(annotation: Any, marks: Sequence[Any]) -> list[type[BaseModel]]:
    """Return the classes that a setting may have: none for a plain value.

    Several where a name or kind decides.
    """
    for mark in marks:
        if isinstance(mark, ByName):
            return mark.models()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is Annotated:
        return possible_models(get_args(annotation)[0], get_args(annotation)[1:])
    return list(chain.from_iterable(possible_models(part, ()) for part in get_args(annotation)))


def read_descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return the descriptions of fields under "Args" in the docstrings of a class and its parents,
    by name.

    A class takes precedence over its parents.
    """
    descriptions: dict[str, str] = {}
    for parent in model.__mro__:
        doc = inspect.cleandoc(parent.__dict__.get("__doc__") or "") + "\n"
        section = re.search(r"\nArgs.*\n((?: {4}.*\n|\n)*)", doc)
        for name, text in re.findall(
            r"^ {4}(\w+): (.*(?:\n {5}.*)*)", section[1] if section else "", re.MULTILINE
        ):
            descriptions.setdefault(name, re.sub(r"\bNone: ", "not set: ", " ".join(text.split())))
    return descriptions


def _kind(annotation: Any, marks: Sequence[Any] = ()) -> str:
    """Return a type and its bounds in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(parts[0], [*parts[1:], *marks])
    if origin is Literal:
        choices = ", ".join(map(json.dumps, parts))
        if len(parts) > 1:
            return f"one of {choices}"
        return choices
    if origin in (Union, UnionType):
        return " or ".join(_kind(part, marks) for part in parts if part is not type(None))
    if origin in (list, tuple):
        if parts:
            return f"list of {_kind(parts[0])}"
        return "list"
    bounds = []
    for mark in chain.from_iterable(
        mark.metadata if isinstance(mark, FieldInfo) else [mark] for mark in marks
    ):
        for name, text in BOUNDS.items():
            limit = getattr(mark, name, None)
            if limit is not None:
                bounds.append(text.format("2^64" if limit == SEEDS else f"{limit:,}"))
    name = TYPES.get(annotation, getattr(annotation, "__name__", str(annotation)))
    return " ".join([name, *bounds])


def plain_error(text: str) -> PydanticCustomError:
    """Return an error with a complete text, key and value included."""
    return PydanticCustomError("plain", "{text}", {"text": text})


def explain(error: ValidationError, data: Mapping[str, Any], whole: type[BaseModel]) -> str:
    """Return the first thing that is wrong, in one line: key, value, what is allowed.

    Args:
        error: pydantic's.
        data: what was read.
        whole: what it should be.
    """
    problems = error.errors(include_url=False)
    # a key is most often missing because it is misspelt, so the misspelt key is reported first
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    path = _path(first["loc"], data)
    key, value_given, context = ".".join(path) or "recipe", first["input"], first.get("ctx", {})
    message = first["msg"].removeprefix("Value error, ")
    match first["type"]:
        case "plain":
            text = message
        case "unknown_name":  # a registry's names, to which plug-ins can add
            text = f"{key}.name = {context['name']!r}: {context['known']}"
        case "missing_name":
            text = f"{key}.name: missing; {context['known']}"
        case "extra_forbidden":
            text = _explain_unknown_key(path, value_given, data, whole)
        case "missing":
            text = f"{key}: missing"
        case "union_tag_invalid" | "union_tag_not_found":
            tag = context["discriminator"].strip("'")  # "kind" of a partition
            field = dict(list_fields(whole, data))[key]
            names = [
                _tag(model, tag) for model in possible_models(field.annotation, field.metadata)
            ]
            value = value_given
            if isinstance(value_given, Mapping):
                value = value_given.get(tag)
            tag_problem = ": missing; "
            if value is not None:
                tag_problem = f" = {value!r}: {did_you_mean(value, names)}"
            text = f"{key}.{tag}{tag_problem}choose one of {', '.join(names)}"
        case kind:
            words = []
            if kind == "literal_error":
                words = re.findall(r"'([^']*)'", message)
            of_keys = kind == "value_error" and isinstance(
                value_given, Mapping
            )  # these keys are named in the message
            value = ""
            if not of_keys:
                value = f" = {show_text(repr(value_given), SHOWN)}"
            text = (
                f"{key}{value}: {did_you_mean(value_given, words)}{message[0].lower()}{message[1:]}"
            )
    rest = len({p["loc"] for p in problems}) - 1
    line = " ".join(text.split())
    if rest > 0:
        line += f" (and {rest} more)"
    return line


def _explain_unknown_key(
    path: Sequence[str], value: Any, data: Mapping[str, Any], whole: type[BaseModel]
) -> str:
    """Return the error for an unknown key, with the key that was probably meant.

    Args:
        path: the key's tables and its name.
        value: the key's value.
        data: what was read.
        whole: what it should be.
    """
    key = ".".join(path)
    table_prefix = "".join(f"{part}." for part in path[:-1])
    keys = [one for one, _ in list_fields(whole, data)]
    inside = [one.removeprefix(table_prefix) for one in keys if one.startswith(table_prefix)]
    allowed = [one for one in inside if "." not in one]
    near, hint = closest(path[-1], allowed), ""
    owners = _owners(whole, data, path)
    first_table = f"{path[0]}."
    if len(path) == 1:
        first_table = ""
    # keys of this name in another table
    same_keys = [
        one for one in keys if one.endswith(f".{path[-1]}") and one.startswith(first_table)
    ]
    if owners:
        other = f", or set {' and '.join(same_keys)}" if same_keys else ""
        hint = (
            f" of {_table_kind(data, path)}: it is a key of {', '.join(owners)}; leave it "
            f"out (--unset {key}){other}"
        )
    elif same_keys:
        hint = f" (there is {' and '.join(same_keys)})"
    elif near:
        hint = f" (did you mean {near}?)"
    return (
        f"{key} = {show_text(repr(value), SHOWN)}: unknown key{hint}; allowed here: "
        f"{', '.join(allowed)}"
    )


def _owners(whole: type[BaseModel], data: Mapping[str, Any], path: Sequence[str]) -> list[str]:
    """Return the names of other tables of the same kind (such as methods) that have a key.

    Args:
        whole: what was to be read.
        data: what was given.
        path: the parts of the key.
    """
    table = ".".join(path[:-1])
    field = dict(list_fields(whole, data)).get(table)
    models = []
    if field is not None:
        models = possible_models(field.annotation, field.metadata)
    tag = next((tag for tag in TAGS if models and tag in models[0].model_fields), None)
    if tag is None or len(models) < 2:
        return []
    return [_tag(model, tag) for model in models if path[-1] in model.model_fields]


def _table_kind(data: Mapping[str, Any], path: Sequence[str]) -> str:
    """Return the name that a table gives as its kind."""
    table: Any = data
    for part in path[:-1]:
        table = table[int(part)] if isinstance(table, list) else table.get(part, {})
    names = []
    if isinstance(table, Mapping):
        names = [table.get(tag) for tag in TAGS]
    return str(next((name for name in names if name), "this table"))


def _path(loc: Sequence[int | str], data: Mapping[str, Any]) -> list[str]:
    """Return the parts of a key that an error is about: pydantic's, without a table's kind or a
    value's type.
    """
    path: list[str] = []
    table: Any = data
    # whether pydantic's path is already past the kind of the current table
    passed = True
    for position, part in enumerate(loc):
        if isinstance(table, list) and isinstance(part, int) and part < len(table):
            path.append(str(part))
            table, passed = table[part], True
        elif isinstance(table, Mapping):
            if not passed and part == table.get("kind"):
                passed = True
            elif part in table or position == len(loc) - 1:
                path.append(str(part))
                table, passed = table.get(str(part)), False
    return path


def list_fields(
    model: type[BaseModel], table: Any, prefix: str = ""
) -> Iterator[tuple[str, FieldInfo]]:
    """Return the dotted keys, with fields, that a table and those in it may have by their names
    and kinds.
    """
    for name, field in model.model_fields.items():
        key = field.alias or name
        yield prefix + key, field
        content: Any = None
        if isinstance(table, Mapping):
            content = table.get(key)
        for number, part in enumerate(content) if isinstance(content, list) else [("", content)]:
            models = possible_models(field.annotation, field.metadata)
            if models:
                inner_prefix = f"{prefix}{key}.{number}."
                if number == "":
                    inner_prefix = f"{prefix}{key}."
                tags = [
                    tag
                    for tag in TAGS
                    if len(models) > 1 and isinstance(part, Mapping) and tag in part
                ]
                # the first class if the table names none
                model_of_part = models[0]
                for tag in reversed(tags):
                    for candidate in reversed(models):
                        if _tag(candidate, tag) == str(part[tag]):
                            model_of_part = candidate
                yield from list_fields(model_of_part, part, inner_prefix)


def _tag(model: type[BaseModel], tag: str) -> str:
    if tag in model.model_fields:
        return str(model.model_fields[tag].default)
    return ""
