"""Canaries: examples that nothing else in the data speaks for, so that only memory of them makes
their loss fall.

The kind is that of the data: a text gets random digits as its answer, a picture, a choice or a
blank a wrong class.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from fedseed.errors import RecipeError
from fedseed.tasks.data import Choice, ClientData, Cloze, Example, Picture, TaskData

DIGITS = 8  # of a text's random answer: 10^8 answers


@dataclass(frozen=True)
class Planting:
    """Where a canary goes, and what it may be.

    Args:
        client: the number of the client that gets it.
        places: of the examples that it takes the place of: more than one is a canary with copies.
        candidates: N canaries, of which one is planted.
    """

    client: int
    places: Sequence[int]
    candidates: Sequence[Any]

    def planted(self, data: TaskData, number: int) -> TaskData:
        """Return the data with candidate `number` in its place."""
        clients = list(data.clients)
        client_data = clients[self.client]
        examples = list(client_data.examples)
        for place in self.places:
            examples[place] = self.candidates[number]
        clients[self.client] = ClientData(client_data.name, examples, client_data.labels)
        return replace(data, clients=clients)


def planting(
    data: TaskData, count: int, copies: int = 1, client: str | None = None, seed: int = 1
) -> Planting:
    """Draw candidates that fit the data.

    A text's canary has the prompt of the example that it replaces: all candidates differ in their
    answers alone. Others are held-out examples with a wrong class.

    Args:
        data: of the task, with its evaluation sets.
        count: N.
        copies: how many examples of the client the canary replaces; the shortest texts.
        client: who gets it; None: the first who has examples.
        seed: of the draw.

    Raises:
        RecipeError: there is no such client, it has too few examples, or there is no canary for
            this kind of data.
    """
    names = [examples_held.name for examples_held in data.clients]
    if client is not None and client not in names:
        ending = ""
        if len(names) > 8:
            ending = ", ..."
        raise RecipeError(f"--client {client}: the clients are {', '.join(names[:8])}{ending}")
    if client:
        number = names.index(client)
    else:
        number = next((i for i, c in enumerate(data.clients) if c.examples), 0)
    examples = data.clients[number].examples
    if len(examples) < copies or not examples:
        raise RecipeError(
            f"--copies {copies}: {names[number]} has {len(examples)} examples that a canary could "
            "replace"
        )
    places = sorted(range(len(examples)), key=lambda i: _length(examples[i]))[:copies]
    generator = np.random.default_rng([seed, 0])
    first = examples[places[0]]
    if isinstance(first, Example):
        if count < 10**6:
            answers = generator.choice(10**DIGITS, count, replace=False)
        else:
            answers = generator.integers(0, 10**DIGITS, count)
        space = " " if first.response.startswith(" ") else ""
        texts = [space + " ".join(f"{value:0{DIGITS}d}") for value in answers]
        return Planting(number, places, [first.answered_as(Example("", text)) for text in texts])
    examples_held = list(chain.from_iterable(data.evaluation.values())) or list(data.validation)
    if len(examples_held) < count:
        raise RecipeError(
            f"--candidates {count}: there are {len(examples_held)} held-out examples to make "
            "canaries of"
        )
    examples_chosen = [
        examples_held[i] for i in generator.choice(len(examples_held), count, replace=False)
    ]
    return Planting(
        number,
        places,
        [_mistaken(example, len(data.classes), generator) for example in examples_chosen],
    )


def _mistaken(example: Any, classes: int, generator: np.random.Generator) -> Any:
    """Return an example with another class than its own, drawn evenly."""

    def draw_other(true_class: int, count: int) -> int:
        return (true_class + int(generator.integers(1, count))) % count

    if isinstance(example, Picture):
        return Picture(example.pixels, draw_other(example.label, classes))
    if isinstance(example, Choice):
        return replace(example, gold=draw_other(example.gold, len(example.options)), right=())
    if isinstance(example, Cloze):
        return replace(example, gold=draw_other(example.gold, len(example.words)))
    raise RecipeError(
        f"audit canary: no canary is known for examples of type {type(example).__name__}"
    )


def _length(example: Any) -> int:
    if isinstance(example, Example):
        return len(example.prompt) + len(example.response)
    return 0
