"""MeZO's text tasks from their original files: eleven for language models, six for masked language
models.

Malladi et al., "Fine-Tuning Language Models with Just Forward Passes", 2023. SST-2, eight tasks of
SuperGLUE (Wang et al., 2019), SQuAD v1.1 and DROP: 1,000 examples for training and 500 for
validation from the train file, 1,000 for testing from the dev file, since labels of the test file
are not public. SQuAD and DROP train with teacher forcing on the first answer; generated answers are
scored by F1, the best over all answers. A response ends with a line break: MeZO trains on it
instead of an end-of-sequence token, and generates up to it.

Its RoBERTa experiments take prompts and label words from LM-BFF (Gao, Fisch, Chen, "Making
Pre-trained Language Models Better Few-shot Learners", 2021): for each class k examples for training
and k for validation, drawn by seed, and 1,000 for testing.

Prompts, classes, words and file names are in text_tasks.toml. Files are GLUE's and SNLI's tables,
jsonl or nested JSON; the Stanford Sentiment Treebank's trees (one tree in each line, with the class
at its root); TREC's label files (in Latin-1: "DESC:manner How did ..."); or LM-BFF's csv files
without a header: class, text.
"""

import re
import tomllib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt, create_model

from fedseed.errors import RecipeError
from fedseed.randomness import Domain, derive, permutation
from fedseed.tasks.data import MASK, Choice, Cloze, Example, TaskData
from fedseed.tasks.dealt import DealtTask, Labelled
from fedseed.tasks.files import FileRow, data_folder, read_json, read_records, read_text

# separate draws for the examples from the files and for the partition
TRAIN, TEST, DEAL = 0, 1, 1000
NO_LABEL = "-"  # label of a row whose annotators did not agree
Files = Mapping[str, Sequence[str]]

# how a prompt writes a field "{name:form}": a function, or a text for each value of the field
FORMS: dict[str, Callable[[str], str] | dict[str, str]] = {
    "": str,
    "strip": str.strip,
    "question": lambda text: (
        (question := text.rstrip().removesuffix("?"))[:1].upper() + question[1:]
    ),
    "clause": lambda text: text.rstrip().removesuffix("."),
    "after": lambda text: text if text.split(" ")[0] == "I" else text[:1].lower() + text[1:],
    "link": {"cause": "because", "effect": "so"},
}


class DrawnTask(DealtTask):
    """Settings common to all tasks that draw examples from a data set's files: those of
    `DealtTask`, and the files.

    The class of a data set adds its name, its files and how a row becomes an example. The class of
    a family of data sets adds how training and validation examples are drawn. Partitions use the
    class, unless a data set has another label.

    Args:
        path: a folder with the data set's files.
        evaluation: number of examples to evaluate on (all, if there are fewer).
    """

    hint: ClassVar[str]  # what the folder is, and its source
    train_files: ClassVar[Sequence[str]]  # the first one that exists is used
    # test files, by prefix of the metrics' names; the first one that exists is used
    test_files: ClassVar[Files]
    # the name of the test examples' file in messages; official test files often have no labels
    test_is: ClassVar[str] = "dev"
    # where a file's object has its rows (`_rows_in`)
    rows: ClassVar[str] = ""
    prompt: ClassVar[str] = ""
    classes: ClassVar[Sequence[str]] = ()  # as in the files
    label: ClassVar[str] = "label"  # the field with the class
    left_out: ClassVar[str] = ""  # why a row may be left out
    scores: ClassVar[tuple[str, ...]] = ()

    path: str
    evaluation: PositiveInt = 1000

    @abstractmethod
    def example_of(self, row: FileRow) -> Labelled | None:
        """Return the example made from a row, with its partition labels; None if it can't be used.

        Raises the errors of `load`.
        """

    @abstractmethod
    def draw(self, rows: Sequence[Labelled]) -> tuple[Sequence[Labelled], Sequence[Labelled], str]:
        """Return training examples, validation examples, and a note about them.

        Args:
            rows: the train file's examples in a random order.

        Raises:
            RecipeError: there are too few rows.
        """

    @property
    def dealing_seed(self) -> int:
        return derive(self.seed, Domain.PARTITION, direction=DEAL)

    def parts(self) -> tuple[Sequence[Labelled], TaskData]:
        folder = data_folder(self.path, self.hint)
        train, missed = self._read_file(folder, self.train_files)
        order = [train[i] for i in permutation(self.seed, Domain.PARTITION, len(train), TRAIN)]
        client_numbers, validation, draw_notes = self.draw(order)
        drawn = f"{len(client_numbers):,} training and {len(validation):,} validation examples"
        tests, counts = {}, [f"{drawn} of {len(train):,} in the train file{draw_notes}"]
        for number, (prefix, names) in enumerate(self.test_files.items()):
            rows, reading_notes = self._read_file(folder, names)
            order_drawn = permutation(self.seed, Domain.PARTITION, len(rows), TEST + number)[
                : self.evaluation
            ]
            tests[prefix] = [rows[i].example for i in order_drawn]
            kind = "test"
            if prefix:
                kind = f"{prefix.rstrip('_')} test"
            counts.append(f"{len(order_drawn):,} {kind} examples of {len(rows):,}")
            missed += reading_notes
        notes = [f"{', '.join(counts)} in the {self.test_is} file"]
        if missed:
            notes.append(f"{missed:,} rows left out ({self.left_out})")
        return client_numbers, TaskData(
            (), tests, [row.example for row in validation], tuple(notes)
        )

    def _read_file(self, folder: Path, names: Sequence[str]) -> tuple[list[Labelled], int]:
        """Return the examples of a file, and how many of its rows could not be used."""
        path = next((folder / name for name in names if (folder / name).is_file()), None)
        if path is None:
            raise RecipeError(
                f'task.path = "{self.path}": the folder does not have {" or ".join(names)}; '
                f"{self.hint}"
            )
        read_file = READERS.get(path.suffix, read_records)
        inside = list(filter(None, self.rows.split(".")))
        rows = chain.from_iterable(_rows_in(whole, inside) for whole in read_file(path))
        examples = [self.example_of(row) for row in rows]
        usable = [one for one in examples if one is not None]
        if not usable:
            raise RecipeError(f"{path}: the file has no {'usable ' if examples else ''}row")
        return usable, len(examples) - len(usable)


def _rows_in(whole: FileRow, place: Sequence[str]) -> Iterator[FileRow]:
    """Yield the objects at a path inside another object (text_tasks.toml), each with the fields of
    the objects around it.
    """
    if not place:
        yield whole
        return
    name, *rest = place
    if name == "*":  # every value of an object of objects
        records = []
        for key in whole.values:
            one = whole.record(key)
            records.append(FileRow(one.place, {"key": key, **one.values}))
    else:
        if isinstance(whole.values.get(name), dict):
            inner_rows = [whole.record(name)]
        else:
            inner_rows = whole.records(name)
        records = [FileRow(one.place, {**whole.values, **one.values}) for one in inner_rows]
    for one in records:
        yield from _rows_in(one, rest)


def _class_of(row: FileRow, classes: Sequence[str], field: str) -> int:
    """Return the number of a row's class, given by name, or by number as in copies in other
    formats.
    """
    # a JSON true may stand for a class with that name
    value = row.field(field, (str, int, bool) if "true" in classes else (str, int))
    text = str(value).lower() if isinstance(value, bool) else str(value).strip()
    if text in classes:
        return classes.index(text)
    if text.isdecimal() and int(text) < len(classes):
        return int(text)
    names = list(dict.fromkeys([*classes, *map(str, range(len(classes)))]))
    raise RecipeError(
        f'{row.place}: "{field}" = {value!r}: expected {", ".join(names[:-1])} or {names[-1]}'
    )


def _filled(prompt: str, row: FileRow) -> str:
    """Return a prompt with a row's fields filled in: "{name}", "{object.name}" or "{name:form}"."""

    def fill(match: re.Match[str]) -> str:
        *objects, name = match[1].split(".")
        inside = reduce(FileRow.record, objects, row)
        text, form = inside.field(name, str), FORMS[match[2] or ""]
        if callable(form):
            return form(text)
        if text not in form:
            raise RecipeError(f'{inside.place}: "{name}" = {text!r}: expected {" or ".join(form)}')
        return form[text]

    return re.sub(r"{([\w.]+)(?::(\w+))?}", fill, prompt)


def _prompted(
    table: str, base: type[DrawnTask], **others: type[DrawnTask]
) -> tuple[type[DrawnTask], ...]:
    """Return the tasks of a table in text_tasks.toml, in order: subclasses of `base`, or of the
    class that they name.
    """
    text = resources.files(__package__).joinpath("text_tasks.toml").read_text(encoding="utf-8")
    tasks: list[Any] = []
    for name, settings in tomllib.loads(text)[table].items():
        sizes, kind = settings.pop("sizes", {}), others.get(settings.pop("base", ""), base)
        fields: dict[str, Any] = {size: (PositiveInt, count) for size, count in sizes.items()}
        fields["name"] = (Literal[name], name)
        description = f'Settings of the "{name}" task: those of `{kind.__name__}`.'
        task = create_model(
            f"{name}Task", __base__=kind, __doc__=description, __module__=__name__, **fields
        )
        for key, value in settings.items():
            setattr(task, key, tuple(value) if isinstance(value, list) else value)
        tasks.append(task)
    return tuple(tasks)


class MeZOTask(DrawnTask):
    """Settings of MeZO's tasks: those of `DrawnTask`, and the numbers of examples.

    Args:
        examples: number of training examples of all clients together.
        validation: number of further examples of the train file, for choosing settings.
    """

    train_files: ClassVar[Sequence[str]] = ("train.jsonl",)
    test_files: ClassVar[Files] = {"": ("val.jsonl", "validation.jsonl", "dev.jsonl")}
    # the possible answers; they may contain fields, like a prompt
    options: ClassVar[Sequence[str]] = ()
    teacher_forcing: ClassVar[bool] = False
    # the right option of each class, if the options are in another order
    gold: ClassVar[Sequence[int]] = ()
    # a classifier's input instead of the prompt
    text: ClassVar[str] = ""

    examples: PositiveInt = 1000
    validation: PositiveInt = 500

    def draw(self, rows: Sequence[Labelled]) -> tuple[Sequence[Labelled], Sequence[Labelled], str]:
        count = self.examples + self.validation
        if count > len(rows):
            raise RecipeError(
                f"task.examples = {self.examples} and task.validation = {self.validation}: "
                f"{count} rows are needed, but the train file in {self.path} has {len(rows)}"
            )
        return rows[: self.examples], rows[self.examples : count], ""

    def example_of(self, row: FileRow) -> Labelled | None:
        """Partitions go by the right option.

        If every example has its own options, they use the option's number.
        """
        prompt, options = (
            _filled(self.prompt, row),
            tuple(_filled(option, row) for option in self.options),
        )
        number = _class_of(row, self.classes, self.label)
        gold = number
        if self.gold:
            gold = self.gold[number]
        choice = Choice(prompt, options, gold, (), self.teacher_forcing, _filled(self.text, row))
        return Labelled(choice, str(gold) if self.teacher_forcing else options[gold].strip())


class AnswerTask(MeZOTask):
    """Settings of the tasks with generated answers: those of `MeZOTask`.

    Partitions use the label that `by` names.
    """

    # the fields with answers; those after the first may be missing
    answers: ClassVar[Sequence[str]]
    by: ClassVar[str]

    def example_of(self, row: FileRow) -> Labelled | None:
        prompt, (first, *others) = _filled(self.prompt, row), self.answers
        fields_given = (first, *(name for name in others if name in row.values))
        texts = chain.from_iterable(_answers(row, name) for name in fields_given)
        answer_texts = [text for text in texts if text]
        if not answer_texts:
            return None
        example = Example(
            prompt, f" {answer_texts[0]}", tuple(dict.fromkeys(answer_texts)), stop="\n"
        )
        return Labelled(example, row.field(self.by, str))


def _answers(row: FileRow, name: str) -> Iterator[str]:
    """Yield the answers of a field, an object or a list of them, as text.

    Yields "" for a DROP answer that is empty.
    """
    for answer in (
        row.records(name) if isinstance(row.values.get(name), list) else [row.record(name)]
    ):
        values = answer.values
        if "text" in values:
            yield answer.field("text", str)
        elif str(values.get("number", "")):
            yield str(answer.field("number", (str, int, float)))
        elif values.get("spans"):
            yield ", ".join(map(str, answer.field("spans", list)))
        else:
            date: Mapping[str, Any] = {}
            if "date" in values:
                date = answer.record("date").values
            yield " ".join(str(date[part]) for part in ("day", "month", "year") if date.get(part))


class EntityTask(MeZOTask):
    """Settings of the "record" task: those of `MeZOTask`.

    Every entity that is an answer counts as right.
    """

    def example_of(self, row: FileRow) -> Labelled | None:
        passage = row.record("passage")
        text = passage.field("text", str)
        entities = []
        for entity in passage.records("entities"):
            # the end is inclusive
            start, end = entity.field("start", int), entity.field("end", int)
            if not 0 <= start <= end < len(text):
                raise RecipeError(
                    f"{entity.place}: {start} to {end} is outside the text of {len(text)} "
                    "characters"
                )
            entities.append(text[start : end + 1])
        names = tuple(dict.fromkeys(entities))  # each name once, in the order of the text
        query = row.field("query", str)
        answers = {answer.field("text", str) for answer in row.records("answers")}
        right = tuple(i for i, name in enumerate(names) if name in answers)
        if not right:
            return None
        options = tuple(" " + query.replace("@placeholder", name) for name in names)
        prompt = text.replace("@highlight\n", "- ") + "\n-"
        return Labelled(
            Choice(prompt, options, right[0], right, teacher_forcing=True), str(right[0])
        )


class ClozeTask(DrawnTask):
    """Settings of the few-shot tasks: those of `DrawnTask`, and the number of examples of each
    class.

    Args:
        k: number of training examples of each class, of all clients together, and the same number
            for choosing settings. If a class has fewer rows, training gets them first.
    """

    words: ClassVar[Sequence[str]]  # one for each class, each with a leading space

    k: PositiveInt = 16

    def example_of(self, row: FileRow) -> Labelled | None:
        if row.field(self.label, (str, int)) == NO_LABEL:
            return None
        text = _filled(self.prompt, row)
        if text.count(MASK) != 1:
            raise RecipeError(f"{row.place}: its text has {MASK} in it")
        gold = _class_of(row, self.classes, self.label)
        return Labelled(Cloze(text, tuple(self.words), gold), self.words[gold].strip())

    def draw(self, rows: Sequence[Labelled]) -> tuple[Sequence[Labelled], Sequence[Labelled], str]:
        """Return the first k rows of each class for training and the next k for validation, in
        their order.
        """
        count_by_label: Counter[int] = Counter()
        halves: tuple[list[Labelled], list[Labelled]] = [], []
        for row in rows:
            gold = row.example.gold
            if count_by_label[gold] < 2 * self.k:
                halves[count_by_label[gold] // self.k].append(row)
                count_by_label[gold] += 1
        for label, word in enumerate(self.words):
            if not count_by_label[label]:
                raise RecipeError(
                    f'task.path = "{self.path}": the train file has no row of class {label} '
                    f"({word[1:]})"
                )
        scarce = [
            f"{word[1:]} {count_by_label[label]:,}"
            for label, word in enumerate(self.words)
            if count_by_label[label] < 2 * self.k
        ]
        note = ""
        if scarce:
            note = f" (fewer than 2 x {self.k} rows: {', '.join(scarce)})"
        return *halves, note


def _lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_text(path, encoding=encoding).split("\n"), 1):
        if line.strip():
            yield f"{path} line {number}", line.strip()


def _trees(path: Path) -> Iterator[FileRow]:
    """Yield the sentences of a treebank, each with the class of its root."""
    brackets = {"-LRB-": "(", "-RRB-": ")"}
    for place, line in _lines(path):
        leaves = re.findall(r"\(\d ([^()]+)\)", line)
        if not re.match(r"\(\d ", line) or not leaves or line.count("(") != line.count(")"):
            raise RecipeError(f"{place}: expected a tree, such as (3 (2 It) (4 works))")
        yield FileRow(
            place, {"label": line[1], "text": " ".join(brackets.get(leaf, leaf) for leaf in leaves)}
        )


def _labelled(path: Path) -> Iterator[FileRow]:
    """Yield TREC's rows: a class, a colon, a finer class, and the question."""
    for place, line in _lines(path, "latin-1"):
        label, space, text = line.partition(" ")
        coarse, colon, _ = label.partition(":")
        if not space or not colon:
            raise RecipeError(
                f"{place}: expected a class, a colon, a finer class and a question, such as "
                "HUM:ind Who ..."
            )
        yield FileRow(place, {"label": coarse, "text": text})


READERS: Mapping[str, Callable[[Path], Iterable[FileRow]]] = {  # by a file's ending
    ".json": lambda path: [read_json(path)],
    ".csv": lambda path: read_records(path, ("label", "text")),
    ".txt": _trees,
    ".label": _labelled,
}
CLOZE = _prompted("cloze", ClozeTask)
MEZO = _prompted("mezo", MeZOTask, answers=AnswerTask, entities=EntityTask)
