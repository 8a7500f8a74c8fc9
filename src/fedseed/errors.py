"""Defines the errors that a user can meet, whose texts say what to do.

And makes words that many of them use.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class FedseedError(Exception):
    """Base of all errors raised on purpose by fedseed."""


class RecipeError(FedseedError):
    """A recipe or a command line is wrong: the process ends with exit code 2."""


class MessageError(FedseedError):
    """A message (plan, update or step) was refused; the text says why."""


class OrbitError(FedseedError):
    """An orbit can't be read, does not fit the base, or is damaged; the text says where."""


class StorageError(FedseedError):
    """A file can't be written: the disk is full, the folder read-only.

    Nothing is left half-written.
    """


class PrivacyError(FedseedError):
    """A client's privacy account allows no more answers, or can't be trusted.

    The text names the account's file; it is for the client's owner, not for the coordinator.
    """


class NonFiniteError(FedseedError):
    """A loss or a value on a client became NaN or infinite: that client sends nothing."""


class NetworkError(FedseedError):
    """The NATS server can't be reached or refuses, or the other side does.

    The text says which and why.
    """


def closest(word: object, candidates: Iterable[str], ratio: float = 0.67) -> str | None:
    """Return the known name that a misspelt one most likely means; None: nothing is close.

    Args:
        word: what was given; anything but a text is close to nothing.
        candidates: the names there are.
        ratio: how much of both names must be the same, from 0 to 1.
    """
    if not isinstance(word, str):
        return None
    plain = {name.lower().replace("_", "-"): name for name in candidates}
    matches = get_close_matches(word.lower().replace("_", "-"), plain, 1, ratio)
    if matches:
        return plain[matches[0]]
    return None


def did_you_mean(word: object, candidates: Iterable[str], ending: str = " ") -> str:
    """Return a question for an error: "did you mean hadamard? ", or "" if nothing is close.

    Args:
        word: what was given.
        candidates: the names there are.
        ending: what comes after the question.
    """
    candidate = closest(word, candidates)
    if candidate is None:
        return ""
    return f"did you mean {candidate}?{ending}"


def to_install(extra: str) -> str:
    """Say how to install an extra of pyproject.toml, for messages: the one place that knows where
    fedseed comes from.

    Args:
        extra: its name, such as "train".
    """
    return f"pip install '.[{extra}]' in the folder of fedseed's sources"


# the same for the package fedseed-papers
PAPERS = "pip install ./papers in the folder of fedseed's sources"


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: "1 client", "1,200 clients".

    Args:
        count: the number.
        one: the noun of one.
        many: the noun of others; by default with an s.
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"
