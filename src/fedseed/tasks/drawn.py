"""Tasks whose examples are drawn from the files of one data set and dealt to clients by a partition."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt

from fedseed.errors import RecipeError
from fedseed.randomness import Domain, derive, permutation
from fedseed.randomness.seed import Seed
from fedseed.tasks.base import Task
from fedseed.tasks.data import ClientData, TaskData
from fedseed.tasks.files import Record, data_folder, read_records
from fedseed.tasks.instruction_data import Labelled, deal_clients, names_dealt
from fedseed.tasks.partition import IID, AnyPartition, ByField

TRAIN, TEST, DEAL = 0, 1, 1000  # separate the draws from the files, and the partition
CLIENTS = 5  # as in FeedSign's experiments
Files = Mapping[str, Sequence[str]]


class DrawnTask(Task):
    """Settings that all tasks share which draw examples from a data set's files.

    A data set adds its name, its files and what a row becomes; a family of data sets, how training and validation
    examples are drawn.

    Args:
        path: a folder with the data set's files.
        clients: data holders; None: 5, or as many as `partition.field` has values.
        partition: how the training examples are dealt to them; its labels are the classes.
        evaluation: examples that the run reports on (all there are, if fewer).
        evaluate_on: "test" (from the file that is not trained on), or "validation" while choosing settings.
        seed: draws and deals examples; apart from the run's seed, so that runs share their data.
    """

    hint: ClassVar[str]  # what the folder is and where it comes from
    train_files: ClassVar[Sequence[str]]  # the first one that is there counts
    test_files: ClassVar[Files]  # the same for test examples, by prefix of the metrics' names
    test_is: ClassVar[str] = "dev"  # what the test examples' file is called; official test files often have no labels
    label_field: ClassVar[str] = "label"  # what a partition by field may name
    left_out: ClassVar[str] = ""  # why a row may become no example
    scores: ClassVar[tuple[str, ...]] = ()  # how generated answers are scored

    path: str
    clients: PositiveInt | None = None
    partition: AnyPartition = IID()
    evaluation: PositiveInt = 1000
    evaluate_on: Literal["test", "validation"] = "test"
    seed: Seed = 0

    @abstractmethod
    def examples_of(self, row: Record) -> Iterable[Any]:
        """What a row becomes: usually one example; none if it can't be used.

        Raises:
            RecipeError: a field is missing or wrong.
        """

    @abstractmethod
    def draw(self, rows: Sequence[Labelled], place: str) -> tuple[list[Labelled], list[Labelled], str]:
        """Training examples, validation examples, and a line about them.

        Args:
            rows: the train file's examples in a random order.
            place: the folder, for messages.

        Raises:
            RecipeError: there are too few.
        """

    def records(self, path: Path) -> Iterable[Record]:
        """The rows of a file."""
        return read_records(path)

    @abstractmethod
    def label_of(self, row: Record, example: Any) -> str:
        """What partitions go by: the class, unless a data set has something else."""

    def client_names(self) -> list[str] | None:
        """By their numbers, or the values of a field."""
        return names_dealt(self.partition, self.clients, CLIENTS)

    def load(self) -> TaskData:
        """The clients' examples and the evaluation sets.

        Raises:
            RecipeError: a file is missing or malformed, has too few rows, or they can't be dealt as asked.
        """
        folder = data_folder(self.path, self.hint)
        train, missed = self._read(folder, self.train_files)
        order = [train[i] for i in permutation(self.seed, Domain.PARTITION, len(train), TRAIN)]
        held, validation, about = self.draw(order, str(folder))
        tests, counts = {}, []
        for number, (prefix, names) in enumerate(self.test_files.items()):
            rows, more = self._read(folder, names)
            drawn = permutation(self.seed, Domain.PARTITION, len(rows), TEST + number)[: self.evaluation]
            tests[prefix] = [rows[i].example for i in drawn]
            kind = f"{prefix.rstrip('_')} test" if prefix else "test"
            counts.append(f"{len(drawn):,} {kind} examples of {len(rows):,}")
            missed += more
        notes = [f"{about}, {', '.join(counts)} in the {self.test_is} file"]
        if missed:
            notes.append(f"{missed:,} rows left out ({self.left_out})")
        chosen = [row.example for row in validation]
        return TaskData(
            self._deal(held),
            {"": chosen} if self.evaluate_on == "validation" else tests,
            chosen,
            tuple(notes),
            scores=self.scores,
        )

    def _read(self, folder: Path, names: Sequence[str]) -> tuple[list[Labelled], int]:
        """The examples of a file, and how many of its rows became none."""
        path = next((folder / name for name in names if (folder / name).is_file()), None)
        if path is None:
            raise RecipeError(f'task.path = "{self.path}": the folder has no {" or ".join(names)}; {self.hint}')
        found, missed = [], 0
        for row in self.records(path):
            examples = list(self.examples_of(row))
            found += [Labelled(example, self.label_of(row, example)) for example in examples]
            missed += not examples
        if not found:
            raise RecipeError(f"{path}: it has no row that can be used" if missed else f"{path}: it has no row")
        return found, missed

    def _deal(self, held: Sequence[Labelled]) -> list[ClientData]:
        if isinstance(self.partition, ByField) and self.partition.field != self.label_field:
            known = f'"{self.name}" has "{self.label_field}"'
            raise RecipeError(f'task.partition.field = "{self.partition.field}": {known}')
        seed = derive(self.seed, Domain.PARTITION, direction=DEAL)
        return deal_clients(held, self.partition, self.clients, CLIENTS, seed)


def class_of(row: Record, classes: Sequence[str], field: str = "label") -> int:
    """The number of a row's class.

    Args:
        row: a row.
        classes: the classes' names as the original file has them, in the order of their numbers. A number is taken as
            well, as copies of a data set in another format have it; so are JSON's true and false where these are names.
        field: the field with the class.

    Raises:
        RecipeError: the field is missing or no class.
    """
    value = row.field(field, (str, int, bool) if "true" in classes else (str, int))
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if text in classes:
        return classes.index(text)
    if text.isdecimal() and int(text) < len(classes):
        return int(text)
    names = list(dict.fromkeys([*classes, *map(str, range(len(classes)))]))
    raise RecipeError(f'{row.where}: "{field}" = {value!r}: {", ".join(names[:-1])} or {names[-1]} is expected')
