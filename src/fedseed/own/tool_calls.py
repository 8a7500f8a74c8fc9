"""Find tool calls in a model's text.

There is no standard form of a call: a model uses that of its chat template. These forms are known,
and recognised by the template's text:

    Hermes, Qwen    <tool_call>{"name": "weather", "arguments": {"town": "Bonn"}}</tool_call>
    Qwen's coders   <tool_call><function=weather><parameter=town>Bonn</parameter></function>
                    </tool_call>
    Mistral         [TOOL_CALLS][{"name": "weather", "arguments": {"town": "Bonn"}}]
                    [TOOL_CALLS]weather[ARGS]{"town": "Bonn"}
    Llama 3         {"name": "weather", "parameters": {"town": "Bonn"}}

Text that is not a valid call stays in the answer's text.
"""

import json
import re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# templates of Mistral take ids of nine letters and digits only
ID_LENGTH = 9
ID_CHARACTERS = string.ascii_letters + string.digits
PYTHON_TAG = "<|python_tag|>"
TOOL_CALLS = "[TOOL_CALLS]"
ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"
FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>(.*)</function>\s*", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^<>\n]+)>(.*?)</parameter>", re.DOTALL)

# JSON schemas of functions' arguments, by the functions' names
Functions = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class ToolCall:
    """A call of a function that a model has written."""

    id: str
    name: str
    arguments: str  # JSON text of an object


@dataclass(frozen=True)
class ToolFormat:
    """A way to write tool calls.

    Args:
        name: the families of models that have it.
        signs: texts of which a chat template with this format has at least one.
        openings: texts that begin calls.
        closing: what ends a call; "": calls go on to the answer's end.
        only_at_start: whether calls stand only at the beginning of an answer.
        read: returns the calls in the text between opening and closing, for the given functions;
            None: the text has no valid calls.
        markers: texts that may be special tokens of a tokenizer, and have to stay in the text.
    """

    name: str
    signs: Sequence[str]
    openings: Sequence[str]
    closing: str
    only_at_start: bool
    parse: Callable[[str, Functions], list[ToolCall] | None]
    markers: Sequence[str]


def find_tool_format(template: str) -> ToolFormat | None:
    """Return the format in which a chat template writes tool calls; None if it is unknown."""
    return next((one for one in FORMATS if any(sign in template for sign in one.signs)), None)


class ToolCallReader:
    """Split an answer, which comes piece by piece, into text and tool calls.

    Args:
        tool_format: how calls are written; None: all is text.
        functions: the functions that may be called.
        most: the most calls; further ones are left out.
    """

    def __init__(
        self, tool_format: ToolFormat | None, functions: Functions, most_calls: int | None = None
    ) -> None:
        self._format = tool_format
        self._functions = functions
        self._most = most_calls
        self._calls = 0
        self._unread = ""  # text that may be a call, or the beginning of one
        # blanks after the text so far, which are left out before a call
        self._blanks = ""
        # whether the unread text begins with an opening
        self._is_open = False
        self._has_text = False

    @property
    def has_calls(self) -> bool:
        """Return whether a call was found."""
        return self._calls > 0

    def read_piece(self, piece: str) -> list[str | ToolCall]:
        """Return the texts and calls that are complete with the next piece of an answer."""
        if self._format is None:
            if piece:
                return [piece]
            return []
        self._unread += piece
        parts: list[str | ToolCall] = []
        while self._advance(self._format, parts):
            pass
        return parts

    def finish(self) -> list[str | ToolCall]:
        """Return the text that is left at the end of an answer."""
        parts: list[str | ToolCall] = []
        if self._format is not None and self._is_open:
            self._close(self._format, self._unread, parts)
        else:
            self._add_text(self._unread, parts)
        if self._blanks and not self.has_calls:
            parts.append(self._blanks)
        self._unread = self._blanks = ""
        return parts

    def _advance(self, tool_format: ToolFormat, parts: list[str | ToolCall]) -> bool:
        """Take a text or a call from the unread text; False: more of the answer is needed."""
        if self._is_open:
            end = -1
            if tool_format.closing:
                end = self._unread.find(tool_format.closing)
            if end < 0:
                return False
            end += len(tool_format.closing)
            whole, self._unread = self._unread[:end], self._unread[end:]
            self._is_open = False
            self._close(tool_format, whole, parts)
            return True
        start, self._is_open = self._next_opening(tool_format)
        self._add_text(self._unread[:start], parts)
        self._unread = self._unread[start:]
        return self._is_open

    def _next_opening(self, tool_format: ToolFormat) -> tuple[int, bool]:
        """Return the position in the unread text where a call begins, or may begin once more of the
        answer is there, and whether it does.
        """
        text = self._unread
        if tool_format.only_at_start:
            start = len(text) - len(text.lstrip())
            if self._has_text or not any(
                opening.startswith(text[start : start + len(opening)])
                for opening in tool_format.openings
            ):
                return len(text), False
            return start, text.startswith(tuple(tool_format.openings), start)
        places = [text.find(opening) for opening in tool_format.openings]
        start = min((place for place in places if place >= 0), default=-1)
        if start >= 0:
            return start, True
        partial_openings = (
            length
            for opening in tool_format.openings
            for length in range(1, min(len(opening), len(text) + 1))
            if text.endswith(opening[:length])
        )
        return len(text) - max(partial_openings, default=0), False

    def _close(self, tool_format: ToolFormat, whole: str, parts: list[str | ToolCall]) -> None:
        """Add the calls of a text with its opening and closing, or the text if they can't be
        read.
        """
        body = whole
        if tool_format.closing:
            body = whole.removesuffix(tool_format.closing)
        calls = tool_format.parse(body, self._functions)
        if calls is None:
            self._add_text(whole, parts)
            return
        room = len(calls) if self._most is None else max(0, self._most - self._calls)
        parts += calls[:room]
        self._calls += len(calls[:room])
        self._blanks = ""

    def _add_text(self, text: str, parts: list[str | ToolCall]) -> None:
        """Add text without the blanks at its end."""
        text = self._blanks + text
        stripped = text.rstrip()
        self._blanks = text[len(stripped) :]
        if stripped:
            parts.append(stripped)
            self._has_text = True


def _read_tagged(text: str, functions: Functions) -> list[ToolCall] | None:
    """Read <tool_call>{"name": ..., "arguments": {...}}, or <tool_call><function=name>..."""
    text = text.removeprefix("<tool_call>")
    if text.lstrip().startswith("<function="):
        return _read_parameters(text, functions)
    values = _read_values(text)
    if values is None or len(values) != 1:
        return None
    return _calls_of(values)


def _read_parameters(text: str, functions: Functions) -> list[ToolCall] | None:
    """Read <function=name><parameter=key>value</parameter>...</function>, where a value may stand
    on lines of its own.
    """
    function = FUNCTION.fullmatch(text)
    if function is None or PARAMETER.sub("", function[2]).strip():
        return None
    name = function[1].strip()
    properties = functions.get(name, {}).get("properties")
    schemas = {}
    if isinstance(properties, dict):
        schemas = properties
    arguments = {
        key: _typed(value.removeprefix("\n").removesuffix("\n"), schemas.get(key))
        for key, value in PARAMETER.findall(function[2])
    }
    return _calls_of([{"name": name, "arguments": arguments}])


def _typed(text: str, schema: Any) -> Any:
    """Convert an argument without quotes to the type in its schema; without a schema, or if it does
    not fit, return it as text.
    """
    kind = "string"
    if isinstance(schema, dict):
        kind = schema.get("type", "string")
    if kind == "string":
        return text
    values = _read_values(text)
    if values is not None and len(values) == 1:
        return values[0]
    return text


def _read_bare(text: str, functions: Functions) -> list[ToolCall] | None:
    """Read {"name": ..., "parameters": {...}}, several of them after one another or one alone."""
    values = _read_values(text.removeprefix(PYTHON_TAG))
    if values is None or not all(
        isinstance(value, dict)
        and value.get("name") in functions
        and ("parameters" in value or "arguments" in value)
        for value in values
    ):
        return None
    return _calls_of(values)


def _read_listed(text: str, functions: Functions) -> list[ToolCall] | None:
    """Read [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], or [TOOL_CALLS]name[ARGS]{...},
    several of them after one another or one alone.
    """
    values: list[Any] = []
    for part in text.split(TOOL_CALLS)[1:]:
        is_json = part.lstrip().startswith(("[", "{"))
        call_values = _read_values(part) if is_json else _read_named(part)
        if call_values is None:
            return None
        for value in call_values:
            values += value if isinstance(value, list) else [value]
    return _calls_of(values)


def _read_named(text: str) -> list[Any] | None:
    """Read weather[ARGS]{...}, where [ARGS] may be missing and [CALL_ID] may stand before it."""
    head, brace, rest = text.partition("{")
    name = head.split(ARGS)[0].split(CALL_ID)[0].strip()
    values = _read_values(brace + rest)
    if not name or values is None or len(values) != 1:
        return None
    return [{"name": name, "arguments": values[0]}]


def _read_values(text: str) -> list[Any] | None:
    """Return the JSON values of a text, with blanks, commas or semicolons between them; None if
    there is other text.
    """
    decoder, values, place = json.JSONDecoder(), [], 0
    text = text.strip()
    while place < len(text):
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return None
        values.append(value)
        while place < len(text) and (text[place].isspace() or text[place] in ",;"):
            place += 1
    return values or None


def _calls_of(values: Sequence[Any]) -> list[ToolCall] | None:
    """Return the calls in a list of objects with a name and arguments; None if one is not such an
    object.
    """
    calls = []
    for value in values:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        if isinstance(arguments, str):
            argument_values = _read_values(arguments)
            arguments = None
            if argument_values and len(argument_values) == 1:
                arguments = argument_values[0]
        if not isinstance(arguments, dict) or not value["name"]:
            return None
        text = json.dumps(arguments, ensure_ascii=False)
        calls.append(ToolCall(_new_id(), value["name"], text))
    return calls or None


def _new_id() -> str:
    return "".join(secrets.choice(ID_CHARACTERS) for _ in range(ID_LENGTH))


FORMATS = (
    ToolFormat(
        "Hermes and Qwen",
        signs=["<tool_call>"],
        openings=["<tool_call>"],
        closing="</tool_call>",
        only_at_start=False,
        parse=_read_tagged,
        markers=["<tool_call>", "</tool_call>"],
    ),
    ToolFormat(
        "Mistral",
        signs=[TOOL_CALLS],
        openings=[TOOL_CALLS],
        closing="",
        only_at_start=False,
        parse=_read_listed,
        markers=[TOOL_CALLS, ARGS, CALL_ID],
    ),
    ToolFormat(
        "Llama 3",
        signs=[PYTHON_TAG, '"parameters": '],
        openings=[PYTHON_TAG, "{"],
        closing="",
        only_at_start=True,
        parse=_read_bare,
        markers=[PYTHON_TAG],
    ),
)
