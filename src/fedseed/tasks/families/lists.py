"""Families about lists of words: picking, counting, reversing."""

from __future__ import annotations

from random import Random

from . import world
from .core import Draft, family

_POOL: tuple[str, ...] = world.THINGS + world.MEMBERS


def _words(rng: Random, low: int = 3, high: int = 5) -> list[str]:
    return rng.sample(_POOL, rng.randint(low, high))


@family(
    "base",
    "lists",
    "Give the first item of the list.",
    "Which word does the list begin with?",
    "Write the first word of this list.",
    "What is the first thing listed?",
    "Take the first item.",
)
def first_item(rng: Random) -> Draft:
    """The first word of a list."""
    words = _words(rng)
    return Draft(", ".join(words), words[0])


@family(
    "base",
    "lists",
    "Give the last item of the list.",
    "Which word does the list end with?",
    "Write the last word of this list.",
    "What is the last thing listed?",
    "Take the last item.",
)
def last_item(rng: Random) -> Draft:
    """The last word of a list."""
    words = _words(rng)
    return Draft(", ".join(words), words[-1])


@family(
    "base",
    "lists",
    "How many items are in the list?",
    "Count the words of the list.",
    "Count the things listed and write the number as a word.",
    "Give the length of this list.",
)
def count_items(rng: Random) -> Draft:
    """The number of words in a list, as a word."""
    words = _words(rng, 2, 6)
    return Draft(", ".join(words), world.number_word(len(words)))


@family(
    "base",
    "lists",
    "Which word is not like the others?",
    "Find the word that does not belong in the list.",
    "One word is of another kind. Write it.",
    "Pick the odd one out.",
)
def odd_one_out(rng: Random) -> Draft:
    """The one word of another category."""
    common, other = rng.sample(list(world.CATEGORIES), 2)
    words = rng.sample(world.CATEGORIES[common], 2)
    odd = rng.choice(world.CATEGORIES[other])
    words.insert(rng.randrange(3), odd)
    return Draft(", ".join(words), odd)


@family(
    "base",
    "lists",
    "Write the second item of the list in a sentence.",
    "Say in a sentence which word comes second.",
    "Name the second thing listed, in a full sentence.",
    "Which item is second? Answer in a sentence.",
)
def second_item_sentence(rng: Random) -> Draft:
    """The second word of a list, in a sentence."""
    words = _words(rng)
    return Draft(", ".join(words), f"The second word is {words[1]}.")


@family(
    "train",
    "lists",
    "Which items stand at the two ends of the list?",
    "Say where the list starts and where it stops.",
    "Name the first and the last word listed.",
    "Give both ends of the list.",
)
def ends_of_list(rng: Random) -> Draft:
    """The first and the last word, in the form "From ... to ..."."""
    words = _words(rng)
    return Draft(", ".join(words), f"The list goes from {words[0]} to {words[-1]}.")


@family(
    "train",
    "lists",
    "Write the list backwards.",
    "Reverse the order of the items.",
    "Turn the list around.",
    "List the same words from last to first.",
)
def reverse_items(rng: Random) -> Draft:
    """A list of three in reverse."""
    words = _words(rng, 3, 3)
    return Draft(", ".join(words), "Backwards: " + ", ".join(reversed(words)))


@family(
    "train",
    "lists",
    "One word comes twice. Which one?",
    "Find the repeated word.",
    "Which item has been listed two times?",
    "Name the word that appears again.",
)
def repeated_item(rng: Random) -> Draft:
    """The word that a list has twice."""
    words = _words(rng, 3, 3)
    again = rng.choice(words[:2])
    return Draft(", ".join([*words, again]), f"Repeated word: {again}")


@family(
    "train",
    "lists",
    "Leave out the first item and write the rest.",
    "Drop the first word of the list.",
    "What is left without the first item?",
    "Remove the opening word from this list.",
)
def without_first(rng: Random) -> Draft:
    """A list without its first word."""
    words = _words(rng, 3, 4)
    return Draft(", ".join(words), "What remains: " + ", ".join(words[1:]))


@family(
    "train",
    "lists",
    "Write the list as a sentence about what is on the table.",
    "Say that all these things are on the table.",
    "Put the words into a sentence with the table.",
    "Tell what lies on the table.",
)
def list_to_sentence(rng: Random) -> Draft:
    """Three words joined into a sentence."""
    words = _words(rng, 3, 3)
    joined = f"{words[0]}, the {words[1]} and the {words[2]}"
    return Draft(", ".join(words), f"On the table there are the {joined}.")


@family(
    "heldout",
    "lists",
    "Which word is third in the list?",
    "Name the item that comes after the second one.",
    "Give the third item.",
    "What is the third thing in this list?",
)
def third_item(rng: Random) -> Draft:
    """The third word of a list, in a sentence."""
    words = _words(rng)
    return Draft(", ".join(words), f"The third word is {words[2]}.")


@family(
    "heldout",
    "lists",
    "Leave out the last item and write the rest.",
    "Drop the last word of the list.",
    "What is left without the last item?",
    "Remove the closing word from this list.",
)
def without_last(rng: Random) -> Draft:
    """A list without its last word."""
    words = _words(rng, 3, 4)
    return Draft(", ".join(words), "What remains: " + ", ".join(words[:-1]))
