"""Eight tasks of SuperGLUE (Wang et al., 2019), from its jsonl files, as MeZO prompts them.

A task's folder holds train.jsonl and val.jsonl, an object a line. Copies with numbers in place of the classes' names
are read as well.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import PositiveInt

from fedseed.errors import RecipeError
from fedseed.tasks.data import Choice
from fedseed.tasks.drawn import class_of
from fedseed.tasks.files import Record
from fedseed.tasks.mezo import MeZOTask

NO_YES = ("No", "Yes")
FALSE_TRUE = ("false", "true")


def _hint(folder: str) -> str:
    return (
        f"give the folder {folder} of SuperGLUE (super.gluebenchmark.com/tasks), which holds train.jsonl and val.jsonl"
    )


class RTETask(MeZOTask):
    """Settings of the "rte" task: those of `MeZOTask`."""

    name: Literal["rte"] = "rte"
    about: ClassVar[str] = "RTE (does a text entail a sentence?) from SuperGLUE's files, as MeZO prompts it"
    hint = _hint("RTE")

    def examples_of(self, row: Record) -> Iterator[Choice]:
        """Whether the premise means that the hypothesis is true."""
        premise, hypothesis = row.field("premise", str), row.field("hypothesis", str)
        prompt = f'{premise}\nDoes this mean that "{hypothesis}" is true? Yes or No?\n'
        yield Choice(prompt, ("Yes", "No"), class_of(row, ("entailment", "not_entailment")))


class CBTask(MeZOTask):
    """Settings of the "cb" task: those of `MeZOTask`; its train file has 250 rows."""

    name: Literal["cb"] = "cb"
    about: ClassVar[str] = "CB (entailment, contradiction or neither) from SuperGLUE's files, as MeZO prompts it"
    hint = _hint("CB")

    examples: PositiveInt = 150
    validation: PositiveInt = 100

    def examples_of(self, row: Record) -> Iterator[Choice]:
        """Whether the hypothesis can be inferred from the premise."""
        premise, hypothesis = row.field("premise", str), row.field("hypothesis", str)
        prompt = f'Suppose {premise} Can we infer that "{hypothesis}"? Yes, No, or Maybe?\n'
        yield Choice(prompt, ("Yes", "No", "Maybe"), class_of(row, ("entailment", "contradiction", "neutral")))


class BoolQTask(MeZOTask):
    """Settings of the "boolq" task: those of `MeZOTask`."""

    name: Literal["boolq"] = "boolq"
    about: ClassVar[str] = "BoolQ (yes-or-no questions on a passage) from SuperGLUE's files, as MeZO prompts it"
    hint = _hint("BoolQ")

    def examples_of(self, row: Record) -> Iterator[Choice]:
        """The passage and its question, with a capital letter and one question mark."""
        question = row.field("question", str).rstrip().removesuffix("?")
        prompt = f"{row.field('passage', str)} {question[:1].upper()}{question[1:]}?\n"
        yield Choice(prompt, ("Yes", "No"), 1 - class_of(row, FALSE_TRUE))


class WSCTask(MeZOTask):
    """Settings of the "wsc" task: those of `MeZOTask`.

    Its train file has 554 rows. MeZO's 500 validation examples leave 54 to train on, in its release as well.
    """

    name: Literal["wsc"] = "wsc"
    about: ClassVar[str] = "WSC (what a pronoun refers to) from SuperGLUE's files, as MeZO prompts it"
    hint = _hint("WSC")

    examples: PositiveInt = 54

    def examples_of(self, row: Record) -> Iterator[Choice]:
        """Whether the pronoun (span 2) refers to span 1."""
        target = row.record("target")
        span1, span2 = target.field("span1_text", str), target.field("span2_text", str)
        question = f'In the previous sentence, does the pronoun "{span2}" refer to {span1}? Yes or No?'
        yield Choice(f"{row.field('text', str)}\n{question}\n", NO_YES, class_of(row, FALSE_TRUE))


class WICTask(MeZOTask):
    """Settings of the "wic" task: those of `MeZOTask`."""

    name: Literal["wic"] = "wic"
    about: ClassVar[str] = "WIC (one word, two sentences, one meaning?) from SuperGLUE's files, as MeZO prompts it"
    hint = _hint("WiC")

    def examples_of(self, row: Record) -> Iterator[Choice]:
        """Whether the word means the same in both sentences."""
        word, first, second = (row.field(name, str) for name in ("word", "sentence1", "sentence2"))
        question = f'Does the word "{word}" have the same meaning in these two sentences? Yes, No?'
        yield Choice(f"{question}\n{first}\n{second}\n", NO_YES, class_of(row, FALSE_TRUE))


class MultiRCTask(MeZOTask):
    """Settings of the "multirc" task: those of `MeZOTask`. Every answer to every question is an example."""

    name: Literal["multirc"] = "multirc"
    about: ClassVar[str] = "MultiRC (is an answer on a paragraph right?) from SuperGLUE's files, as MeZO prompts it"
    hint = _hint("MultiRC")
    left_out = "a paragraph without a question"

    def examples_of(self, row: Record) -> Iterator[Choice]:
        """The paragraph, a question and an answer: whether it is correct."""
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
        """The passage with its highlights as items, and the query with each entity in its gap, as one more item."""
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
