"""Six few-shot tasks for masked language models: a prompt with a mask, and a word for each class.

MeZO's RoBERTa experiments (Malladi et al., 2023) take prompts and label words from LM-BFF (Gao, Fisch, Chen, "Making
Pre-trained Language Models Better Few-shot Learners", 2021): k examples a class to train on and k to validate on, drawn
by seed, and 1,000 to test on.

Files: GLUE's and SNLI's tables; the Stanford Sentiment Treebank's trees (a tree a line, whose root has the class);
TREC's label files (in Latin-1: "DESC:manner How did ..."); or csv files without a header, as LM-BFF's: class, text.
"""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import PositiveInt

from fedseed.errors import RecipeError
from fedseed.tasks.data import MASK, Cloze
from fedseed.tasks.dealt import Labelled
from fedseed.tasks.drawn import FORMS, DrawnTask, class_of, filled, prompted
from fedseed.tasks.files import Record, read_records, read_text

NO_LABEL = "-"  # of a row whose annotators did not agree


class ClozeTask(DrawnTask):
    """Settings of the few-shot tasks: those of `DrawnTask` and how many examples of each class there are.

    Args:
        k: training examples of each class, all clients together, and as many to choose settings on. A class with fewer
            rows gives what it has, to training first.
    """

    words: ClassVar[Sequence[str]]  # by class, each with the space before it

    k: PositiveInt = 16

    def records(self, path: Path) -> Iterable[Record]:
        return READERS.get(path.suffix, read_records)(path)

    def examples_of(self, row: Record) -> Iterator[Cloze]:
        if row.field(self.label, (str, int)) != NO_LABEL:
            text = filled(self.prompt, row, self.forms)
            if text.count(MASK) != 1:
                raise RecipeError(f"{row.where}: its text has {MASK} in it")
            yield Cloze(text, tuple(self.words), class_of(row, self.classes, self.label))

    @property
    def forms(self) -> Mapping[str, Callable[[str], str]]:
        """How the prompt writes fields."""
        return FORMS

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


class PairTask(ClozeTask):
    """Settings of the tasks with two sentences: those of `ClozeTask`. Rows without a majority's label are left out.

    Args:
        smooth: take the first sentence without its last full stop (or other mark), and let the second begin with a
            small letter, so that both read as one, as MeZO's release has them; otherwise they are left as they are.
    """

    smooth: bool = False

    @property
    def forms(self) -> Mapping[str, Callable[[str], str]]:
        if not self.smooth:
            return FORMS
        return {
            "first": lambda text: re.sub(r"[.!?,;:]$", "", text.strip()),
            "second": lambda text: text.strip()[:1].lower() + text.strip()[1:],
        }


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


READERS: Mapping[str, Callable[[Path], Iterable[Record]]] = {".csv": _csv, ".txt": _trees, ".label": _labelled}
SST2MaskTask, SST5Task, TRECTask = prompted(ClozeTask, "cloze")
SNLITask, MNLITask, RTEMaskTask = prompted(PairTask, "pairs")
