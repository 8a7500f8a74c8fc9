"""Alpaca and CodeAlpaca: lists of {"instruction", "input", "output"} in one JSON file.

Alpaca: Taori et al., 2023, 52,002 instructions without labels.

CodeAlpaca: Chaudhary, 2023, in the form that federated papers use (rosetta_alpaca.json): the task's `input` is the
programming language that the answer must be in. FedMeZO (Ling et al., 2024, Appendix E.1) and Ferret (Shu et al., 2025,
Appendix C.1.2) leave X86-64 Assembly out, of which there is little, and hold 10% out; Ferret makes each of the other
nine languages a client. No-break spaces are taken away, as FederatedScope does, which FedMeZO's data comes from.
"""

from typing import ClassVar, Literal

from fedseed.errors import RecipeError
from fedseed.tasks.data import Example
from fedseed.tasks.files import Record
from fedseed.tasks.instruction_data import InstructionData, Labelled, Share, without_empty
from fedseed.tasks.partition import IID, AnyPartition, ByField, Quantity
from fedseed.tasks.prompts import alpaca_prompt

LEFT_OUT = "X86-64 Assembly"
LANGUAGES = ("C", "C#", "C++", "Go", "Java", "PHP", "Pascal", "Python", "Scala")


class AlpacaTask(InstructionData):
    """Settings of the "alpaca" task: those of `InstructionData`. The papers name no test part; 1% is held out."""

    name: Literal["alpaca"] = "alpaca"
    about: ClassVar[str] = "Alpaca (52,002 instructions), dealt to three clients at random"
    hint: ClassVar[str] = (
        "give alpaca_data.json or the folder that holds it (github.com/tatsu-lab/stanford_alpaca), "
        'or "tatsu-lab/alpaca"'
    )

    held_out: Share = 0.01
    validation: Share = 0.01

    def read(self) -> tuple[list[Labelled], list[Labelled] | None, list[str]]:
        """All examples that have an output."""
        rows, note = without_empty([Labelled(alpaca_example(row)) for row in self.rows(["alpaca_data.json"])])
        return rows, None, [note]


class CodeAlpacaTask(InstructionData):
    """Settings of the "code-alpaca" task: those of `InstructionData`."""

    name: Literal["code-alpaca"] = "code-alpaca"
    about: ClassVar[str] = "CodeAlpaca, each of nine programming languages a client, 10% held out"
    hint: ClassVar[str] = (
        "give rosetta_alpaca.json or the folder that holds it (github.com/sahil280114/codealpaca, folder data)"
    )
    fields: ClassVar[tuple[str, ...]] = ("language",)

    partition: AnyPartition = ByField(field="language")

    def read(self) -> tuple[list[Labelled], list[Labelled] | None, list[str]]:
        """The examples of nine languages."""
        read = self.rows(["rosetta_alpaca.json", "code_alpaca_20k.json"])
        kept = [row for row in read if row.values.get("input") != LEFT_OUT]
        rows, note = without_empty([Labelled(alpaca_example(row, "\u00a0"), self._language(row)) for row in kept])
        return rows, None, [f"{len(read) - len(kept):,} of {len(read):,} examples left out ({LEFT_OUT})", note]

    def _language(self, row: Record) -> str:
        language = row.values.get("input")
        if language in LANGUAGES:
            return str(language)
        if isinstance(self.partition, IID | Quantity):
            return ""  # the larger CodeAlpaca has other inputs; dealing them needs no language
        raise RecipeError(
            f'{row.where}: "input" = {language!r}: one of {", ".join(LANGUAGES)} is expected, for '
            f'task.partition.kind = "{self.partition.kind}" deals by language; "iid" and "quantity" do without'
        )


def alpaca_example(row: Record, unwanted: str = "") -> Example:
    """A row in Alpaca's template.

    Args:
        row: with "instruction", "output" and, mostly, "input".
        unwanted: what is taken out of instruction and output.

    Raises:
        RecipeError: a field is missing or no text.
    """
    instruction, output = (row.field(name, str).replace(unwanted, "") for name in ("instruction", "output"))
    return Example(alpaca_prompt(instruction, row.field("input", str) if "input" in row.values else ""), output)
