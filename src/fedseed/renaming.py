"""Settings whose names have changed: recipes may use the old ones for a release, orbits keep them for good.

A class declares what was called differently:

    class LocalTraining(Renamed):
        renamed: ClassVar[dict[str, str]] = {"rate": "learning_rate"}
        learning_rate: PositiveFloat = 1e-4

`LocalTraining(rate=0.1)` and `rate = 0.1` in a recipe go on working, and say what the name is now; an orbit's header is
written with the old names (`orbit_dump`) and read with either.

A setting that has come later is named in `later`: orbits have it only where it is not its default, so that a run that
does not use it has the orbit that it always had.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

from pydantic import BaseModel, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

_quietly: ContextVar[bool] = ContextVar("quietly", default=False)


class Renamed(BaseModel):
    """Base of settings; one that has renamed fields says so in `renamed` (old name -> new name).

    `later` has the fields that the first orbits did not have; their default is what happened then.
    """

    renamed: ClassVar[dict[str, str]] = {}
    later: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Check that `renamed` and `later` fit the fields. Raises TypeError."""
        super().__pydantic_init_subclass__(**kwargs)
        for old, new in old_names(cls).items():
            if new not in cls.model_fields or old in cls.model_fields:
                raise TypeError(f"{cls.__qualname__}.renamed: {old!r} -> {new!r} does not fit its fields")
        if missing := later_names(cls) - cls.model_fields.keys():
            raise TypeError(f"{cls.__qualname__}.later: it has no field {', '.join(sorted(missing))}")

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, data: Any) -> Any:
        """Old names become new ones; the values of both are an error."""
        old = old_names(cls)
        if not isinstance(data, Mapping) or not old.keys() & data.keys():
            return data
        for name in old.keys() & data.keys():
            if old[name] in data:
                raise _both(cls, name, old[name], data[name])
            if not _quietly.get():
                warnings.warn(f"{cls.__name__}: {changed(name, old[name])}", FutureWarning, stacklevel=4)
        return {old.get(name, name): value for name, value in data.items()}


def old_names(model: type[BaseModel]) -> dict[str, str]:
    """The names of a class' settings that have changed, its parents' included: old -> new."""
    names: dict[str, str] = {}
    for parent in reversed(model.__mro__):
        names.update(vars(parent).get("renamed", {}))
    return names


def later_names(model: type[BaseModel]) -> frozenset[str]:
    """The names of a class' settings that have come later, its parents' included."""
    return frozenset().union(*(vars(parent).get("later", frozenset()) for parent in model.__mro__))


def changed(old: str, new: str) -> str:
    """What is said of an old name."""
    return f"{old} is called {new} now; the old name works in this release only"


@contextmanager
def quietly() -> Iterator[None]:
    """Inside, old names are read without a word: what is read is a file with its own words for things."""
    token = _quietly.set(True)
    try:
        yield
    finally:
        _quietly.reset(token)


def orbit_dump(model: BaseModel) -> dict[str, Any]:
    """`model_dump` with the names that orbits have always had, in tables of tables too.

    Later settings are left out where they are as by default.
    """
    kind = type(model)
    orbits = {new: old for old, new in old_names(kind).items()}
    silent = {name for name in later_names(kind) if getattr(model, name) == kind.model_fields[name].default}
    return {
        orbits.get(name, name): _plain(getattr(model, name), value)
        for name, value in model.model_dump().items()
        if name not in silent
    }


def _plain(setting: Any, dumped: Any) -> Any:
    """A setting for `orbit_dump`: as dumped, but for the tables in it."""
    if isinstance(setting, BaseModel):
        return orbit_dump(setting)
    if isinstance(setting, list | tuple):
        return type(dumped)(_plain(a, b) for a, b in zip(setting, dumped, strict=True))
    if isinstance(setting, dict):
        return {key: _plain(value, dumped[key]) for key, value in setting.items()}
    return dumped


def _both(model: type[BaseModel], old: str, new: str, value: Any) -> ValidationError:
    text = PydanticCustomError("renamed", "{text}", {"text": f"{old} is the old name of {new}, which is given too"})
    details = InitErrorDetails(type=text, loc=(old,), input=value)
    return ValidationError.from_exception_data(model.__name__, [details])
