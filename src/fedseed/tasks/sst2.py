"""SST-2: is a sentence from a film review positive? GLUE's tsv files, or jsonl with the same fields."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from fedseed.tasks.data import Choice
from fedseed.tasks.drawn import Files, class_of
from fedseed.tasks.files import Record
from fedseed.tasks.mezo import MeZOTask

OPTIONS = (" terrible", " great")  # by label; MeZO's words
HINT = "give the folder SST-2 of GLUE (gluebenchmark.com/tasks), which holds train.tsv and dev.tsv"
TRAIN_FILES = ("train.tsv", "train.jsonl")
TEST_FILES: Files = {"": ("dev.tsv", "dev.jsonl", "validation.jsonl")}


def sentence_and_class(row: Record) -> tuple[str, int]:
    """A row's sentence, and 1 if it is positive."""
    return row.field("sentence", str).strip(), class_of(row, ("0", "1"))  # GLUE's sentences end in a space


class SST2Task(MeZOTask):
    """Settings of the "sst2" task: those of `MeZOTask`."""

    name: Literal["sst2"] = "sst2"
    about: ClassVar[str] = "SST-2 (film reviews, two classes) from GLUE's files, as MeZO prompts it"
    hint = HINT
    train_files = TRAIN_FILES
    test_files: ClassVar[Files] = TEST_FILES

    def examples_of(self, row: Record) -> Iterator[Choice]:
        """MeZO's prompt: "{sentence} It was", then a word for the label."""
        sentence, label = sentence_and_class(row)
        yield Choice(f"{sentence} It was", OPTIONS, label, text=sentence)
