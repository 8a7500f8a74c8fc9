"""Text of somebody else, made fit to be shown: in a terminal, a log, a status or an error."""

MOST_SHOWN = 200  # characters


def shown(text: object, limit: int = MOST_SHOWN) -> str:
    """What somebody else wrote, in one line that moves no cursor, changes no colour and turns no writing direction.

    Args:
        text: anything; its text is taken.
        limit: characters at most; of a longer one the beginning is kept.

    Returns:
        The text; white space is a space, any other character that can't be printed a question mark.
    """
    whole = text if isinstance(text, str) else str(text)
    cut = whole[: limit - 3] + "..." if len(whole) > limit else whole
    return "".join(c if c.isprintable() else " " if c in "\t\n\r\v\f" else "?" for c in cut)
