"""The way MeZO draws its data from the files of a task.

Malladi et al., "Fine-Tuning Language Models with Just Forward Passes", 2023: 1,000 examples for training and 500 for
validation from the train file, 1,000 for testing from the dev file, since labels of the test file are not public.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import PositiveInt

from fedseed.errors import RecipeError
from fedseed.tasks.drawn import DrawnTask, Files
from fedseed.tasks.files import Record
from fedseed.tasks.instruction_data import Labelled


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
        """The first examples for training, the next ones for validation.

        Raises:
            RecipeError: there are too few.
        """
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
        """The right option's text; where every example has its own options, its number."""
        return str(example.gold) if example.teacher_forcing else example.options[example.gold].strip()
