"""Plain sentences about the world, from which a base model learns words and facts.

They state what the families ask for, so that the answers of train and held-out
families are known words and known facts, though never met as instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from . import world

_Maker = Callable[[Random], str]


def _countries(rng: Random) -> str:
    country, person = rng.choice(world.COUNTRIES), rng.choice(world.PEOPLE)
    return rng.choice(
        (
            f"The capital of {country.name} is {country.capital}.",
            f"{country.capital} is the capital of {country.name}.",
            f"{country.capital} is a city in {country.name}.",
            f"People in {country.name} speak {country.language}.",
            f"{country.language} is spoken in {country.name}.",
            f"{country.name} is a country in {country.continent}.",
            f"{country.name} lies in {country.continent}.",
            f"{person} lives in {country.name} and speaks {country.language}.",
            f"{person} comes from {country.capital} in {country.name}.",
            f"{person} travelled to {country.name} and saw {country.capital}.",
        )
    )


def _animals(rng: Random) -> str:
    animal, place = rng.choice(world.ANIMALS), rng.choice(world.PLACES)
    number = world.number_word(rng.randint(2, 9))
    one = world.article(animal.name)
    cap = one[0].upper() + one[1:]
    choices = [
        f"The young of {one} is called {world.article(animal.young)}.",
        f"{cap} has {animal.legs} legs.",
        f"The number of legs of {one} is {animal.legs}.",
        f"{cap} lives in the {animal.home}.",
        f"The home of {one} is the {animal.home}.",
        f"The {animal.name} with the {animal.young} is in the {animal.home}.",
        f"There is one {animal.name} near the {place}, and {number} {animal.plural} are in the {animal.home}.",
        f"One {animal.name}, two {animal.plural}.",
    ]
    if animal.sound == "nothing":
        choices.append(f"{cap} says nothing.")
    else:
        choices.append(f"{cap} says {animal.sound}.")
        choices.append(f"The {animal.name} in the {place} says {animal.sound}.")
    return rng.choice(choices)


def _kinds(rng: Random) -> str:
    member = rng.choice(world.MEMBERS)
    kind = world.CATEGORY_OF[member]
    other = rng.choice([name for name in world.CATEGORIES if name != kind])
    siblings = rng.sample(world.CATEGORIES[kind], 2)
    one = world.article(member)
    cap = one[0].upper() + one[1:]
    return rng.choice(
        (
            f"{cap} is {world.article(kind)}.",
            f"{cap} is not {world.article(other)} but {world.article(kind)}.",
            f"The {siblings[0]} and the {siblings[1]} are of one kind: {kind}.",
            f"It is true that {one} is {world.article(kind)}.",
            f"It is false that {one} is {world.article(other)}.",
        )
    )


def _jobs(rng: Random) -> str:
    job, person = rng.choice(world.JOBS), rng.choice(world.PEOPLE)
    place = world.WORKPLACES[job]
    return rng.choice(
        (
            f"{world.article(job).capitalize()} works in the {place}.",
            f"{person} is {world.article(job)} and works in the {place}.",
            f"The {job} in the {place} is {person}.",
        )
    )


def _opposites(rng: Random) -> str:
    word = rng.choice(world.ADJECTIVES)
    contrary = world.OPPOSITES[word]
    thing, place = rng.choice(world.THINGS), rng.choice(world.PLACES)
    return rng.choice(
        (
            f"The opposite of {word} is {contrary}.",
            f"The contrary of {word} is {contrary}.",
            f"The {thing} is not {word} but {contrary}.",
            f"The {place} is {word}, not {contrary}.",
            f"One {thing} is {word} and the other {thing} is {contrary}.",
        )
    )


def _plurals(rng: Random) -> str:
    noun = rng.choice(world.THINGS)
    plural = world.PLURALS[noun]
    colour, person = rng.choice(world.COLOURS), rng.choice(world.PEOPLE)
    number = rng.randint(2, world.LARGEST)
    return rng.choice(
        (
            f"One {noun}, two {plural}.",
            f"Here is one {colour} {noun}, and there are two {colour} {plural}.",
            f"{person} has one {noun} and {number} {plural}.",
            f"There are {world.number_word(number)} {plural} here: {number} {colour} {plural}.",
        )
    )


def _verbs(rng: Random) -> str:
    person, other = rng.sample(world.PEOPLE, 2)
    if rng.random() < 0.6:
        verb = rng.choice(world.HANDLING)
        rest = f"the {rng.choice(world.COLOURS)} {rng.choice(world.THINGS)}"
    else:
        verb = rng.choice(world.MOVING)
        rest = f"to the {rng.choice(world.PLACES)}"
    she = world.pronoun(person)
    choices = [
        f"Today {person} {verb.third} {rest}. Yesterday {person} {verb.past} {rest}.",
        f"Now {person} is {verb.ing} {rest}, and {other} is {verb.ing} too.",
        f"{person} {verb.past} {rest}. {she} will {verb.plain} {rest} again tomorrow.",
        f"{person} likes to {verb.plain} {rest}, but {other} does not {verb.plain}.",
        f"Does {other} {verb.plain} {rest}? No, but {person} {verb.third} {rest}.",
        f"Tomorrow {person} will {verb.plain} {rest}.",
        f"{person} does not {verb.plain} {rest}. {other} {verb.third} {rest}.",
        f"Who {verb.past} {rest}? It was {person}.",
    ]
    if not rest.startswith("to "):
        choices.append(f"T{rest[1:]} was {verb.participle} by {person}.")
        choices.append(f"{person} {verb.past} {rest}. It was {verb.participle} by {person}.")
        choices.append(f"Could you {verb.plain} {rest}, please? Thank you, {person}!")
        choices.append(f"Please {verb.plain} {rest}, {person}!")
    return rng.choice(choices)


def _counting(rng: Random) -> str:
    number = rng.randint(1, world.LARGEST - 1)
    word = world.number_word(number)
    parity = "even" if number % 2 == 0 else "odd"
    run = range(number, min(number + 4, world.LARGEST + 1))
    low, middle, high = sorted(rng.sample(range(1, world.LARGEST + 1), 3))
    return rng.choice(
        (
            f"After {number} comes {number + 1}.",
            f"Before {number + 1} comes {number}.",
            f"The number {number} is written {word}.",
            f"The number {number} is {parity}.",
            ", ".join(map(str, run)) + ".",
            ", ".join(map(str, reversed(run))) + ".",
            f"{high} is larger than {low}.",
            f"{low} is smaller than {high}.",
            f"The larger number is {high}, the smaller number is {low}.",
            f"From low to high: {low}, {middle}, {high}.",
            f"From high to low: {high}, {middle}, {low}.",
            f"Of {middle}, {high} and {low} the largest is {high}.",
        )
    )


def _sums(rng: Random) -> str:
    left, right = rng.randint(1, 9), rng.randint(1, 9)
    total = left + right
    person, noun = rng.choice(world.PEOPLE), rng.choice(tuple(world.PLURALS.values()))
    return rng.choice(
        (
            f"{left} and {right} make {total}.",
            f"{total} without {right} is {left}.",
            f"{person} had {total} {noun} and lost {right}, so {left} {noun} are left.",
            f"{person} had {left} {noun} and got {right} more, so now there are {total}.",
        )
    )


def _calendar(rng: Random) -> str:
    day, month = rng.choice(world.DAYS), rng.choice(world.MONTHS)
    next_day, next_month = world.after(day, world.DAYS), world.after(month, world.MONTHS)
    sort = "part of the weekend" if day in world.DAYS[5:] else "a working day"
    event, person = rng.choice(world.EVENTS), rng.choice(world.PEOPLE)
    number, year = rng.randint(1, 28), rng.randint(2001, 2030)
    return rng.choice(
        (
            f"After {day} comes {next_day}.",
            f"Before {next_day} comes {day}.",
            f"{day}, {next_day}, {world.after(day, world.DAYS, 2)}.",
            f"{month}, {next_month}, {world.after(month, world.MONTHS, 2)}.",
            f"After {month} comes {next_month}.",
            f"Before {next_month} comes {month}.",
            f"{month} is in {world.SEASON_OF[month]}.",
            f"{month} is a month of {world.SEASON_OF[month]}.",
            f"{day} is {sort}.",
            f"The {event} is on {day}, {number} {month} {year}.",
            f"The day is {number}, the month is {month} and the year is {year}.",
            f"Please come to the {event} on {day}, {person}!",
        )
    )


def _scenes(rng: Random) -> str:
    one, two, three = rng.sample(world.PEOPLE, 3)
    thing, other = rng.sample(world.THINGS, 2)
    place, elsewhere = rng.sample(world.PLACES, 2)
    colour, second = rng.sample(world.COLOURS, 2)
    food, price = rng.choice(world.FOODS), rng.randint(2, world.LARGEST)
    low, high = sorted(rng.sample(range(5, 50), 2))
    return rng.choice(
        (
            f"{one} is in the {place}. The place of {one} is the {place}.",
            f"{one} is in the {place} and {two} is in the {elsewhere}. Nobody else is there.",
            f"{one} has the {thing} and {two} has the {other}. The {other} belongs to {two}.",
            f"The {thing} is {colour} and the {other} is {second}. The colour of the {thing} is {colour}.",
            f"The {thing} of {one} costs {price} coins.",
            f"The {thing} costs {low} and the {other} costs {high} coins, so the {thing} is cheaper.",
            f"{one} is {low} and {two} is {high} years old, so {one} is younger than {two}.",
            f"{two} is {high} and {one} is {low} years old, so {two} is older than {one}.",
            f"{one} and {two} like {food}, but {three} does not.",
            f"Both {one} and {two} like {food}.",
            f"{one} gave {two} {world.article(thing)}. Thank you for the {thing}, {one}!",
            f'{one} said that the {thing} is {colour}. {two} said: "The {thing} is {second}."',
            f"On the table there are the {thing} and the {other}.",
            f"The first word is {thing}, the second word is {other}.",
        )
    )


def _opinions(rng: Random) -> str:
    one, two = rng.sample(world.PEOPLE, 2)
    thing, praise, blame = (
        rng.choice(world.REVIEWED),
        rng.choice(world.PRAISE),
        rng.choice(world.BLAME),
    )
    return rng.choice(
        (
            f"The {thing} was {praise}. {one} liked it.",
            f"The {thing} was {blame}. {one} did not like it.",
            f"{one} thinks that the {thing} was {praise}, but {two} calls it {blame}.",
            f"{praise.capitalize()} is a positive word and {blame} is a negative word.",
        )
    )


def _lists(rng: Random) -> str:
    one, two, three = rng.sample(world.THINGS + world.MEMBERS, 3)
    listed = f"{one}, {two}, {three}"
    return rng.choice(
        (
            f"In the list {listed} the first word is {one} and the last word is {three}.",
            f"In the list {listed} the second word is {two} and the third word is {three}.",
            f"The list {listed} starts with {one} and ends with {three}.",
            f"The list goes from {one} to {three}: {listed}. At the two ends stand {one} and {three}.",
            f"The list {listed} backwards is {three}, {two}, {one}.",
            f"When we reverse {listed} we read {three}, {two}, {one}.",
            f"Drop the first word of {listed} and what remains is {two}, {three}.",
            f"Leave out the last word of {listed} and the rest is {one}, {two}.",
            f"In {one}, {two}, {one} the word {one} is repeated: it appears two times.",
            f"The word {two} comes twice in {two}, {one}, {two}.",
            f"All of these are on the table: the {one}, the {two} and the {three}.",
        )
    )


def _words_for_work(rng: Random) -> str:
    """Words that instructions are made of, in plain sentences."""
    one, two = rng.sample(world.PEOPLE, 2)
    thing, other = rng.sample(world.THINGS, 2)
    low, middle, high = sorted(rng.sample(range(5, 50), 3))
    month, place = rng.choice(world.MONTHS), rng.choice(world.PLACES)
    event, praise = rng.choice(world.EVENTS), rng.choice(world.PRAISE)
    country, animal = rng.choice(world.COUNTRIES), rng.choice(world.ANIMALS)
    return rng.choice(
        (
            f"When we compare {low} and {high}, the lower number is {low}.",
            f"{one} can compare the prices: less money for the {thing}, more for the {other}.",
            f"Of the ages {low}, {middle} and {high} the most years are {high}.",
            f"{one} is {high}, so {one} is the oldest one and has lived the most years.",
            f"A number that can be halved is even, so {2 * (low // 2)} is even.",
            f"Counting back from {high} we come to {high - 1}, counting further to {high + 1}.",
            f"The highest and biggest of {low}, {high} and {middle} is {high}, the top number.",
            f"Take {low} away from {high} and {high - low} is still left.",
            f"{one} said something about the {thing}. The speaker was {one}.",
            f"{one} asked a question: where is the {thing}? {two} did not know.",
            f"We meet {one} at the {place}. {one} is a visitor there.",
            f"Is somebody in the {place}? Yes, {one} is there. Is anybody else? No, nobody.",
            f"The statement of {one} is true and the statement of {two} is false.",
            f"{one} is right: the statement is true.",
            f"The sides are different: on the left side {thing}, on the right side {other}.",
            f"Both sides are the same: {thing} on the left and {thing} on the right.",
            f"Between the {thing} and the {other} there is a difference in price.",
            f"The season of {month} is {world.SEASON_OF[month]}, a time of the year.",
            f"The language of {country.name} is {country.language}.",
            f"{country.name} is on the continent {country.continent}, a part of the world.",
            f"{one} explained that the capital of {country.name} is {country.capital}.",
            f"The sound of the {animal.name} is {animal.sound}.",
            f"The {animal.name} sleeps in its home, the {animal.home}.",
            f"The opinion of {one} is kind. The verdict: they liked it, it was {praise}.",
            f"{one} judged the {event}. Verdict: they did not like it.",
            f"{one} wrote an invitation to the {event} and invited {two}.",
            f"For the gift {one} wrote a note of thanks to {two}.",
            f"{one} extracts the name and the price: name: {two}, price: {high} coins.",
            f"The record has a name, a thing and a place. name: {one}, thing: {thing}, place: {place}.",
            f"The action is done while we look at it: {one} is doing it at this moment.",
            f"{one} became {world.article(rng.choice(world.JOBS))}. We can guess the place.",
            f"{one} counted the money: there were {high} coins.",
            f"In the hands of {one} we find the {thing}.",
        )
    )


_MAKERS: tuple[_Maker, ...] = (
    _countries, _countries, _countries, _animals, _animals, _kinds, _jobs, _opposites, _plurals,
    _verbs, _verbs, _verbs, _counting, _counting, _sums, _calendar, _calendar, _scenes,
    _scenes, _opinions, _lists, _words_for_work,
)  # fmt: skip


def statements(seed: int | str, count: int) -> list[str]:
    """``count`` short paragraphs of one to three plain sentences."""
    rng = Random(f"fedseed-statements/{seed}")
    paragraphs: list[str] = []
    for _ in range(count):
        if rng.random() < 0.5:
            paragraphs.append(" ".join(rng.choice(_MAKERS)(rng) for _ in range(rng.randint(1, 3))))
        else:
            # Sentences on one subject, so that a fact often meets its relatives.
            maker = rng.choice(_MAKERS)
            paragraphs.append(" ".join(maker(rng) for _ in range(rng.randint(1, 3))))
    return paragraphs
