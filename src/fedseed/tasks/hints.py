"""Suggests a value of `task.fields` for rows in no known form."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedseed.text import show_text

# field names in published data sets for the question and for the answer, likeliest first
ASKED = (
    *("question", "query", "instruction", "input", "problem", "prompt", "article", "document"),
    *("source", "context", "human", "user"),
)
ANSWERED = (
    *("answer", "response", "output", "completion", "target", "solution", "reply", "summary"),
    *("highlights", "assistant", "gpt"),
)
TEXTS = (
    "sentence",
    "sentence1",
    "text1",
    "content",
    "review",
    "tweet",
    "comment",
    "body",
    "premise",
)
LABELS = ("label", "labels", "class", "category", "sentiment", "intent", "target", "score")
CHOSEN, REJECTED = "chosen", "rejected"
# names of fields with a second text
PAIRS = ("sentence2", "text2", "hypothesis", "text_b", "second")
# names of fields that identify or locate a row
IDENTIFIER = re.compile(
    r"(^|[_-])([a-z]?id|uuid|guid|idx|index|key|url|split|date|timestamp|lang|language|locale)$"
    r"|^(id|idx)_"
)
# names of the preferred and the rejected answer in published data sets
RANKED = (
    ("better", "worse"),
    ("positive", "negative"),
    ("win", "lose"),
    ("winner", "loser"),
    ("preferred", "dispreferred"),
    ("response_j", "response_k"),
    ("answer_better", "answer_worse"),
    ("accepted", "rejected"),
)
# a number with a decimal point, as text in a table
FRACTION = re.compile(r"[-+]?(\d+[.,]\d*|[.,]\d+)([eE][-+]?\d+)?")


def suggest_fields(values: Mapping[str, Any]) -> str:
    """Return the end of a message with advice for a row in no known form.

    Args:
        values: the row's values by field.

    Returns:
        Text that begins with "; ", or "" if there is no suggestion.
    """
    if are_preferences(values):
        prompt_field = likely_prompt(values)
        if prompt_field not in (None, "prompt"):
            pairs = _pairs({"prompt": prompt_field})
            return f"; map the fields, such as with task.fields = {{{pairs}}}"
        return (
            f'; "{CHOSEN}" and "{REJECTED}" look like preferences: each must be a text or a list '
            'of messages, with a "prompt" field or with a common beginning'
        )
    ranked = ranked_fields(values)
    if ranked:
        return f"; map the fields, such as with task.fields = {{{_pairs(ranked)}}}"
    score = likely_score(values)
    if score:
        fields = _names_of_texts(values, score)
        renamed = ""
        if fields:
            renamed = f"task.fields = {{{_pairs(fields)}}} and "
        return (
            f"; to predict a number from each text, set {renamed}task.score_field = "
            f"{json.dumps(show_text(score))}"
        )
    fields = likely_fields(values)
    if fields:
        return f"; map the fields, such as with task.fields = {{{_pairs(fields)}}}"
    return ""


def _pairs(fields: Mapping[str, str]) -> str:
    return ", ".join(f"{name} = {json.dumps(show_text(column))}" for name, column in fields.items())


def ranked_fields(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a row with a preferred and a rejected answer under other names, by the
    names of preferences.
    """
    for better, worse in RANKED:
        if isinstance(values.get(better), str | list) and type(values.get(better)) is type(
            values.get(worse)
        ):
            fields = {"prompt": likely_prompt(values), CHOSEN: better, REJECTED: worse}
            return {name: column for name, column in fields.items() if column and column != name}
    return {}


def likely_prompt(values: Mapping[str, Any]) -> str | None:
    """Return the field of a row that may hold the prompt; None if no field seems to."""
    return _first_of(ASKED, [name for name, value in values.items() if isinstance(value, str)])


def likely_score(values: Mapping[str, Any]) -> str | None:
    """Return the field of a row that may hold a fraction to predict; None if no field does."""
    numbers = [name for name in values if is_fraction(values[name])]
    return _first_of(LABELS, numbers)


def is_fraction(value: Any) -> bool:
    """Return whether a value is a number with a fraction, or a text with such a number."""
    if isinstance(value, str):
        return FRACTION.fullmatch(value.strip()) is not None
    return isinstance(value, float)


def _names_of_texts(values: Mapping[str, Any], score: str) -> dict[str, str]:
    """Return the field names of a scored row's text, or of both texts, if they differ from the
    usual names.
    """
    texts = [
        name
        for name, value in values.items()
        if isinstance(value, str) and name != score and not _identifies(name, value)
    ]
    second = _first_of(PAIRS, texts)
    rest = [name for name in texts if name != second]
    first = _first_of(("text", *TEXTS), rest) or (rest[0] if rest else None)
    columns = {"text": first, "text_pair": second}
    return {name: column for name, column in columns.items() if column and name != column}


def are_preferences(values: Mapping[str, Any]) -> bool:
    """Return whether a row has a preferred and a rejected answer."""
    return CHOSEN in values and REJECTED in values


def likely_fields(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a row that may stand for a form's fields, by the form's names."""
    usable = [name for name, value in values.items() if not _identifies(name, value)]
    chats = [name for name in usable if _is_chat(values[name])]
    if chats:
        return {"messages": chats[0]}
    texts = [name for name in usable if isinstance(values[name], str)]
    answered = _first_of(ANSWERED, [name for name in texts if len(texts) > 1])
    prompt_field = _first_of(ASKED, [name for name in texts if name != answered])
    if prompt_field and answered:
        return {"prompt": prompt_field, "completion": answered}
    labels = [name for name in usable if isinstance(values[name], str | int)]
    label = _first_of(LABELS, labels)
    rest = [name for name in texts if name != label]
    text = _first_of(TEXTS, rest) or next(iter(rest), None)
    if label and text:
        columns = {"text": text, "label": label}
        return {name: column for name, column in columns.items() if name != column}
    if len(texts) > 1:
        return _pair_texts(texts, prompt_field, answered)
    if text:
        return {"text": text}
    return {}


def _pair_texts(
    texts: Sequence[str], prompt_field: str | None, answered: str | None
) -> dict[str, str]:
    """Return two text fields of a row as prompt and answer; one of them may be known already."""
    first = prompt_field or next(name for name in texts if name != answered)
    second = answered or next(name for name in texts if name != first)
    return {"prompt": first, "completion": second}


def _identifies(name: str, value: Any) -> bool:
    """Return whether a field is empty or only identifies the row."""
    return value is None or IDENTIFIER.search(name.lower()) is not None


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(turn, Mapping) and "role" in turn for turn in value)
    )


def _first_of(candidates: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the name that is first in the list of known names, ignoring case."""
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in candidates if name in lower), None)
