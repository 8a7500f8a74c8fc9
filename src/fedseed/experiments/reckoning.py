"""What a recipe's model takes in memory, reckoned from the shapes in its base's configuration; no weights are read.

The sum is less than a run's peak: activations of the layers, messages, libraries and data come on top of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedseed.errors import RecipeError, plural
from fedseed.models import adapters, quantized
from fedseed.models.architectures import architecture_of
from fedseed.models.heads import Head, head_parameters
from fedseed.models.loading import base_config, choose_trainable, outline
from fedseed.objectives.evaluation import longest_input
from fedseed.runs.equipment import kind_for
from fedseed.runs.parties import load_data
from fedseed.runs.recipe import Recipe
from fedseed.training.settings import OPTIMIZERS, LocalTraining
from fedseed.weights.offload import out_of_the_way

AVERAGES = {"momentum": 1, "nesterov": 1, "adam": 2, "hiso": 1}  # float32 numbers of each weight, beside the weights


@dataclass(frozen=True)
class Reckoned:
    """A recipe's memory by what it is for.

    Args:
        parameters: how many the model has.
        trained: how many of them train.
        dtype: of the weights.
        parts: (name, bytes); what takes nothing is left out.
    """

    parameters: int
    trained: int
    dtype: str
    parts: Sequence[tuple[str, int]]

    @property
    def total(self) -> int:
        """Returns bytes of all parts together."""
        return sum(size for _, size in self.parts)


def reckon(recipe: Recipe, tokens: int | None = None) -> Reckoned:
    """Reckon a recipe's memory without its weights and, where need be, without its data.

    Args:
        recipe: nothing of its base but the configuration is read.
        tokens: the length of an example; None: the longest that the recipe and the model take.

    Raises:
        RecipeError: the base's configuration can't be had, or does not fit the recipe.
    """
    settings, method = recipe.model, recipe.method
    model, saved = _outline(recipe)
    tensors = list(model.parameters())
    training: LocalTraining | None = getattr(method, "training", None)
    tuned = [p for p in tensors if p.requires_grad]
    count, trained = sum(p.numel() for p in tuned), sum(map(_bytes, tuned))
    offloaded = settings.offload_base is True or (
        settings.offload_base == "auto" and out_of_the_way(tuned, method.rebuilds_often)
    )
    parts = [("weights", sum(map(_bytes, (*tensors, *model.buffers()))) - saved)]
    if method.from_base and not offloaded:
        parts.append(("copy of the base", trained))
    if getattr(method, "streaming", False):
        parts.append(("the largest gradient", max(map(_bytes, tuned))))
    elif method.needs_gradients:
        parts.append(("gradients", trained))
        if training is not None:
            parts += [("start copy of the weights", trained), ("optimiser's averages", averages_of(training) * trained)]
    elif not method.from_base and not method.stepwise:
        parts.append(("start copy of the weights", trained))
    averages = AVERAGES.get(getattr(method, "optimizer", getattr(method, "server", "")), 0)
    parts.append(("averages of the steps", 4 * count * averages))
    vocabulary = getattr(model.config.get_text_config(), "vocab_size", None)
    if vocabulary is not None:
        limits = (recipe.evaluation.max_length if tokens is None else tokens, longest_input(model))
        length, batch = min(n for n in limits if n is not None), _batch(method)
        size = batch * length * vocabulary * getattr(torch, settings.dtype).itemsize
        parts.append((f"logits of {plural(batch, 'example')} of {length:,} tokens", size))
    return Reckoned(sum(p.numel() for p in tensors), count, settings.dtype, [part for part in parts if part[1]])


def averages_of(training: LocalTraining) -> int:
    """Returns how many numbers an optimiser remembers of each weight."""
    options: dict[str, Any] = {"momentum": training.momentum} if training.optimizer in ("sgd", "rmsprop") else {}
    p = torch.nn.Parameter(torch.ones(64, device="cpu"))
    p.grad = torch.ones_like(p)
    optimizer = getattr(torch.optim, OPTIMIZERS[training.optimizer])([p], lr=1e-3, **options)
    optimizer.step()
    remembered = (t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor))
    return sum(t.numel() == 64 for t in remembered)


def _outline(recipe: Recipe) -> tuple[Any, int]:
    """Returns the model that the recipe would tune, on "meta", and the bytes that quantisation saves of its weights."""
    settings = recipe.model
    architecture, head = settings.architecture or architecture_of(base_config(settings.base)), None
    try:
        kind, classes = kind_for(recipe, load_data(recipe))
        architecture, head = kind.architecture, Head(classes, recipe.seed) if classes else None
    except RecipeError:  # the data are not here: a model that writes texts, unless the recipe says otherwise
        pass
    how = settings.base, settings.dtype, settings.trust_remote_code, architecture, head, settings.attention
    model = outline(*how, device="meta")
    saved = 0 if settings.quantization is None else quantized.saved_by(model, settings.quantization)
    trainable = head_parameters(model, settings.base) if settings.trainable == "head" else settings.trainable
    adapter = adapters.chosen(settings.adapter, recipe.method.adapter, recipe.method.name)
    if adapter is not None:
        with torch.device("meta"):
            model = adapters.wrap(model, adapter, settings.base)
    if adapter is None or trainable is not None:
        choose_trainable(model, trainable)
    return model, saved


def _batch(method: Any) -> int:
    """Returns how many examples go through the model at a time."""
    training = getattr(method, "training", method)
    return int(getattr(method, "micro_batch", 0) or getattr(training, "batch", 1))


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
