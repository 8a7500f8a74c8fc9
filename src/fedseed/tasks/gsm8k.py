"""GSM8K: grade school mathematics with worked answers (Cobbe et al., 2021).

Each line of train.jsonl and test.jsonl is {"question", "answer"}; an answer ends in "#### " and its number. FedMeZO
and Ferret deal the train file to three clients at random and evaluate on the test file. Scores: Rouge-L, as Ferret
reports it, and how often the final number is right.
"""

from pathlib import Path
from typing import ClassVar, Literal

from fedseed.errors import RecipeError
from fedseed.tasks.data import Example
from fedseed.tasks.files import Record, read_records
from fedseed.tasks.instruction_data import InstructionData, Labelled
from fedseed.tasks.metrics import last_number
from fedseed.tasks.prompts import alpaca_prompt


class GSM8KTask(InstructionData):
    """Settings of the "gsm8k" task: those of `InstructionData`.

    If `path` is a single file, the test part is test.jsonl beside it; without one, `held_out` applies.
    """

    name: Literal["gsm8k"] = "gsm8k"
    about: ClassVar[str] = "GSM8K (grade school mathematics), dealt to three clients at random"
    hint: ClassVar[str] = (
        "give the folder with train.jsonl and test.jsonl (github.com/openai/grade-school-math, "
        'grade_school_math/data), or "openai/gsm8k"'
    )
    scores: ClassVar[tuple[str, ...]] = ("rouge_l", "final_number")

    def read(self) -> tuple[list[Labelled], list[Labelled] | None, list[str]]:
        """The train and the test part."""
        train = [self._example(row) for row in self.rows(["train.jsonl"], "train", "main")]
        place = Path(self.path).expanduser()
        if not place.is_file():
            return train, [self._example(row) for row in self.rows(["test.jsonl"], "test", "main")], []
        beside = place.with_name("test.jsonl")
        if not beside.is_file() or beside == place:
            return train, None, []
        return train, [self._example(row) for row in read_records(beside)], []

    def _example(self, row: Record) -> Labelled:
        answer = row.field("answer", str)
        if "####" not in answer or last_number(answer) is None:
            raise RecipeError(f'{row.where}: "answer" must end in "#### " and a number: {answer[-40:]!r}')
        return Labelled(Example(alpaca_prompt(row.field("question", str)), answer))
