"""Reads pairs of answers of which one was preferred, as preference data sets have them.

TRL's forms: a prompt with a chosen and a rejected answer, each a text or a list of messages; or a
chosen and a rejected whole, whose common beginning is the prompt.
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
    text_of,
    with_arguments,
)
from fedseed.tasks.data import Chat, ChatStyle, Example, Preference, Unusable
from fedseed.tasks.files import Record
from fedseed.tasks.hints import CHOSEN, REJECTED, likely_prompt

# what the prompt may be called, the first that is there
PROMPTS = ("prompt", "conversations")
SIDES = (CHOSEN, REJECTED)
SAME = Unusable("the chosen and the rejected answer are the same")


def read_preference(row: Record, style: ChatStyle, as_chat: bool) -> Preference | Unusable:
    """Return a row's chosen and rejected answers to its prompt.

    Args:
        row: with `chosen` and `rejected`, and mostly `prompt`.
        style: how chats become tokens.
        as_chat: whether texts are asked by a user and answered by an assistant.

    Returns:
        The pair; `Unusable` if both answers are the same, or marked not to be learnt.

    Raises:
        RecipeError: an answer is missing or malformed, or nothing says what the prompt is.
    """
    prompt = next((name for name in PROMPTS if row.values.get(name) is not None), PROMPTS[0])
    row = _with_parsed_messages(row, (prompt, *SIDES))
    if any(isinstance(row.values.get(name), list | Mapping) for name in (prompt, *SIDES)):
        return _of_messages(row, prompt, style)
    asked, chosen, rejected = _texts(row, prompt)
    if chosen.strip() == rejected.strip():
        return SAME
    if not as_chat:
        return Preference(Example(asked, chosen), Example(asked, rejected))
    arguments = with_arguments(style, row)
    system = _system(row)

    def chat(answer: str) -> Chat:
        turns = [
            *system,
            {"role": "user", "content": asked.strip()},
            {"role": "assistant", "content": answer.strip()},
        ]
        return chat_of(turns, [], arguments, row.where)

    return Preference(chat(chosen), chat(rejected))


def _texts(row: Record, prompt: str) -> tuple[str, str, str]:
    """Return a row's prompt and both answers; without a prompt, what both begin with is one.

    The prompt ends before a blank, so that no word is cut into two.
    """
    chosen, rejected = (str(row.field(name, str)) for name in SIDES)
    if row.values.get(prompt) is not None:
        return str(row.field(prompt, str)), chosen, rejected
    other = likely_prompt(row.values)
    if other is not None and str(row.values[other]).strip() not in chosen:
        raise RecipeError(
            f'{row.where}: it has no "prompt"; if "{other}" is what was asked, say so: '
            f"task.fields = {{prompt = {json.dumps(other)}}}"
        )
    length = 0
    shorter = min(len(chosen), len(rejected))
    while length < shorter and chosen[length] == rejected[length]:
        length += 1
    begin = max((place for place in range(length) if chosen[place].isspace()), default=0)
    while begin and chosen[begin - 1].isspace():
        begin -= 1
    if not begin:
        raise RecipeError(
            f'{row.where}: it has no "prompt", and "{CHOSEN}" and "{REJECTED}" do not begin with '
            "the same words; give the prompt a field of its own (task.fields says which one it is)"
        )
    return chosen[:begin], chosen[begin:], rejected[begin:]


def _of_messages(row: Record, prompt: str, style: ChatStyle) -> Preference | Unusable:
    """Return the pair of a row whose prompt or answers are lists of messages."""
    asked: list[Message] = []
    if row.values.get(prompt) is not None:
        asked = messages_of(row, prompt, "user")[0]
    answers = [messages_of(row, name, "assistant") for name in SIDES]
    turns, marks = [list(one) for one, _ in answers], [list(one) for _, one in answers]
    if not all(turns):
        raise RecipeError(f'{row.where}: "{CHOSEN}" and "{REJECTED}" need a message each')
    if any(one[0]["role"] != "assistant" for one in turns):  # whole conversations
        common = _common_prompt(row, asked, prompt, turns)
        asked = turns[0][:common]
        turns, marks = [one[common:] for one in turns], [one[common:] for one in marks]
    for name, one in zip(SIDES, turns, strict=True):
        if not asked or not any(turn["role"] == "assistant" for turn in one):
            raise RecipeError(
                f'{row.where}: "prompt" needs a message, and "{name}" one of the assistant after it'
            )
    if turns[0] == turns[1]:
        return SAME
    if asked[0]["role"] != "system":
        asked = [*_system(row), *asked]
    unlearnt = [False if turn["role"] == "assistant" else None for turn in asked]
    chats = [
        marked_chat([*asked, *one], [*unlearnt, *own], row, style)
        for one, own in zip(turns, marks, strict=True)
    ]
    for chat in chats:
        if isinstance(chat, Unusable):
            return chat
    chosen, rejected = (chat for chat in chats if isinstance(chat, Chat))
    return Preference(chosen, rejected)


def _common_prompt(
    row: Record, asked: Sequence[Message], prompt: str, turns: Sequence[Sequence[Message]]
) -> int:
    """Return with how many messages two conversations begin that are their prompt.

    Args:
        row: where they stand.
        asked: what stands beside them as a prompt; it must be in their beginning.
        prompt: what the row calls it.
        turns: both conversations.
    """
    chosen, rejected = turns
    common = 0
    most = min(len(chosen), len(rejected)) - 1  # an answer is left of each
    while common < most and chosen[common] == rejected[common]:
        common += 1
    if not common:
        raise RecipeError(
            f'{row.where}: "{CHOSEN}" and "{REJECTED}" are conversations that begin differently: '
            "they need a common prompt"
        )
    begin = chosen[:common]
    texts = {text_of(turn).strip() for turn in begin}
    if any(text_of(turn).strip() not in texts for turn in asked):
        raise RecipeError(
            f'{row.where}: "{prompt}" is not in the messages with which "{CHOSEN}" and '
            f'"{REJECTED}" begin: put it into them, or leave in them what answers it alone'
        )
    if len(asked) > 1:  # a prompt in messages says where it ends
        return min(common, len(asked)) if list(begin[: len(asked)]) == list(asked) else common
    return common


def _system(row: Record) -> list[Message]:
    """Return a row's system message, where a field has it."""
    system = row.values.get("system")
    if isinstance(system, str) and system.strip():
        return [{"role": "system", "content": system}]
    return []


def _with_parsed_messages(row: Record, names: Sequence[str]) -> Record:
    """Return a row with lists of messages where a table has them as JSON text."""
    found: dict[str, Any] = {}
    for name in names:
        value = row.values.get(name)
        if not isinstance(value, str) or not value.lstrip().startswith("[{"):
            continue
        try:
            parsed = json.loads(value)
        except ValueError:  # a text that begins like that
            continue
        if all(isinstance(turn, Mapping) and ("role" in turn or "from" in turn) for turn in parsed):
            found[name] = parsed
    return replace(row, values={**row.values, **found}) if found else row
