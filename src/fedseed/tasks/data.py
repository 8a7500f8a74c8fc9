"""The data that a task hands to a federation."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import plural

# of DPO where nothing else is said (Rafailov et al., 2023, Appendix B)
BETA = 0.1


@dataclass(frozen=True)
class Example:
    """A prompt, ready to be tokenised, and the response that carries the loss."""

    prompt: str  # what the model is given
    response: str  # what it is trained to answer
    # all texts that count as right when an answer is scored; none: just the response
    answers: tuple[str, ...] = ()
    # what ends a response in place of the end-of-sequence token; generated text is cut there
    stop: str = ""

    def answered_as(self, example: "Example") -> "Example":
        """Return the same prompt with another example's response."""
        return replace(self, response=example.response)


@dataclass(frozen=True)
class ChatStyle:
    """The style in which chats become tokens."""

    # by the tokenizer's chat template, or plainly where it has none; by the tokenizer's; by
    # `template`; plainly, as "User: ...", "Assistant: ..."
    writing: Literal["auto", "own", "given", "plain"] = "auto"
    template: str = ""  # a Jinja template, for "given"
    # which answers; None: all by a template, the last in the plain form
    loss_on: Literal["all", "last"] | None = None
    # what else a template is given, such as enable_thinking
    template_arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Chat(Example):
    """A conversation that ends with an answer.

    `prompt` and `response` are its plain form, with the last answer.
    """

    # role, content (text), what else a template may use; ends with answer
    messages: tuple[Mapping[str, Any], ...] = ()
    # JSON schemas of functions that the assistant may call
    tools: tuple[Mapping[str, Any], ...] = ()
    style: ChatStyle = field(default_factory=ChatStyle)
    place: str = field(default="", compare=False)  # its file and line, for messages
    # the numbers of the assistant's messages that carry no loss, by marks in the data
    unlearnt: tuple[int, ...] = ()
    # what reading it noticed (`fedseed.objectives.prepared.REMARKS`)
    remarks: tuple[str, ...] = field(default=(), compare=False)

    @property
    def learnt_answers(self) -> list[int]:
        """Return the numbers of the assistant's messages that may be learnt.

        The first message of all answers nothing, and marks in the data exclude others.
        """
        return [
            number
            for number, message in enumerate(self.messages)
            if number and message["role"] == "assistant" and number not in self.unlearnt
        ]

    def answered_as(self, example: Example) -> Example:
        """Return the same conversation with another one's last answer."""
        if isinstance(example, Chat):
            last = example.messages[-1]
        else:
            last = {"role": "assistant", "content": example.response}
        return replace(self, response=example.response, messages=(*self.messages[:-1], last))


@dataclass(frozen=True)
class Preference:
    """Two answers to one prompt, of which one was preferred."""

    chosen: Example
    rejected: Example

    @property
    def place(self) -> str:
        """Return the file and line of a conversation; "" of texts."""
        if isinstance(self.chosen, Chat):
            return self.chosen.place
        return ""

    def swapped(self) -> "Preference":
        """Return the pair as somebody with the opposite taste would have it."""
        return Preference(self.rejected, self.chosen)


@dataclass(frozen=True)
class Score:
    """A text, or two of them, and the number that is to be predicted."""

    text: str
    value: float
    pair: str = ""  # the second text; "" without one


@dataclass(frozen=True)
class Unusable:
    """A row from which nothing is learnt, although nothing is wrong with it."""

    # for a person, in a line that counts such rows
    reason: str


@dataclass(frozen=True)
class Choice:
    """A prompt and the texts that may follow it, of which one is right (or some are).

    Raises:
        ValueError: `gold` or one of `right` is the number of no option, or `gold` is not among
            `right`.
    """

    prompt: str  # ready to be tokenised
    # what may follow, as it is written after the prompt (usually with a space first)
    options: tuple[str, ...]
    # the number of the right option; the one that is trained on
    gold: int
    # of all options that count as right in evaluation; none: just `gold`
    right: tuple[int, ...] = ()
    # train on the right option's tokens as language, not on the choice among the options
    teacher_forcing: bool = False
    # what a classifier is given in place of the prompt, which says all that tells examples apart;
    # "": the prompt
    text: str = field(default="", compare=False)
    # a second text that a classifier is given after the first one
    pair: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        count = len(self.options)
        if not 0 <= self.gold < count:
            raise ValueError(f"gold = {self.gold}: there are {count} options, numbered from 0")
        if self.right and not {self.gold} <= set(self.right) <= set(range(count)):
            raise ValueError(
                f"right = {self.right}: numbers of the {count} options, gold ({self.gold}) too"
            )


@dataclass(frozen=True)
class NextWord(Choice):
    """A choice whose options are one token each: one pass over the prompt scores them all.

    The scores, and so loss and prediction, are those of the same `Choice` but for float noise.
    """


# where the blank of a `Cloze` is, whatever a tokenizer calls it
MASK = "<mask>"


@dataclass(frozen=True)
class Cloze:
    """A text with one blank and the words that may fill it, of which one is right: a masked
    language model's choice.

    Raises:
        ValueError: `gold` is the number of no word, or the text has not one blank.
    """

    # ready to be tokenised but for `MASK`, which stands in it once
    text: str
    # one for each class, as it is written in the text (usually with a space first)
    words: tuple[str, ...]
    gold: int  # the number of the right word

    def __post_init__(self) -> None:
        if not 0 <= self.gold < len(self.words):
            raise ValueError(
                f"gold = {self.gold}: there are {len(self.words)} words, numbered from 0"
            )
        if self.text.count(MASK) != 1:
            raise ValueError(
                f"the text needs one {MASK}, not {self.text.count(MASK)}: {self.text[:60]!r}"
            )


@dataclass(frozen=True, eq=False)
class Picture:
    """An image and its class."""

    pixels: NDArray[np.uint8]  # shape (height, width, channels)
    label: int  # the class' number

    @property
    def gold(self) -> int:
        """Return the class, by the name that other examples' right answers have."""
        return self.label


@dataclass(frozen=True)
class ClientData:
    """One data holder."""

    name: str
    examples: Sequence[Any]  # what it trains on
    # each example's, by which the data was dealt or could be; none if the data has none, or if the
    # examples say it themselves (a right option, a class)
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class OwnData:
    """The place of a client's own data, as the client names it."""

    # a file, or a folder; None: the recipe's path
    path: Path | None = None
    # what it evaluates on; None: what it holds out
    evaluation_file: Path | None = None
    # the share of its examples that it holds out; None: the recipe's
    evaluation: float | None = None


@dataclass(frozen=True)
class TaskData:
    """Everything a run needs of its data."""

    clients: Sequence[ClientData]
    # sets that a run reports on, by prefix of the metric's name ("" for the main one)
    evaluation: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    # for choosing settings; no run reports on it together with `evaluation`
    validation: Sequence[Any] = ()
    # what was left out and how much is left, a line each; shown when a run starts
    notes: tuple[str, ...] = ()
    # how generated answers are scored (of `fedseed.tasks.metrics.REGISTRY`)
    scores: tuple[str, ...] = ("rouge_l",)
    classes: tuple[str, ...] = ()  # the classes' names; for `Picture`s
    # the Jinja template that writes `Chat`s, if it is not their tokenizer's own
    chat_template: str = ""
    # how strongly `Preference`s hold the model to its base
    beta: float = BETA

    def select_clients(self, names: Collection[str]) -> "TaskData":
        """These clients' data alone, without anything to evaluate on."""
        return replace(
            self, clients=[c for c in self.clients if c.name in names], evaluation={}, validation=()
        )


def span(values: Sequence[int], one: str, many: str | None = None) -> str:
    """Return the range of some numbers (none: 0) with their noun, as `plural`: "1 to 7 examples",
    "2 examples".
    """
    low, high = min(values, default=0), max(values, default=0)
    if low == high:
        return plural(low, one, many)
    return f"{low:,} to {plural(high, one, many)}"


def who_holds(sizes: Sequence[int], one: str = "example") -> str:
    """Describe how much clients hold, for a task's notes: "3 clients hold 1 to 7 examples", "1
    client holds 2 examples".
    """
    return f"{plural(len(sizes), 'client')} hold{'s' if len(sizes) == 1 else ''} {span(sizes, one)}"
