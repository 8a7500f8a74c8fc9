"""Reads pairs of a preferred and a rejected answer from preference data sets.

The forms are TRL's: a prompt with a chosen and a rejected answer, each a text or a list of
messages; or a chosen and a rejected conversation, whose common beginning is the prompt.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedseed.errors import RecipeError
from fedseed.tasks.chats import (
    Message,
    chat_of,
    marked_chat,
    messages_of,
    read_tools,
    system_of,
    text_of,
    with_arguments,
)
from fedseed.tasks.data import Chat, ChatStyle, Example, Preference, Unusable
from fedseed.tasks.files import FileRow
from fedseed.tasks.hints import CHOSEN, REJECTED, likely_prompt

# possible names of the prompt's field; the first one that a row has is used
PROMPTS = ("prompt", "conversations")
SIDES = (CHOSEN, REJECTED)
SAME = Unusable("the chosen and the rejected answer are the same")


def read_preference(row: FileRow, style: ChatStyle, as_chat: bool) -> Preference | Unusable:
    """Return a row's chosen and rejected answers to its prompt.

    Args:
        row: has `chosen` and `rejected`, and usually `prompt`.
        style: how chats become tokens.
        as_chat: whether texts become a user's and an assistant's messages.

    Returns:
        The pair; `Unusable` if both answers are equal, or marked as not to be learnt.

    Raises:
        RecipeError: an answer is missing or malformed, or there is no prompt.
    """
    prompt = next((name for name in PROMPTS if row.values.get(name) is not None), PROMPTS[0])
    row = _with_parsed_messages(row, (prompt, *SIDES))
    if any(isinstance(row.values.get(name), list | Mapping) for name in (prompt, *SIDES)):
        return _of_messages(row, prompt, style)
    prompt_text, chosen_text, rejected_text = _texts(row, prompt)
    if chosen_text.strip() == rejected_text.strip():
        return SAME
    if not as_chat:
        return Preference(Example(prompt_text, chosen_text), Example(prompt_text, rejected_text))
    arguments = with_arguments(style, row)
    system, tools = system_of(row), read_tools(row)

    def chat(answer: str) -> Chat:
        turns = [
            *system,
            {"role": "user", "content": prompt_text.strip()},
            {"role": "assistant", "content": answer.strip()},
        ]
        return chat_of(turns, tools, arguments, row.place)

    return Preference(chat(chosen_text), chat(rejected_text))


def _texts(row: FileRow, prompt: str) -> tuple[str, str, str]:
    """Return a row's prompt and both answers; without a prompt, what both begin with is one.

    The prompt ends before a blank, so that no word is cut in two.
    """
    chosen_text, rejected_text = (str(row.field(name, str)) for name in SIDES)
    if row.values.get(prompt) is not None:
        return str(row.field(prompt, str)), chosen_text, rejected_text
    likely_field = likely_prompt(row.values)
    if likely_field is not None and str(row.values[likely_field]).strip() not in chosen_text:
        raise RecipeError(
            f'{row.place}: it has no "prompt"; if "{likely_field}" is the prompt, set task.fields '
            f"= {{prompt = {json.dumps(likely_field)}}}"
        )
    length = 0
    shorter = min(len(chosen_text), len(rejected_text))
    while length < shorter and chosen_text[length] == rejected_text[length]:
        length += 1
    begin = max((place for place in range(length) if chosen_text[place].isspace()), default=0)
    while begin and chosen_text[begin - 1].isspace():
        begin -= 1
    if not begin:
        raise RecipeError(
            f'{row.place}: it has no "prompt", and "{CHOSEN}" and "{REJECTED}" do not begin with '
            "the same words; put the prompt into its own field (task.fields names it)"
        )
    return chosen_text[:begin], chosen_text[begin:], rejected_text[begin:]


def _of_messages(row: FileRow, prompt: str, style: ChatStyle) -> Preference | Unusable:
    """Return the pair of a row whose prompt or answers are lists of messages."""
    prompt_messages: list[Message] = []
    if row.values.get(prompt) is not None:
        prompt_messages = messages_of(row, prompt, "user")[0]
    answers = [messages_of(row, name, "assistant") for name in SIDES]
    turns, marks = [list(one) for one, _ in answers], [list(one) for _, one in answers]
    if not all(turns):
        raise RecipeError(f'{row.place}: "{CHOSEN}" and "{REJECTED}" each need a message')
    if {one[0]["role"] for one in turns} != {"assistant"}:  # whole conversations, not only answers
        common = _common_prompt(row, prompt_messages, prompt, turns)
        prompt_messages = turns[0][:common]
        turns, marks = [one[common:] for one in turns], [one[common:] for one in marks]
    for name, one in zip(SIDES, turns, strict=True):
        if not prompt_messages or not _has_answer(one):
            raise RecipeError(
                f'{row.place}: "prompt" needs a message, and "{name}" must end with one of '
                "the assistant"
            )
    if turns[0] == turns[1]:
        return SAME
    if prompt_messages[0]["role"] != "system":
        prompt_messages = [*system_of(row), *prompt_messages]
    unlearnt = [False if turn["role"] == "assistant" else None for turn in prompt_messages]
    chats = [
        marked_chat([*prompt_messages, *one], [*unlearnt, *answer_marks], row, style)
        for one, answer_marks in zip(turns, marks, strict=True)
    ]
    chosen_chat, rejected_chat = chats
    if isinstance(chosen_chat, Unusable):
        return chosen_chat
    if isinstance(rejected_chat, Unusable):
        return rejected_chat
    return Preference(chosen_chat, rejected_chat)


def _has_answer(turns: Sequence[Message]) -> bool:
    return any(turn["role"] == "assistant" for turn in turns)


def _common_prompt(
    row: FileRow,
    prompt_messages: Sequence[Message],
    prompt: str,
    turns: Sequence[Sequence[Message]],
) -> int:
    """Return how many messages at the beginning of two conversations are their common prompt.

    Args:
        row: the row that has them.
        prompt_messages: the messages of the row's prompt field, which must be at the conversations'
            beginning.
        prompt: the name of the prompt's field.
        turns: both conversations.
    """
    chosen_turns, rejected_turns = turns
    common = 0
    # leave at least one message as each answer
    longest = min(len(chosen_turns), len(rejected_turns)) - 1
    while common < longest and chosen_turns[common] == rejected_turns[common]:
        common += 1
    if not common:
        raise RecipeError(
            f'{row.place}: "{CHOSEN}" and "{REJECTED}" are conversations that begin differently: '
            "they need a common prompt"
        )
    begin = chosen_turns[:common]
    texts = {text_of(turn).strip() for turn in begin}
    if any(text_of(turn).strip() not in texts for turn in prompt_messages):
        raise RecipeError(
            f'{row.place}: "{prompt}" is not among the messages that "{CHOSEN}" and "{REJECTED}" '
            "begin with: add it there, or keep only the answers in these two fields"
        )
    if len(prompt_messages) > 1:  # a prompt of several messages has its own end
        if list(begin[: len(prompt_messages)]) == list(prompt_messages):
            return min(common, len(prompt_messages))
        return common
    return common


def _with_parsed_messages(row: FileRow, names: Sequence[str]) -> FileRow:
    """Return a row with its messages as lists, parsed if a table has JSON text."""
    parsed_fields: dict[str, Any] = {}
    for name in names:
        value = row.values.get(name)
        if not isinstance(value, str) or not value.lstrip().startswith("[{"):
            continue
        try:
            parsed = json.loads(value)
        except ValueError:  # a plain text that only begins like JSON
            continue
        if all(isinstance(turn, Mapping) and ("role" in turn or "from" in turn) for turn in parsed):
            parsed_fields[name] = parsed
    if parsed_fields:
        return replace(row, values={**row.values, **parsed_fields})
    return row
