"""SST-2: is a sentence from a film review positive? GLUE's tsv files, or jsonl with the same fields."""

from typing import ClassVar, Literal

from fedseed.errors import RecipeError
from fedseed.tasks.classification import Classification
from fedseed.tasks.data import Choice
from fedseed.tasks.files import Record

OPTIONS = (" terrible", " great")  # by label; MeZO's words


class SST2Task(Classification):
    """Settings of the "sst2" task: those of `Classification`."""

    name: Literal["sst2"] = "sst2"
    about: ClassVar[str] = "SST-2 (film reviews, two classes) from GLUE's files, dealt to clients at random"
    hint: ClassVar[str] = "give the folder SST-2 of GLUE (gluebenchmark.com/tasks), which holds train.tsv and dev.tsv"

    def choice(self, row: Record) -> Choice:
        """MeZO's prompt: "{sentence} It was", then a word for the label."""
        sentence = row.field("sentence", str).strip()  # GLUE's sentences end in a space
        label = row.field("label", (str, int))  # text in a tsv, a number in a jsonl
        if str(label) not in ("0", "1"):
            raise RecipeError(f'{row.where}: "label" = {label!r}: 0 or 1 is expected')
        return Choice(f"{sentence} It was", OPTIONS, int(label))
