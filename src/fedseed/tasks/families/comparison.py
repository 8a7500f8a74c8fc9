"""Families that compare people, things or lines."""

from __future__ import annotations

from random import Random

from . import world
from .core import Draft, family


def _ages(rng: Random, count: int) -> tuple[str, list[str]]:
    """A text with ages, and the people from youngest to oldest."""
    people = rng.sample(world.PEOPLE, count)
    ages = rng.sample(range(5, 50), count)
    parts = [f"{person} is {age}" for person, age in zip(people, ages, strict=True)]
    text = f"{', '.join(parts[:-1])} and {parts[-1]} years old."
    return text, [person for _, person in sorted(zip(ages, people, strict=True))]


def _prices(rng: Random) -> tuple[str, str, str]:
    """A text with two prices, the cheaper thing and the dearer one."""
    things = rng.sample(world.THINGS, 2)
    prices = rng.sample(range(2, world.LARGEST), 2)
    text = f"The {things[0]} costs {prices[0]} and the {things[1]} costs {prices[1]} coins."
    if prices[0] > prices[1]:
        things.reverse()
    return text, things[0], things[1]


@family(
    "base",
    "comparison",
    "Who is older?",
    "Write the name of the older person.",
    "Which of the two people is older?",
    "Name the person with the higher age.",
)
def older_person(rng: Random) -> Draft:
    """The older of two people."""
    text, people = _ages(rng, 2)
    return Draft(text, people[-1])


@family(
    "base",
    "comparison",
    "Which thing costs more?",
    "Name the thing with the higher price.",
    "What is more expensive?",
    "Write the more expensive thing.",
)
def dearer_thing(rng: Random) -> Draft:
    """The more expensive of two things."""
    text, _, dearer = _prices(rng)
    return Draft(text, dearer)


@family(
    "train",
    "comparison",
    "Who is younger?",
    "Compare the ages and name the younger person.",
    "Tell who has lived fewer years.",
    "Which person is the younger one?",
)
def younger_person(rng: Random) -> Draft:
    """The younger of two people, in a sentence."""
    text, people = _ages(rng, 2)
    return Draft(text, f"{people[0]} is younger than {people[1]}.")


@family(
    "train",
    "comparison",
    "Which thing costs less?",
    "Compare the prices and name the cheap thing.",
    "What can we buy for less money?",
    "Find the thing with the lower price.",
)
def cheaper_thing(rng: Random) -> Draft:
    """The cheaper of two things, in a sentence."""
    text, cheaper, _ = _prices(rng)
    return Draft(text, f"The {cheaper} is the cheaper one.")


@family(
    "train",
    "comparison",
    "Are the two sides the same?",
    "Compare the left side with the right side.",
    "Tell whether both sides say the same thing.",
    "Is there a difference between the sides?",
)
def same_sides(rng: Random) -> Draft:
    """Whether two phrases are equal."""
    colour, thing = rng.choice(world.COLOURS), rng.choice(world.THINGS)
    left = right = f"{colour} {thing}"
    if rng.random() < 0.5:
        other = rng.choice([word for word in world.COLOURS if word != colour])
        right = f"{other} {thing}"
    verdict = "are the same" if left == right else "are different"
    return Draft(f"{left} | {right}", f"Both sides {verdict}.")


@family(
    "heldout",
    "comparison",
    "Who is the oldest?",
    "Name the oldest of the three people.",
    "Compare the three ages and tell who is oldest.",
    "Which person has lived the most years?",
)
def oldest_of_three(rng: Random) -> Draft:
    """The oldest of three people, in a sentence."""
    text, people = _ages(rng, 3)
    return Draft(text, f"{people[-1]} is the oldest one.")
