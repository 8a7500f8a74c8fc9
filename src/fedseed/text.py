"""Makes text from elsewhere (a file, a message, a name) fit for a terminal or a message."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

# what a terminal obeys: control characters but for tab and line feed, and what reverses a line's
# direction
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
MOST = 200  # characters of a peer's or a file's text in one message


def clean(text: str) -> str:
    """Return the text with each character that a terminal would obey as its code: backslash x1b
    for an escape.
    """
    return _OBEYED.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def show_text(text: object, limit: int = MOST) -> str:
    """Return somebody else's text as a message may hold it: one line, cleaned, not long.

    Args:
        text: anything; no more of it than is shown is looked at.
        limit: characters at most.
    """
    whole = text if isinstance(text, str) else str(text)
    line = clean(" ".join(whole[: 4 * limit].split()))
    if len(line) <= limit and len(whole) <= 4 * limit:
        return line
    return line[: limit - 3] + "..."


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its type if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def listed(names: Sequence[str], limit: int) -> str:
    """Return the first `limit` names with commas between them, and how many more there are."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest:,} more" if rest > 0 else "")


def first_problem(error: "ValidationError") -> str:
    """Return the first fault in somebody else's data, and its place, in one line.

    The text does not quote the data.
    """
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    location = ": ".join(show_text(str(part), 40) for part in first["loc"])
    problem = show_text(first["msg"].removeprefix("Value error, "), 100)
    if first["type"] == "json_invalid":
        problem = problem.replace("Invalid JSON", "not valid JSON")
    if location:
        return f"{location}: {problem}"
    return problem


def natural(name: str) -> list[tuple[int, str]]:
    """Return what to sort a name by, for the order in which people count: client-2 before
    client-10.
    """
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (1 << 62, part) for part in parts if part]


def flat(table: Mapping[str, Any], head: str = "") -> dict[str, Any]:
    """Return nested tables as one with dotted keys: {"method": {"name": "ferret"}} becomes
    {"method.name": "ferret"}.

    Args:
        table: the tables.
        head: what each key begins with.
    """
    values: dict[str, Any] = {}
    for key, value in table.items():
        values.update(
            flat(value, f"{head}{key}.") if isinstance(value, Mapping) else {f"{head}{key}": value}
        )
    return values
