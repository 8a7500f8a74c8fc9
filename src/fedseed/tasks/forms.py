"""The forms that a row of the user's own data may have, and what each becomes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedseed.errors import RecipeError
from fedseed.tasks.chats import chat_of, read_chat
from fedseed.tasks.data import ChatStyle, Choice, Example
from fedseed.tasks.files import Record
from fedseed.tasks.prompts import alpaca_prompt, short_prompt

Template = Literal["alpaca", "short", "chat"]


@dataclass(frozen=True)
class ToLabel:
    """A text and its label, until all labels are known."""

    where: str
    text: str
    label: str


Made = Example | Choice | ToLabel


@dataclass(frozen=True)
class Style:
    """What rows are put into.

    Args:
        template: instructions, and prompts if it is "chat".
        chat: chats.
        labels: those that a text may have; none: any.
    """

    template: Template = "alpaca"
    chat: ChatStyle = field(default_factory=ChatStyle)
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Form:
    """A form that rows may have.

    Args:
        fields: how messages call it.
        keys: a row that has all of these fields has this form; each is one field or several of which one will do.
        read: makes an example of a row.
    """

    fields: str
    keys: tuple[str | tuple[str, ...], ...]
    read: Callable[[Record, Style], Made]

    def fits(self, row: Record, keys: int | None = None) -> bool:
        """Whether a row has the form's fields, or the first `keys` of them."""
        values = row.values
        return all(
            any(values.get(name) is not None for name in ((key,) if isinstance(key, str) else key))
            for key in self.keys[:keys]
        )


def _completion(row: Record, style: Style) -> Example:
    answer = "response" if "response" in row.values and "completion" not in row.values else "completion"
    prompt, response = row.field("prompt", str), row.field(answer, str)
    return _as_chat(prompt, response, style, row) if style.template == "chat" else Example(prompt, response)


def _instruction(row: Record, style: Style) -> Example:
    given = "context" if "context" in row.values else "input"
    answer = "response" if "response" in row.values else "output"
    text = row.field(given, str) if row.values.get(given) is not None else ""
    instruction, response = row.field("instruction", str), row.field(answer, str)
    if style.template == "chat":
        return _as_chat(f"{instruction}\n\n{text}" if text else instruction, response, style, row)
    make = alpaca_prompt if style.template == "alpaca" else short_prompt
    return Example(make(instruction, text), response)


def _as_chat(asked: str, answer: str, style: Style, row: Record) -> Example:
    """One question and its answer, as a chat."""
    turns = [{"role": "user", "content": asked.strip()}, {"role": "assistant", "content": answer.strip()}]
    return chat_of(turns, [], style.chat, row.where)


def _options(row: Record, style: Style) -> Choice:
    options = row.field("options", list)
    try:
        return Choice(row.field("prompt", str), tuple(map(str, options)), row.field("gold", int))
    except ValueError as error:
        raise RecipeError(f"{row.where}: {error}") from error


def _chat(row: Record, style: Style) -> Example:
    return read_chat(row, style.chat)


def _label(row: Record, style: Style) -> ToLabel:
    label = str(row.field("label", (str, int, bool)))
    if style.labels and label not in style.labels:
        raise RecipeError(f'{row.where}: "label" = {label!r}: task.labels has {", ".join(style.labels)}')
    return ToLabel(row.where, row.field("text", str), label)


def _text(row: Record, style: Style) -> Example:
    return Example("", row.field("text", str))  # nothing is given: all of it is learnt


TEXT = Form("text", ("text",), _text)
FORMS = (
    Form("prompt, options, gold", ("options", "prompt", "gold"), _options),
    Form("prompt, completion", ("prompt", ("completion", "response")), _completion),
    Form("instruction, input, output", ("instruction", ("output", "response")), _instruction),
    Form("messages", ("messages",), _chat),
    Form("conversations", ("conversations",), _chat),
    Form("text, label", ("text", "label"), _label),
    TEXT,
)


def form_of(row: Record) -> Form | None:
    """The first form that a row has, or else the first of which it has the leading field."""
    whole = next((form for form in FORMS if form.fits(row)), None)
    return whole or next((form for form in FORMS if form.fits(row, 1)), None)


def finisher(made: Sequence[Any], wanted: Sequence[str]) -> Callable[[Any], Example | Choice]:
    """What makes choices of texts to label, of `wanted` or all labels seen. Raises RecipeError if it is one."""
    texts = [one for one in made if isinstance(one, ToLabel)]
    labels = list(wanted) or sorted({text.label for text in texts})
    if texts and len(labels) < 2:
        raise RecipeError(f"{texts[0].where}: all labels are {labels[0]!r}; there must be two at least to choose among")
    number = {label: i for i, label in enumerate(labels)}
    options = tuple(f" {label}" for label in labels)

    def finish(one: Made) -> Example | Choice:
        if not isinstance(one, ToLabel):
            return one
        return Choice(f"{one.text}\nLabel:", options, number[one.label], text=one.text)

    return finish
