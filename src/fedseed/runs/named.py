"""Tables of a recipe whose name says which class they are, looked up when they are read: others can add some."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from fedseed.registry import Registry


@dataclass(frozen=True)
class ByName:
    """Marks a field whose value is made by the class of a registry that its `name` says.

    Args:
        registry: the classes.
        base: what all of them are.
        default: the name of a table without one; None: it must have one.
    """

    registry: Registry[Any]
    base: type[BaseModel]
    default: str | None = None

    def __hash__(self) -> int:
        return id(self.registry)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._read)

    def models(self) -> list[type[BaseModel]]:
        """All classes, the default first."""
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
            raise PydanticCustomError("missing_name" if name is None else "unknown_name", "unknown name", known)
        made: BaseModel = kind.model_validate({"name": name, **value})  # its errors become this field's
        return made
