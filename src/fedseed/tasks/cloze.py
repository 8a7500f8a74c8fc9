"""Six few-shot tasks for masked language models: a prompt with a mask, and a word for each class.

MeZO's RoBERTa experiments (Malladi et al., 2023) take prompts and label words from LM-BFF (Gao, Fisch, Chen, "Making
Pre-trained Language Models Better Few-shot Learners", 2021): k examples a class to train on and k to validate on, drawn
by seed, and 1,000 to test on.
"""

import csv
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt

from fedseed.errors import RecipeError
from fedseed.tasks import mezo
from fedseed.tasks.data import MASK, Cloze
from fedseed.tasks.dealt import Labelled
from fedseed.tasks.drawn import DrawnTask, Files, class_of
from fedseed.tasks.files import Record, read_text

NLI_CLASSES = ("entailment", "neutral", "contradiction")
NLI_WORDS = (" Yes", " Maybe", " No")


class ClozeTask(DrawnTask):
    """Settings of the few-shot tasks: those of `DrawnTask` and how many examples of each class there are.

    Args:
        k: training examples of each class, all clients together, and as many to choose settings on. A class with fewer
            rows gives what it has, to training first.
    """

    words: ClassVar[tuple[str, ...]]  # by class, each with the space before it

    k: PositiveInt = 16

    @abstractmethod
    def text_and_class(self, row: Record) -> tuple[str, int] | None:
        """A row's text with `MASK` in it and its class; None if the row has no class.

        Raises:
            RecipeError: a field is missing or wrong.
        """

    def examples_of(self, row: Record) -> Iterator[Cloze]:
        """The text and its right word.

        Raises:
            RecipeError: as `text_and_class`; or the row's own text has a mask in it.
        """
        found = self.text_and_class(row)
        if found is not None:
            text, gold = found
            if text.count(MASK) != 1:
                raise RecipeError(f"{row.where}: its text has {MASK} in it")
            yield Cloze(text, self.words, gold)

    def label_of(self, row: Record, example: Any) -> str:
        return self.words[example.gold].strip()

    def draw(self, rows: Sequence[Labelled], place: str) -> tuple[list[Labelled], list[Labelled], str]:
        """The first k of each class for training, the next k for validation, in the order they are in.

        Raises:
            RecipeError: a class has no row.
        """
        seen: Counter[int] = Counter()
        held: list[Labelled] = []
        validation: list[Labelled] = []
        for row in rows:
            gold = row.example.gold
            if seen[gold] < 2 * self.k:
                (held if seen[gold] < self.k else validation).append(row)
                seen[gold] += 1
        for label, word in enumerate(self.words):
            if not seen[label]:
                raise RecipeError(f'task.path = "{self.path}": no row of the train file has class {label} ({word[1:]})')
        few = [f"{word[1:]} {seen[label]:,}" for label, word in enumerate(self.words) if seen[label] < 2 * self.k]
        about = f"{len(held):,} training and {len(validation):,} validation examples of {len(rows):,} in the train file"
        if few:
            about += f" (fewer than 2 x {self.k} rows: {', '.join(few)})"
        return held, validation, about


class SST2MaskTask(ClozeTask):
    """Settings of the "sst2-mask" task: those of `ClozeTask`."""

    name: Literal["sst2-mask"] = "sst2-mask"
    about: ClassVar[str] = "SST-2 (film reviews, two classes) from GLUE's files, few-shot with a mask"
    hint = mezo.SST2_HINT
    words = mezo.SST2_OPTIONS
    train_files = mezo.SST2_TRAIN
    test_files: ClassVar[Files] = mezo.SST2_TEST

    def text_and_class(self, row: Record) -> tuple[str, int]:
        """The sentence, then "It was" and the mask."""
        sentence, label = mezo.sentence_and_class(row)
        return f"{sentence} It was {MASK}.", label


class SST5Task(ClozeTask):
    """Settings of the "sst5" task: those of `ClozeTask`.

    Reads the Stanford Sentiment Treebank's trees (train.txt, test.txt: a tree a line, whose root has the class), or csv
    files without a header, such as LM-BFF's: class, sentence.
    """

    name: Literal["sst5"] = "sst5"
    about: ClassVar[str] = "SST-5 (film reviews, five classes) from the treebank or csv files, few-shot with a mask"
    hint = "give the folder trees of the Stanford Sentiment Treebank (train.txt, test.txt), or one with csv files"
    words = (" terrible", " bad", " okay", " good", " great")
    train_files = ("train.txt", "train.csv")
    test_files: ClassVar[Files] = {"": ("test.txt", "test.csv")}
    test_is = "test"

    def records(self, path: Path) -> Iterable[Record]:
        return _csv(path) if path.suffix == ".csv" else _trees(path)

    def text_and_class(self, row: Record) -> tuple[str, int]:
        """The sentence, then "It was" and the mask."""
        return f"{row.field('text', str).strip()} It was {MASK}.", class_of(row, ("0", "1", "2", "3", "4"))


class TRECTask(ClozeTask):
    """Settings of the "trec" task: those of `ClozeTask`.

    Reads the original label files (train_5500.label, TREC_10.label, in Latin-1: "DESC:manner How did ..."), or csv
    files without a header, such as LM-BFF's: class, question.
    """

    name: Literal["trec"] = "trec"
    about: ClassVar[str] = "TREC (what a question asks for, six classes) from its label files, few-shot with a mask"
    hint = "give a folder with train_5500.label and TREC_10.label (cogcomp.seas.upenn.edu/Data/QA/QC)"
    words = (" Description", " Entity", " Expression", " Human", " Location", " Number")
    classes: ClassVar[tuple[str, ...]] = ("DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM")
    train_files = ("train_5500.label", "train.csv")
    test_files: ClassVar[Files] = {"": ("TREC_10.label", "test.csv")}
    test_is = "test"

    def records(self, path: Path) -> Iterable[Record]:
        return _csv(path) if path.suffix == ".csv" else _labelled(path)

    def text_and_class(self, row: Record) -> tuple[str, int]:
        return f"{MASK}: {row.field('text', str).strip()}", class_of(row, self.classes)


class PairTask(ClozeTask):
    """Settings of the tasks with two sentences: those of `ClozeTask`.

    Args:
        smooth: take the first sentence without its last full stop (or other mark), and let the second begin with a
            small letter, so that both read as one, as MeZO's release has them; otherwise they are left as they are.
    """

    smooth: bool = False

    def pair(self, first: str, second: str) -> str:
        """The first sentence, a question mark, the mask, a comma, and the second."""
        first, second = first.strip(), second.strip()
        if self.smooth:
            first = re.sub(r"[.!?,;:]$", "", first)
            second = second[:1].lower() + second[1:]
        return f"{first}? {MASK}, {second}"


class InferenceTask(PairTask):
    """Settings of SNLI and MNLI: those of `PairTask`. Rows without a majority's label ("-") are left out."""

    words = NLI_WORDS
    left_out = "annotators did not agree on a label"

    def text_and_class(self, row: Record) -> tuple[str, int] | None:
        if row.field("gold_label", str) == "-":
            return None
        text = self.pair(row.field("sentence1", str), row.field("sentence2", str))
        return text, class_of(row, NLI_CLASSES, "gold_label")


class SNLITask(InferenceTask):
    """Settings of the "snli" task: those of `PairTask`."""

    name: Literal["snli"] = "snli"
    about: ClassVar[str] = "SNLI (entailment, neutral, contradiction) from its jsonl files, few-shot with a mask"
    hint = "give the folder snli_1.0 (nlp.stanford.edu/projects/snli), with snli_1.0_train.jsonl and snli_1.0_dev.jsonl"
    train_files = ("snli_1.0_train.jsonl", "train.tsv")
    test_files: ClassVar[Files] = {"": ("snli_1.0_dev.jsonl", "dev.tsv")}


class MNLITask(InferenceTask):
    """Settings of the "mnli" task: those of `PairTask`. Reports on the matched dev set, and on the mismatched one."""

    name: Literal["mnli"] = "mnli"
    about: ClassVar[str] = "MNLI (entailment, neutral, contradiction) from GLUE's files, few-shot with a mask"
    hint = (
        "give the folder MNLI of GLUE (gluebenchmark.com/tasks), with train.tsv, dev_matched.tsv and dev_mismatched.tsv"
    )
    train_files = ("train.tsv", "multinli_1.0_train.jsonl")
    test_files: ClassVar[Files] = {
        "": ("dev_matched.tsv", "multinli_1.0_dev_matched.jsonl"),
        "mismatched_": ("dev_mismatched.tsv", "multinli_1.0_dev_mismatched.jsonl"),
    }


class RTEMaskTask(PairTask):
    """Settings of the "rte-mask" task: those of `PairTask`."""

    name: Literal["rte-mask"] = "rte-mask"
    about: ClassVar[str] = "RTE (does a text entail a sentence?) from GLUE's files, few-shot with a mask"
    hint = "give the folder RTE of GLUE (gluebenchmark.com/tasks), which holds train.tsv and dev.tsv"
    words = (" Yes", " No")
    train_files = ("train.tsv",)
    test_files: ClassVar[Files] = {"": ("dev.tsv",)}

    def text_and_class(self, row: Record) -> tuple[str, int]:
        text = self.pair(row.field("sentence1", str), row.field("sentence2", str))
        return text, class_of(row, ("entailment", "not_entailment"))


def _csv(path: Path) -> Iterator[Record]:
    """Rows of a csv file without a header: class, text."""
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
    """The sentences of a treebank, each with its root's class."""
    brackets = {"-LRB-": "(", "-RRB-": ")"}
    for where, line in _lines(read_text(path), path):
        leaves = re.findall(r"\(\d ([^()]+)\)", line)
        if not re.match(r"\(\d ", line) or not leaves or line.count("(") != line.count(")"):
            raise RecipeError(f"{where}: a tree is expected, such as (3 (2 It) (4 works))")
        yield Record(where, {"label": line[1], "text": " ".join(brackets.get(leaf, leaf) for leaf in leaves)})


def _labelled(path: Path) -> Iterator[Record]:
    """TREC's rows: a class, a colon, a finer class, and the question."""
    for where, line in _lines(read_text(path, encoding="latin-1"), path):
        label, space, text = line.partition(" ")
        coarse, colon, _ = label.partition(":")
        if not space or not colon:
            raise RecipeError(
                f"{where}: class, colon, finer class and a question are expected, such as HUM:ind Who ..."
            )
        yield Record(where, {"label": coarse, "text": text})
