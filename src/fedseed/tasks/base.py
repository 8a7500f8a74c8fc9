"""The interface of tasks: settings for where data comes from and how it is dealt to clients."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from fedseed.errors import RecipeError
from fedseed.hinting import Hinting
from fedseed.tasks.data import OwnData, TaskData


class Task(BaseModel, ABC, metaclass=Hinting):
    """Settings of one task.

    Each subclass has its own file. A recipe's `[task]` table selects one by its name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: str
    about: ClassVar[str]  # one line for `fedseed list tasks`
    # whether a client may have its own data, see `load_own`
    own_data: ClassVar[bool] = False

    @abstractmethod
    def load(self) -> TaskData:
        """Return clients' examples and evaluation sets. Every call returns the same.

        Raises RecipeError if the data can't be loaded.
        """

    def client_names(self) -> list[str] | None:
        """Return the clients' names in order without opening the data; None: only the data has the
        names.

        Raises the errors of `load`.
        """
        return None

    def load_part(self, names: Collection[str], evaluate: bool) -> TaskData:
        """Return only the part of `load`'s data that a process with these clients needs.

        Other clients' data is not kept in memory.

        If each client's data has its own file, only the files of these clients are opened.

        Args:
            names: the clients.
            evaluate: if true, return the evaluation sets without clients' examples. If each client
                holds out some of its own examples, these are the sets. If false, return the
                clients' examples without evaluation sets.

        Raises:
            RecipeError: the data can't be loaded, or does not fit the settings.
        """
        data = self.load()
        if evaluate:
            return replace(data, clients=())
        return data.select_clients(names)

    @property
    def each_its_own(self) -> bool:
        """Return whether each client chooses the path of its own data."""
        return False

    def names_here(self) -> list[str] | None:
        """Return the names of the clients whose data is on this machine, if a site may see only its
        own.

        None: every site sees all data.
        """
        return None

    @property
    def shares_evaluation(self) -> bool:
        """Return whether all clients are evaluated on the same examples.

        If not, each client is evaluated on its own held-out examples.
        """
        return True

    def load_shared(self, file: Path | None = None) -> TaskData:
        """Return the evaluation sets that all parties share, without clients' examples.

        Args:
            file: their file on this machine; None: the file in the settings.

        Raises:
            RecipeError: they can't be loaded.
        """
        return self.load_part((), evaluate=True)

    def load_own(self, name: str, own_data: OwnData, alone: bool = True) -> TaskData:
        """Return one client's own examples, including those that it holds out.

        Args:
            name: the client's name.
            own_data: the path of its data.
            alone: whether the path has only this client's data.

        Raises:
            RecipeError: the data can't be loaded or does not fit the settings, or clients of this
                task can't have their own data.
        """
        raise RecipeError(
            f'task.name = "{self.name}": clients of this task can\'t have their own data'
        )

    def place_of_own(self, name: str, own_data: OwnData, alone: bool = True) -> str:
        """Return the file or folder with one client's own data; "" if no path is set.

        The arguments are those of `load_own`.

        Raises:
            RecipeError: there is no such file or folder.
        """
        return ""
