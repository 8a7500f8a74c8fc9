"""Families about whole numbers from 0 to 59."""

from __future__ import annotations

from random import Random

from . import world
from .core import Draft, family

_PLURALS: tuple[str, ...] = tuple(world.PLURALS.values())


def _distinct(rng: Random, count: int) -> list[int]:
    return rng.sample(range(1, world.LARGEST + 1), count)


@family(
    "base",
    "numbers",
    "Which number is larger?",
    "Write the larger one of the two numbers.",
    "Give the bigger number.",
    "Pick the higher number.",
)
def larger_number(rng: Random) -> Draft:
    """The larger of two numbers."""
    left, right = _distinct(rng, 2)
    return Draft(f"{left} and {right}", str(max(left, right)))


@family(
    "base",
    "numbers",
    "How many are there together?",
    "Add the two numbers of the text.",
    "How many does the person have in the end?",
    "Count everything and write the number.",
)
def add_story(rng: Random) -> Draft:
    """A small sum in words."""
    person, plural = rng.choice(world.PEOPLE), rng.choice(_PLURALS)
    have, more = rng.randint(1, 9), rng.randint(1, 9)
    verb = rng.choice(("gets", "buys", "finds"))
    return Draft(f"{person} has {have} {plural} and {verb} {more} more.", str(have + more))


@family(
    "base",
    "numbers",
    "Write the number as a word.",
    "Spell out the number.",
    "Use a word instead of the digits.",
    "Write the same with the number in letters.",
)
def number_as_word(rng: Random) -> Draft:
    """A number spelled out."""
    number, plural = rng.randint(2, world.LARGEST), rng.choice(_PLURALS)
    person = rng.choice(world.PEOPLE)
    return Draft(f"{person} has {number} {plural}.", f"{person} has {world.number_word(number)} {plural}.")


@family(
    "base",
    "numbers",
    "Sort the numbers from low to high.",
    "Put the numbers in order.",
    "Write the three numbers with the smallest first.",
    "Order these numbers.",
)
def sort_numbers(rng: Random) -> Draft:
    """Three numbers in rising order."""
    numbers = _distinct(rng, 3)
    return Draft(", ".join(map(str, numbers)), ", ".join(map(str, sorted(numbers))))


@family(
    "train",
    "numbers",
    "Which number is smaller?",
    "Tell which of the two is lower.",
    "Compare the numbers and name the small one.",
    "Find the lower number.",
)
def smaller_number(rng: Random) -> Draft:
    """The smaller of two numbers, in a sentence."""
    left, right = _distinct(rng, 2)
    return Draft(f"{left} and {right}", f"The smaller number is {min(left, right)}.")


@family(
    "train",
    "numbers",
    "How many are left?",
    "Take away what is gone and count the rest.",
    "Subtract the second number from the first.",
    "Say how many the person still has.",
)
def subtract_story(rng: Random) -> Draft:
    """A small difference in words."""
    person, plural = rng.choice(world.PEOPLE), rng.choice(_PLURALS)
    have = rng.randint(3, 10)
    gone = rng.randint(1, have - 1)
    verb = rng.choice(("loses", "sells", "breaks"))
    text = f"{person} has {have} {plural} and {verb} {gone}."
    return Draft(text, f"There are {have - gone} {plural} left.")


@family(
    "train",
    "numbers",
    "Which number comes next?",
    "Count one further.",
    "What follows when we go on counting?",
    "Name the number after the last one.",
)
def next_number(rng: Random) -> Draft:
    """The number after another."""
    start, plural = rng.randint(1, world.LARGEST - 1), rng.choice(_PLURALS)
    person = rng.choice(world.PEOPLE)
    return Draft(f"{person} has counted {start} {plural}.", f"After {start} comes {start + 1}.")


@family(
    "train",
    "numbers",
    "Is the number even or odd?",
    "Tell whether the number can be halved.",
    "Decide between even and odd.",
    "What sort of number is it, even or odd?",
)
def even_or_odd(rng: Random) -> Draft:
    """Whether a number is even."""
    number, plural = rng.randint(1, world.LARGEST), rng.choice(_PLURALS)
    word = "even" if number % 2 == 0 else "odd"
    return Draft(f"{number} {plural}", f"The number {number} is {word}.")


@family(
    "train",
    "numbers",
    "Sort the numbers from high to low.",
    "Put the largest number first.",
    "Write the numbers in falling order.",
    "Order the numbers downwards.",
)
def sort_down(rng: Random) -> Draft:
    """Three numbers in falling order."""
    numbers = _distinct(rng, 3)
    ordered = sorted(numbers, reverse=True)
    return Draft(", ".join(map(str, numbers)), "From high to low: " + ", ".join(map(str, ordered)))


@family(
    "heldout",
    "numbers",
    "Which number is the largest of the three?",
    "Name the top number.",
    "Find the highest of these numbers.",
    "Tell which of the three numbers is biggest.",
)
def largest_of_three(rng: Random) -> Draft:
    """The largest of three numbers, in a sentence."""
    numbers = _distinct(rng, 3)
    return Draft(", ".join(map(str, numbers)), f"The largest number is {max(numbers)}.")
