"""Families that ask for facts: countries, animals, kinds of things, jobs."""

from __future__ import annotations

from random import Random

from . import world
from .core import Draft, family


def _country_scene(rng: Random) -> tuple[str, world.Country]:
    country = rng.choice(world.COUNTRIES)
    person = rng.choice(world.PEOPLE)
    verb = rng.choice(("lives in", "comes from", "works in", "travelled to"))
    return f"{person} {verb} {country.name}.", country


def _animal_scene(rng: Random) -> tuple[str, world.Animal]:
    animal = rng.choice(world.ANIMALS)
    person = rng.choice(world.PEOPLE)
    place = rng.choice(world.PLACES)
    verb = rng.choice(("saw", "found", "painted"))
    return f"{person} {verb} {world.article(animal.name)} near the {place}.", animal


@family(
    "base",
    "lookup",
    "What is the capital of the country in the text?",
    "Name the capital of the country that is mentioned.",
    "Write the capital city of this country.",
    "Which city is the capital there?",
)
def capital_of(rng: Random) -> Draft:
    """The capital of a country."""
    text, country = _country_scene(rng)
    return Draft(text, country.capital)


@family(
    "base",
    "lookup",
    "What kind of thing was bought?",
    "Name the kind of the thing in the text.",
    "Which category does the thing belong to?",
    "Is the thing a fruit, a tool, a flower or what else?",
)
def category_of(rng: Random) -> Draft:
    """The category of a thing."""
    person = rng.choice(world.PEOPLE)
    member = rng.choice(world.MEMBERS)
    verb = rng.choice(("bought", "found", "saw"))
    text = f"{person} {verb} {world.article(member)}."
    return Draft(text, world.CATEGORY_OF[member])


@family(
    "base",
    "lookup",
    "What is the young of this animal called?",
    "Give the word for the young animal.",
    "How do we call the baby of the animal in the text?",
    "Write the name of the young one.",
)
def young_of(rng: Random) -> Draft:
    """The word for a young animal."""
    text, animal = _animal_scene(rng)
    return Draft(text, animal.young)


@family(
    "base",
    "lookup",
    "Write a sentence about what this person's work is.",
    "Say in a sentence what the person's job is.",
    "Which job is mentioned? Answer in a sentence.",
    "Tell in a full sentence what the person does.",
)
def job_sentence(rng: Random) -> Draft:
    """A person's job, in a sentence."""
    person = rng.choice(world.PEOPLE)
    job = rng.choice(world.JOBS)
    years = world.number_word(rng.randint(2, 9))
    text = f"{person} has been {world.article(job)} for {years} years."
    return Draft(text, f"{person} is {world.article(job)}.")


@family(
    "train",
    "lookup",
    "Tell me about the capital.",
    "Explain which city is the capital of this country.",
    "Write down the capital and its country.",
    "State the capital of the country that you read about.",
)
def capital_sentence(rng: Random) -> Draft:
    """The capital of a country, in a sentence."""
    text, country = _country_scene(rng)
    return Draft(text, f"The capital of {country.name} is {country.capital}.")


@family(
    "train",
    "lookup",
    "Which language do people speak there?",
    "Name the language of this country.",
    "What do the people of the country speak?",
    "Find the language that fits the country.",
)
def language_of(rng: Random) -> Draft:
    """The language of a country."""
    text, country = _country_scene(rng)
    return Draft(text, f"The people there speak {country.language}.")


@family(
    "train",
    "lookup",
    "On which continent is this country?",
    "Name the continent.",
    "Which part of the world is meant?",
    "Say where in the world the country lies.",
)
def continent_of(rng: Random) -> Draft:
    """The continent of a country."""
    text, country = _country_scene(rng)
    return Draft(text, f"{country.name} lies in {country.continent}.")


@family(
    "train",
    "lookup",
    "What sound does the animal make?",
    "Write what this animal says.",
    "How does the animal in the text sound?",
    "Give the call of the animal.",
)
def sound_of(rng: Random) -> Draft:
    """An animal's sound."""
    text, animal = _animal_scene(rng)
    return Draft(text, f"The {animal.name} says {animal.sound}.")


@family(
    "train",
    "lookup",
    "How many legs does the animal have?",
    "Count the legs of this animal.",
    "Tell the number of legs.",
    "On how many legs does it stand?",
)
def legs_of(rng: Random) -> Draft:
    """How many legs an animal has."""
    text, animal = _animal_scene(rng)
    return Draft(text, f"Number of legs: {animal.legs}")


@family(
    "train",
    "lookup",
    "Where does this person work?",
    "Guess the place of work from the job.",
    "Name the place where the job is done.",
    "In which place can we meet this person at work?",
)
def workplace_of(rng: Random) -> Draft:
    """The place where a job is done."""
    person = rng.choice(world.PEOPLE)
    job = rng.choice(world.JOBS)
    text = rng.choice(
        (
            f"{person} is {world.article(job)}.",
            f"{person} became {world.article(job)}.",
            f"{person} is a good {job}.",
        )
    )
    return Draft(text, f"{person} works in the {world.WORKPLACES[job]}.")


@family(
    "heldout",
    "lookup",
    "Which country has this capital?",
    "Name the country that the city belongs to.",
    "The city is a capital. Of which country?",
    "Write down the country of this city.",
)
def country_of_capital(rng: Random) -> Draft:
    """The country of a capital, in a sentence."""
    country = rng.choice(world.COUNTRIES)
    person = rng.choice(world.PEOPLE)
    verb = rng.choice(("lives in", "works in", "travelled to"))
    text = f"{person} {verb} {country.capital}."
    return Draft(text, f"{country.capital} is the capital of {country.name}.")


@family(
    "heldout",
    "lookup",
    "Where does this animal live?",
    "Name the home of the animal.",
    "In what kind of home do we find it?",
    "Tell where the animal sleeps.",
)
def home_of(rng: Random) -> Draft:
    """An animal's home, in a sentence."""
    text, animal = _animal_scene(rng)
    return Draft(text, f"The {animal.name} lives in the {animal.home}.")
