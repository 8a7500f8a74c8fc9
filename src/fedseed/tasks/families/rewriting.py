"""Families that rewrite a text or make one from parts."""

from __future__ import annotations

from random import Random

from . import world
from .core import Draft, family


def _command(rng: Random) -> str:
    verb, colour = rng.choice(world.HANDLING), rng.choice(world.COLOURS)
    return f"{verb.plain} the {colour} {rng.choice(world.THINGS)}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


@family(
    "base",
    "rewriting",
    "Repeat the text.",
    "Copy the sentence.",
    "Write the same sentence again.",
    "Say this once more.",
)
def copy_sentence(rng: Random) -> Draft:
    """A sentence copied."""
    person, verb = rng.choice(world.PEOPLE), rng.choice(world.HANDLING)
    thing, place = rng.choice(world.THINGS), rng.choice(world.PLACES)
    text = f"{person} {verb.past} the {thing} in the {place}."
    return Draft(text, text)


@family(
    "base",
    "rewriting",
    "Replace {old} by {new}.",
    "Write {new} instead of {old}.",
    "Put {new} where the text says {old}.",
    "Change {old} to {new} in the sentence.",
)
def replace_word(rng: Random) -> Draft:
    """A sentence with one thing replaced by another."""
    person, verb = rng.choice(world.PEOPLE), rng.choice(world.HANDLING)
    old, new = rng.sample(world.THINGS, 2)
    place = rng.choice(world.PLACES)
    return Draft(
        f"{person} {verb.past} the {old} in the {place}.",
        f"{person} {verb.past} the {new} in the {place}.",
        {"old": old, "new": new},
    )


@family(
    "base",
    "rewriting",
    "Write a sentence with these parts.",
    "Make a sentence from the record.",
    "Use the name, the thing and the place in a sentence.",
    "Turn the record into a sentence.",
)
def sentence_from_record(rng: Random) -> Draft:
    """A sentence made from labelled parts."""
    person, thing, place = (
        rng.choice(world.PEOPLE),
        rng.choice(world.THINGS),
        rng.choice(world.PLACES),
    )
    return Draft(
        f"name: {person}, thing: {thing}, place: {place}",
        f"{person} has the {thing} in the {place}.",
    )


@family(
    "base",
    "rewriting",
    "Make the request polite.",
    "Add please to the request.",
    "Say it with please.",
    "Write a polite form of the command.",
)
def add_please(rng: Random) -> Draft:
    """A command with "please"."""
    command = _command(rng)
    return Draft(f"{_capital(command)}.", f"Please {command}.")


@family(
    "train",
    "rewriting",
    "Turn the command into a kind question.",
    "Ask whether somebody could do it.",
    "Write the command as a friendly question.",
    "Ask for it in a nice way.",
)
def could_you(rng: Random) -> Draft:
    """A command as a polite question."""
    command = _command(rng)
    return Draft(f"{_capital(command)}.", f"Could you {command}, please?")


@family(
    "train",
    "rewriting",
    "Write a short note of thanks.",
    "Thank the person for the gift.",
    "Say thank you to the one who gave it.",
    "Answer the gift with thanks.",
)
def thanks(rng: Random) -> Draft:
    """A note of thanks for a gift."""
    person = rng.choice(world.PEOPLE)
    gift = f"{rng.choice(world.COLOURS)} {rng.choice(world.THINGS)}"
    return Draft(f"{person} gave me {world.article(gift)}.", f"Thank you for the {gift}, {person}!")


@family(
    "train",
    "rewriting",
    "Put what was said between quotation marks.",
    "Write the speech as a quotation.",
    "Quote the person.",
    "Show the exact words of the speaker.",
)
def quotation(rng: Random) -> Draft:
    """Reported speech as a quotation."""
    person, thing = rng.choice(world.PEOPLE), rng.choice(world.THINGS + world.REVIEWED)
    word = rng.choice(world.ADJECTIVES + world.PRAISE)
    return Draft(f"{person} said that the {thing} is {word}.", f'{person} said: "The {thing} is {word}."')


@family(
    "train",
    "rewriting",
    "Say both things in one sentence.",
    "Join the two sentences.",
    "Make one sentence out of two.",
    "Put the people together into one sentence.",
)
def join_sentences(rng: Random) -> Draft:
    """Two sentences about the same food in one."""
    people, food = rng.sample(world.PEOPLE, 2), rng.choice(world.FOODS)
    text = f"{people[0]} likes {food}. {people[1]} likes {food}."
    return Draft(text, f"Both {people[0]} and {people[1]} like {food}.")


@family(
    "heldout",
    "rewriting",
    "Write a short invitation.",
    "Invite the person to the event.",
    "Ask the person to come on that day.",
    "Turn the record into an invitation.",
)
def invitation(rng: Random) -> Draft:
    """An invitation made from labelled parts."""
    person, event, day = (
        rng.choice(world.PEOPLE),
        rng.choice(world.EVENTS),
        rng.choice(world.DAYS),
    )
    return Draft(
        f"name: {person}, event: {event}, day: {day}",
        f"Please come to the {event} on {day}, {person}!",
    )
