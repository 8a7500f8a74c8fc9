"""Classification as MeZO does it: a prompt, and a label word to choose for each class.

Malladi et al., "Fine-Tuning Language Models with Just Forward Passes", 2023: 1,000 examples for training and 500 for
validation from the train file, 1,000 for testing from the dev file, since labels of the test file are not public.
"""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import NonNegativeInt, PositiveInt

from fedseed.errors import RecipeError
from fedseed.randomness import Domain, permutation
from fedseed.tasks.base import Task
from fedseed.tasks.data import Choice, ClientData, TaskData
from fedseed.tasks.files import Record, data_folder, read_records

TRAIN, DEV = 0, 1  # separate the permutations of the two files


class Classification(Task):
    """Settings that all classification tasks share. A data set adds its name, its files and what a row becomes.

    Args:
        path: a folder with a train and a dev file.
        clients: data holders; the training examples are dealt to them at random (IID), as evenly as can be.
        examples: training examples of all clients together.
        validation: further examples of the train file, to choose settings on.
        evaluation: examples of the dev file, which the run reports on (all of it if it has fewer).
        evaluate_on: "test" (from the dev file), or "validation" while choosing settings.
        seed: draws and deals examples; apart from the run's seed, so that runs share their data.
    """

    hint: ClassVar[str]  # what the folder is and where it comes from
    train_files: ClassVar[Sequence[str]] = ("train.tsv", "train.jsonl")
    dev_files: ClassVar[Sequence[str]] = ("dev.tsv", "dev.jsonl", "validation.jsonl")

    path: str
    clients: PositiveInt = 5
    examples: PositiveInt = 1000
    validation: PositiveInt = 500
    evaluation: PositiveInt = 1000
    evaluate_on: Literal["test", "validation"] = "test"
    seed: NonNegativeInt = 0

    @abstractmethod
    def choice(self, row: Record) -> Choice:
        """What a row of the data set becomes.

        Raises:
            RecipeError: a field is missing or wrong.
        """

    def load(self) -> TaskData:
        """The clients' examples, dealt one by one, and the evaluation set.

        Raises:
            RecipeError: a file is missing or malformed, or has too few rows.
        """
        if self.clients > self.examples:
            raise RecipeError(f"task.clients = {self.clients}: there are {self.examples} examples to deal")
        folder = data_folder(self.path, self.hint)
        train, dev = self._read(folder, self.train_files), self._read(folder, self.dev_files)
        wanted = self.examples + self.validation
        if wanted > len(train):
            raise RecipeError(
                f"task.examples = {self.examples} and task.validation = {self.validation}: "
                f"{wanted} rows are needed, the train file in {folder} has {len(train)}"
            )
        order = [train[i] for i in permutation(self.seed, Domain.PARTITION, len(train), TRAIN)]
        held, validation = order[: self.examples], order[self.examples : wanted]
        test = [dev[i] for i in permutation(self.seed, Domain.PARTITION, len(dev), DEV)[: self.evaluation]]
        clients = [ClientData(f"client-{i + 1:02d}", held[i :: self.clients]) for i in range(self.clients)]
        notes = (
            f"{self.examples:,} training and {self.validation:,} validation examples of {len(train):,} in the train "
            f"file, {len(test):,} test examples of {len(dev):,} in the dev file",
        )
        evaluation = validation if self.evaluate_on == "validation" else test
        return TaskData(clients, {"": evaluation}, validation, notes)

    def _read(self, folder: Path, names: Sequence[str]) -> list[Choice]:
        for name in names:
            if (folder / name).is_file():
                choices = [self.choice(row) for row in read_records(folder / name)]
                if not choices:
                    raise RecipeError(f"{folder / name}: it has no row")
                return choices
        raise RecipeError(f'task.path = "{self.path}": the folder has no {" or ".join(names)}; {self.hint}')
