"""Dolly-15k: instructions of eight categories that people wrote (Conover et al., 2023).

Each line of the file is {"instruction", "context", "response", "category"}. The published protocol (Qin et al., ICML
2024, Section 5.1 and Appendix G.1, and its code): the last category in alphabetical order, summarization, is evaluated
on; the other seven are dealt to 200 clients by Dirichlet(alpha) over the category, alpha = 0.5 or 5.0, until each has
ten examples. The published code also gives nothing more to a client that has its mean share; the paper does not say so,
and it is not done here.
"""

from typing import ClassVar, Literal

from fedseed.errors import RecipeError
from fedseed.tasks.data import Example
from fedseed.tasks.files import Record
from fedseed.tasks.instruction_data import InstructionData, Labelled, without_empty
from fedseed.tasks.partition import AnyPartition, Dirichlet
from fedseed.tasks.prompts import alpaca_prompt, prompt_with_context_said


class DollyTask(InstructionData):
    """Settings of the "dolly-15k" task: those of `InstructionData` and two more.

    Args:
        prompt: Alpaca's template, which says nothing of an input to an instruction without context ("alpaca"), or as
            FedKSeed's and Ferret's papers fill it, with one opening for both (FedKSeed, Table 6; "paper").
        test_category: which category is evaluated on and no client holds: "last" in alphabetical order, a category's
            name, or "none" (then `held_out` of all examples).
    """

    name: Literal["dolly-15k"] = "dolly-15k"
    about: ClassVar[str] = "Dolly-15k, seven categories for 200 clients by Dirichlet, the eighth to evaluate on"
    hint: ClassVar[str] = (
        "give databricks-dolly-15k.jsonl or the folder that holds it (huggingface.co/datasets/databricks/"
        'databricks-dolly-15k), or "databricks/databricks-dolly-15k"'
    )
    fields: ClassVar[tuple[str, ...]] = ("category",)
    default_clients: ClassVar[int] = 200

    partition: AnyPartition = Dirichlet(alpha=0.5, minimum=10)
    test_category: str = "last"
    prompt: Literal["alpaca", "paper"] = "alpaca"

    def read(self) -> tuple[list[Labelled], list[Labelled] | None, list[str]]:
        """The examples of all categories but the test category, and those of it."""
        rows, note = without_empty([self._example(row) for row in self.rows(["databricks-dolly-15k.jsonl"])])
        if self.test_category == "none":
            return rows, None, [note]
        categories = sorted({row.label for row in rows})
        last = categories[-1] if categories else ""
        held_out = last if self.test_category == "last" else self.test_category
        if held_out not in categories:
            raise RecipeError(
                f'task.test_category = "{self.test_category}": the data has {", ".join(categories)}; or "last", "none"'
            )
        rest = [row for row in rows if row.label != held_out]
        return rest, [row for row in rows if row.label == held_out], [note, f"no client holds category {held_out}"]

    def _example(self, row: Record) -> Labelled:
        make = alpaca_prompt if self.prompt == "alpaca" else prompt_with_context_said
        text = make(row.field("instruction", str), row.field("context", str))
        return Labelled(Example(text, row.field("response", str)), row.field("category", str))
