"""The data that a task gives to a federation."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import plural

# the default beta of DPO (Rafailov et al., 2023, Appendix B)
BETA = 0.1


@dataclass(frozen=True)
class Example:
    """A prompt, ready to be tokenised, and a response, whose tokens count for the loss."""

    prompt: str  # the model's input
    response: str  # what it learns to answer
    # all texts that count as right when an answer is scored; empty: only the response
    answers: tuple[str, ...] = ()
    # text that ends a response instead of the end-of-sequence token; generated text is cut there
    stop: str = ""

    def answered_as(self, example: "Example") -> "Example":
        """Return this prompt with another example's response."""
        return replace(self, response=example.response)


@dataclass(frozen=True)
class ChatStyle:
    """How chats become tokens."""

    # "auto": the tokenizer's chat template, or plain text if it has none; "own": the tokenizer's
    # template; "given": `template`; "plain": plain text, as "User: ...", "Assistant: ..."
    writing: Literal["auto", "own", "given", "plain"] = "auto"
    template: str = ""  # a Jinja template, for "given"
    # which answers to learn; None: all with a template, the last in plain text
    loss_on: Literal["all", "last"] | None = None
    # further arguments for the template, such as enable_thinking
    template_arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Chat(Example):
    """A conversation that ends with an answer.

    `prompt` and `response` are the chat in plain text; the response is the last answer.
    """

    # each has role, content (text) and what else a template may use; the last one is an answer
    messages: tuple[Mapping[str, Any], ...] = ()
    # JSON schemas of the functions that the assistant may call
    tools: tuple[Mapping[str, Any], ...] = ()
    style: ChatStyle = field(default_factory=ChatStyle)
    place: str = field(default="", compare=False)  # its file and line, for messages
    # the numbers of the assistant's messages that the data marks as not to be learnt
    unlearnt: tuple[int, ...] = ()
    # oddities noticed while reading (`fedseed.objectives.prepared.REMARKS`)
    remarks: tuple[str, ...] = field(default=(), compare=False)

    @property
    def learnt_answers(self) -> list[int]:
        """Return the numbers of the assistant's messages that may be learnt.

        The chat's first message is not an answer, and marks in the data exclude others.
        """
        return [
            number
            for number, message in enumerate(self.messages)
            if number and message["role"] == "assistant" and number not in self.unlearnt
        ]

    def answered_as(self, example: Example) -> Example:
        """Return this conversation with another one's last answer."""
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
        """Return the file and line of a conversation; "" for plain texts."""
        if isinstance(self.chosen, Chat):
            return self.chosen.place
        return ""

    def swapped(self) -> "Preference":
        """Return the pair with chosen and rejected answer exchanged."""
        return Preference(self.rejected, self.chosen)


@dataclass(frozen=True)
class Score:
    """A text, or a pair of texts, and the number to predict."""

    text: str
    value: float
    pair: str = ""  # the second text; "" without one


@dataclass(frozen=True)
class Unusable:
    """A row that is valid but can't be used for training."""

    # the reason, for the note that counts such rows
    reason: str


@dataclass(frozen=True)
class Choice:
    """A prompt and possible continuations, of which one is right, or several.

    Raises:
        ValueError: `gold` or one of `right` is out of range, or `right` lacks `gold`.
    """

    prompt: str  # ready to be tokenised
    # the possible continuations, as written after the prompt (usually with a leading space)
    options: tuple[str, ...]
    # the number of the right option, which is trained on
    gold: int
    # the numbers of all options that count as right in evaluation; empty: only `gold`
    right: tuple[int, ...] = ()
    # train on the right option's tokens as language, not on the choice between options
    teacher_forcing: bool = False
    # a classifier's input instead of the prompt; it must hold all that distinguishes examples. "":
    # the classifier gets the prompt
    text: str = field(default="", compare=False)
    # a second text for a classifier, after the first one
    pair: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        count = len(self.options)
        if not 0 <= self.gold < count:
            raise ValueError(f"gold = {self.gold}: there are {count} options, numbered from 0")
        if self.right and not {self.gold} <= set(self.right) <= set(range(count)):
            raise ValueError(
                f"right = {self.right}: expected numbers of the {count} options, including "
                f"gold ({self.gold})"
            )


@dataclass(frozen=True)
class NextWord(Choice):
    """A choice whose options are single tokens, so that one pass over the prompt scores them all.

    Scores, loss and prediction equal those of the same `Choice`, except for float noise.
    """


# stands for the blank of a `Cloze`; each tokenizer has its own mask token
MASK = "<mask>"


@dataclass(frozen=True)
class Cloze:
    """A text with one blank and words that may fill it, of which one is right, for masked language
    models.

    Raises:
        ValueError: `gold` is out of range, or the text does not have exactly one blank.
    """

    # ready to be tokenised, except for `MASK`, which occurs once
    text: str
    # one word for each class, as written in the text (usually with a leading space)
    words: tuple[str, ...]
    gold: int  # the number of the right word

    def __post_init__(self) -> None:
        if not 0 <= self.gold < len(self.words):
            raise ValueError(
                f"gold = {self.gold}: there are {len(self.words)} words, numbered from 0"
            )
        if self.text.count(MASK) != 1:
            raise ValueError(
                f"the text needs exactly one {MASK}, but has {self.text.count(MASK)}: "
                f"{self.text[:60]!r}"
            )


@dataclass(frozen=True, eq=False)
class Picture:
    """An image and its class."""

    pixels: NDArray[np.uint8]  # shape (height, width, channels)
    label: int  # the class' number

    @property
    def gold(self) -> int:
        """Return the class, under the attribute name that other kinds of examples use."""
        return self.label


@dataclass(frozen=True)
class ClientData:
    """One data holder."""

    name: str
    examples: Sequence[Any]  # its training examples
    # each example's label, which partitions can use; empty if the data has no labels, or if the
    # examples have them (a right option, a class)
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class OwnData:
    """Where a client's own data is, as its site sets it."""

    # a file or a folder; None: the recipe's path
    path: Path | None = None
    # the file to evaluate on; None: the held-out examples
    evaluation_file: Path | None = None
    # the share of its examples to hold out; None: the recipe's share
    evaluation: float | None = None


@dataclass(frozen=True)
class TaskData:
    """A run's data."""

    clients: Sequence[ClientData]
    # sets that a run reports on, by prefix of the metrics' names ("" for the main set)
    evaluation: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    # examples for choosing settings; a run does not report on these and on the test set at once
    validation: Sequence[Any] = ()
    # notes about what was left out and what is left; shown when a run starts
    notes: tuple[str, ...] = ()
    # metrics of generated answers (names in `fedseed.tasks.metrics.REGISTRY`)
    scores: tuple[str, ...] = ("rouge_l",)
    classes: tuple[str, ...] = ()  # the classes' names, for `Picture`s
    # the Jinja template of the `Chat`s, if it differs from the tokenizer's
    chat_template: str = ""
    # DPO's beta for `Preference`s: how strongly the loss keeps the model near its base
    beta: float = BETA

    def select_clients(self, names: Collection[str]) -> "TaskData":
        """Return the data of these clients only, without evaluation sets."""
        return replace(
            self, clients=[c for c in self.clients if c.name in names], evaluation={}, validation=()
        )


def span(values: Sequence[int], one: str, many: str | None = None) -> str:
    """Return the range of some numbers with their noun, such as "1 to 7 examples" or "2 examples".
    An empty sequence counts as 0; the nouns are those of `plural`.
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
