"""Reads the chats of data sets (roles, content in parts, tools), and writes them as plain text.

Rows have one of three forms: OpenAI's `messages` (role, content, tool_calls), ShareGPT's
`conversations` (from, value), or TRL's `prompt` and `completion` as lists of messages. All become
messages with a role and a text, as chat templates expect them. The module also reads a row's other
fields about the chat: tools, marks of what to learn, and arguments for the template.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from fedseed.errors import RecipeError
from fedseed.tasks.data import Chat, ChatStyle, Unusable
from fedseed.tasks.files import FileRow, parse_json

Message = Mapping[str, Any]
# how plain text names the roles
ROLES = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}
OTHER_ROLES = {"developer": "system", "function": "tool"}
# ShareGPT's names of roles, as published data sets write them
ROLE_OF = {
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


# fields of a row that describe the functions which the assistant may call
TOOL_FIELDS = ("tools", "functions", "tool_defs")
# fields of a message that mark whether to learn it: OpenAI's, axolotl's, and those of other
# trainers
MARKS = ("weight", "train", "training", "loss", "loss_mask", "loss_weight", "trainable")
# a mark with the opposite meaning: torchtune's, true for what is not learnt
OPPOSITE_MARKS = ("masked",)
# fields of an assistant's message that are true or false and say nothing about what is learnt
FLAGS = ("prefix", "partial", "add_generation_prompt", "continue_final_message")
# fields of a message that mark parts of it to learn (axolotl)
PART_MARKS = ("train_detail", "training_detail")
# field of a row with further arguments for the chat template
ARGUMENTS = "chat_template_kwargs"
# arguments that fedseed itself passes to a template
TAKEN_ARGUMENTS = frozenset(
    (
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversations",
        "messages",
        "return_assistant_tokens_mask",
        "tools",
    )
)


def read_chat(row: FileRow, style: ChatStyle) -> Chat | Unusable:
    """Return a row's chat, up to the last message of the assistant that is learnt.

    Args:
        row: has `messages` or `conversations`, and optionally `system`, one of `TOOL_FIELDS` and
            `chat_template_kwargs`.
        style: how the chat becomes tokens.

    Returns:
        The chat; `Unusable` if all answers are marked as not to be learnt.

    Raises:
        RecipeError: a message is malformed, or the assistant has no answer.
    """
    name = "messages" if row.values.get("messages") is not None else "conversations"
    read_turn = _sharegpt
    if name == "messages":
        read_turn = _openai
    records = _parsed(row, name).records(name)
    turns = [read_turn(record) for record in records]
    marks = [_is_learnt(record) for record in records]
    if turns and turns[0]["role"] != "system":
        system = system_of(row)
        turns = [*system, *turns]
        marks = [*(None for _ in system), *marks]
    if not any(turn["role"] == "assistant" for turn in turns[1:]):
        raise RecipeError(f'{row.place}: "{name}" has no assistant message after another message')
    return marked_chat(turns, marks, row, style)


def read_conversation(row: FileRow, answer: str, style: ChatStyle) -> Chat | Unusable:
    """Return the chat of a prompt and a completion that are lists of messages (TRL's form).

    Only answers in the completion are learnt. If one of the two is a text, it becomes one message.

    Args:
        row: has `prompt` and the completion, and optionally the further fields of `read_chat`.
        answer: the name of the completion's field.
        style: how the chat becomes tokens.

    Raises:
        RecipeError: a message is malformed, or the completion has no message of the assistant.
    """
    prompt_turns, prompt_marks = messages_of(row, "prompt", "user")
    answer_turns, answer_marks = messages_of(row, answer, "assistant")
    if not prompt_turns or not any(turn["role"] == "assistant" for turn in answer_turns):
        raise RecipeError(
            f'{row.place}: "prompt" needs a message, and "{answer}" one of the assistant'
        )
    del prompt_marks  # a prompt is never learnt, so its marks do not matter
    if prompt_turns[0]["role"] != "system":
        prompt_turns = [*system_of(row), *prompt_turns]
    marks = [False if turn["role"] == "assistant" else None for turn in prompt_turns]
    return marked_chat([*prompt_turns, *answer_turns], [*marks, *answer_marks], row, style)


def system_of(row: FileRow) -> list[Message]:
    """Return a row's system message, if it is in a separate field."""
    system = row.values.get("system")
    if isinstance(system, str) and system.strip():
        return [{"role": "system", "content": system}]
    return []


def messages_of(row: FileRow, name: str, role: str) -> tuple[list[Message], list[bool | None]]:
    """Return a field's messages and their marks; a text is one message of the role.

    Messages may be in OpenAI's or ShareGPT's form, and a single one need not be in a list.

    Raises:
        RecipeError: a message is malformed.
    """
    value = row.values.get(name)
    if isinstance(value, str):
        return [{"role": role, "content": value}], [None]
    if isinstance(value, Mapping):
        row = replace(row, values={**row.values, name: [value]})
    records = _parsed(row, name).records(name)
    turns = [
        _sharegpt(record) if "from" in record.values else _openai(record) for record in records
    ]
    return turns, [_is_learnt(record) for record in records]


def marked_chat(
    turns: Sequence[Message], marks: Sequence[bool | None], row: FileRow, style: ChatStyle
) -> Chat | Unusable:
    """Return a chat up to the last answer that is to be learnt.

    Args:
        turns: the messages, in order.
        marks: for each message, whether it is to be learnt; None: not marked.
        row: the row that has them, with its other fields.
        style: how the chat becomes tokens.
    """
    answers = [i for i, turn in enumerate(turns) if i and turn["role"] == "assistant"]
    learnt = [number for number in answers if marks[number] is not False]
    if not learnt:
        return Unusable("all answers are marked as not to be learnt")
    messages, tools = turns[: learnt[-1] + 1], read_tools(row)
    names = {str(tool.get("function", tool).get("name", "")) for tool in tools}
    calls = list(chain.from_iterable(turn.get("tool_calls") or () for turn in messages))
    noticed = {
        "undescribed": any(call["function"]["name"] not in names for call in calls),
        "flags": any(_has_unknown_flag(messages[number]) for number in learnt),
        "others": any(
            mark and turn["role"] != "assistant" for mark, turn in zip(marks, turns, strict=True)
        ),
    }
    chat = chat_of(messages, tools, with_arguments(style, row), row.place)
    unlearnt = tuple(number for number in answers if number < learnt[-1] and number not in learnt)
    remarks = tuple(remark for remark, is_so in noticed.items() if is_so)
    return replace(chat, unlearnt=unlearnt, remarks=remarks)


def _is_learnt(message: FileRow) -> bool | None:
    """Return whether a message is marked to be learnt; None if it has no mark.

    Raises:
        RecipeError: a mark is not one of true, false, 1 and 0, or it marks parts of the message.
    """
    for name in PART_MARKS:
        if message.values.get(name):
            raise RecipeError(
                f'{message.place}: "{name}": fedseed can\'t learn single parts of a message; '
                'mark whole messages with "train"'
            )
    marks = []
    for name in (*MARKS, *OPPOSITE_MARKS):
        mark = message.values.get(name)
        if mark is None or mark != mark:  # NaN, where a table has no value
            continue
        meanings = ("learn it", "do not learn it")
        if name in OPPOSITE_MARKS:
            meanings = ("do not learn it", "learn it")
        if not isinstance(mark, int | float) or mark not in (0, 1):
            raise RecipeError(
                f'{message.place}: "{name}" = {mark!r}: expected 1 or true ({meanings[0]}), 0 or '
                f"false ({meanings[1]})"
            )
        marks.append(bool(mark) != (name in OPPOSITE_MARKS))
    if marks:
        return all(marks)
    return None


def _has_unknown_flag(message: Message) -> bool:
    """Return whether a message has a field that is true or false, and that may be another trainer's
    mark.
    """
    return any(isinstance(value, bool) and name not in FLAGS for name, value in message.items())


def read_tools(row: FileRow) -> list[Mapping[str, Any]]:
    """Return the descriptions of the functions that a row's assistant may call.

    The bare functions of `functions` and `tool_defs` are converted to the form of `tools`.

    Raises:
        RecipeError: the value is not a list of objects, or two fields differ.
    """
    tools_by_field: dict[str, list[Mapping[str, Any]]] = {}
    for name in TOOL_FIELDS:
        if not row.values.get(name):
            continue
        tools: list[Mapping[str, Any]] = [tool.values for tool in _parsed(row, name).records(name)]
        if name != "tools":
            tools = [
                tool if "function" in tool else {"type": "function", "function": tool}
                for tool in tools
            ]
        tools_by_field[name] = tools
    first = next(iter(tools_by_field.values()), [])
    if any(tools != first for tools in tools_by_field.values()):
        raise RecipeError(
            f"{row.place}: {' and '.join(tools_by_field)} describe different functions; "
            "leave one out"
        )
    return first


def with_arguments(style: ChatStyle, row: FileRow) -> ChatStyle:
    """Return a chat's style with the template arguments that stand beside its messages.

    Raises:
        RecipeError: they are not an object, or have a name that fedseed sets itself.
    """
    if row.values.get(ARGUMENTS) is None:
        return style
    arguments = row.values[ARGUMENTS]
    if isinstance(arguments, str):
        arguments = parse_json(arguments, f'{row.place}: "{ARGUMENTS}" is not valid JSON')
    if not isinstance(arguments, Mapping):
        raise RecipeError(f'{row.place}: "{ARGUMENTS}" = {arguments!r}: expected an object')
    check_arguments(arguments, f'{row.place}: "{ARGUMENTS}"')
    return replace(style, template_arguments={**style.template_arguments, **arguments})


def check_arguments(arguments: Mapping[str, Any], place: str) -> None:
    """Raise RecipeError if arguments for a template have a name that fedseed sets itself."""
    reserved = sorted(TAKEN_ARGUMENTS.intersection(arguments))
    if reserved:
        raise RecipeError(f"{place}: {', '.join(reserved)} can't be set: fedseed sets it itself")


def chat_of(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], style: ChatStyle, place: str
) -> Chat:
    """Return the chat of messages that end with an answer, with its plain form.

    `place`: the chat's file and line.
    """
    prompt, response = plain_form(messages, tools, len(messages) - 1)
    answers = (text_of(messages[-1]),)
    return Chat(prompt, response, answers, "", tuple(messages), tuple(tools), style, place)


def plain_form(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], answer: int
) -> tuple[str, str]:
    """Return a chat as plain text in two parts: everything before the answer with this number,
    tools first, and the answer.
    """
    tools_text = ""
    if tools:
        tools_text = f"Tools: {json.dumps(list(tools), ensure_ascii=False)}\n\n"
    earlier_turns = "".join(
        f"{ROLES[turn['role']]}: {text_of(turn)}\n\n" for turn in messages[:answer]
    )
    return f"{tools_text}{earlier_turns}Assistant:", f" {text_of(messages[answer])}"


def text_of(message: Mapping[str, Any]) -> str:
    """Return a message as plain text: its content, then each function call as a line of JSON."""
    calls = [
        json.dumps(call.get("function", call), ensure_ascii=False)
        for call in message.get("tool_calls") or ()
    ]
    return "\n".join([*([message["content"]] if message["content"] or not calls else []), *calls])


def _openai(turn: FileRow) -> Message:
    """Read a message in OpenAI's form.

    Other fields are kept for the chat template, except null ones.
    """
    role_given = turn.field("role", str)
    role = OTHER_ROLES.get(role_given, role_given)
    if role not in ROLES:
        raise RecipeError(
            f'{turn.place}: "role" = {role_given!r}: expected one of {", ".join(ROLES)}'
        )
    values = {
        name: value
        for name, value in turn.values.items()
        if value is not None and name not in (*MARKS, *OPPOSITE_MARKS, *PART_MARKS)
    }
    calls = _calls_of(turn)
    content = "" if calls and values.get("content") is None else _content(turn, "content")
    values.pop("function_call", None)
    return {
        **values,
        **({"tool_calls": calls} if calls else {}),
        "role": role,
        "content": content,
    }


def _calls_of(turn: FileRow) -> list[Message]:
    """Return a message's function calls: `tool_calls`, or the older `function_call`."""
    if turn.values.get("tool_calls"):
        return [_call(call) for call in _parsed(turn, "tool_calls").records("tool_calls")]
    if turn.values.get("function_call"):
        return [_call(turn.record("function_call"))]
    return []


def _sharegpt(turn: FileRow) -> Message:
    """Read a message in ShareGPT's form."""
    sender = turn.field("from", str)
    if sender not in ROLE_OF:
        raise RecipeError(
            f'{turn.place}: "from" = {sender!r}: expected one of {", ".join(ROLE_OF)}'
        )
    text = _content(turn, "value")
    if sender != "function_call":
        return {"role": ROLE_OF[sender], "content": text}
    calls = parse_json(text, f'{turn.place}: "value" of a function_call is not valid JSON')
    if not isinstance(calls, list):
        calls = [calls]
    record = FileRow(
        turn.place, {"calls": [{"type": "function", "function": call} for call in calls]}
    ).records("calls")
    return {"role": "assistant", "content": "", "tool_calls": [_call(call) for call in record]}


def _content(turn: FileRow, name: str) -> str:
    """Return a message's content as text: the text itself, or its parts joined."""
    if not isinstance(turn.values.get(name), list):
        return str(turn.field(name, str))
    texts = []
    for part in turn.records(name):
        if _is_learnt(part) is not None:
            raise RecipeError(
                f"{part.place}: fedseed can't learn single parts of a message; mark whole messages "
                'with "train"'
            )
        kind = part.values.get("type", "text")
        if kind != "text":
            raise RecipeError(
                f'{part.place}: "type" = {kind!r}: fedseed can learn only from parts of type "text"'
            )
        texts.append(part.field("text", str))
    return "".join(texts)


def _call(call: FileRow) -> Message:
    """Return a tool call with its arguments as an object, which templates expect.

    APIs return the arguments as JSON text.
    """
    function = call
    if "function" in call.values:
        function = call.record("function")
    function.field("name", str)
    arguments = function.values.get("arguments")
    if isinstance(arguments, str):
        arguments = parse_json(arguments, f'{function.place}: "arguments" is not valid JSON')
    return {
        "type": "function",
        **call.values,
        "function": {**function.values, "arguments": arguments or {}},
    }


def _parsed(row: FileRow, name: str) -> FileRow:
    """Return the row with a list of objects in the field, where a table has JSON text.

    Either the whole list is a JSON text, or each of its objects.
    """
    value, problem = row.values.get(name), f'{row.place}: "{name}" is not valid JSON'
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = parse_json(value, problem)
    if isinstance(value, list):
        parts = []
        for part in value:
            if isinstance(part, str) and part.lstrip().startswith("{"):
                part = parse_json(part, problem)
            parts.append(part)
        value = parts
    if value is row.values.get(name):
        return row
    return replace(row, values={**row.values, name: value})
