"""The texts that instructions are put into before a model sees them."""

from __future__ import annotations


def short_prompt(instruction: str, input: str = "") -> str:
    """The project's own short form: little besides the instruction and its input."""
    parts = [f"### Instruction:\n{instruction}"]
    if input:
        parts.append(f"### Input:\n{input}")
    parts.append("### Response:\n")
    return "\n\n".join(parts)


def question_prompt(instruction: str, input: str = "") -> str:
    """A question and "Answer:" after it: a form that the small base has not been trained with."""
    asked = f"{instruction}\n{input}" if input else instruction
    return f"Question: {asked}\nAnswer:"


def alpaca_prompt(instruction: str, input: str = "") -> str:
    """The well-known Alpaca template, in its form with or without an input."""
    if input:
        opening = "Below is an instruction that describes a task, paired with an input that provides further context. "
    else:
        opening = "Below is an instruction that describes a task. "
    request = "Write a response that appropriately completes the request."
    # Alpaca's template ends at the colon: the response begins on the same line.
    body = short_prompt(instruction, input).removesuffix("\n")
    return f"{opening}{request}\n\n{body}"


def prompt_with_context_said(instruction: str, input: str = "") -> str:
    """Alpaca's template as FedKSeed and Ferret fill it: it promises an input also where there is none.

    FedKSeed, Table 6; Ferret, Table 8 ("we will discard the line ### Input").
    """
    promised = alpaca_prompt(instruction, input or " ").partition("\n\n")[0]
    return f"{promised}\n\n{alpaca_prompt(instruction, input).partition(chr(10) * 2)[2]}"
