"""Families about days, months and dates."""

from __future__ import annotations

from random import Random

from . import world
from .core import Draft, family


def _date(rng: Random) -> tuple[int, str, int]:
    return rng.randint(1, 28), rng.choice(world.MONTHS), rng.randint(2001, 2030)


def _on_day(rng: Random) -> tuple[str, str]:
    day = rng.choice(world.DAYS)
    text = rng.choice(
        (
            f"The {rng.choice(world.EVENTS)} in the {rng.choice(world.PLACES)} is on {day}.",
            f"{rng.choice(world.PEOPLE)} came to the {rng.choice(world.PLACES)} on {day}.",
        )
    )
    return text, day


def _in_month(rng: Random) -> tuple[str, str]:
    month = rng.choice(world.MONTHS)
    text = rng.choice(
        (
            f"The {rng.choice(world.EVENTS)} in the {rng.choice(world.PLACES)} is in {month}.",
            f"{rng.choice(world.PEOPLE)} came to the {rng.choice(world.PLACES)} in {month}.",
        )
    )
    return text, month


@family(
    "base",
    "dates",
    "Which day comes after the day in the text?",
    "Name the next day of the week.",
    "What is the day after?",
    "Write the day that follows.",
)
def day_after(rng: Random) -> Draft:
    """The day of the week after another."""
    text, day = _on_day(rng)
    return Draft(text, world.after(day, world.DAYS))


@family(
    "base",
    "dates",
    "Which month is in the date?",
    "Write the month of this date.",
    "Take the month from the date.",
    "Give only the month.",
)
def month_of_date(rng: Random) -> Draft:
    """The month of a date."""
    day, month, year = _date(rng)
    return Draft(f"{day} {month} {year}", month)


@family(
    "base",
    "dates",
    "Say in a sentence which month comes next.",
    "Write a sentence about the month that follows.",
    "Which month comes next? Answer in a sentence.",
    "Name the month after this one, in a full sentence.",
)
def month_after_sentence(rng: Random) -> Draft:
    """The month after another, in a sentence."""
    text, month = _in_month(rng)
    return Draft(text, f"The next month is {world.after(month, world.MONTHS)}.")


@family(
    "train",
    "dates",
    "Which month was it one month earlier?",
    "Name the month before.",
    "Go back one month.",
    "What month ends when this one starts?",
)
def month_before(rng: Random) -> Draft:
    """The month before another."""
    text, month = _in_month(rng)
    return Draft(text, f"Before {month} comes {world.after(month, world.MONTHS, -1)}.")


@family(
    "train",
    "dates",
    "Which season is it?",
    "Name the season of the month.",
    "Is this in winter, spring, summer or autumn?",
    "Tell the time of the year.",
)
def season_of(rng: Random) -> Draft:
    """The season of a month."""
    text, month = _in_month(rng)
    return Draft(text, f"{month} is a month of {world.SEASON_OF[month]}.")


@family(
    "train",
    "dates",
    "Is this a working day?",
    "Tell whether the day is part of the weekend.",
    "What sort of day is it, working day or weekend?",
    "Decide if people work on that day.",
)
def weekend_check(rng: Random) -> Draft:
    """Whether a day is in the weekend."""
    text, day = _on_day(rng)
    sort = "part of the weekend" if day in world.DAYS[5:] else "a working day"
    return Draft(text, f"{day} is {sort}.")


@family(
    "train",
    "dates",
    "Split the date into its parts.",
    "Label day, month and year.",
    "Write the parts of the date with their names.",
    "Break the date up.",
)
def date_fields(rng: Random) -> Draft:
    """A date as labelled fields."""
    day, month, year = _date(rng)
    return Draft(f"{day} {month} {year}", f"day: {day}, month: {month}, year: {year}")


@family(
    "heldout",
    "dates",
    "Which day of the week comes before it?",
    "Name the day before.",
    "Go back one day.",
    "What was the day one day earlier?",
)
def day_before(rng: Random) -> Draft:
    """The day of the week before another."""
    text, day = _on_day(rng)
    return Draft(text, f"Before {day} comes {world.after(day, world.DAYS, -1)}.")
