"""Classifier heads: a base trained on other classes gets a new last layer, with the same bits at
every site.

transformers draws missing weights from torch's global generator. Here a new head is drawn from the
shared stream with the run's seed, parameter by parameter: weights are N(0, s^2), where s is the
model's initializer_range, and biases are zero. So the new head belongs to the base that all sites
share, and to the base's digest.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import normalize

import numpy as np
import torch

from fedseed.errors import RecipeError
from fedseed.randomness import Basis, Domain, derive
from fedseed.text import listed

# a sign belongs to a number only at the beginning of a label: "covid-19" has no negative number
WHOLE_NUMBER = re.compile(r"((?:^\s*[-+])?\d+)")
# words around a class's number that add nothing to it
NUMBERING = {("", ""), ("label", ""), ("class", "")}
SHOWN = 6  # how many classes a message names
REGRESSION = "regression"  # as transformers calls it in a configuration
# the name of the output of a new head that predicts a number
SCORE = "score"
# standard deviation of a new head's weights if the configuration does not have initializer_range
SPREAD = 0.02


@dataclass(frozen=True)
class Head:
    """The classes of a classifier, or the single number that a model predicts."""

    # the classes' names, in the order of the labels; a single name is that of a number
    classes: tuple[str, ...]
    seed: int  # the run's seed, which determines the weights of a new head

    @property
    def is_regression(self) -> bool:
        """Return whether the head predicts a number. Then it has a single class."""
        return len(self.classes) == 1

    def is_known(self, config: Mapping[str, Any]) -> bool:
        """Return whether a base with this config.json has exactly these classes
        (`match_classes`).
        """
        return match_classes(self.classes, output_names(config)) is not None

    def options(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of transformers' configuration that give the model an output for each
        class.

        A base with these classes keeps its own names for them, if it has any.
        """
        names = output_names(config)
        outputs = match_classes(self.classes, names)
        problem_type = {}
        if self.is_regression or config.get("problem_type") == REGRESSION:
            problem_type = {
                "problem_type": REGRESSION if self.is_regression else "single_label_classification"
            }
        if outputs is None:
            of_outputs = dict(enumerate(self.classes))
        elif has_placeholders(names):
            of_outputs = dict(enumerate(names))
            of_outputs |= {output: self.classes[k] for k, output in enumerate(outputs)}
        else:
            return problem_type
        return {
            **problem_type,
            "id2label": dict(sorted(of_outputs.items())),
            "label2id": {name: output for output, name in of_outputs.items()},
        }

    def account(self, config: Mapping[str, Any], with_head: Collection[str]) -> str:
        """Return a note on whether a base's head is kept; "" if no note is needed.

        Args:
            config: the base's config.json.
            with_head: names of the model classes that have such a head.
        """
        names, classes = output_names(config), self.classes
        outputs = match_classes(classes, names)
        if self.is_regression:
            has_head = set(with_head) & set(config.get("architectures") or ())
            if has_head and outputs is not None:
                return "the base's head is kept, because it predicts a number"
            base_head = f"is for {listed(names, SHOWN)}" if has_head else "is missing"
            return f"a new head is drawn, which predicts a number: the base's own {base_head}"
        if not set(with_head) & set(config.get("architectures") or ()):
            return f"a new head is drawn for {listed(classes, SHOWN)}: the base has none"
        if outputs is None:
            return (
                f"a new head is drawn: the base's own is for {listed(names, SHOWN)}, but the data "
                f"have {listed(classes, SHOWN)} (to keep the base's head, use its names as "
                f"labels, or 0 to {len(names) - 1})"
            )
        pairs = [
            f"{names[output]} for {label}" for output, label in zip(outputs, classes, strict=True)
        ]
        if has_placeholders(names):
            # LABEL_3 is class 3, unless the classes may be counted from 1 and one is missing
            if set(classes) == set(map(str, range(len(names)))):
                return ""
            return f"the base's classes have no names; assuming {listed(pairs, SHOWN)}"
        if classes == names:
            return ""
        return f"the base's head is kept: {listed(pairs, SHOWN)}"

    def renew(
        self, model: Any, base: str, is_known: bool, lacking: Collection[str], keeps: bool = False
    ) -> list[str]:
        """Draw the head's weights if the base has none for these classes.

        Args:
            model: a classifier with the required number of outputs.
            base: the model's name, for messages.
            is_known: whether the base's own head is for these classes.
            lacking: names of parameters that the base's files lack, or have in another shape.
            keeps: draw only the lacking ones, if there are any. A text classifier may have some
                pre-trained layers in its head, and a pooler in its backbone that was not
                pre-trained.

        Returns:
            The names of the parameters that were drawn.

        Raises:
            RecipeError: the model does not distinguish a backbone from a head.
        """
        if is_known and not lacking:
            return []
        head = head_parameters(model, base)
        if keeps:
            head += [
                name
                for name, _ in model.named_parameters()
                if ".pooler." in name and name not in head
            ]
        spread = np.float32(getattr(model.config, "initializer_range", None) or SPREAD)
        basis = Basis("normal", derive(self.seed, Domain.HEAD))
        with torch.no_grad():
            for number, name in enumerate(head):
                parameter = model.get_parameter(name)
                if keeps and lacking and name not in lacking:
                    continue
                if parameter.ndim < 2:
                    is_norm = keeps and name.endswith(".weight")
                    parameter.fill_(1.0 if is_norm else 0.0)
                else:
                    values = basis.direction(number, 0, parameter.numel()) * spread
                    parameter.copy_(torch.from_numpy(values).reshape(parameter.shape))
        if keeps and lacking:
            return [name for name in head if name in lacking]
        return head


def output_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a base's outputs in order, from its config.json."""
    names_by_number = config.get("id2label")
    if names_by_number is None:
        return tuple(f"LABEL_{i}" for i in range(int(config.get("num_labels", 2))))
    pairs = sorted((int(number), name) for number, name in names_by_number.items())
    return tuple(str(name) for _, name in pairs)


def has_placeholders(names: Sequence[str]) -> bool:
    """Return whether a base's outputs have only transformers' default names."""
    return tuple(names) == tuple(f"LABEL_{i}" for i in range(len(names)))


def match_classes(classes: Sequence[str], names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the output of a base that stands for each class of the data.

    Args:
        classes: the data's different labels.
        names: names of the base's outputs, in order.

    Returns:
        The outputs' numbers in the order of the classes; None if the base has other classes.
        Classes are matched by name, ignoring case and blanks; by the only number in a name ("4"
        matches "4 stars", and "grade 4" matches "LABEL_4"); by the numbers of all outputs (0 and 1
        for NEGATIVE and POSITIVE); and in order, if the outputs have no names.
    """
    # a single class means a number, no matter what the output's name is
    if len(classes) == 1:
        if len(names) == 1:
            return (0,)
        return None
    outputs_found = _find(classes, names, str)
    if None in outputs_found:
        outputs_found = _find(classes, names, _plain)
    numbers = _numbers_of(classes, any_words=has_placeholders(names))
    if None in outputs_found and numbers is not None:
        outputs_found = _match_numbers(numbers, names)
    elif None in outputs_found and has_placeholders(names) and len(classes) == len(names):
        outputs_found = list(range(len(names)))
    outputs = tuple(output for output in outputs_found if output is not None)
    if len(outputs) < len(classes) or len(set(outputs)) < len(classes):
        return None
    # require most of a base's classes, because another task may share two of them by chance
    if len(outputs) > len(names) // 2:
        return outputs
    return None


def _match_numbers(numbers: Sequence[int], names: Sequence[str]) -> list[int | None]:
    """Return the output of each class, for classes that are numbers; None if one has no output.

    It is the output with that number in its name (LABEL_3 is 3). Otherwise, if there are as many
    classes as outputs, it is the output at the class's rank.
    """
    by_number = _unique(map(_only_number, names))
    outputs = [by_number.get(number) for number in numbers]
    if None not in outputs or len(set(numbers)) != len(names):
        return outputs
    ranks = {number: rank for rank, number in enumerate(sorted(numbers))}
    if sorted(numbers) == list(range(len(names))) or has_placeholders(names):
        return [ranks[number] for number in numbers]
    return outputs


def _find(
    classes: Sequence[str], names: Sequence[str], key: Callable[[str], str]
) -> list[int | None]:
    """Return the output of each class, whose name has the same key; None if one has no output."""
    places = _unique(map(key, names))
    return [places.get(key(label)) for label in classes]


def _plain(name: str) -> str:
    """Return a class's name without differences in spelling, such as case and blanks."""
    # the same letter may be one character, or two with its accent
    return re.sub(r"[\s_-]+", " ", normalize("NFC", name)).strip().casefold()


def _numbers_of(classes: Sequence[str], any_words: bool) -> list[int] | None:
    """Return the numbers of classes that differ only in a number, such as "-1" and "1" or "LABEL_2"
    and "LABEL_10"; None for other classes.

    The classes are sorted as texts, so their order is not that of the numbers.

    Args:
        classes: the data's different labels.
        any_words: whether any words may stand around the numbers, such as "grade 2".
    """
    parts = [WHOLE_NUMBER.split(label) for label in classes]
    if any(len(one) != 3 for one in parts):
        return None
    words = {(_plain(before), _plain(after)) for before, _, after in parts}
    if len(words) > 1 or not (any_words or words <= NUMBERING):
        return None
    return [int(number) for _, number, _ in parts]


def _only_number(name: str) -> int | None:
    """Return the only whole number in a name; None if there are none or several."""
    numbers = re.findall(r"\d+", name)
    if len(numbers) == 1:
        return int(numbers[0])
    return None


def _unique(keys: Iterable[Any]) -> dict[Any, int]:
    """Return the index of each key; empty if two keys are equal or one is None."""
    places: dict[Any, int] = {}
    for place, key in enumerate(keys):
        if key is None or key in places:
            return {}
        places[key] = place
    return places


def head_parameters(model: Any, base: str) -> list[str]:
    """Return the names of the parameters outside a model's backbone, which `model.trainable =
    "head"` trains.

    Raises RecipeError if the model, a `transformers` model made from `base`, has no such
    parameters.
    """
    prefix = getattr(model, "base_model_prefix", "")
    names = [name for name, _ in model.named_parameters() if not name.startswith(f"{prefix}.")]
    if not hasattr(model, prefix or " ") or not names:
        raise RecipeError(
            f'model.base = "{base}": a {type(model).__name__} has no parameters outside its '
            "backbone that could be a head; in model.trainable, give name patterns such as "
            '["*.layers.3.*"]'
        )
    return names
