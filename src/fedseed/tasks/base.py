"""The interface of tasks: settings for the source of data and for dealing it to clients."""

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

    Subclasses stand in a file each, and their names in a recipe's `[task]`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: str
    about: ClassVar[str]  # one line for `fedseed list tasks`
    # whether a client may have data of its own: `load_own`
    own_data: ClassVar[bool] = False

    @abstractmethod
    def load(self) -> TaskData:
        """Return clients' examples and evaluation sets, the same on every call.

        Raises RecipeError if the data can't be had.
        """

    def client_names(self) -> list[str] | None:
        """Return the clients' names in order, without opening data; None: the data has them.

        Raises as `load`.
        """
        return None

    def load_part(self, names: Collection[str], evaluate: bool) -> TaskData:
        """Return the part of `load`'s data that a process hosting some clients needs.

        That of others is not kept.

        A task whose clients' data lies in a file each opens no other files than theirs.

        Args:
            names: the clients.
            evaluate: the evaluation sets, without clients; of clients that each hold out some of
                their own examples, what these hold out. Otherwise the clients' examples, without
                evaluation sets.

        Raises:
            RecipeError: the data can't be had, or does not fit the settings.
        """
        data = self.load()
        if evaluate:
            return replace(data, clients=())
        return data.select_clients(names)

    @property
    def each_its_own(self) -> bool:
        """Return whether the settings let each client choose where its data lies."""
        return False

    def names_here(self) -> list[str] | None:
        """Return clients' names by what lies here, where a site may see its own data only.

        None: each sees all.
        """
        return None

    @property
    def shares_evaluation(self) -> bool:
        """Return whether all clients are evaluated on the same examples.

        Else each client is on what it holds out.
        """
        return True

    def load_shared(self, file: Path | None = None) -> TaskData:
        """Return the evaluation sets of parties that share them, without clients.

        Args:
            file: where they lie here; None: where the settings say.

        Raises:
            RecipeError: they can't be had.
        """
        return self.load_part((), evaluate=True)

    def load_own(self, name: str, own_data: OwnData, alone: bool = True) -> TaskData:
        """Return one client's own examples, and what it holds out of them.

        Args:
            name: the client.
            own_data: where its data lies.
            alone: whether nobody else's data lies there.

        Raises:
            RecipeError: the data can't be had, or does not fit the settings; or this task has no
                such data.
        """
        raise RecipeError(f'task.name = "{self.name}": its clients have no data of their own')

    def place_of_own(self, name: str, own_data: OwnData, alone: bool = True) -> str:
        """Return the file or folder with one client's own data; "": no path is set.

        Args: as of `load_own`.

        Raises:
            RecipeError: it is not there.
        """
        return ""
