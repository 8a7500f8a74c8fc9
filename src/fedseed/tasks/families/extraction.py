"""Families that find something in a short text."""

from __future__ import annotations

from random import Random

from . import world
from .core import Draft, family


def _owners(rng: Random) -> tuple[list[str], list[str]]:
    return rng.sample(world.PEOPLE, 2), rng.sample(world.THINGS, 2)


def _whereabouts(rng: Random) -> tuple[str, str, str]:
    """A text that puts two people in places; one of them and their place."""
    people, places = rng.sample(world.PEOPLE, 2), rng.sample(world.PLACES, 2)
    which = rng.randrange(2)
    text = f"{people[0]} is in the {places[0]} and {people[1]} is in the {places[1]}."
    return text, people[which], places[which]


def _colours(rng: Random) -> tuple[str, str, str]:
    """A text that gives two things their colours; one of them and its colour."""
    things, colours = rng.sample(world.THINGS, 2), rng.sample(world.COLOURS, 2)
    which = rng.randrange(2)
    text = f"The {things[0]} is {colours[0]} and the {things[1]} is {colours[1]}."
    return text, things[which], colours[which]


def _sale(rng: Random) -> tuple[str, str, str, int]:
    """A text about somebody who pays for something."""
    person, thing = rng.choice(world.PEOPLE), rng.choice(world.THINGS)
    price = rng.randint(2, world.LARGEST)
    text = rng.choice(
        (
            f"{person} paid {price} coins for the {thing}.",
            f"{person} bought the {thing} for {price} coins.",
            f"The {thing} of {person} costs {price} coins.",
        )
    )
    return text, person, thing, price


@family(
    "base",
    "extraction",
    "Who has the {thing}?",
    "Name the person who has the {thing}.",
    "Which person owns the {thing}?",
    "To whom does the {thing} belong?",
)
def who_has(rng: Random) -> Draft:
    """Who of two people has a thing."""
    people, things = _owners(rng)
    which = rng.randrange(2)
    text = f"{people[0]} has the {things[0]} and {people[1]} has the {things[1]}."
    return Draft(text, people[which], {"thing": things[which]})


@family(
    "base",
    "extraction",
    "Where is {person}?",
    "Write the place where {person} is.",
    "In which place is {person}?",
    "Name the place of {person}.",
)
def where_is(rng: Random) -> Draft:
    """Where one of two people is."""
    text, person, place = _whereabouts(rng)
    return Draft(text, f"in the {place}", {"person": person})


@family(
    "base",
    "extraction",
    "What colour is the {thing}?",
    "Name the colour of the {thing}.",
    "Which colour does the {thing} have?",
    "Write the colour of the {thing}.",
)
def colour_of(rng: Random) -> Draft:
    """The colour of one of two things."""
    text, thing, colour = _colours(rng)
    return Draft(text, colour, {"thing": thing})


@family(
    "base",
    "extraction",
    "What was the thing that had a price?",
    "Which thing is the text about?",
    "Name the thing that was paid for.",
    "Write the thing with a price.",
)
def thing_sold(rng: Random) -> Draft:
    """The thing that a sale is about."""
    text, _, thing, _ = _sale(rng)
    return Draft(text, f"the {thing}")


@family(
    "base",
    "extraction",
    'Write the person after "Person:".',
    'Who is mentioned? Begin with "Person:".',
    'Find the name and put "Person:" before it.',
    'Answer with "Person:" and the name in the text.',
)
def person_label(rng: Random) -> Draft:
    """The person that a sentence is about, with a label."""
    verb, thing = rng.choice(world.HANDLING), rng.choice(world.THINGS)
    person, place = rng.choice(world.PEOPLE), rng.choice(world.PLACES)
    return Draft(f"{person} {verb.past} the {thing} in the {place}.", f"Person: {person}")


@family(
    "train",
    "extraction",
    "Find the person and the place.",
    "Make a record with name and place.",
    "Who is it, and where?",
    "Extract name and place from the text.",
)
def name_and_place(rng: Random) -> Draft:
    """Person and place as a record."""
    verb, thing = rng.choice(world.HANDLING), rng.choice(world.THINGS)
    person, place = rng.choice(world.PEOPLE), rng.choice(world.PLACES)
    return Draft(f"{person} {verb.past} the {thing} in the {place}.", f"name: {person}, place: {place}")


@family(
    "train",
    "extraction",
    "How much money is it?",
    "What is the price?",
    "Extract the price from the text.",
    "Find out how many coins were paid.",
)
def price_label(rng: Random) -> Draft:
    """The price in a sentence, with a label."""
    text, _, _, price = _sale(rng)
    return Draft(text, f"Price: {price} coins")


@family(
    "train",
    "extraction",
    "Who did this?",
    "Find out who was active.",
    "Tell the name of the person who acted.",
    "Who is the subject of the sentence?",
)
def who_did(rng: Random) -> Draft:
    """The acting person, in a sentence."""
    verb, thing = rng.choice(world.HANDLING), rng.choice(world.THINGS)
    person, place = rng.choice(world.PEOPLE), rng.choice(world.PLACES)
    return Draft(f"{person} {verb.past} the {thing} in the {place}.", f"It was {person}.")


@family(
    "train",
    "extraction",
    "Describe the {thing} by its colour.",
    "Tell me how the {thing} looks.",
    "Say something about the colour of the {thing}.",
    "How is the {thing} painted?",
)
def colour_sentence(rng: Random) -> Draft:
    """The colour of one of two things, in a sentence."""
    text, thing, colour = _colours(rng)
    return Draft(text, f"The colour of the {thing} is {colour}.", {"thing": thing})


@family(
    "train",
    "extraction",
    "What does {person} have?",
    "Tell which thing belongs to {person}.",
    "Find the thing that {person} owns.",
    "Say what is in the hands of {person}.",
)
def what_has(rng: Random) -> Draft:
    """The thing of one of two people, in a sentence."""
    people, things = _owners(rng)
    which = rng.randrange(2)
    text = f"{people[0]} has the {things[0]} and {people[1]} has the {things[1]}."
    answer = f"The {things[which]} belongs to {people[which]}."
    return Draft(text, answer, {"person": people[which]})


@family(
    "heldout",
    "extraction",
    "Where can we find {person}?",
    "Tell me where {person} is now.",
    "Say in which place we can meet {person}.",
    "Find {person}.",
)
def where_sentence(rng: Random) -> Draft:
    """Where one of two people is, in a sentence."""
    text, person, place = _whereabouts(rng)
    return Draft(text, f"The place of {person} is the {place}.", {"person": person})


@family(
    "heldout",
    "extraction",
    "Find the person and the thing.",
    "Make a record with name and thing.",
    "Who is it, and what is it about?",
    "Extract name and thing from the text.",
)
def name_and_thing(rng: Random) -> Draft:
    """Person and thing of a sale as a record."""
    text, person, thing, _ = _sale(rng)
    return Draft(text, f"name: {person}, thing: {thing}")
