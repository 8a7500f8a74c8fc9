"""The task families of the generated instruction data, which the data files in this folder
describe.

Pre-training uses "base" families as instructions, federated clients train on "train" families, and
no training uses "heldout" families as instructions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from random import Random

from fedseed.tasks.families.language import draw, names_in, read_data, write

GROUPS: tuple[str, ...] = ("base", "train", "heldout")

# after this many repeated draws in a row, a family counts as exhausted
_PATIENCE = 2_000


@dataclass(frozen=True)
class Instance:
    """One question of a family with its answer."""

    instruction: str
    input: str
    output: str
    # the question itself, the same in every wording
    content: str = field(default="", repr=False, compare=False)


@dataclass(frozen=True, eq=False)
class Family:
    """A kind of question, with many wordings (`ask`), many instances, and one form of answer."""

    name: str
    group: str
    ask: Sequence[str]
    draw: Sequence[str] = field(repr=False)
    input: str | Sequence[str] = field(repr=False)
    answer: str = field(repr=False)

    def generate(self, rng: Random) -> Instance:
        """Draw an instance."""
        values = draw(self.draw, rng)
        text = write(self.input if isinstance(self.input, str) else rng.choice(self.input), values)
        answer = write(self.answer, values)
        answers = [str(values[name]) for name in names_in(self.ask, values)]
        # The input is part of the content, even if the question repeats its words.
        content = "\n".join([text, answer, *answers])
        return Instance(write(rng.choice(self.ask), values), text, answer, content)


@cache
def _load_families() -> list[Family]:
    """Read the families. If a family names a scene, the scene defines what is drawn and shown."""
    tables = read_data("families.toml")
    scenes = {None: {}, **tables["scenes"]}
    return [
        Family(name, **{**scenes[settings.pop("scene", None)], **settings})
        for name, settings in tables["families"].items()
    ]


def families(group: str | None = None) -> list[Family]:
    """Return all families, or those of one group, in a fixed order."""
    return [family for family in _load_families() if group is None or family.group == group]


@lru_cache(maxsize=512)  # because all runs of a sweep draw the same ones
def instances(family: Family, count: int, seed: int | str = 0) -> tuple[Instance, ...]:
    """Return the first `count` distinct instances in the sequence of this seed.

    Raises ValueError if there are fewer.
    """
    # A string seed is hashed by its content, so the sequence is the same on every machine.
    rng = Random(f"fedseed-family/{family.name}/{seed}")
    instances_by_prompt: dict[str, Instance] = {}
    misses = 0
    while len(instances_by_prompt) < count:
        instance = family.generate(rng)
        misses = misses + 1 if instance.content in instances_by_prompt else 0
        if misses > _PATIENCE:
            problem = f"only about {len(instances_by_prompt)} distinct instances"
            raise ValueError(f"family {family.name!r} has {problem}, but {count} are needed")
        instances_by_prompt.setdefault(instance.content, instance)
    return tuple(instances_by_prompt.values())
