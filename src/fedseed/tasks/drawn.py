"""Tasks drawn from the files of one data set: training and validation examples from one, tests from another.

Those that a prompt makes, with an answer among a few words, are rows of text_tasks.toml.
"""

import re
import tomllib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import PositiveInt

from fedseed.errors import RecipeError
from fedseed.randomness import Domain, derive, permutation
from fedseed.tasks.dealt import DealtTask, Labelled, Parts
from fedseed.tasks.files import Record, data_folder, read_records

TRAIN, TEST, DEAL = 0, 1, 1000  # separate the draws from the files, and the partition
Files = Mapping[str, Sequence[str]]
T = TypeVar("T", bound="DrawnTask")

# how a prompt writes a field, "{name:form}"
FORMS: Mapping[str, Callable[[str], str]] = {
    "": str,
    "strip": str.strip,
    "question": lambda text: _capital(text.rstrip().removesuffix("?")),
    "first": str.strip,
    "second": str.strip,
}


class DrawnTask(DealtTask):
    """Settings that all tasks share which draw examples from a data set's files: those of `DealtTask`, and the files.

    A data set adds its name, its files and what a row becomes; a family of data sets, how training and validation
    examples are drawn. Partitions go by the class, unless a data set has something else.

    Args:
        path: a folder with the data set's files.
        evaluation: examples that the run reports on (all there are, if fewer).
    """

    hint: ClassVar[str]  # what the folder is and where it comes from
    train_files: ClassVar[Sequence[str]]  # the first one that is there counts
    test_files: ClassVar[Files]  # the same for test examples, by prefix of the metrics' names
    test_is: ClassVar[str] = "dev"  # what the test examples' file is called; official test files often have no labels
    prompt: ClassVar[str] = ""  # of tasks that text_tasks.toml has, as are these
    classes: ClassVar[Sequence[str]] = ()  # as the files have them
    label: ClassVar[str] = "label"  # the field with the class
    left_out: ClassVar[str] = ""  # why a row may become no example
    scores: ClassVar[tuple[str, ...]] = ()

    path: str
    evaluation: PositiveInt = 1000

    @abstractmethod
    def examples_of(self, row: Record) -> Iterable[Any]:
        """Returns what a row becomes: usually one example; none if it can't be used.

        Raises:
            RecipeError: a field is missing or wrong.
        """

    @abstractmethod
    def draw(self, rows: Sequence[Labelled], place: str) -> tuple[list[Labelled], list[Labelled], str]:
        """Returns training examples, validation examples, and a line about them.

        Args:
            rows: the train file's examples in a random order.
            place: the folder, for messages.

        Raises:
            RecipeError: there are too few.
        """

    @abstractmethod
    def label_of(self, row: Record, example: Any) -> str:
        """Returns what partitions go by."""

    def records(self, path: Path) -> Iterable[Record]:
        """Returns the rows of a file."""
        return read_records(path)

    @property
    def dealing_seed(self) -> int:
        return derive(self.seed, Domain.PARTITION, direction=DEAL)

    def parts(self) -> Parts:
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
        return Parts(held, [row.example for row in validation], tests, notes)

    def _read(self, folder: Path, names: Sequence[str]) -> tuple[list[Labelled], int]:
        """Returns the examples of a file, and how many of its rows became none."""
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


def class_of(row: Record, classes: Sequence[str], field: str = "label") -> int:
    """Returns the number of a row's class.

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


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def filled(prompt: str, row: Record, forms: Mapping[str, Callable[[str], str]] = FORMS) -> str:
    """Returns a prompt with a row's fields in it: "{name}", "{object.name}" or "{name:form}".

    Args:
        prompt: as text_tasks.toml has it.
        row: a row.
        forms: how fields are written.

    Raises:
        RecipeError: a field is missing or no text.
    """

    def found(match: re.Match[str]) -> str:
        *objects, name = match[1].split(".")
        inside = row
        for item in objects:
            inside = inside.record(item)
        return forms[match[2] or ""](inside.field(name, str))

    return re.sub(r"{([\w.]+)(?::(\w+))?}", found, prompt)


def prompted(base: type[T], table: str) -> list[type[T]]:
    """Returns the tasks of a table of text_tasks.toml, in its order: subclasses of `base`."""
    text = resources.files(__package__).joinpath("text_tasks.toml").read_text(encoding="utf-8")
    made: list[type[T]] = []
    meta: Any = type(base)
    for name, said in tomllib.loads(text)[table].items():
        sizes = said.pop("sizes", {})
        body = {
            **{key: tuple(value) if isinstance(value, list) else value for key, value in said.items()},
            **{"name": name, **sizes, "__module__": base.__module__},
            "__annotations__": {"name": Literal[name], **dict.fromkeys(sizes, PositiveInt)},
            "__doc__": f'Settings of the "{name}" task: those of `{base.__name__}`.',
        }
        made.append(meta(body.pop("class"), (base,), body))
    return made
