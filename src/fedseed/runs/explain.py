"""What is wrong with a table of settings, in one line; and what its keys are called by now."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fedseed.renaming import changed, old_names
from fedseed.runs.named import ByName

TOLD = "told"  # type of errors whose text says all, key and value included


def explain(error: ValidationError, data: Mapping[str, Any], whole: type[BaseModel]) -> str:
    """The first thing that is wrong, in one line: key, value, what is allowed.

    Args:
        error: what pydantic says.
        data: what was read.
        whole: what it should be.
    """
    problems = error.errors(include_url=False)
    first = problems[0]
    # a discriminated union puts the chosen kind into the path: leave out what is no key of the data
    path: list[str] = []
    here: Any = data
    for part in first["loc"]:
        last = part == first["loc"][-1]
        if isinstance(here, Mapping) and (part in here or last):
            path.append(str(part))
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            path.append(str(part))
            here = here[part]
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
        allowed = ", ".join(_allowed(path[:-1], data, whole))
        text = f"{key} = {first['input']!r}: unknown key; allowed here: {allowed}"
    elif kind == "missing":
        text = f"{key}: missing"
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = first["ctx"]["discriminator"].strip("'")  # "kind" of a partition
        names = ", ".join(_tags(_models(path, data, whole), tag))
        given = first["input"].get(tag) if isinstance(first["input"], Mapping) else first["input"]
        found = f"{key}.{tag} = {given!r}" if given is not None else f"{key}.{tag}: missing"
        text = f"{found}: choose one of {names}" if given is not None else f"{found}; choose one of {names}"
    else:
        text = f"{key} = {first['input']!r}: {message[0].lower()}{message[1:]}"
    rest = len({p["loc"] for p in problems}) - 1
    return " ".join(text.split()) + (f" (and {rest} more)" if rest > 0 else "")


def _models(path: Sequence[str], data: Mapping[str, Any], whole: type[BaseModel]) -> list[type[BaseModel]]:
    """The models that a table inside one of the type `whole` may be; several where a name or kind in it decides."""
    models: list[type[BaseModel]] = [whole]
    here: Any = data
    for part in path:
        if isinstance(here, list):  # one of several tables, by its number
            here = here[int(part)]
            continue
        fields = _chosen(models, here).model_fields.items()
        models = _candidates(next(field for name, field in fields if part in (name, field.alias)))
        here = here.get(part, {}) if isinstance(here, Mapping) else {}
    return models


def _candidates(field: FieldInfo) -> list[type[BaseModel]]:
    """The models that a field's value may be: one, or several among which a name or kind decides."""
    return _among(field.annotation, field.metadata)


def _among(annotation: Any, marks: Sequence[Any]) -> list[type[BaseModel]]:
    for mark in marks:
        if isinstance(mark, ByName):
            return mark.models()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is Annotated:
        return _among(get_args(annotation)[0], get_args(annotation)[1:])
    return [model for part in get_args(annotation) for model in _among(part, ())]


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


# -- keys by their old names -------------------------------------------------------------------------------------------


def modernise(table: dict[str, Any], models: Sequence[type[BaseModel]], prefix: str = "") -> list[str]:
    """Give the keys of a table, and of the tables in it, the names they have now.

    Args:
        table: what was read; changed in place. A key that stands there by both names stays as it is: that is an error.
        models: what it may be.
        prefix: of the keys, in what is returned.

    Returns:
        A line for each old name.
    """
    notes = []
    model = _chosen(models, table)
    for old, new in old_names(model).items():
        if old in table and new not in table:
            renamed = {new if key == old else key: value for key, value in table.items()}
            table.clear()
            table.update(renamed)
            notes.append(changed(prefix + old, prefix + new))
    for name, field in model.model_fields.items():
        key = field.alias or name
        inside = _candidates(field)
        parts = table.get(key)
        for part in parts if isinstance(parts, list) else [parts]:
            if isinstance(part, dict) and inside:
                notes += modernise(part, inside, f"{prefix}{key}.")
    return notes


def modern_keys(keys: Sequence[str], data: Mapping[str, Any], whole: type[BaseModel]) -> list[str]:
    """A dotted key's parts by the names they have now.

    Args:
        keys: the parts.
        data: what was read, which says what each table is.
        whole: what `data` should be.
    """
    found: list[str] = []
    models: Sequence[type[BaseModel]] = [whole]
    here: Any = data
    for part in keys:
        if models:
            model = _chosen(models, here)
            part = old_names(model).get(part, part)
            field = model.model_fields.get(part)
            models = [] if field is None else _candidates(field)
            here = here.get(part) if isinstance(here, Mapping) else None
        found.append(part)
    return found
