"""The texts that instructions are put into before a model sees them."""


def short_prompt(instruction: str, input: str = "") -> str:
    """Returns the project's own short form: little besides the instruction and its input."""
    given = f"### Input:\n{input}\n\n" if input else ""
    return f"### Instruction:\n{instruction}\n\n{given}### Response:\n"


def question_prompt(instruction: str, input: str = "") -> str:
    """Returns a question and "Answer:" after it: a form that the small base has not been trained
    with.
    """
    asked = f"{instruction}\n{input}" if input else instruction
    return f"Question: {asked}\nAnswer:"


def alpaca_prompt(instruction: str, input: str = "", context_said: bool = False) -> str:
    """Returns the well-known Alpaca template, in its form with or without an input.

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
