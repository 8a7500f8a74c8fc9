"""Constructors of settings that say what a misspelt argument most likely means.

`FedAvg(learning_rat=0.1)` names the argument that is closest, as a recipe does of its keys.
"""

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from fedseed.errors import closest

if TYPE_CHECKING:
    # the type checker knows a class' arguments only without a metaclass that is called
    from pydantic._internal._model_construction import ModelMetaclass

    Hinting = ModelMetaclass
else:

    class Hinting(type(BaseModel)):
        """The metaclass of settings that Python code makes directly."""

        def __call__(cls, *args: Any, **arguments: Any) -> Any:
            """Make an instance.

            Raises:
                ValidationError: an argument is wrong; of an unknown one it says which is closest.
            """
            try:
                return super().__call__(*args, **arguments)
            except ValidationError as error:
                if all(problem["type"] != "extra_forbidden" for problem in error.errors()):
                    raise
                raise with_hints(cls, error) from None


def with_hints(model: type[BaseModel], error: ValidationError) -> ValidationError:
    """Return an error whose unknown arguments come with the closest known one, and all there are.

    Args:
        model: the class that was to be made.
        error: what pydantic says.
    """
    details: list[InitErrorDetails] = []
    for problem in error.errors(include_url=False):
        if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
            field_names = [field.alias or name for name, field in model.model_fields.items()]
            near = closest(problem["loc"][0], field_names)
            question = ""
            if near:
                question = f"did you mean {near}? "
            text = f"unknown argument; {question}{model.__name__} has {', '.join(field_names)}"
        else:
            text = problem["msg"]
        details.append(
            InitErrorDetails(
                type=PydanticCustomError(problem["type"], "{text}", {"text": text}),
                loc=problem["loc"],
                input=problem["input"],
            )
        )
    return ValidationError.from_exception_data(error.title, details)
