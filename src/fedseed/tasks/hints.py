"""Suggests what to write into `task.fields` for rows of no known form."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedseed.text import shown

# names that published data sets have for what is asked and what is answered, the likeliest first
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
PAIRS = ("sentence2", "text2", "hypothesis", "text_b", "second")  # names of second texts
# names of what identifies or places a row
IDENTIFIER = re.compile(
    r"(^|[_-])(id|idx|index|uuid|guid|key|url|split|date|timestamp)$|^(id|idx)_"
)
# a number with a decimal point, as tables write it
FRACTION = re.compile(r"[-+]?(\d+[.,]\d*|[.,]\d+)([eE][-+]?\d+)?")


def suggest_fields(values: Mapping[str, Any]) -> str:
    """Return the end of a message that says what to do with a row of no known form.

    Args:
        values: the row's values by field.

    Returns:
        Text that begins with "; ", or nothing where nothing can be suggested.
    """
    if are_preferences(values):
        asked = likely_prompt(values)
        if asked not in (None, "prompt"):
            return (
                f"; say which field is what, such as task.fields = {{{_pairs({'prompt': asked})}}}"
            )
        return (
            f'; "{CHOSEN}" and "{REJECTED}" are preferences: each a text or a list of messages, '
            'beside a "prompt" or with a common beginning'
        )
    if score := likely_score(values):
        fields = _names_of_texts(values, score)
        renamed = f"task.fields = {{{_pairs(fields)}}} and " if fields else ""
        return (
            f"; to predict a number of each text, {renamed}"
            f"task.score_field = {json.dumps(shown(score))}"
        )
    if fields := likely_fields(values):
        return f"; say which field is what, such as task.fields = {{{_pairs(fields)}}}"
    return ""


def _pairs(fields: Mapping[str, str]) -> str:
    return ", ".join(f"{name} = {json.dumps(shown(theirs))}" for name, theirs in fields.items())


def likely_prompt(values: Mapping[str, Any]) -> str | None:
    """Return the field of a row that may hold the prompt; None if none seems to."""
    return _first_of(ASKED, [name for name, value in values.items() if isinstance(value, str)])


def likely_score(values: Mapping[str, Any]) -> str | None:
    """Return the field of a row that may hold a fraction to predict; None if there is none."""
    numbers = [name for name in values if is_fraction(values[name])]
    return _first_of(LABELS, numbers)


def is_fraction(value: Any) -> bool:
    """Return whether a value is a number with a fraction, or the text of one."""
    if isinstance(value, str):
        return FRACTION.fullmatch(value.strip()) is not None
    return isinstance(value, float)


def _names_of_texts(values: Mapping[str, Any], score: str) -> dict[str, str]:
    """Return a scored row's names for its text, or both of its texts, where they differ from the
    usual ones.
    """
    texts = [
        name
        for name, value in values.items()
        if isinstance(value, str) and name != score and not _identifies(name, value)
    ]
    second = _first_of(PAIRS, texts)
    rest = [name for name in texts if name != second]
    first = _first_of(("text", *TEXTS), rest) or (rest[0] if rest else None)
    named = {"text": first, "text_pair": second}
    return {name: theirs for name, theirs in named.items() if theirs and name != theirs}


def are_preferences(values: Mapping[str, Any]) -> bool:
    """Return whether a row has an answer that was preferred to another."""
    return CHOSEN in values and REJECTED in values


def likely_fields(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a row that may be those of a form, by the form's names."""
    usable = [name for name, value in values.items() if not _identifies(name, value)]
    chats = [name for name in usable if _is_chat(values[name])]
    if chats:
        return {"messages": chats[0]}
    texts = [name for name in usable if isinstance(values[name], str)]
    answered = _first_of(ANSWERED, [name for name in texts if len(texts) > 1])
    asked = _first_of(ASKED, [name for name in texts if name != answered])
    if asked and answered:
        return {"prompt": asked, "completion": answered}
    labels = [name for name in usable if isinstance(values[name], str | int)]
    label = _first_of(LABELS, labels)
    rest = [name for name in texts if name != label]
    text = _first_of(TEXTS, rest) or (rest[0] if rest else None)
    if label and text:
        named = {"text": text, "label": label}
        return {name: theirs for name, theirs in named.items() if name != theirs}
    if len(texts) > 1:
        first = asked or next(name for name in texts if name != answered)
        second = answered or next(name for name in texts if name != first)
        return {"prompt": first, "completion": second}
    return {"text": text} if text else {}


def _identifies(name: str, value: Any) -> bool:
    """Return whether a field says which row it is, or holds nothing."""
    return value is None or IDENTIFIER.search(name.lower()) is not None


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(turn, Mapping) and "role" in turn for turn in value)
    )


def _first_of(known: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the name that comes first among the known ones, whatever its case."""
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in known if name in lower), None)
