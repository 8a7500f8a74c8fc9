"""MeZO's text tasks from their original files: eleven for language models, six with a mask.

Malladi et al., "Fine-Tuning Language Models with Just Forward Passes", 2023. SST-2, eight tasks of SuperGLUE, SQuAD
v1.1 and DROP: 1,000 examples for training and 500 for validation from the train file, 1,000 for testing from the dev
file, since labels of the test file are not public. SST-2 has GLUE's tsv files, or jsonl with the same fields; a task of
SuperGLUE (Wang et al., 2019) train.jsonl and val.jsonl, an object a line. Copies with numbers in place of the classes'
names are read as well. SQuAD and DROP are trained by teacher forcing on the first answer; generated answers are scored
by F1, best over all answers. A response ends with its line: MeZO trains on the line's end in place of an end-of-
sequence token, and generates up to it.

Its RoBERTa experiments take prompts and label words from LM-BFF (Gao, Fisch, Chen, "Making Pre-trained Language Models
Better Few-shot Learners", 2021): k examples a class to train on and k to validate on, drawn by seed, and 1,000 to test
on. Files: GLUE's and SNLI's tables; the Stanford Sentiment Treebank's trees (a tree a line, whose root has the class);
TREC's label files (in Latin-1: "DESC:manner How did ..."); or csv files without a header, as LM-BFF's: class, text.

Tasks that a prompt makes, with an answer among a few words, are rows of text_tasks.toml.
"""

import csv
import re
import tomllib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import PositiveInt, create_model

from fedseed.errors import RecipeError
from fedseed.randomness import Domain, derive, permutation
from fedseed.tasks.data import MASK, Choice, Cloze, Example, TaskData
from fedseed.tasks.dealt import DealtTask, Labelled
from fedseed.tasks.files import Record, data_folder, read_json, read_records, read_text

TRAIN, TEST, DEAL = 0, 1, 1000  # separate the draws from the files, and the partition
NO_LABEL = "-"  # of a row whose annotators did not agree
Files = Mapping[str, Sequence[str]]
T = TypeVar("T", bound="DrawnTask")
Made = Iterator[Choice | Example]

# how a prompt writes a field, "{name:form}"
FORMS: dict[str, Callable[[str], str]] = {
    "": str,
    "strip": str.strip,
    "question": lambda text: (asked := text.rstrip().removesuffix("?"))[:1].upper() + asked[1:],
    "first": str.strip,
    "second": str.strip,
}
# two sentences that are to read as one
SMOOTH: dict[str, Callable[[str], str]] = {
    "first": lambda text: re.sub(r"[.!?,;:]$", "", text.strip()),
    "second": lambda text: text.strip()[:1].lower() + text.strip()[1:],
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
    def examples_of(self, row: Record) -> Iterable[Labelled]:
        """Returns what a row becomes, with what partitions go by: usually one example; none if it can't be used.

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

    @property
    def dealing_seed(self) -> int:
        return derive(self.seed, Domain.PARTITION, direction=DEAL)

    def parts(self) -> tuple[Sequence[Labelled], TaskData]:
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
        return held, TaskData((), tests, [row.example for row in validation], tuple(notes))

    def _read(self, folder: Path, names: Sequence[str]) -> tuple[list[Labelled], int]:
        """Returns the examples of a file, and how many of its rows became none."""
        path = next((folder / name for name in names if (folder / name).is_file()), None)
        if path is None:
            raise RecipeError(f'task.path = "{self.path}": the folder has no {" or ".join(names)}; {self.hint}')
        read = READERS.get(self.name) or READERS.get(path.suffix, read_records)
        made = [list(self.examples_of(row)) for row in read(path)]
        found, missed = [one for examples in made for one in examples], made.count([])
        if not found:
            raise RecipeError(f"{path}: it has no row that can be used" if missed else f"{path}: it has no row")
        return found, missed


def _class_of(row: Record, classes: Sequence[str], field: str = "label") -> int:
    """Returns the number of a row's class.

    A number is taken as well as a name, as copies of a data set in another format have it; so are JSON's true and false
    where these are names.
    """
    value = row.field(field, (str, int, bool) if "true" in classes else (str, int))
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if text in classes:
        return classes.index(text)
    if text.isdecimal() and int(text) < len(classes):
        return int(text)
    names = list(dict.fromkeys([*classes, *map(str, range(len(classes)))]))
    raise RecipeError(f'{row.where}: "{field}" = {value!r}: {", ".join(names[:-1])} or {names[-1]} is expected')


def _filled(prompt: str, row: Record, forms: Mapping[str, Callable[[str], str]] = FORMS) -> str:
    """Returns a prompt with a row's fields in it: "{name}", "{object.name}" or "{name:form}"."""

    def found(match: re.Match[str]) -> str:
        *objects, name = match[1].split(".")
        inside = row
        for item in objects:
            inside = inside.record(item)
        return forms[match[2] or ""](inside.field(name, str))

    return re.sub(r"{([\w.]+)(?::(\w+))?}", found, prompt)


def _prompted(table: str, base: type[T], **others: type[T]) -> tuple[type[T], ...]:
    """Returns the tasks of a table of text_tasks.toml, in its order: subclasses of `base`, or of the one they name."""
    text = resources.files(__package__).joinpath("text_tasks.toml").read_text(encoding="utf-8")
    made: list[Any] = []
    for name, said in tomllib.loads(text)[table].items():
        sizes, kind = said.pop("sizes", {}), others.get(said.pop("base", ""), base)
        fields: dict[str, Any] = {size: (PositiveInt, count) for size, count in sizes.items()}
        fields["name"] = (Literal[name], name)
        about = f'Settings of the "{name}" task: those of `{kind.__name__}`.'
        task = create_model(f"{name}Task", __base__=kind, __doc__=about, __module__=__name__, **fields)
        for key, value in said.items():
            setattr(task, key, tuple(value) if isinstance(value, list) else value)
        made.append(task)
    return tuple(made)


# -- MeZO's eleven ---------------------------------------------------------------------------------------------------


class MeZOTask(DrawnTask):
    """Settings of MeZO's tasks: those of `DrawnTask` and how many examples are drawn.

    Args:
        examples: training examples of all clients together.
        validation: further examples of the train file, to choose settings on.
    """

    train_files: ClassVar[Sequence[str]] = ("train.jsonl",)
    test_files: ClassVar[Files] = {"": ("val.jsonl", "validation.jsonl", "dev.jsonl")}
    options: ClassVar[Sequence[str]] = ()  # what may be answered
    gold: ClassVar[Sequence[int]] = ()  # the right option by class, where their order is another one
    text: ClassVar[str] = ""  # what a classifier is given in place of the prompt

    examples: PositiveInt = 1000
    validation: PositiveInt = 500

    def draw(self, rows: Sequence[Labelled], place: str) -> tuple[list[Labelled], list[Labelled], str]:
        wanted = self.examples + self.validation
        if wanted > len(rows):
            raise RecipeError(
                f"task.examples = {self.examples} and task.validation = {self.validation}: "
                f"{wanted} rows are needed, the train file in {place} has {len(rows)}"
            )
        return (
            list(rows[: self.examples]),
            list(rows[self.examples : wanted]),
            _drawn(self.examples, self.validation, rows),
        )

    def examples_of(self, row: Record) -> Iterator[Labelled]:
        """Partitions go by the right option; where every example has its own options, by its number."""
        for made in EXAMPLES.get(self.name, _prompt)(row, self):
            if not isinstance(made, Choice):
                yield Labelled(made, str(row.values["by"]))
            else:
                yield Labelled(made, str(made.gold) if made.teacher_forcing else made.options[made.gold].strip())


def _drawn(training: int, validation: int, rows: Sequence[Labelled]) -> str:
    return f"{training:,} training and {validation:,} validation examples of {len(rows):,} in the train file"


def _prompt(row: Record, task: MeZOTask) -> Made:
    number = _class_of(row, task.classes, task.label)
    gold = task.gold[number] if task.gold else number
    yield Choice(_filled(task.prompt, row), tuple(task.options), gold, text=_filled(task.text, row))


def _multirc(row: Record, task: MeZOTask) -> Made:
    passage = row.record("passage")
    text = passage.field("text", str)
    for question in passage.records("questions"):
        for answer in question.records("answers"):
            asked, found = question.field("question", str), answer.field("text", str)
            claim = f'I found this answer "{found}". Is that correct? Yes or No?'
            yield Choice(f"{text}\nQuestion: {asked}\n{claim}\n", tuple(task.options), _class_of(answer, task.classes))


def _copa(row: Record, task: MeZOTask) -> Made:
    """The premise, "so" or "because", and a choice. The space before a choice belongs to it."""
    premise = row.field("premise", str).rstrip().removesuffix(".")
    kind = row.field("question", str)
    if kind not in ("cause", "effect"):
        raise RecipeError(f'{row.where}: "question" = {kind!r}: cause or effect is expected')
    choices = [row.field(name, str) for name in ("choice1", "choice2")]  # in small letters, unless it is "I ..."
    options = tuple(f" {one if one.split(' ')[0] == 'I' else one[:1].lower() + one[1:]}" for one in choices)
    word = "because" if kind == "cause" else "so"
    yield Choice(f"{premise} {word}", options, _class_of(row, task.classes), teacher_forcing=True)


def _record(row: Record, task: MeZOTask) -> Made:
    passage = row.record("passage")
    text = passage.field("text", str)
    entities = []
    for entity in passage.records("entities"):
        start, end = entity.field("start", int), entity.field("end", int)  # the end is the last character
        if not 0 <= start <= end < len(text):
            raise RecipeError(f"{entity.where}: {start} to {end} is no part of the text of {len(text)} characters")
        entities.append(text[start : end + 1])
    names = tuple(dict.fromkeys(entities))  # each once, in the order of the text
    prompt = text.replace("@highlight\n", "- ") + "\n-"
    for question in row.records("qas"):
        query = question.field("query", str)
        answers = {answer.field("text", str) for answer in question.records("answers")}
        right = tuple(i for i, name in enumerate(names) if name in answers)
        if right:
            options = tuple(" " + query.replace("@placeholder", name) for name in names)
            yield Choice(prompt, options, right[0], right, teacher_forcing=True)


def _squad(path: Path) -> Iterator[Record]:
    for article in read_json(path).records("data"):
        title = article.field("title", str)
        for paragraph in article.records("paragraphs"):
            context = paragraph.field("context", str)
            for question in paragraph.records("qas"):
                answers = [answer.field("text", str) for answer in question.records("answers")]
                yield _asked(question, f"Title: {title}\nContext: {context}", answers, title)


def _drop(path: Path) -> Iterator[Record]:
    whole = read_json(path)
    for key in whole.values:
        entry = whole.record(key)
        passage = entry.field("passage", str)
        for question in entry.records("qa_pairs"):
            more = question.records("validated_answers") if "validated_answers" in question.values else []
            answers = [text for text in map(_answer, [question.record("answer"), *more]) if text]
            yield _asked(question, f"Passage: {passage}", answers, key)


def _asked(question: Record, about: str, answers: Sequence[str], by: str) -> Record:
    prompt = f"{about}\nQuestion: {question.field('question', str).strip()}\nAnswer:"
    return Record(question.where, {"prompt": prompt, "answers": answers, "by": by})


def _answer(answer: Record) -> str:
    """A DROP answer as text; "" if it has none."""
    number = answer.field("number", (str, int, float)) if "number" in answer.values else ""
    if str(number):
        return str(number)
    spans = answer.field("spans", list) if "spans" in answer.values else []
    if spans:
        return ", ".join(str(span) for span in spans)
    date = answer.record("date").values if "date" in answer.values else {}
    return " ".join(str(date[part]) for part in ("day", "month", "year") if date.get(part))


def _answered(row: Record, task: MeZOTask) -> Made:
    if answers := row.values["answers"]:
        yield Example(row.values["prompt"], f" {answers[0]}", tuple(dict.fromkeys(answers)), stop="\n")


EXAMPLES: Mapping[str, Callable[[Record, MeZOTask], Made]] = {
    "multirc": _multirc, "copa": _copa, "record": _record, "squad": _answered, "drop": _answered
}  # fmt: skip


# -- six with a mask -------------------------------------------------------------------------------------------------


class ClozeTask(DrawnTask):
    """Settings of the few-shot tasks: those of `DrawnTask` and how many examples of each class there are.

    Args:
        k: training examples of each class, all clients together, and as many to choose settings on. A class with fewer
            rows gives what it has, to training first.
    """

    words: ClassVar[Sequence[str]]  # by class, each with the space before it

    k: PositiveInt = 16

    def examples_of(self, row: Record) -> Iterator[Labelled]:
        if row.field(self.label, (str, int)) != NO_LABEL:
            text = _filled(self.prompt, row, FORMS | SMOOTH if getattr(self, "smooth", False) else FORMS)
            if text.count(MASK) != 1:
                raise RecipeError(f"{row.where}: its text has {MASK} in it")
            gold = _class_of(row, self.classes, self.label)
            yield Labelled(Cloze(text, tuple(self.words), gold), self.words[gold].strip())

    def draw(self, rows: Sequence[Labelled], place: str) -> tuple[list[Labelled], list[Labelled], str]:
        """The first k of each class for training, the next k for validation, in the order they are in.

        Raises:
            RecipeError: a class has no row.
        """
        seen: Counter[int] = Counter()
        drawn: tuple[list[Labelled], list[Labelled]] = [], []
        for row in rows:
            gold = row.example.gold
            if seen[gold] < 2 * self.k:
                drawn[seen[gold] // self.k].append(row)
                seen[gold] += 1
        for label, word in enumerate(self.words):
            if not seen[label]:
                raise RecipeError(f'task.path = "{self.path}": no row of the train file has class {label} ({word[1:]})')
        few = [f"{word[1:]} {seen[label]:,}" for label, word in enumerate(self.words) if seen[label] < 2 * self.k]
        about = _drawn(len(drawn[0]), len(drawn[1]), rows)
        if few:
            about += f" (fewer than 2 x {self.k} rows: {', '.join(few)})"
        return *drawn, about


class PairTask(ClozeTask):
    """Settings of the tasks with two sentences: those of `ClozeTask`. Rows without a majority's label are left out.

    Args:
        smooth: take the first sentence without its last full stop (or other mark), and let the second begin with a
            small letter, so that both read as one, as MeZO's release has them; otherwise they are left as they are.
    """

    smooth: bool = False


# -- files -----------------------------------------------------------------------------------------------------------


def _csv(path: Path) -> Iterator[Record]:
    """Yields the rows of a csv file without a header: class, text."""
    reader = csv.reader(read_text(path).splitlines(keepends=True))
    for fields in reader:
        where = f"{path} line {reader.line_num}"
        if not fields:
            continue
        if len(fields) != 2:
            raise RecipeError(f"{where}: {len(fields)} columns, class and text are expected")
        yield Record(where, {"label": fields[0].strip(), "text": fields[1]})


def _lines(text: str, path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{path} line {number}", line.strip()


def _trees(path: Path) -> Iterator[Record]:
    """Yields the sentences of a treebank, each with its root's class."""
    brackets = {"-LRB-": "(", "-RRB-": ")"}
    for where, line in _lines(read_text(path), path):
        leaves = re.findall(r"\(\d ([^()]+)\)", line)
        if not re.match(r"\(\d ", line) or not leaves or line.count("(") != line.count(")"):
            raise RecipeError(f"{where}: a tree is expected, such as (3 (2 It) (4 works))")
        yield Record(where, {"label": line[1], "text": " ".join(brackets.get(leaf, leaf) for leaf in leaves)})


def _labelled(path: Path) -> Iterator[Record]:
    """Yields TREC's rows: a class, a colon, a finer class, and the question."""
    for where, line in _lines(read_text(path, encoding="latin-1"), path):
        label, space, text = line.partition(" ")
        coarse, colon, _ = label.partition(":")
        if not space or not colon:
            raise RecipeError(
                f"{where}: class, colon, finer class and a question are expected, such as HUM:ind Who ..."
            )
        yield Record(where, {"label": coarse, "text": text})


# by task, or a file's ending; rows have "by" for what partitions go by, where that is no class
READERS: Mapping[str, Callable[[Path], Iterable[Record]]] = {
    "squad": _squad, "drop": _drop, ".csv": _csv, ".txt": _trees, ".label": _labelled
}  # fmt: skip
CLOZE = _prompted("cloze", ClozeTask, pairs=PairTask)
MEZO = _prompted("mezo", MeZOTask)
