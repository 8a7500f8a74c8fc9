"""The small language of the data files here: how words are drawn, and how texts are made of them.

A draw is a list of lines, each of which gives names to values; later lines and texts use the names.

    person <- people                one item of a list; "men + women" is a list as well, and so is "a | b | c"
    price <- 2..59                  a whole number
    one two <- people               two different items
    words <- 3..5 of things         a list of three to five different items
    kind <- 50%                     true in half of the draws
    other <- colours but colour     any item but one
    total = have + more             worked out: see `OPERATIONS`; "sorted prices" is a list
    home = animal.home              the value of a name, of a row's column, or of a list or table: "homes[animal]"
    rest = "the {colour} {thing}"   a text
    kind? word <- praise            only where `kind` is true; "not kind? ..." only where it is false

A text has names in braces, perhaps with a form after a colon: see `FORMS`. "{kind:yes|no}" chooses by truth, and
"{month:+1}" goes on by one, in a cycle of words or among the numbers.
"""

import operator
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from random import Random
from typing import Any

Values = Mapping[str, Any]


def read_data(name: str) -> dict[str, Any]:
    """Returns what one of the data files here holds."""
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


def _read_world() -> dict[str, Any]:
    """Returns the lists and tables of words, with those that follow from others."""
    world = read_data("world.toml")
    for name in ("animals", "countries", "handling", "moving"):
        columns, *rows = world[name]
        world[name] = [dict(zip(columns, row, strict=True)) for row in rows]
    for name in ("plurals", "opposites", "workplaces", "seasons"):
        world[name] = dict(world[name])
    world["opposites"] |= {right: left for left, right in world["opposites"].items()}
    members = {member: kind for kind, all_of_it in world["categories"].items() for member in all_of_it}
    return world | {
        "people": world["women"] + world["men"],
        "things": list(world["plurals"]),
        "nouns": world["plurals"] | {animal["name"]: animal["plural"] for animal in world["animals"]},
        "kind_of": members,
    }


WORLD = _read_world()
LARGEST = 59
WORLD["numbers"] = list(range(1, LARGEST + 1))


def number_word(number: int) -> str:
    """Returns the English word for a number from 0 to 59."""
    if not 0 <= number <= LARGEST:
        raise ValueError(f"number {number} is outside 0..{LARGEST}")
    if number < 20:
        return str(WORLD["number_words"][number])
    tens, units = divmod(number, 10)
    return WORLD["tens"][tens - 2] + (f"-{WORLD['number_words'][units]}" if units else "")


def article(word: str) -> str:
    """Returns the word with "a" or "an" before it."""
    return f"{'an' if word[0].lower() in 'aeiou' else 'a'} {word}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _plainly(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


# What "name = left OPERATION right" works out.
OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "<": operator.lt,
    "==": operator.eq,
    "in": lambda item, items: item in items,
    "by": lambda items, keys: [item for _, item in sorted(zip(keys, items, strict=True))],  # in the order of the keys
    "from": lambda items, first: items[items.index(first) :][:4],  # four items, beginning with that one
}

# How "{name:form}" writes a value.
FORMS: Mapping[str, Callable[[Any], str]] = {
    "": _plainly,
    "a": article,
    "A": lambda word: _capital(article(word)),
    "capital": _capital,
    "word": number_word,
    "parity": lambda number: "odd" if number % 2 else "even",
    "evened": lambda number: str(number // 2 * 2),
    "she": lambda person: "She" if person in WORLD["women"] else "He",
    "last": lambda items: str(items[-1]),
    "reversed": lambda items: _plainly(items[::-1]),
    "rest": lambda items: _plainly(items[1:]),
    "but last": lambda items: _plainly(items[:-1]),
}


def draw(lines: Sequence[str], rng: Random) -> Values:
    """Draws the values that the lines name, in their order."""
    values: dict[str, Any] = {}
    for line in lines:
        condition, names, sign, right = _parsed(line)
        if condition and not holds(condition, values):
            continue
        if sign == "=":
            made = _worked_out(right, values)
        else:
            made = _drawn(right, values, rng) if len(names) == 1 else rng.sample(_pool(right, values), len(names))
        values.update(zip(names, made if len(names) > 1 else [made], strict=True))
    return values


def holds(condition: str, values: Values) -> bool:
    """Returns whether "name" is true, or "not name"."""
    return bool(values[condition.removeprefix("not ")]) is not condition.startswith("not ")


def write(text: str, values: Values) -> str:
    """Returns a text with the values of its names."""
    pieces = _pieces(text)
    return "".join(piece if number % 2 == 0 else _field(piece, values) for number, piece in enumerate(pieces))


def names_in(texts: Sequence[str]) -> list[str]:
    """Returns the names that stand in any of the texts."""
    return sorted({name for text in texts for name in re.findall(r"{(\w+)", text)})


@cache
def _parsed(line: str) -> tuple[str | None, list[str], str, str]:
    """Returns what a line says: a condition, the names, whether they are drawn or worked out, and of what."""
    found = re.fullmatch(r"(?:((?:not )?\w+)\? )?([\w ]+) (<-|=) (.+)", line)
    if found is None:
        raise ValueError(f"{line!r} is no line of a draw")
    condition, names, sign, right = found.groups()
    return condition, names.split(), sign, right


@cache
def _pieces(text: str) -> list[str]:
    return re.split(r"{([^}]*)}", text)


def _drawn(right: str, values: Values, rng: Random) -> Any:
    """Returns one value that is drawn: of a list, or a list of several."""
    if right.endswith("%"):
        return rng.random() < int(right[:-1]) / 100
    amount, several, items = right.rpartition(" of ")
    if not several:
        return rng.choice(_pool(items, values))
    count = rng.choice(_pool(amount, values)) if ".." in amount else _value(amount, values)
    return rng.sample(_pool(items, values), count)


def _pool(items: str, values: Values) -> Sequence[Any]:
    """Returns what is drawn from."""
    if ".." in items:
        low, high = (_value(end, values) for end in items.split(".."))
        return range(low, high + 1)
    if "|" in items:
        return items.split(" | ")
    lists, _, but = items.partition(" but ")
    pool = [item for name in lists.split(" + ") for item in _value(name, values)]
    return [item for item in pool if item != values[but]] if but else pool


def _worked_out(right: str, values: Values) -> Any:
    """Returns a value that follows from others."""
    if right.startswith('"'):
        return write(right[1:-1], values)
    match right.split(" "):
        case [path]:
            return _value(path, values)
        case ["sorted", path]:
            return sorted(_value(path, values))
        case [left, operation, other]:
            return OPERATIONS[operation](_value(left, values), _value(other, values))
    raise ValueError(f"{right!r} is nothing that can be worked out")


def _value(path: str, values: Values) -> Any:
    """Returns a number, or the value of a name, of a "row.column", or of a "list[place]" with a name for the place."""
    name, *keys = _path(path)
    if isinstance(name, int):
        return name
    found = values[name] if name in values else WORLD[name]
    for key in keys:
        found = found[key if isinstance(key, int) or (isinstance(found, dict) and key in found) else values[key]]
    return found


@cache
def _path(path: str) -> list[str | int]:
    return [int(part) if part.isdigit() else part for part in re.findall(r"\w+", path)]


def _field(field: str, values: Values) -> str:
    """Returns what stands in a text for "name:form"."""
    path, _, form = field.partition(":")
    value = _value(path, values)
    if "|" in form:
        return form.split("|")[0 if value else 1]
    if form[:1] in ("+", "-") and form:
        if isinstance(value, int):
            return str(value + int(form))
        cycle = WORLD["days"] if value in WORLD["days"] else WORLD["months"]
        return str(cycle[(cycle.index(value) + int(form)) % len(cycle)])
    return FORMS[form](value)
