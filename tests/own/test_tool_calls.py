"""Tool calls are found in answers as the families of models write them, however the text comes."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseed.own.tool_calls import ToolCall, ToolCallReader, find_tool_format
from support import chat_bases, tool_bases

TEMPLATES = tool_bases.TEMPLATES
KINDS = {"town": "string", "days": "integer", "exact": "boolean", "hours": "array"}
SCHEMA = {"type": "object", "properties": {key: {"type": kind} for key, kind in KINDS.items()}}
FUNCTIONS = {"weather": SCHEMA}
BONN = ("weather", {"town": "Bonn"})
ROME = ("weather", {"town": "Rome"})
CALL = '{"name": "weather", "arguments": {"town": "Bonn"}}'
OTHER = '{"name": "weather", "arguments": {"town": "Rome"}}'
LLAMA_CALL = CALL.replace("arguments", "parameters")
CASES = {  # the family, the answer, the text and the calls in it
    "one": ("qwen", f"<tool_call>\n{CALL}\n</tool_call>", "", [BONN]),
    "two": (
        "qwen",
        f"<tool_call>{CALL}</tool_call>\n<tool_call>{OTHER}</tool_call>",
        "",
        [BONN, ROME],
    ),
    "text before": ("qwen", f"I look.\n\n<tool_call>{CALL}</tool_call>", "I look.", [BONN]),
    "text after": ("qwen", f"A <tool_call>{CALL}</tool_call> B", "A B", [BONN]),
    "not closed": ("qwen", f"<tool_call>\n{CALL}", "", [BONN]),
    "no call": ("qwen", " 1 < 2 <tool \n", " 1 < 2 <tool \n", []),
    "cut off": ("qwen", '<tool_call>\n{"name": "wea', '<tool_call>\n{"name": "wea', []),
    "not JSON": (
        "qwen",
        "<tool_call>{weather}</tool_call>",
        "<tool_call>{weather}</tool_call>",
        [],
    ),
    "broken, then whole": (
        "qwen",
        f"<tool_call>x</tool_call><tool_call>{CALL}</tool_call>",
        "<tool_call>x</tool_call>",
        [BONN],
    ),
    "no arguments": ("qwen", '<tool_call>{"name": "now"}</tool_call>', "", [("now", {})]),
    "arguments as text": (
        "qwen",
        '<tool_call>{"name": "weather", "arguments": "{\\"town\\": \\"Bonn\\"}"}</tool_call>',
        "",
        [BONN],
    ),
    "arguments that are no object": (
        "qwen",
        '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
        [],
    ),
    "parameters": (
        "qwen",
        "<tool_call>\n<function=weather>\n<parameter=town>\nBonn\n</parameter>\n</function>\n"
        "</tool_call>",
        "",
        [BONN],
    ),
    "parameters of kinds": (
        "qwen",
        "<tool_call><function=weather><parameter=town>12</parameter><parameter=days>3</parameter>"
        "<parameter=exact>true</parameter><parameter=hours>[1, 2]</parameter>"
        "<parameter=else>7</parameter></function></tool_call>",
        "",
        [("weather", {"town": "12", "days": 3, "exact": True, "hours": [1, 2], "else": "7"})],
    ),
    "a parameter of two lines": (
        "qwen",
        "<tool_call><function=f><parameter=a>\nx <\n y\n</parameter></function></tool_call>",
        "",
        [("f", {"a": "x <\n y"})],
    ),
    "no parameters": ("qwen", "<tool_call><function=f></function></tool_call>", "", [("f", {})]),
    "parameters cut off": ("qwen", "<tool_call><function=f><parameter=a>", None, []),
    "parameters with more": ("qwen", "<tool_call><function=f>a</function></tool_call>", None, []),
    "a list": ("mistral", f"[TOOL_CALLS][{CALL}, {OTHER}]", "", [BONN, ROME]),
    "a list with blanks": ("mistral", f"[TOOL_CALLS] [{CALL}]", "", [BONN]),
    "by name": ("mistral", '[TOOL_CALLS]weather[ARGS]{"town": "Bonn"}', "", [BONN]),
    "by name, twice": (
        "mistral",
        '[TOOL_CALLS]weather{"town": "Bonn"}[TOOL_CALLS]weather[CALL_ID]a1[ARGS]{"town": "Rome"}',
        "",
        [BONN, ROME],
    ),
    "after text": ("mistral", f"Wait. [TOOL_CALLS][{CALL}]", "Wait.", [BONN]),
    "a list cut off": ("mistral", f"[TOOL_CALLS][{CALL}", f"[TOOL_CALLS][{CALL}", []),
    "Mistral's text": ("mistral", "[TOOL] is none", "[TOOL] is none", []),
    "bare": ("llama", LLAMA_CALL, "", [BONN]),
    "bare, with blanks": ("llama", f"\n {LLAMA_CALL} ", "", [BONN]),
    "tagged": ("llama", f"<|python_tag|>{LLAMA_CALL}", "", [BONN]),
    "several": ("llama", f"{LLAMA_CALL}; {CALL}", "", [BONN, BONN]),
    "JSON that is no call": ("llama", '{"name": "Ann", "parameters": {}}', None, []),
    "JSON without arguments": ("llama", '{"name": "weather"}', None, []),
    "code": ("llama", "<|python_tag|>print(1)", None, []),
    "not at the start": ("llama", f"So: {LLAMA_CALL}", None, []),
    "a brace alone": ("llama", "{", None, []),
}


def read(family, pieces, most=None):
    """An answer's text and calls, and how it was told."""
    tool_format = family and find_tool_format(TEMPLATES[family])
    reader = ToolCallReader(tool_format, FUNCTIONS, most)
    parts = [part for piece in pieces for part in reader.read_piece(piece)] + reader.finish()
    calls = [part for part in parts if isinstance(part, ToolCall)]
    assert reader.has_calls == bool(calls)
    assert len({call.id for call in calls}) == len(calls)
    text = "".join(part for part in parts if isinstance(part, str))
    return text, [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize("case", CASES)
def test_calls_are_told_apart_from_text(case):
    family, answer, text, calls = CASES[case]
    expected = answer if text is None else text
    assert read(family, [answer]) == (expected, calls)
    assert read(family, list(answer)) == (expected, calls)


@settings(deadline=None)
@given(st.sampled_from(sorted(CASES)), st.lists(st.integers(0, 200), max_size=6))
def test_it_does_not_matter_where_an_answer_is_cut(case, cuts):
    family, answer, text, calls = CASES[case]
    places = [0, *sorted(min(cut, len(answer)) for cut in cuts), len(answer)]
    pieces = [answer[start:end] for start, end in pairwise(places)]
    assert read(family, pieces) == (answer if text is None else text, calls)


FRAGMENTS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "{", "}", CALL, " ", "a", "<", "[", ","]


@settings(deadline=None)
@given(st.sampled_from(sorted(TEMPLATES)), st.lists(st.sampled_from(FRAGMENTS), max_size=8))
def test_nothing_of_an_answer_without_calls_is_lost(family, fragments):
    text, calls = read(family, fragments)
    assert calls or text == "".join(fragments)


def test_text_is_told_at_once_and_calls_once_they_are_whole():
    reader = ToolCallReader(find_tool_format(TEMPLATES["qwen"]), FUNCTIONS)
    assert reader.read_piece("I look") == ["I look"]
    assert reader.read_piece(" <tool") == []
    assert reader.read_piece("s") == [" <tools"]
    assert reader.read_piece(f"<tool_call>{CALL}") == []
    (call,) = reader.read_piece("</tool_call>")
    assert call.name == "weather"


def test_further_calls_are_left_out_where_one_is_wanted():
    assert read("mistral", [f"[TOOL_CALLS][{CALL}, {OTHER}]"], most=1) == ("", [BONN])
    both = f"<tool_call>{CALL}</tool_call><tool_call>{OTHER}</tool_call>"
    assert read("qwen", [both], most=1) == ("", [BONN])


def test_without_a_known_format_all_is_text():
    assert find_tool_format(chat_bases.GEMMA) is None
    assert read(None, [f"<tool_call>{CALL}</tool_call>"])[1] == []


def test_ids_are_those_that_mistrals_template_takes():
    reader = ToolCallReader(find_tool_format(TEMPLATES["mistral"]), FUNCTIONS)
    (call,) = [*reader.read_piece(f"[TOOL_CALLS][{CALL}]"), *reader.finish()]
    assert len(call.id) == 9 and call.id.isalnum()
