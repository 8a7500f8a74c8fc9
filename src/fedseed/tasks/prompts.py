"""Prompt templates: the text around an instruction."""


def short_prompt(instruction: str, input: str = "") -> str:
    """Return fedseed's own short prompt: little more than the instruction and its input."""
    input_part = ""
    if input:
        input_part = f"### Input:\n{input}\n\n"
    return f"### Instruction:\n{instruction}\n\n{input_part}### Response:\n"


def question_prompt(instruction: str, input: str = "") -> str:
    """Return a question followed by "Answer:", a form that the small base was not trained with."""
    question = instruction
    if input:
        question = f"{instruction}\n{input}"
    return f"Question: {question}\nAnswer:"


def alpaca_prompt(instruction: str, input: str = "", context_said: bool = False) -> str:
    """Return the Alpaca template, in its form with or without an input.

    The text ends at the colon.

    Args:
        instruction: the instruction.
        input: the instruction's input; "" if it has none.
        context_said: mention an input in the opening even if there is none, as FedKSeed and Ferret
            do (FedKSeed, Table 6; Ferret, Table 8: "we will discard the line ### Input").
    """
    paired = ", paired with an input that provides further context" if input or context_said else ""
    return (
        f"Below is an instruction that describes a task{paired}. Write a response that "
        "appropriately completes the "
        f"request.\n\n{short_prompt(instruction, input)}"
    ).removesuffix("\n")
