"""Draws words and makes texts from them, as the data files in this folder describe, with Jinja
expressions.

A draw is a list of lines "name = expression", or "one two = expression" for a list of two values.
Later lines and texts can use the names. Expressions can use the lists and tables of world.toml,
and:

    choice(people)            one item of a list, which may be "women + men" or "range(2, 60)"
    sample(people, 2)         a list of two different items
    chance(50)                true in half of the draws
    others(colours, colour)   the items except one
    by(who, ages)             the items in the order of their keys

If an expression has a condition ("choice(praise) if liked") and the condition is false, its names
get no value. A text has expressions in braces, such as "{animal.name|a}". Lists are written with
commas.
"""

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from itertools import chain
from random import Random
from typing import Any

from jinja2 import Environment, meta
from jinja2.environment import TemplateExpression

Values = dict[str, Any]


def read_data(name: str) -> dict[str, Any]:
    """Return the content of one of the data files in this folder."""
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


def _read_world() -> dict[str, Any]:
    """Return the lists and tables of words, including those derived from others."""
    world = read_data("world.toml")
    for name in ("animals", "countries", "handling", "moving"):
        columns, *rows = world[name]
        world[name] = [dict(zip(columns, row, strict=True)) for row in rows]
    for name in ("plurals", "opposites", "workplaces", "seasons"):
        world[name] = dict(world[name])
    world["opposites"] |= {right: word for word, right in world["opposites"].items()}
    units = world["number_words"]
    tens = []
    for ten in world["tens"]:
        tens += [ten, *(f"{ten}-{unit}" for unit in units[1:10])]
    kind_of: dict[str, str] = {}
    for kind, members in world["categories"].items():
        kind_of |= dict.fromkeys(members, kind)
    return world | {
        "people": world["women"] + world["men"],
        "things": list(world["plurals"]),
        "nouns": world["plurals"]
        | {animal["name"]: animal["plural"] for animal in world["animals"]},
        "kind_of": kind_of,
        "number_words": units + tens,
        "numbers": list(range(1, len(units + tens))),
    }


WORLD = _read_world()


def _step_after(value: Any, steps: int) -> Any:
    """Return the number, day or month that is `steps` steps after another.

    January comes after December.
    """
    if isinstance(value, int):
        return value + steps
    cycle = WORLD["days"] if value in WORLD["days"] else WORLD["months"]
    return cycle[(cycle.index(value) + steps) % len(cycle)]


LANGUAGE = Environment(
    variable_start_string="{",
    variable_end_string="}",
    autoescape=False,
    keep_trailing_newline=True,
    finalize=lambda value: ", ".join(map(str, value)) if isinstance(value, list) else value,
)
# the variables of expressions; passing them to each expression is faster than Jinja's globals
KNOWN: Values = WORLD | {
    "range": range,
    "sorted": sorted,
    "others": lambda items, item: [candidate for candidate in items if candidate != item],
    "by": lambda items, keys: [item for _, item in sorted(zip(keys, items, strict=True))],
}
LANGUAGE.globals.clear()
LANGUAGE.filters |= {
    "a": lambda word: f"{'an' if word[0].lower() in 'aeiou' else 'a'} {word}",
    "capital": lambda text: text[0].upper() + text[1:],
    "word": lambda number: WORLD["number_words"][number],
    "after": _step_after,
}


_template = cache(LANGUAGE.from_string)


def draw(lines: Sequence[str], rng: Random) -> Values:
    """Draw the values for the names in the lines, in order."""
    values: dict[str, Any] = {}
    tools = KNOWN | {
        "choice": rng.choice,
        "sample": rng.sample,
        "chance": lambda percent: rng.random() < percent / 100,
    }
    for line in lines:
        names, expression = _parsed(line)
        value = expression(tools | values)
        if value is not None:
            values.update(zip(names, value if len(names) > 1 else [value], strict=True))
    return values


def write(text: str, values: Values) -> str:
    """Return a text with its expressions filled in."""
    if "{" in text:
        return _template(text).render(KNOWN | values)
    return text


def names_in(texts: Sequence[str], values: Values) -> list[str]:
    """Return the names of values that occur in any of the texts."""
    return sorted(set(chain.from_iterable(_names(text) for text in texts)) & values.keys())


@cache
def _parsed(line: str) -> tuple[list[str], TemplateExpression]:
    names, _, expression = line.partition(" = ")
    return names.split(), LANGUAGE.compile_expression(expression)


@cache
def _names(text: str) -> set[str]:
    return meta.find_undeclared_variables(LANGUAGE.parse(text))
