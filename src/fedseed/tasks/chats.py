"""Reads chats as data sets have them (roles, parts of a content, tools), and writes them as plain
text.

Rows have one of two forms: OpenAI's `messages` (role, content, tool_calls) or ShareGPT's
`conversations` (from, value). Both end up as messages with a role and a text, as chat templates
take them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedseed.errors import RecipeError
from fedseed.tasks.data import Chat, ChatStyle
from fedseed.tasks.files import Record, parse_json

Message = Mapping[str, Any]
# in a plain text
ROLES = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}
OTHER_ROLES = {"developer": "system", "function": "tool"}
ROLE_OF = {  # ShareGPT's names, as published data sets write them
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}


def read_chat(row: Record, style: ChatStyle) -> Chat:
    """Returns a row's chat, up to the last message of the assistant.

    Args:
        row: with `messages` or `conversations`, and perhaps `tools` and `system`.
        style: how the chat becomes tokens.

    Raises:
        RecipeError: a message is malformed, or the assistant answers nothing.
    """
    name = "messages" if row.values.get("messages") is not None else "conversations"
    read = _openai if name == "messages" else _sharegpt
    turns = [read(turn) for turn in _parsed(row, name).records(name)]
    system = row.values.get("system")
    if isinstance(system, str) and system.strip() and turns and turns[0]["role"] != "system":
        turns.insert(0, {"role": "system", "content": system})
    last = max((i for i, turn in enumerate(turns) if turn["role"] == "assistant"), default=0)
    if last == 0:
        raise RecipeError(
            f'{row.where}: "{name}" has no message of the assistant that answers another'
        )
    tools = _parsed(row, "tools").records("tools") if row.values.get("tools") else []
    return chat_of(turns[: last + 1], [tool.values for tool in tools], style, row.where)


def chat_of(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], style: ChatStyle, where: str
) -> Chat:
    """Returns a chat of messages, the last of which is an answer, with its plain form.

    `where` is its file and line.
    """
    prompt, response = plain_form(messages, tools, len(messages) - 1)
    answers = (text_of(messages[-1]),)
    return Chat(prompt, response, answers, "", tuple(messages), tuple(tools), style, where)


def plain_form(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], answer: int
) -> tuple[str, str]:
    """Returns a chat as plain text: what stands before the answer with this number, tools first,
    and the answer.
    """
    known = f"Tools: {json.dumps(list(tools), ensure_ascii=False)}\n\n" if tools else ""
    before = "".join(f"{ROLES[turn['role']]}: {text_of(turn)}\n\n" for turn in messages[:answer])
    return f"{known}{before}Assistant:", f" {text_of(messages[answer])}"


def text_of(message: Mapping[str, Any]) -> str:
    """Returns a message as plain text: its content, then each call of a function as a line of
    JSON.
    """
    calls = [
        json.dumps(call.get("function", call), ensure_ascii=False)
        for call in message.get("tool_calls") or ()
    ]
    return "\n".join([*([message["content"]] if message["content"] or not calls else []), *calls])


def answers_of(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns the numbers of the assistant's messages but for the first of all, which answers
    nothing.
    """
    return [i for i, turn in enumerate(messages) if i and turn["role"] == "assistant"]


def _openai(turn: Record) -> Message:
    """Reads a message in OpenAI's form.

    Other fields are kept for templates, but for those that are null.
    """
    given = turn.field("role", str)
    role = OTHER_ROLES.get(given, given)
    if role not in ROLES:
        raise RecipeError(
            f'{turn.where}: "role" = {given!r}: one of {", ".join(ROLES)} is expected'
        )
    kept = {name: value for name, value in turn.values.items() if value is not None}
    calls = [_call(call) for call in turn.records("tool_calls")] if kept.get("tool_calls") else []
    content = "" if calls and kept.get("content") is None else _content(turn, "content")
    return {**kept, **({"tool_calls": calls} if calls else {}), "role": role, "content": content}


def _sharegpt(turn: Record) -> Message:
    """Reads a message in ShareGPT's form."""
    given = turn.field("from", str)
    if given not in ROLE_OF:
        raise RecipeError(
            f'{turn.where}: "from" = {given!r}: one of {", ".join(ROLE_OF)} is expected'
        )
    text = _content(turn, "value")
    if given != "function_call":
        return {"role": ROLE_OF[given], "content": text}
    calls = parse_json(text, f'{turn.where}: "value" of a function_call is no JSON')
    calls = calls if isinstance(calls, list) else [calls]
    made = Record(
        turn.where, {"calls": [{"type": "function", "function": call} for call in calls]}
    ).records("calls")
    return {"role": "assistant", "content": "", "tool_calls": [_call(call) for call in made]}


def _content(turn: Record, name: str) -> str:
    """Returns a content as text: as it is, or the texts of its parts one after the other."""
    if not isinstance(turn.values.get(name), list):
        return str(turn.field(name, str))
    texts = []
    for part in turn.records(name):
        kind = part.values.get("type", "text")
        if kind != "text":
            raise RecipeError(
                f'{part.where}: "type" = {kind!r}: only parts of type "text" can be learnt from'
            )
        texts.append(part.field("text", str))
    return "".join(texts)


def _call(call: Record) -> Message:
    """Returns a tool call with its arguments as an object, which templates expect.

    APIs give them as JSON text.
    """
    made = dict(call.values)
    function = call.record("function") if "function" in made else call
    function.field("name", str)
    arguments = function.values.get("arguments")
    if isinstance(arguments, str):
        arguments = parse_json(arguments, f'{function.where}: "arguments" is no JSON')
    return {
        "type": "function",
        **made,
        "function": {**function.values, "arguments": arguments or {}},
    }


def _parsed(row: Record, name: str) -> Record:
    """Returns the row with a list of objects in the field, where a table has the list as JSON
    text.
    """
    value = row.values.get(name)
    if isinstance(value, str) and value.lstrip().startswith("["):
        return Record(
            row.where,
            {**row.values, name: parse_json(value, f'{row.where}: "{name}" is no valid JSON')},
        )
    return row
