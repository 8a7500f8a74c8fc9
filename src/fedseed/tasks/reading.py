"""SQuAD v1.1 and DROP from their original JSON files, as MeZO prompts them.

Trained by teacher forcing on the first answer; generated answers are scored by F1, best over all answers. A response
ends with its line: MeZO trains on the line's end in place of an end-of-sequence token, and generates up to it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from fedseed.errors import RecipeError
from fedseed.tasks.data import Example
from fedseed.tasks.drawn import Files
from fedseed.tasks.files import Record, read_json
from fedseed.tasks.mezo import MeZOTask


def _example(prompt: str, answers: list[str]) -> Example:
    return Example(f"{prompt}\nAnswer:", f" {answers[0]}", tuple(dict.fromkeys(answers)), stop="\n")


def _whole(path: Path) -> Record:
    content = read_json(path)
    if not isinstance(content, dict):
        raise RecipeError(f"{path}: a JSON object is expected")
    return Record(str(path), content)


class SQuADTask(MeZOTask):
    """Settings of the "squad" task: those of `MeZOTask`. Partitions go by an article's title."""

    name: Literal["squad"] = "squad"
    about: ClassVar[str] = "SQuAD v1.1 (answers in a Wikipedia paragraph) from its JSON files, as MeZO prompts it"
    hint = "give a folder with train-v1.1.json and dev-v1.1.json (rajpurkar.github.io/SQuAD-explorer)"
    train_files = ("train-v1.1.json",)
    test_files: ClassVar[Files] = {"": ("dev-v1.1.json",)}
    label_field = "title"
    left_out = "a question without an answer"
    scores = ("f1",)

    def records(self, path: Path) -> Iterator[Record]:
        """A row for each question, with its article's title and its paragraph."""
        for article in _whole(path).records("data"):
            title = article.field("title", str)
            for paragraph in article.records("paragraphs"):
                context = paragraph.field("context", str)
                for question in paragraph.records("qas"):
                    yield Record(question.where, {**question.values, "title": title, "context": context})

    def examples_of(self, row: Record) -> Iterator[Example]:
        """Title, context and question; the answer."""
        answers = [answer.field("text", str) for answer in row.records("answers")]
        if answers:
            title, context, question = (row.field(name, str) for name in ("title", "context", "question"))
            yield _example(f"Title: {title}\nContext: {context}\nQuestion: {question.strip()}", answers)

    def label_of(self, row: Record, example: Any) -> str:
        """The article's title."""
        return str(row.values["title"])


class DROPTask(MeZOTask):
    """Settings of the "drop" task: those of `MeZOTask`. Partitions go by the passage's key, such as "nfl_201"."""

    name: Literal["drop"] = "drop"
    about: ClassVar[str] = "DROP (reading with arithmetic) from its JSON files, as MeZO prompts it"
    hint = "give a folder with drop_dataset_train.json and drop_dataset_dev.json (allenai.org/data/drop)"
    train_files = ("drop_dataset_train.json",)
    test_files: ClassVar[Files] = {"": ("drop_dataset_dev.json",)}
    label_field = "passage"
    left_out = "a question without an answer"
    scores = ("f1",)

    def records(self, path: Path) -> Iterator[Record]:
        """A row for each question, with its passage and the passage's key."""
        whole = _whole(path)
        for key in whole.values:
            entry = whole.record(key)
            passage = entry.field("passage", str)
            for question in entry.records("qa_pairs"):
                yield Record(question.where, {**question.values, "passage": passage, "key": key})

    def examples_of(self, row: Record) -> Iterator[Example]:
        """Passage and question; the answer: a number, a date or spans of text."""
        found = [row.record("answer")]
        if "validated_answers" in row.values:
            found += row.records("validated_answers")
        answers = [text for text in map(_answer, found) if text]
        if answers:
            passage, question = row.field("passage", str), row.field("question", str)
            yield _example(f"Passage: {passage}\nQuestion: {question.strip()}", answers)

    def label_of(self, row: Record, example: Any) -> str:
        """The passage's key."""
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
