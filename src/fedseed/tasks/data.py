"""What a task hands to a federation."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import plural


@dataclass(frozen=True)
class Example:
    """A prompt, ready to be tokenised, and the response that carries the loss.

    Args:
        prompt: what the model is given.
        response: what it is trained to answer.
        answers: all texts that count as right when an answer is scored; none: just the response.
        stop: what ends a response in place of the end-of-sequence token; generated text is cut there.
    """

    prompt: str
    response: str
    answers: tuple[str, ...] = ()
    stop: str = ""

    def answered_as(self, other: "Example") -> "Example":
        """The same prompt with another example's response."""
        return replace(self, response=other.response)


@dataclass(frozen=True)
class ChatStyle:
    """How chats become tokens.

    Args:
        writing: "auto": by the tokenizer's chat template, or plainly where it has none; "own": by the tokenizer's;
            "given": by `template`; "plain": "User: ...", "Assistant: ...".
        template: a Jinja template, for "given".
        loss_on: which answers carry the loss; None: all by a template, the last in the plain form.
    """

    writing: Literal["auto", "own", "given", "plain"] = "auto"
    template: str = ""
    loss_on: Literal["all", "last"] | None = None


@dataclass(frozen=True)
class Chat(Example):
    """A conversation that ends with an answer. `prompt` and `response` are its plain form, with the last answer.

    Args:
        messages: role and content (text), and what else a template may use; the last one is the assistant's.
        tools: JSON schemas of functions that the assistant may call.
        style: how it becomes tokens.
        where: its file and line, for messages.
    """

    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    style: ChatStyle = field(default_factory=ChatStyle)
    where: str = field(default="", compare=False)

    def answered_as(self, other: Example) -> Example:
        """The same conversation with another one's last answer."""
        last = other.messages[-1] if isinstance(other, Chat) else {"role": "assistant", "content": other.response}
        return replace(self, response=other.response, messages=(*self.messages[:-1], last))


@dataclass(frozen=True)
class Choice:
    """A prompt and the texts that may follow it, of which one is right (or some are).

    Args:
        prompt: ready to be tokenised.
        options: what may follow, as it is written after the prompt (usually with a space first).
        gold: the number of the right option; the one that is trained on.
        right: the numbers of all options that count as right in evaluation; none: just `gold`.
        teacher_forcing: train on the right option's tokens as language, not on the choice among the options.
        text: what a classifier is given in place of the prompt; "": the prompt.

    Raises:
        ValueError: `gold` or one of `right` is the number of no option, or `gold` is not among `right`.
    """

    prompt: str
    options: tuple[str, ...]
    gold: int
    right: tuple[int, ...] = ()
    teacher_forcing: bool = False
    text: str = field(default="", compare=False)  # the prompt says all that tells examples apart

    def __post_init__(self) -> None:
        if not 0 <= self.gold < len(self.options):
            raise ValueError(f"gold = {self.gold}: there are {len(self.options)} options, numbered from 0")
        if self.right and (
            self.gold not in self.right or not 0 <= min(self.right) <= max(self.right) < len(self.options)
        ):
            raise ValueError(
                f"right = {self.right}: numbers of the {len(self.options)} options, gold ({self.gold}) too"
            )


@dataclass(frozen=True)
class NextWord(Choice):
    """A choice whose options are one token each: one pass over the prompt scores them all.

    The scores, and so loss and prediction, are those of the same `Choice` but for float noise.
    """


MASK = "<mask>"  # where the blank of a `Cloze` is, whatever a tokenizer calls it


@dataclass(frozen=True)
class Cloze:
    """A text with one blank and the words that may fill it, of which one is right: a masked language model's choice.

    Args:
        text: ready to be tokenised but for `MASK`, which stands in it once.
        words: a word for each class, as it is written in the text (usually with a space first).
        gold: the number of the right word.

    Raises:
        ValueError: `gold` is the number of no word, or the text has not one blank.
    """

    text: str
    words: tuple[str, ...]
    gold: int

    def __post_init__(self) -> None:
        if not 0 <= self.gold < len(self.words):
            raise ValueError(f"gold = {self.gold}: there are {len(self.words)} words, numbered from 0")
        if self.text.count(MASK) != 1:
            raise ValueError(f"the text needs one {MASK}, not {self.text.count(MASK)}: {self.text[:60]!r}")


@dataclass(frozen=True, eq=False)
class Picture:
    """An image and its class.

    Args:
        pixels: uint8, shape (height, width, channels).
        label: the class' number.
    """

    pixels: NDArray[np.uint8]
    label: int

    @property
    def gold(self) -> int:
        """The class, as other examples call what is right."""
        return self.label


@dataclass(frozen=True)
class ClientData:
    """One data holder.

    Args:
        name: what it is called.
        examples: what it trains on.
        labels: each example's label, by which the data was dealt or could be; none if the data has none, or if the
            examples say it themselves (a right option, a class).
    """

    name: str
    examples: Sequence[Any]
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class OwnData:
    """Where a client's own data lies, as it says itself.

    Args:
        path: a file, or a folder; None: where the recipe says.
        evaluation_file: what it evaluates on; None: what it holds out.
        evaluation: the share of its examples that it holds out; None: as the recipe says.
    """

    path: Path | None = None
    evaluation_file: Path | None = None
    evaluation: float | None = None


@dataclass(frozen=True)
class TaskData:
    """Everything a run needs of its data.

    Args:
        clients: the data holders.
        evaluation: sets that a run reports on, by prefix of the metric's name ("" for the main one).
        validation: for choosing settings; no run reports on it together with `evaluation`.
        notes: what was left out and how much is left, a line each; shown when a run starts.
        scores: how generated answers are scored (names of `fedseed.tasks.metrics.REGISTRY`); for `Example`s.
        classes: the classes' names; for `Picture`s.
        chat_template: the Jinja template that writes `Chat`s, if it is not their tokenizer's own; "": it is.
    """

    clients: Sequence[ClientData]
    evaluation: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    validation: Sequence[Any] = ()
    notes: tuple[str, ...] = ()
    scores: tuple[str, ...] = ("rouge_l",)
    classes: tuple[str, ...] = ()
    chat_template: str = ""

    def only(self, names: Collection[str]) -> "TaskData":
        """These clients' data alone, without anything to evaluate on."""
        return replace(self, clients=[c for c in self.clients if c.name in names], evaluation={}, validation=())


def span(values: Sequence[int], one: str, many: str | None = None) -> str:
    """The smallest and the largest of some numbers with their noun: "1 to 7 examples", "2 examples" if all are equal.

    Args:
        values: the numbers; none counts as one 0.
        one: the noun of one.
        many: the noun of others; by default with an s.
    """
    low, high = min(values, default=0), max(values, default=0)
    return plural(low, one, many) if low == high else f"{low:,} to {plural(high, one, many)}"


def who_holds(sizes: Sequence[int], one: str = "example") -> str:
    """How much clients hold, for a task's notes: "3 clients hold 1 to 7 examples", "1 client holds 2 examples".

    Args:
        sizes: what each client has.
        one: what it has.
    """
    return f"{plural(len(sizes), 'client')} hold{'s' if len(sizes) == 1 else ''} {span(sizes, one)}"
