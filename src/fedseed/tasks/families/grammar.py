"""Families about word forms and sentence forms."""

from __future__ import annotations

from random import Random

from . import world
from .core import Draft, family


def _handling(rng: Random) -> tuple[str, world.Verb, str]:
    thing = f"{rng.choice(world.COLOURS)} {rng.choice(world.THINGS)}"
    return rng.choice(world.PEOPLE), rng.choice(world.HANDLING), f"the {thing}"


def _action(rng: Random) -> tuple[str, world.Verb, str]:
    """A person, a verb and what follows the verb."""
    if rng.random() < 0.5:
        return _handling(rng)
    place = f"to the {rng.choice(world.PLACES)}"
    return rng.choice(world.PEOPLE), rng.choice(world.MOVING), place


@family(
    "base",
    "grammar",
    "Replace the adjective by its opposite.",
    "Change the describing word to its opposite.",
    "Write the same words with the opposite adjective.",
    "Turn the adjective around.",
)
def opposite_of(rng: Random) -> Draft:
    """A phrase with its adjective turned into the opposite."""
    word, thing = rng.choice(world.ADJECTIVES), rng.choice(world.THINGS)
    rest = f"{thing} of {rng.choice(world.PEOPLE)}"
    return Draft(f"the {word} {rest}", f"the {world.OPPOSITES[word]} {rest}")


@family(
    "base",
    "grammar",
    "Put the sentence into the past.",
    "Write the sentence in the past tense.",
    "Change the verb to the past.",
    "Say that it happened in the past.",
)
def past_tense(rng: Random) -> Draft:
    """A sentence moved to the past."""
    person, verb, rest = _action(rng)
    return Draft(f"{person} {verb.third} {rest}.", f"{person} {verb.past} {rest}.")


@family(
    "base",
    "grammar",
    "Write the words in the plural.",
    "Make it more than one.",
    "Change the noun to its plural.",
    "Give the plural form.",
)
def plural_of(rng: Random) -> Draft:
    """A noun with adjectives in the plural."""
    plurals = {**world.PLURALS, **{a.name: a.plural for a in world.ANIMALS}}
    noun = rng.choice(list(plurals))
    adjective = rng.choice(("big", "small", "old", "new", "clean", "heavy", "light"))
    colour = rng.choice(world.COLOURS)
    single = f"{adjective} {colour} {noun}"
    return Draft(world.article(single), f"{adjective} {colour} {plurals[noun]}")


@family(
    "base",
    "grammar",
    "Replace the name by he or she.",
    "Write the sentence without the name.",
    "Use a pronoun for the person.",
    "Put he or she in the place of the name.",
)
def pronoun_for(rng: Random) -> Draft:
    """A sentence with a pronoun for its subject."""
    person, verb, rest = _action(rng)
    return Draft(f"{person} {verb.past} {rest}.", f"{world.pronoun(person)} {verb.past} {rest}.")


@family(
    "train",
    "grammar",
    "What is the opposite of the adjective?",
    "Find the word that means the contrary.",
    "Name the adjective and its opposite.",
    "Explain the opposite of the describing word.",
)
def opposite_sentence(rng: Random) -> Draft:
    """The opposite of an adjective, in a sentence."""
    word, thing = rng.choice(world.ADJECTIVES), rng.choice(world.THINGS + world.PLACES)
    return Draft(f"the {word} {thing}", f"The opposite of {word} is {world.OPPOSITES[word]}.")


@family(
    "train",
    "grammar",
    "Put the sentence into the future.",
    "Say that it happens tomorrow.",
    "Move the action to the next day.",
    "Write what will be done.",
)
def future_tense(rng: Random) -> Draft:
    """A sentence moved to tomorrow."""
    person, verb, rest = _action(rng)
    return Draft(f"{person} {verb.third} {rest}.", f"Tomorrow {person} will {verb.plain} {rest}.")


@family(
    "train",
    "grammar",
    "Make the sentence negative.",
    "Say that this is not so.",
    "Deny the sentence.",
    "Write that the person does not do it.",
)
def negation(rng: Random) -> Draft:
    """A sentence denied."""
    person, verb, rest = _action(rng)
    return Draft(f"{person} {verb.third} {rest}.", f"{person} does not {verb.plain} {rest}.")


@family(
    "train",
    "grammar",
    "Turn the sentence into a question.",
    "Ask whether this is so.",
    "Write a question with the same words.",
    "Make a yes or no question of it.",
)
def make_question(rng: Random) -> Draft:
    """A sentence turned into a question."""
    person, verb, rest = _action(rng)
    return Draft(f"{person} {verb.third} {rest}.", f"Does {person} {verb.plain} {rest}?")


@family(
    "train",
    "grammar",
    "Begin the sentence with the thing.",
    "Write the sentence in the passive.",
    "Say by whom it was done.",
    "Tell what was done to the thing.",
)
def passive(rng: Random) -> Draft:
    """An active sentence in the passive."""
    person, verb, rest = _handling(rng)
    the_thing = rest[0].upper() + rest[1:]
    return Draft(f"{person} {verb.past} {rest}.", f"{the_thing} was {verb.participle} by {person}.")


@family(
    "heldout",
    "grammar",
    "Say that it is going on at this moment.",
    "Write what the person is doing now.",
    "Put the verb into the form with -ing.",
    "Describe the action while it happens.",
)
def progressive(rng: Random) -> Draft:
    """A sentence in the present progressive."""
    person, verb, rest = _action(rng)
    return Draft(f"{person} {verb.third} {rest}.", f"Now {person} is {verb.ing} {rest}.")
