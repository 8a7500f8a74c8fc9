"""What is wrong with a table of settings, in one line."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fedseed.errors import closest, did_you_mean
from fedseed.runs.named import ByName

TOLD = "told"  # type of errors whose text says all, key and value included
SHOWN = 60  # characters of a value in a message


def explain(error: ValidationError, data: Mapping[str, Any], whole: type[BaseModel]) -> str:
    """The first thing that is wrong, in one line: key, value, what is allowed.

    Args:
        error: what pydantic says.
        data: what was read.
        whole: what it should be.
    """
    problems = error.errors(include_url=False)
    # a misspelt key is what a missing one most often comes from: it goes first
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    path = _path(first["loc"], data, whole)
    key = ".".join(path) or "recipe"
    kind = first["type"]
    message = first["msg"].removeprefix("Value error, ")
    if kind == TOLD:
        text = message
    elif kind == "unknown_name":  # of something that others can add to
        text = f"{key}.name = {first['ctx']['name']!r}: {first['ctx']['known']}"
    elif kind == "missing_name":
        text = f"{key}.name: missing; {first['ctx']['known']}"
    elif kind == "extra_forbidden":
        allowed = _allowed(path[:-1], data, whole)
        hint = _meant(path, allowed, data, whole)
        text = f"{key} = {_shown(first['input'])}: unknown key{hint}; allowed here: {', '.join(allowed)}"
    elif kind == "missing":
        text = f"{key}: missing"
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = first["ctx"]["discriminator"].strip("'")  # "kind" of a partition
        known = _tags(_models(path, data, whole), tag)
        names = ", ".join(known)
        given = first["input"].get(tag) if isinstance(first["input"], Mapping) else first["input"]
        found = f"{key}.{tag} = {given!r}" if given is not None else f"{key}.{tag}: missing"
        question = did_you_mean(given, known)
        text = f"{found}: {question}choose one of {names}" if given is not None else f"{found}; choose one of {names}"
    else:
        words = re.findall(r"'([^']*)'", message) if kind == "literal_error" else []
        question = did_you_mean(first["input"], words)
        of_keys = kind == "value_error" and isinstance(first["input"], Mapping)  # named in the message
        value = "" if of_keys else f" = {_shown(first['input'])}"
        text = f"{key}{value}: {question}{message[0].lower()}{message[1:]}"
    rest = len({p["loc"] for p in problems}) - 1
    return " ".join(text.split()) + (f" (and {rest} more)" if rest > 0 else "")


def _shown(value: Any) -> str:
    """A value for a message; of a long one, such as a table, the beginning."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _path(loc: Sequence[int | str], data: Mapping[str, Any], whole: type[BaseModel]) -> list[str]:
    """The parts of a key that an error is about: pydantic's, without what is no key.

    Where a table's kind says which model it is, pydantic names the kind before the key; after a key whose value may be
    of several types, the type.
    """
    path: list[str] = []
    here: Any = data
    models: Sequence[type[BaseModel]] = [whole]
    kind: object = None  # of the table that is looked into, until pydantic's path has passed it
    for part in loc:
        if kind is not None and part == kind:
            kind = None
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            path.append(str(part))
            here = here[part]
        elif isinstance(here, Mapping):
            field = _field(_chosen(models, here), str(part)) if models else None
            if part not in here and part != loc[-1]:
                continue
            path.append(str(part))
            here = here.get(part)
            models = [] if field is None else models_of(field)
            kind = _kind(here) if field is not None and _is_tagged(field.annotation, field.metadata) else None
    return path


def _field(model: type[BaseModel], key: str) -> FieldInfo | None:
    """A model's field by its key."""
    return next((field for name, field in model.model_fields.items() if key in (name, field.alias)), None)


def _is_tagged(annotation: Any, marks: Sequence[Any]) -> bool:
    """Whether a field's value is one of a discriminated union."""
    if any(getattr(mark, "discriminator", None) for mark in marks):
        return True
    return any(_is_tagged(part, getattr(part, "__metadata__", ())) for part in get_args(annotation))


def _kind(table: Any) -> object:
    return table.get("kind") if isinstance(table, Mapping) else None


def _meant(path: Sequence[str], allowed: Sequence[str], data: Mapping[str, Any], whole: type[BaseModel]) -> str:
    """What an unknown key may have been meant for: one that is nearly the same, or the same one of another table."""
    if near := closest(path[-1], allowed):
        return f" (did you mean {near}?)"
    inside = path[:1] if len(path) > 1 else []  # of another table of a recipe, the same name is another thing
    found = [key for key in _keys(whole, data) if key[-1] == path[-1] and list(key[: len(inside)]) == inside]
    elsewhere = [".".join(key) for key in found]
    return f" (there is {' and '.join(elsewhere)})" if elsewhere else ""


def _keys(model: type[BaseModel], table: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All keys that a table, and those in it, may have."""
    for name, field in model.model_fields.items():
        key = field.alias or name
        yield (*prefix, key)
        inside = table.get(key) if isinstance(table, Mapping) else None
        if (models := models_of(field)) and not isinstance(inside, list):
            yield from _keys(_chosen(models, inside), inside, (*prefix, key))


def _models(path: Sequence[str], data: Mapping[str, Any], whole: type[BaseModel]) -> list[type[BaseModel]]:
    """The models that a table inside one of the type `whole` may be; several where a name or kind in it decides."""
    models: list[type[BaseModel]] = [whole]
    here: Any = data
    for part in path:
        if isinstance(here, list):  # one of several tables, by its number
            here = here[int(part)]
            continue
        fields = _chosen(models, here).model_fields.items()
        models = models_of(next(field for name, field in fields if part in (name, field.alias)))
        here = here.get(part, {}) if isinstance(here, Mapping) else {}
    return models


def models_of(field: FieldInfo) -> list[type[BaseModel]]:
    """The models that a setting may be: none of a plain value; several where a name or kind in it decides."""
    return among(field.annotation, field.metadata)


def among(annotation: Any, marks: Sequence[Any]) -> list[type[BaseModel]]:
    """Returns the models in a type, with what stands beside it in `Annotated`."""
    for mark in marks:
        if isinstance(mark, ByName):
            return mark.models()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is Annotated:
        return among(get_args(annotation)[0], get_args(annotation)[1:])
    return [model for part in get_args(annotation) for model in among(part, ())]


def _tags(models: Sequence[type[BaseModel]], tag: str) -> dict[str, type[BaseModel]]:
    return {str(model.model_fields[tag].default): model for model in models if tag in model.model_fields}


def _chosen(models: Sequence[type[BaseModel]], table: Any) -> type[BaseModel]:
    """The one that a table's name or kind says; the first if it says none."""
    if isinstance(table, Mapping) and len(models) > 1:
        for tag in ("name", "kind"):
            named = _tags(models, tag)
            if (given := table.get(tag)) is not None and str(given) in named:
                return named[str(given)]
    return models[0]


def _allowed(path: Sequence[str], data: Mapping[str, Any], whole: type[BaseModel]) -> list[str]:
    """The keys a table may have."""
    table: Any = data
    for part in path:
        table = table[int(part)] if isinstance(table, list) else table.get(part)
    fields = _chosen(_models(path, data, whole), table).model_fields.items()
    return [field.alias or name for name, field in fields]
