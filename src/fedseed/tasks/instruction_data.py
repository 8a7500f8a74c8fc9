"""Instruction data sets Dolly-15k, Alpaca, CodeAlpaca and GSM8K, from their files or the hub, in
Alpaca's prompt.

Dolly-15k (Conover et al., 2023) follows the published protocol (Qin et al., ICML 2024, Section 5.1
and Appendix G.1, and its code). The last category in alphabetical order, summarization, is for
evaluation. The other seven are dealt to 200 clients by Dirichlet(alpha) over the category, with
alpha = 0.5 or 5.0, so that each client has at least ten examples. The published code also caps a
client's share at the mean; the paper does not mention this, and it is not done here.

Alpaca (Taori et al., 2023) has 52,002 rows without labels. CodeAlpaca (Chaudhary, 2023) has the
form that federated papers use (rosetta_alpaca.json): a row's `input` is the programming language
that the answer must be in. FedMeZO (Ling et al., 2024, Appendix E.1) and Ferret (Shu et al., 2025,
Appendix C.1.2) leave X86-64 Assembly out, of which there is little; Ferret holds 10% out and makes
each of the other nine languages a client. No-break spaces are taken away, as FederatedScope does,
which FedMeZO's data comes from.

For GSM8K (Cobbe et al., 2021), FedMeZO and Ferret deal the train file to three clients at random,
and evaluate on the test file. The scores are Rouge-L, as in Ferret, and how often the final number
is right.
"""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import PositiveInt

from fedseed.errors import RecipeError
from fedseed.randomness import Domain, permutation
from fedseed.tasks.data import Example, TaskData
from fedseed.tasks.dealt import DealtTask, Labelled, Share, pick, share_of
from fedseed.tasks.files import FileRow, hub_rows, read_records, sound_rows
from fedseed.tasks.metrics import last_number
from fedseed.tasks.partition import IID, AnyPartition, ByField, Dirichlet, Quantity
from fedseed.tasks.prompts import alpaca_prompt

# another draw than the partition's, for held-out examples
HELD_OUT = 1
LEFT_OUT = "X86-64 Assembly"
LANGUAGES = ("C", "C#", "C++", "Go", "Java", "PHP", "Pascal", "Python", "Scala")


class InstructionData(DealtTask):
    """Settings that these tasks have in common: those of `DealtTask`, and the sizes of the sets.

    Args:
        path: the data set's file, the folder that has it, or its name on the Hugging Face hub.
        examples: number of training examples of all clients together, drawn at random; None: all
            that are not held out.
        held_out: share of the examples that are held out to evaluate on; not used if the data set
            has a test part.
        evaluation: the most held-out examples to evaluate on; None: all.
        validation: share of the other examples that no client gets, for choosing settings.
    """

    # what `path` may be, and the data set's source
    hint: ClassVar[str]
    fields: ClassVar[tuple[str, ...]] = ()
    default_clients: ClassVar[int] = 3

    path: str
    examples: PositiveInt | None = None
    held_out: Share = 0.1
    evaluation: PositiveInt | None = None
    validation: Share = 0.02

    @abstractmethod
    def read_rows(self) -> tuple[list[Labelled], list[Labelled] | None, list[str]]:
        """Return the rows, the rows of the test part (None: there is none, so `held_out` applies),
        and notes.

        Raises the errors of `load`.
        """

    def parts(self) -> tuple[Sequence[Labelled], TaskData]:
        rows, test, notes = self.read_rows()
        row_count = len(rows) + len(test or ())
        rows = _answered(rows)
        if test is not None:
            test = _answered(test)
        left_out = row_count - len(rows) - len(test or ())
        notes.append(f"{left_out:,} of {row_count:,} examples left out (no response)")
        order = permutation(self.seed, Domain.PARTITION, len(rows), HELD_OUT).tolist()
        if test is None:
            count = share_of(self.held_out, len(rows))
            test, order = pick(rows, order[:count]), order[count:]
        count = share_of(self.validation, len(order))
        validation = [row.example for row in pick(rows, order[:count])]
        client_rows = pick(rows, order[count:][: self.examples])
        if not client_rows or not test or (self.evaluate_on == "validation" and not validation):
            raise RecipeError(
                f'task.path = "{self.path}": too few examples: {len(client_rows):,} for training, '
                f"{len(validation):,} for validation, {len(test):,} held out"
            )
        order_of_test = permutation(self.seed, Domain.PARTITION, len(test), HELD_OUT)[
            : self.evaluation
        ]
        evaluation = [row.example for row in pick(test, order_of_test)]
        sizes = (
            f"{len(client_rows):,} training, {len(validation):,} validation and "
            f"{len(evaluation):,} held-out examples"
        )
        return client_rows, TaskData((), {"": evaluation}, validation, (*notes, sizes))

    def _rows(
        self, names: Sequence[str], split: str = "train", config: str | None = None
    ) -> list[FileRow]:
        """Return the rows of the data set, or of a part.

        `names` are the possible names of its file; `config` and `split` are the hub's.
        """
        place = Path(self.path).expanduser()
        if split == "test" and place.is_file():
            place = place.parent
        files = [place, *(place / name for name in names)]
        file = next((file for file in files if file.is_file()), None)
        if file is not None:
            return read_records(file)
        if place.is_dir() and not any(place.rglob("*.parquet")):
            raise RecipeError(
                f'task.path = "{self.path}": the folder does not have {" or ".join(names)}; '
                f"{self.hint}"
            )
        return sound_rows(hub_rows(self.path, split, config, self.hint))


class DollyTask(InstructionData):
    """Settings of the "dolly-15k" task: those of `InstructionData` and two more.

    Args:
        prompt: "alpaca": Alpaca's template, whose opening mentions an input only if there is a
            context. "paper": as in FedKSeed's and Ferret's papers, the same opening with and
            without context (FedKSeed, Table 6).
        test_category: the category to evaluate on, which no client gets: "last" in alphabetical
            order, a category's name, or "none" (then `held_out` applies to all examples).
    """

    name: Literal["dolly-15k"] = "dolly-15k"
    about: ClassVar[str] = (
        "Dolly-15k, seven categories for 200 clients by Dirichlet, the eighth for evaluation"
    )
    hint: ClassVar[str] = (
        "give databricks-dolly-15k.jsonl or the folder that holds it "
        "(huggingface.co/datasets/databricks/databricks-dolly-15k), or "
        '"databricks/databricks-dolly-15k"'
    )
    fields: ClassVar[tuple[str, ...]] = ("category",)
    default_clients: ClassVar[int] = 200

    partition: AnyPartition = Dirichlet(alpha=0.5, minimum=10)
    test_category: str = "last"
    prompt: Literal["alpaca", "paper"] = "alpaca"

    def read_rows(self) -> tuple[list[Labelled], list[Labelled] | None, list[str]]:
        rows = [self._example(row) for row in self._rows(["databricks-dolly-15k.jsonl"])]
        if self.test_category == "none":
            return rows, None, []
        categories = sorted({row.label for row in _answered(rows)})
        if self.test_category == "last":
            held_out = max(categories, default="")
        else:
            held_out = self.test_category
        if held_out not in categories:
            raise RecipeError(
                f'task.test_category = "{self.test_category}": give one of '
                f'{", ".join(categories)}, "last" or "none"'
            )
        rest = [row for row in rows if row.label != held_out]
        return (
            rest,
            [row for row in rows if row.label == held_out],
            [f"no client holds category {held_out}"],
        )

    def _example(self, row: FileRow) -> Labelled:
        text = alpaca_prompt(
            row.field("instruction", str), row.field("context", str), self.prompt == "paper"
        )
        return Labelled(Example(text, row.field("response", str)), row.field("category", str))


class AlpacaTask(InstructionData):
    """Settings of the "alpaca" task: those of `InstructionData`.

    The papers do not define a test part; 1% is held out.
    """

    name: Literal["alpaca"] = "alpaca"
    about: ClassVar[str] = "Alpaca (52,002 instructions), dealt to three clients at random"
    hint: ClassVar[str] = (
        "give alpaca_data.json or its folder (github.com/tatsu-lab/stanford_alpaca), or "
        '"tatsu-lab/alpaca"'
    )

    held_out: Share = 0.01
    validation: Share = 0.01

    def read_rows(self) -> tuple[list[Labelled], list[Labelled] | None, list[str]]:
        return (
            [Labelled(_alpaca_example(row)) for row in self._rows(["alpaca_data.json"])],
            None,
            [],
        )


class CodeAlpacaTask(InstructionData):
    """Settings of the "code-alpaca" task: those of `InstructionData`."""

    name: Literal["code-alpaca"] = "code-alpaca"
    about: ClassVar[str] = (
        "CodeAlpaca, one client for each of nine programming languages, 10% held out"
    )
    hint: ClassVar[str] = (
        "give rosetta_alpaca.json or its folder (github.com/sahil280114/codealpaca, folder data)"
    )
    fields: ClassVar[tuple[str, ...]] = ("language",)

    partition: AnyPartition = ByField(field="language")

    def read_rows(self) -> tuple[list[Labelled], list[Labelled] | None, list[str]]:
        rows_read = self._rows(["rosetta_alpaca.json", "code_alpaca_20k.json"])
        rows_kept = [row for row in rows_read if row.values.get("input") != LEFT_OUT]
        rows = [Labelled(_alpaca_example(row, "\u00a0"), self._language(row)) for row in rows_kept]
        return (
            rows,
            None,
            [
                f"{len(rows_read) - len(rows_kept):,} of {len(rows_read):,} examples left "
                f"out ({LEFT_OUT})"
            ],
        )

    def _language(self, row: FileRow) -> str:
        language = row.values.get("input")
        if language in LANGUAGES:
            return str(language)
        if not isinstance(self.partition, IID | Quantity):
            raise RecipeError(
                f'{row.place}: "input" = {language!r}: expected one of {", ".join(LANGUAGES)}, '
                f'because task.partition.kind = "{self.partition.kind}" deals by language; "iid" '
                'and "quantity" do not need it'
            )
        return ""  # in the larger CodeAlpaca `input` is not a language


class GSM8KTask(InstructionData):
    """Settings of the "gsm8k" task: those of `InstructionData`.

    If `path` is a file, test.jsonl must be in the same folder.
    """

    name: Literal["gsm8k"] = "gsm8k"
    about: ClassVar[str] = "GSM8K (grade school mathematics), dealt to three clients at random"
    hint: ClassVar[str] = (
        "give the folder with train.jsonl and test.jsonl (github.com/openai/grade-school-math, "
        'grade_school_math/data), or "openai/gsm8k"'
    )
    scores: ClassVar[tuple[str, ...]] = ("rouge_l", "final_number")

    def read_rows(self) -> tuple[list[Labelled], list[Labelled] | None, list[str]]:
        train, test = (self._rows([f"{part}.jsonl"], part, "main") for part in ("train", "test"))
        return [*map(self._example, train)], [*map(self._example, test)], []

    def _example(self, row: FileRow) -> Labelled:
        answer = row.field("answer", str)
        if "####" not in answer or last_number(answer) is None:
            raise RecipeError(
                f'{row.place}: "answer" must end in "#### " and a number: {answer[-40:]!r}'
            )
        return Labelled(Example(alpaca_prompt(row.field("question", str)), answer))


def _alpaca_example(row: FileRow, unwanted: str = "") -> Example:
    """Return a row in Alpaca's template; `unwanted` is removed from instruction and output."""
    instruction, output = (
        row.field(name, str).replace(unwanted, "") for name in ("instruction", "output")
    )
    return Example(
        alpaca_prompt(instruction, row.field("input", str) if "input" in row.values else ""), output
    )


def _answered(rows: Sequence[Labelled]) -> list[Labelled]:
    """Return the rows that have a response."""
    return [row for row in rows if row.example.response.strip()]
