"""What a task is: settings that say where data comes from and how it is dealt to clients."""

from abc import ABC, abstractmethod
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from fedseed.tasks.data import TaskData


class Task(BaseModel, ABC):
    """Settings of one task. Subclasses stand in a file each, and their names in a recipe's `[task]`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    about: ClassVar[str]  # one line for `fedseed list tasks`

    @abstractmethod
    def load(self) -> TaskData:
        """The clients' examples and the evaluation sets: the same on every call.

        Raises:
            RecipeError: the data can't be had, or does not fit the settings.
        """
