"""Kinds of examples, each with an objective and the models that can learn from it.

All examples of a task are of one kind, which determines everything else. To add a kind, add an
entry to `KINDS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from fedseed.models.architectures import Architecture
from fedseed.models.heads import SCORE
from fedseed.objectives.classification import Images, TextClasses, TextScores
from fedseed.objectives.losses import CausalLM, Choices, Objective, TextObjective
from fedseed.objectives.masked import MaskedLM, NextWords
from fedseed.objectives.preferences import Preferences
from fedseed.objectives.prepared import Prepared
from fedseed.objectives.rewarded import Rewarded, language_of
from fedseed.objectives.seq2seq import Seq2SeqChoices, Seq2SeqLM
from fedseed.objectives.settings import EvaluationSettings
from fedseed.tasks.data import (
    BETA,
    Choice,
    Cloze,
    Example,
    NextWord,
    Picture,
    Preference,
    Score,
    TaskData,
)
from fedseed.tasks.rewards import Judge, RewardSettings


@dataclass(frozen=True)
class ExampleKind:
    """The models and the objective for examples of one type."""

    example: type
    architecture: Architecture  # architecture of the models
    # makes the objective from (tokenizer or image processor, settings)
    objective: Callable[..., Any]
    # other architectures whose models can be used with a new head
    bases: tuple[Architecture, ...] = ()


def _texts(objective_type: type[TextObjective]) -> Callable[..., Objective]:
    return lambda tokenizer, settings, prefix="": objective_type(
        tokenizer, settings.max_length, settings.truncate, prefix
    )


def _pairs(language_type: type[TextObjective]) -> Callable[..., Objective]:
    return lambda tokenizer, settings, prefix="", beta=BETA: Preferences(
        language_type(tokenizer, settings.max_length, settings.truncate, prefix), beta
    )


# the first kind listed for an example type is its default
KINDS: tuple[ExampleKind, ...] = (
    ExampleKind(Example, "causal", _texts(CausalLM)),
    ExampleKind(Example, "seq2seq", _texts(Seq2SeqLM)),
    ExampleKind(Preference, "causal", _pairs(CausalLM)),
    ExampleKind(Preference, "seq2seq", _pairs(Seq2SeqLM)),
    ExampleKind(Score, "classification", _texts(TextScores)),
    ExampleKind(NextWord, "causal", _texts(NextWords)),
    ExampleKind(Choice, "causal", _texts(Choices)),
    ExampleKind(Choice, "seq2seq", _texts(Seq2SeqChoices)),
    ExampleKind(Choice, "classification", _texts(TextClasses), bases=("masked",)),
    ExampleKind(Cloze, "masked", _texts(MaskedLM)),
    ExampleKind(Cloze, "classification", _texts(TextClasses)),
    ExampleKind(Picture, "image", lambda processor, settings: Images(processor)),
)


def short_answers(
    objective: Objective,
    sets: Mapping[str, Prepared],
    room: int | None,
    settings: EvaluationSettings,
) -> list[str]:
    """Return a note about prompts that leave a model too few positions for an answer.

    Args:
        objective: the objective of the items.
        sets: the evaluation sets, by prefix of the metric's name.
        room: the model's positions; None: not known.
        settings: of the evaluation, with the length of answers.
    """
    language = language_of(objective)
    if not isinstance(language, CausalLM) or room is None or not settings.rouge:
        return []
    short = 0
    for prepared in sets.values():
        for items in prepared.items_of_each:
            short += items[-1].response_start + settings.max_new_tokens > room
    limit = f"evaluation.max_new_tokens = {settings.max_new_tokens:,}"
    if short:
        return [
            f"{short:,} answers are shorter than {limit}, because the model has only {room:,} "
            "positions"
        ]
    return []


def kind_of(
    data: TaskData,
    base: Architecture | None = None,
    requested: Architecture | None = None,
    prefix: str = "",
) -> tuple[ExampleKind, tuple[str, ...]]:
    """Return the kind of a task's examples, and the classes that a model needs outputs for (empty:
    it is not a classifier).

    Args:
        data: the task's data.
        base: the architecture named in the base's configuration; None: not known.
        requested: the architecture to use instead of the base's.
        prefix: text before every prompt, for encoder-decoders.

    Raises:
        ValueError: there is no example, or its type is unknown; models of the requested
            architecture can't learn from such examples; the examples have no common classes; or
            there is a prefix but the models are not encoder-decoders.
    """
    examples = list(chain.from_iterable(client.examples for client in data.clients))
    fitting = [kind for kind in KINDS if examples and isinstance(examples[0], kind.example)]
    if not fitting:
        raise ValueError(
            f"examples of type {type(examples[0]).__name__}"
            if examples
            else "the clients have no examples"
        )
    exact = [kind for kind in fitting if kind.architecture == (requested or base)]
    if requested is not None and not exact:
        known_kinds = ", ".join(f'"{kind.architecture}"' for kind in fitting)
        raise ValueError(
            f'model.architecture = "{requested}": the task\'s examples are for {known_kinds}'
        )
    kind = (exact or [kind for kind in fitting if base in kind.bases] or fitting)[0]
    if prefix and kind.architecture != "seq2seq":
        raise ValueError(
            f'model.prefix = "{prefix}": a prefix is for encoder-decoders, such as T5; remove '
            "this key"
        )
    if prefix:
        kind = replace(kind, objective=partial(kind.objective, prefix=prefix))
    if kind.example is Preference:
        kind = replace(kind, objective=partial(kind.objective, beta=data.beta))
    return kind, classes_of(kind, data)


def classes_of(kind: ExampleKind, data: TaskData) -> tuple[str, ...]:
    """Return the classes of a task's examples, in the order of their numbers. For scores, it is the
    name of the only output.

    Raises:
        ValueError: each example has its own options.
    """
    if kind.architecture != "classification":
        return data.classes
    if kind.example is Score:
        return (SCORE,)
    examples = chain.from_iterable(client.examples for client in data.clients)
    options = [
        example.options if isinstance(example, Choice) else example.words for example in examples
    ]
    if any(listed_options != options[0] for listed_options in options):
        raise ValueError(
            "each example has its own options, which can't be classes: use a language model"
        )
    return tuple(option.strip() for option in options[0])


def rewarded(kind: ExampleKind, settings: RewardSettings) -> ExampleKind:
    """Return the kind with a reward in place of the loss.

    Raises:
        ValueError: no answers are generated from its examples.
        RecipeError: the reward function can't be loaded.
    """
    if kind.example is not Example:
        raise ValueError(
            f"reward: no answers are generated from a {kind.example.__name__}; remove this table"
        )
    judge = Judge(settings.load(), settings.name or str(settings.function), settings.seconds)
    max_new_tokens = settings.max_new_tokens
    return replace(
        kind,
        objective=lambda *arguments: Rewarded(kind.objective(*arguments), judge, max_new_tokens),
    )
