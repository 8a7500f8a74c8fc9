"""What a task family is, the registry of all of them, and how instances are drawn."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

GROUPS: tuple[str, ...] = ("base", "train", "heldout")

# A draw may repeat an earlier one; this many misses in a row mean that the
# family is exhausted (or so nearly that going on would take for ever).
_PATIENCE = 2_000


@dataclass(frozen=True)
class Instance:
    """One question of a family with its answer.

    ``content`` names what is asked apart from the wording, so that one question
    in two wordings counts once.
    """

    family: str
    instruction: str
    input: str
    output: str
    content: str = field(default="", repr=False, compare=False)


@dataclass(frozen=True)
class Draft:
    """What a family draws: the input, the answer, and words for its templates."""

    input: str
    output: str
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """A kind of question: many wordings, many instances, one way of answering."""

    name: str
    group: str
    kind: str
    about: str
    templates: tuple[str, ...]
    generate: Callable[[random.Random], Instance] = field(repr=False, compare=False)


@dataclass(frozen=True)
class Split:
    """Disjoint instances of one family."""

    train: list[Instance]
    validation: list[Instance]
    test: list[Instance]


Draw = Callable[[random.Random], Draft]
_REGISTRY: dict[str, Family] = {}


def family(group: str, kind: str, *templates: str) -> Callable[[Draw], Draw]:
    """Register the decorated draw as a family of its name, with these wordings."""
    if group not in GROUPS:
        raise ValueError(f"group {group!r} is not one of {', '.join(GROUPS)}")

    def register(draw: Draw) -> Draw:
        name = draw.__name__
        if name in _REGISTRY:
            raise ValueError(f"family {name!r} is registered twice")

        def generate(rng: random.Random) -> Instance:
            draft = draw(rng)
            instruction = rng.choice(templates).format(**draft.fields)
            # The input is part of the content even where fields repeat it.
            content = "\n".join([draft.input, draft.output, *draft.fields.values()])
            return Instance(name, instruction, draft.input, draft.output, content)

        about = (draw.__doc__ or "").strip()
        _REGISTRY[name] = Family(name, group, kind, about, templates, generate)
        return draw

    return register


def families(group: str | None = None) -> list[Family]:
    """All families, or those of one group, always in the same order."""
    if group is not None and group not in GROUPS:
        raise ValueError(f"group {group!r} is not one of {', '.join(GROUPS)}")
    return [f for f in _REGISTRY.values() if group is None or f.group == group]


def by_name(name: str) -> Family:
    """The family of that name."""
    if name not in _REGISTRY:
        raise ValueError(f"no task family is called {name!r}")
    return _REGISTRY[name]


def instances(source: Family | str, count: int, seed: int | str = 0, start: int = 0) -> list[Instance]:
    """``count`` distinct instances, beginning with the ``start``-th of the seed's sequence.

    The sequence of a seed is fixed: ranges of it that do not overlap share no question.
    """
    chosen = by_name(source) if isinstance(source, str) else source
    if count < 0 or start < 0:
        raise ValueError(f"count {count} and start {start} must not be negative")
    # A string seed is hashed by content, so the sequence is the same anywhere.
    rng = random.Random(f"fedseed-family/{chosen.name}/{seed}")
    found: dict[str, Instance] = {}
    misses = 0
    while len(found) < start + count:
        instance = chosen.generate(rng)
        if instance.content in found:
            misses += 1
            if misses > _PATIENCE:
                raise ValueError(
                    f"family {chosen.name!r} has only about {len(found)} distinct instances, "
                    f"{start + count} were asked for"
                )
            continue
        misses = 0
        found[instance.content] = instance
    return list(found.values())[start:]


def split(source: Family | str, seed: int | str, train: int, validation: int, test: int) -> Split:
    """Disjoint train, validation and test instances of a family.

    Test and validation come first in the sequence, so that asking for more training
    instances leaves the evaluation as it was.
    """
    drawn: Sequence[Instance] = instances(source, test + validation + train, seed)
    return Split(
        train=list(drawn[test + validation :]),
        validation=list(drawn[test : test + validation]),
        test=list(drawn[:test]),
    )
