"""What a task is: settings that say where data comes from and how it is dealt to clients."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import replace
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from fedseed.tasks.data import TaskData


class Task(BaseModel, ABC):
    """Settings of one task. Subclasses stand in a file each, and their names in a recipe's `[task]`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: str
    about: ClassVar[str]  # one line for `fedseed list tasks`

    @abstractmethod
    def load(self) -> TaskData:
        """The clients' examples and the evaluation sets: the same on every call.

        Raises:
            RecipeError: the data can't be had, or does not fit the settings.
        """

    # -- over a network, where nobody should open another's data ------------------------------------------------------

    def client_names(self) -> list[str] | None:
        """The clients' names, in order, without opening any data; None: only the data says.

        Raises:
            RecipeError: the place of the data does not fit the settings.
        """
        return None

    def load_clients(self, names: Collection[str]) -> TaskData:
        """Some clients' examples, the same as `load` gives them; the data of others is not kept.

        A task whose clients' data lies in a file each opens no other files than theirs.

        Args:
            names: the clients.

        Raises:
            RecipeError: the data can't be had, or does not fit the settings.
        """
        return self.load().only(names)

    def load_evaluation(self, names: Collection[str]) -> TaskData:
        """The evaluation sets, without clients, for a process that hosts some clients.

        Args:
            names: the clients; where each holds out some of its own examples, those of others are not opened.

        Raises:
            RecipeError: the data can't be had, or does not fit the settings.
        """
        return replace(self.load(), clients=())
