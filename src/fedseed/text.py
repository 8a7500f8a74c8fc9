"""Text from elsewhere (a file, a message, a name), as a terminal may be shown it."""

import re

# what a terminal obeys: control characters but for tab and line feed, and what turns a line round
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
MOST = 200  # characters of a peer's or a file's text in one message


def clean(text: str) -> str:
    """The text with every character that a terminal would obey written as its code: backslash x1b for an escape."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shown(text: object, limit: int = MOST) -> str:
    """Somebody else's text for a message: one line, cleaned, not long.

    Args:
        text: anything; no more of it than is shown is looked at.
        limit: characters at most.
    """
    whole = text if isinstance(text, str) else str(text)
    line = clean(" ".join(whole[: 4 * limit].split()))
    return line if len(line) <= limit and len(whole) <= 4 * limit else line[: limit - 3] + "..."
