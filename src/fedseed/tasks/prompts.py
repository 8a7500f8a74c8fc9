"""The texts that instructions are put into before a model sees them."""


def short_prompt(instruction: str, input: str = "") -> str:
    """Return the project's own short form: little besides the instruction and its input."""
    input_part = ""
    if input:
        input_part = f"### Input:\n{input}\n\n"
    return f"### Instruction:\n{instruction}\n\n{input_part}### Response:\n"


def question_prompt(instruction: str, input: str = "") -> str:
    """Return a question and "Answer:" after it: a form that the small base has not been trained
    with.
    """
    question = instruction
    if input:
        question = f"{instruction}\n{input}"
    return f"Question: {question}\nAnswer:"


def alpaca_prompt(instruction: str, input: str = "", context_said: bool = False) -> str:
    """Return the well-known Alpaca template, in its form with or without an input.

    It ends at the colon.

    Args:
        instruction: what is to be done.
        input: to what.
        context_said: promise an input also where there is none, as FedKSeed and Ferret fill the
            template (FedKSeed, Table 6; Ferret, Table 8: "we will discard the line ### Input").
    """
    paired = ", paired with an input that provides further context" if input or context_said else ""
    return (
        f"Below is an instruction that describes a task{paired}. Write a response that "
        "appropriately completes the "
        f"request.\n\n{short_prompt(instruction, input)}"
    ).removesuffix("\n")
