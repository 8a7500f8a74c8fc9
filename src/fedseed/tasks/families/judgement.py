"""Families that judge: feeling, yes or no, true or false."""

from __future__ import annotations

from random import Random

from . import world
from .core import Draft, family


def _review(rng: Random) -> tuple[str, bool]:
    """A short review and whether it is a kind one."""
    liked = rng.random() < 0.5
    word = rng.choice(world.PRAISE if liked else world.BLAME)
    thing, person = rng.choice(world.REVIEWED), rng.choice(world.PEOPLE)
    text = rng.choice(
        (
            f"{person} says that the {thing} was {word}.",
            f"The {thing} was {word}, {person} thinks.",
            f"{person} calls it {world.article(word)} {thing}.",
        )
    )
    return text, liked


def _kind_claim(rng: Random) -> tuple[str, str, str]:
    """A claim about what something is; the thing and its true category."""
    member = rng.choice(world.MEMBERS)
    true = world.CATEGORY_OF[member]
    claimed = true if rng.random() < 0.5 else rng.choice(list(world.CATEGORIES))
    return f"{world.article(member)} is {world.article(claimed)}", claimed, true


@family(
    "base",
    "judgement",
    "Is the text positive or negative?",
    "What is the feeling of the text?",
    "Decide whether the text is positive or negative.",
    "Write positive or negative.",
)
def sentiment(rng: Random) -> Draft:
    """Whether a review is positive or negative."""
    text, liked = _review(rng)
    return Draft(text, "positive" if liked else "negative")


@family(
    "base",
    "judgement",
    "Does {person} have the {thing}?",
    "Is it true that {person} has the {thing}?",
    "Answer yes or no: {person} has the {thing}.",
    "Is the {thing} owned by {person}?",
)
def has_thing(rng: Random) -> Draft:
    """Whether a person has a thing, yes or no."""
    people, things = rng.sample(world.PEOPLE, 2), rng.sample(world.THINGS, 2)
    text = f"{people[0]} has the {things[0]} and {people[1]} has the {things[1]}."
    person, thing = rng.randrange(2), rng.randrange(2)
    answer = "yes" if person == thing else "no"
    return Draft(text, answer, {"person": people[person], "thing": things[thing]})


@family(
    "train",
    "judgement",
    "Did the person like it?",
    "Judge the opinion in the text.",
    "Tell whether the opinion is kind.",
    "How does the person feel about it?",
)
def verdict(rng: Random) -> Draft:
    """A review's verdict, with a label."""
    text, liked = _review(rng)
    return Draft(text, "Verdict: they liked it" if liked else "Verdict: they did not like it")


@family(
    "train",
    "judgement",
    "Is the statement true?",
    "Check the statement.",
    "Tell whether this is right.",
    "Judge whether the statement is true or false.",
)
def true_or_false(rng: Random) -> Draft:
    """Whether something belongs to a category."""
    claim, claimed, true = _kind_claim(rng)
    person = rng.choice(world.PEOPLE)
    word = "true" if claimed == true else "false"
    return Draft(f"{person} says that {claim}.", f"The statement is {word}.")


@family(
    "train",
    "judgement",
    "Is somebody in the {place}?",
    "Tell whether there is anybody in the {place}.",
    "Check if the {place} has a visitor.",
    "Could we meet a person in the {place}?",
)
def anybody_there(rng: Random) -> Draft:
    """Whether somebody is in a place, with the name."""
    people, places = rng.sample(world.PEOPLE, 2), rng.sample(world.PLACES, 3)
    text = f"{people[0]} is in the {places[0]} and {people[1]} is in the {places[1]}."
    which = rng.randrange(3)
    answer = f"Yes, {people[which]} is there." if which < 2 else "No, nobody is there."
    return Draft(text, answer, {"place": places[which]})


@family(
    "heldout",
    "judgement",
    "Check what is said about the numbers.",
    "Compare the numbers and judge the statement.",
    "Is it right that one number is larger?",
    "Tell whether the speaker knows which number is larger.",
)
def larger_claim(rng: Random) -> Draft:
    """Whether one number is larger than another, as a verdict on a statement."""
    left, right = rng.sample(range(1, world.LARGEST + 1), 2)
    word = "true" if left > right else "false"
    person = rng.choice(world.PEOPLE)
    return Draft(f"{person} says that {left} is larger than {right}.", f"The statement is {word}.")
