"""MeZO's eleven tasks, from their original files: SST-2, eight of SuperGLUE, SQuAD v1.1 and DROP.

Malladi et al., "Fine-Tuning Language Models with Just Forward Passes", 2023: 1,000 examples for training and 500 for
validation from the train file, 1,000 for testing from the dev file, since labels of the test file are not public.

SST-2 has GLUE's tsv files, or jsonl with the same fields; a task of SuperGLUE (Wang et al., 2019) train.jsonl and
val.jsonl, an object a line. Copies with numbers in place of the classes' names are read as well. SQuAD and DROP are
trained by teacher forcing on the first answer; generated answers are scored by F1, best over all answers. A response
ends with its line: MeZO trains on the line's end in place of an end-of-sequence token, and generates up to it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt

from fedseed.errors import RecipeError
from fedseed.tasks.data import Choice, Example
from fedseed.tasks.dealt import Labelled
from fedseed.tasks.drawn import DrawnTask, Files, class_of, filled, prompted
from fedseed.tasks.files import Record, read_json

NO_YES = ("No", "Yes")


class MeZOTask(DrawnTask):
    """Settings of MeZO's tasks: those of `DrawnTask` and how many examples are drawn.

    Args:
        examples: training examples of all clients together.
        validation: further examples of the train file, to choose settings on.
    """

    train_files: ClassVar[Sequence[str]] = ("train.jsonl",)
    test_files: ClassVar[Files] = {"": ("val.jsonl", "validation.jsonl", "dev.jsonl")}

    examples: PositiveInt = 1000
    validation: PositiveInt = 500

    def draw(self, rows: Sequence[Labelled], place: str) -> tuple[list[Labelled], list[Labelled], str]:
        wanted = self.examples + self.validation
        if wanted > len(rows):
            raise RecipeError(
                f"task.examples = {self.examples} and task.validation = {self.validation}: "
                f"{wanted} rows are needed, the train file in {place} has {len(rows)}"
            )
        about = (
            f"{self.examples:,} training and {self.validation:,} validation examples of {len(rows):,} in the train file"
        )
        return list(rows[: self.examples]), list(rows[self.examples : wanted]), about

    def label_of(self, row: Record, example: Any) -> str:
        """Returns the right option's text; where every example has its own options, its number."""
        return str(example.gold) if example.teacher_forcing else example.options[example.gold].strip()


class PromptedTask(MeZOTask):
    """Settings of the tasks that text_tasks.toml has: those of `MeZOTask`."""

    options: ClassVar[Sequence[str]]  # what may be answered
    gold: ClassVar[Sequence[int]] = ()  # the right option by class, where their order is another one
    text: ClassVar[str] = ""  # what a classifier is given in place of the prompt

    def examples_of(self, row: Record) -> Iterator[Choice]:
        number = class_of(row, self.classes, self.label)
        gold = self.gold[number] if self.gold else number
        yield Choice(filled(self.prompt, row), tuple(self.options), gold, text=filled(self.text, row))


SST2Task, RTETask, CBTask, BoolQTask, WSCTask, WICTask = prompted(PromptedTask, "mezo")


def _hint(folder: str) -> str:
    return (
        f"give the folder {folder} of SuperGLUE (super.gluebenchmark.com/tasks), which holds train.jsonl and val.jsonl"
    )


class MultiRCTask(MeZOTask):
    """Settings of the "multirc" task: those of `MeZOTask`. Every answer to every question is an example."""

    name: Literal["multirc"] = "multirc"
    about: ClassVar[str] = "MultiRC (is an answer on a paragraph right?) from SuperGLUE's files, as MeZO prompts it"
    hint = _hint("MultiRC")
    left_out = "a paragraph without a question"

    def examples_of(self, row: Record) -> Iterator[Choice]:
        passage = row.record("passage")
        text = passage.field("text", str)
        for question in passage.records("questions"):
            for answer in question.records("answers"):
                asked, found = question.field("question", str), answer.field("text", str)
                claim = f'I found this answer "{found}". Is that correct? Yes or No?'
                yield Choice(f"{text}\nQuestion: {asked}\n{claim}\n", NO_YES, class_of(answer, ("0", "1")))


class COPATask(MeZOTask):
    """Settings of the "copa" task: those of `MeZOTask`; its train file has 400 rows. Trained by teacher forcing."""

    name: Literal["copa"] = "copa"
    about: ClassVar[str] = "COPA (which cause or effect is likelier) from SuperGLUE's files, as MeZO prompts it"
    hint = _hint("COPA")

    examples: PositiveInt = 300
    validation: PositiveInt = 100

    def examples_of(self, row: Record) -> Iterator[Choice]:
        """The premise, "so" or "because", and a choice. The space before a choice belongs to it."""
        premise = row.field("premise", str).rstrip().removesuffix(".")
        kind = row.field("question", str)
        if kind not in ("cause", "effect"):
            raise RecipeError(f'{row.where}: "question" = {kind!r}: cause or effect is expected')
        word = "because" if kind == "cause" else "so"
        options = tuple(f" {_lowered(row.field(name, str))}" for name in ("choice1", "choice2"))
        yield Choice(f"{premise} {word}", options, class_of(row, ("0", "1")), teacher_forcing=True)


def _lowered(sentence: str) -> str:
    """The sentence with a small first letter, unless its first word is "I"."""
    return sentence if sentence.split(" ")[0] == "I" else sentence[:1].lower() + sentence[1:]


class ReCoRDTask(MeZOTask):
    """Settings of the "record" task: those of `MeZOTask`. Trained by teacher forcing; any gold entity counts."""

    name: Literal["record"] = "record"
    about: ClassVar[str] = "ReCoRD (which entity fills the gap) from SuperGLUE's files, as MeZO prompts it"
    hint = _hint("ReCoRD")
    left_out = "none of its entities is an answer"

    def examples_of(self, row: Record) -> Iterator[Choice]:
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


class SQuADTask(MeZOTask):
    """Settings of the "squad" task: those of `MeZOTask`. Partitions go by an article's title."""

    name: Literal["squad"] = "squad"
    about: ClassVar[str] = "SQuAD v1.1 (answers in a Wikipedia paragraph) from its JSON files, as MeZO prompts it"
    hint = "give a folder with train-v1.1.json and dev-v1.1.json (rajpurkar.github.io/SQuAD-explorer)"
    train_files = ("train-v1.1.json",)
    test_files: ClassVar[Files] = {"": ("dev-v1.1.json",)}
    fields = ("title",)
    left_out = "a question without an answer"
    scores = ("f1",)

    def records(self, path: Path) -> Iterator[Record]:
        for article in _whole(path).records("data"):
            title = article.field("title", str)
            for paragraph in article.records("paragraphs"):
                context = paragraph.field("context", str)
                for question in paragraph.records("qas"):
                    yield Record(question.where, {**question.values, "title": title, "context": context})

    def examples_of(self, row: Record) -> Iterator[Example]:
        answers = [answer.field("text", str) for answer in row.records("answers")]
        if answers:
            title, context, question = (row.field(name, str) for name in ("title", "context", "question"))
            yield _example(f"Title: {title}\nContext: {context}\nQuestion: {question.strip()}", answers)

    def label_of(self, row: Record, example: Any) -> str:
        return str(row.values["title"])


class DROPTask(MeZOTask):
    """Settings of the "drop" task: those of `MeZOTask`. Partitions go by the passage's key, such as "nfl_201"."""

    name: Literal["drop"] = "drop"
    about: ClassVar[str] = "DROP (reading with arithmetic) from its JSON files, as MeZO prompts it"
    hint = "give a folder with drop_dataset_train.json and drop_dataset_dev.json (allenai.org/data/drop)"
    train_files = ("drop_dataset_train.json",)
    test_files: ClassVar[Files] = {"": ("drop_dataset_dev.json",)}
    fields = ("passage",)
    left_out = "a question without an answer"
    scores = ("f1",)

    def records(self, path: Path) -> Iterator[Record]:
        whole = _whole(path)
        for key in whole.values:
            entry = whole.record(key)
            passage = entry.field("passage", str)
            for question in entry.records("qa_pairs"):
                yield Record(question.where, {**question.values, "passage": passage, "key": key})

    def examples_of(self, row: Record) -> Iterator[Example]:
        found = [row.record("answer")]
        if "validated_answers" in row.values:
            found += row.records("validated_answers")
        answers = [text for text in map(_answer, found) if text]
        if answers:
            passage, question = row.field("passage", str), row.field("question", str)
            yield _example(f"Passage: {passage}\nQuestion: {question.strip()}", answers)

    def label_of(self, row: Record, example: Any) -> str:
        return str(row.values["key"])


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


def _example(prompt: str, answers: list[str]) -> Example:
    return Example(f"{prompt}\nAnswer:", f" {answers[0]}", tuple(dict.fromkeys(answers)), stop="\n")


def _whole(path: Path) -> Record:
    content = read_json(path)
    if not isinstance(content, dict):
        raise RecipeError(f"{path}: a JSON object is expected")
    return Record(str(path), content)
