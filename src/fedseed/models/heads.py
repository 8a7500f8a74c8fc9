"""Classifier heads: a base pre-trained on other classes gets a new last layer, the same bits at
every site.

transformers draws what a checkpoint lacks from torch's global generator. Here a new head is drawn
from the shared stream by the run's seed, parameter by parameter: weights N(0, s^2) with the model's
own initializer_range s, biases zero. So it is part of the base that everybody starts from, and of
the base's digest.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedseed.errors import RecipeError
from fedseed.randomness import Basis, Domain, derive
from fedseed.text import listed

SHOWN = 6  # classes that a line names
REGRESSION = "regression"  # as transformers calls it in a configuration
# the name of a new head's output that predicts a number
SCORE = "score"
# standard deviation of a new head's weights if the configuration has no initializer_range
SPREAD = 0.02


@dataclass(frozen=True)
class Head:
    """The classes that a classifier is to tell apart, or the one number that it is to predict."""

    # their names, in the order of the labels; a single one is that of a number
    classes: tuple[str, ...]
    seed: int  # the run's; decides the weights of a new head

    @property
    def is_regression(self) -> bool:
        """Return whether the head predicts a number: it then has a single class."""
        return len(self.classes) == 1

    def is_known(self, config: Mapping[str, Any]) -> bool:
        """Return whether a base with this config.json has just these classes (`match_classes`)."""
        return match_classes(self.classes, output_names(config)) is not None

    def options(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of transformers' configuration that give the model an output for each
        class.

        A base that tells these classes apart keeps its names for them, if it has some.
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
        """Return a line about what became of a base's head; "" where there is nothing to say.

        Args:
            config: the base's config.json.
            with_head: names of the classes of models that have such a head.
        """
        names, classes = output_names(config), self.classes
        outputs = match_classes(classes, names)
        if self.is_regression:
            has_head = set(with_head) & set(config.get("architectures") or ())
            if has_head and outputs is not None:
                return "the base's head is kept: it predicts a number"
            base_head = f"tells {listed(names, SHOWN)} apart" if has_head else "is missing"
            return f"a new head is drawn, which predicts a number: the base's own {base_head}"
        if not set(with_head) & set(config.get("architectures") or ()):
            return f"a new head is drawn for {listed(classes, SHOWN)}: the base has none"
        if outputs is None:
            return (
                f"a new head is drawn: the base's own tells {listed(names, SHOWN)} apart, the data "
                f"{listed(classes, SHOWN)} (labels of the base's names, or 0 to {len(names) - 1}, "
                "would keep it)"
            )
        if has_placeholders(names) and not all(map(_is_number, classes)):
            pairs = [f"{name} for {label}" for name, label in zip(names, classes, strict=True)]
            return f"the base's classes have no names: it is taken that {listed(pairs, SHOWN)}"
        if has_placeholders(names) or classes == names:
            return ""
        pairs = [
            f"{names[output]} for {label}"
            for output, label in zip(outputs or (), classes, strict=False)
        ]
        return f"the base's head is kept: {listed(pairs, SHOWN)}"

    def renew(
        self, model: Any, base: str, is_known: bool, lacking: Collection[str], keeps: bool = False
    ) -> list[str]:
        """Draw the head's weights if the base has none for these classes.

        Args:
            model: a classifier with the right number of outputs.
            base: its name, for messages.
            is_known: whether the base's own head is for these classes.
            lacking: names of parameters that the base's files do not have in the right shape.
            keeps: draw only those of them, if there are some: a text classifier's head has layers
                that pre-training made, and a pooler that it may not have made, in its backbone.

        Returns:
            The names of the parameters that were drawn.

        Raises:
            RecipeError: the model's parameters are not told apart into a backbone and a head.
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
    """Return the names of a base's outputs in their order, as its config.json has them."""
    names_by_number = config.get("id2label")
    if names_by_number is None:
        return tuple(f"LABEL_{i}" for i in range(int(config.get("num_labels", 2))))
    pairs = sorted((int(number), name) for number, name in names_by_number.items())
    return tuple(str(name) for _, name in pairs)


def has_placeholders(names: Sequence[str]) -> bool:
    """Return whether a base's outputs only have the names that transformers gives by default."""
    return tuple(names) == tuple(f"LABEL_{i}" for i in range(len(names)))


def match_classes(classes: Sequence[str], names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the output of a base that stands for each class of the data.

    Args:
        classes: the data's labels, each once.
        names: of the base's outputs, in their order.

    Returns:
        The outputs' numbers in the order of the classes; None if the base tells others apart.
        Classes are found by name, whatever the case and the blanks; by the one number in their
        names ("4" is "4 stars"); as numbers of all outputs (0 and 1 of NEGATIVE and POSITIVE); and
        where the outputs have no names, in their order.
    """
    # one class means a number, whatever name its output has
    if len(classes) == 1:
        if len(names) == 1:
            return (0,)
        return None
    outputs_found = _find(classes, names, str)
    if None in outputs_found:
        outputs_found = _find(classes, names, _plain)
    if None in outputs_found and all(map(_is_number, classes)):
        outputs_found = _match_numbers([int(label) for label in classes], names)
    elif None in outputs_found and has_placeholders(names) and len(classes) == len(names):
        outputs_found = list(range(len(names)))
    outputs = tuple(output for output in outputs_found if output is not None)
    if len(outputs) < len(classes) or len(set(outputs)) < len(classes):
        return None
    # most of a base's classes: another task may have two of them by chance
    if len(outputs) > len(names) // 2:
        return outputs
    return None


def _match_numbers(numbers: Sequence[int], names: Sequence[str]) -> list[int | None]:
    """Return the output for each class that is a number; None where there is none.

    It is the one with that number in its name (LABEL_3 is 3), or else, if the classes number all
    outputs, the one at its rank.
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
    """Return the output whose name has the same key as each class; None where there is none."""
    places = _unique(map(key, names))
    return [places.get(key(label)) for label in classes]


def _plain(name: str) -> str:
    """Return a class' name without what people write in several ways."""
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def _is_number(label: str) -> bool:
    return re.fullmatch(r"\s*\d+\s*", label) is not None


def _only_number(name: str) -> int | None:
    """Return the only whole number in a name; None if there is none, or several."""
    numbers = re.findall(r"\d+", name)
    if len(numbers) == 1:
        return int(numbers[0])
    return None


def _unique(keys: Iterable[Any]) -> dict[Any, int]:
    """Return the place of each key; none at all if two are the same or one is None."""
    places: dict[Any, int] = {}
    for place, key in enumerate(keys):
        if key is None or key in places:
            return {}
        places[key] = place
    return places


def head_parameters(model: Any, base: str) -> list[str]:
    """Return the names of the parameters outside of a model's backbone, which `model.trainable =
    "head"` trains.

    Raises RecipeError if the model, one of `transformers` made from `base`, has no such parameters.
    """
    prefix = getattr(model, "base_model_prefix", "")
    names = [name for name, _ in model.named_parameters() if not name.startswith(f"{prefix}.")]
    if not hasattr(model, prefix or " ") or not names:
        raise RecipeError(
            f'model.base = "{base}": a {type(model).__name__} has no parameters outside of its '
            "backbone that could be a head; for model.trainable, give name patterns such as "
            '["*.layers.3.*"]'
        )
    return names
