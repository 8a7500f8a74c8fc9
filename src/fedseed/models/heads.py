"""Classifier heads: a base pre-trained on other classes gets a new last layer, the same bits at
every site.

transformers draws what a checkpoint lacks from torch's global generator. Here a new head is drawn
from the shared stream by the run's seed, parameter by parameter: weights N(0, s^2) with the model's
own initializer_range s, biases zero. So it is part of the base that everybody starts from, and of
the base's digest.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedseed.errors import RecipeError
from fedseed.randomness import Basis, Domain, derive

SPREAD = 0.02  # of a new head's weights where the model's configuration has no initializer_range


@dataclass(frozen=True)
class Head:
    """The classes that a classifier is to tell apart."""

    classes: tuple[str, ...]  # their names, in the order of the labels
    seed: int  # the run's; decides the weights of a new head

    def is_known(self, config: Mapping[str, Any]) -> bool:
        """Returns whether a base with this config.json tells just these classes apart: the same
        names in their order.

        Where the base has no names ("LABEL_0" and so on), their number decides.
        """
        named = config.get("id2label")
        if named is None:
            return int(config.get("num_labels", 2)) == len(self.classes)
        names = tuple(
            str(name) for _, name in sorted((int(number), name) for number, name in named.items())
        )
        return names in (self.classes, tuple(f"LABEL_{i}" for i in range(len(self.classes))))

    def options(self) -> dict[str, Any]:
        """Returns what transformers' configuration is given, so that the model has an output for
        each class.
        """
        names = dict(enumerate(self.classes))
        return {"id2label": names, "label2id": {name: i for i, name in names.items()}}

    def renew(
        self, model: Any, base: str, known: bool, lacking: Collection[str], keeps: bool = False
    ) -> list[str]:
        """Draws the head's weights if the base has none for these classes.

        Args:
            model: a classifier with the right number of outputs.
            base: its name, for messages.
            known: whether the base's own head is for these classes.
            lacking: names of parameters that the base's files do not have in the right shape.
            keeps: draw only those of them, if there are some: a text classifier's head has layers
                that pre-training made, and a pooler that it may not have made, in its backbone.

        Returns:
            The names of the parameters that were drawn.

        Raises:
            RecipeError: the model's parameters are not told apart into a backbone and a head.
        """
        if known and not lacking:
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
                    # of a norm layer; biases
                    parameter.fill_(1.0 if keeps and name.endswith(".weight") else 0.0)
                else:
                    drawn = basis.direction(number, 0, parameter.numel()) * spread
                    parameter.copy_(torch.from_numpy(drawn).reshape(parameter.shape))
        return [name for name in head if name in lacking] if keeps and lacking else head


def head_parameters(model: Any, base: str) -> list[str]:
    """Returns the names of the parameters outside of a model's backbone, which `model.trainable =
    "head"` trains.

    Raises RecipeError if the model, one of `transformers` made from `base`, has no such parameters.
    """
    prefix = getattr(model, "base_model_prefix", "")
    names = [name for name, _ in model.named_parameters() if not name.startswith(f"{prefix}.")]
    if not hasattr(model, prefix or " ") or not names:
        raise RecipeError(
            f'model.base = "{base}": a {type(model).__name__} has no parameters outside of its '
            "backbone that could be "
            'a head; for model.trainable, give name patterns such as ["*.layers.3.*"]'
        )
    return names
