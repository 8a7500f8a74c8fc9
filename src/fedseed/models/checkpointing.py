"""Activation checkpointing: backward passes make activations anew instead of keeping them.

Chen, Xu, Zhang, Guestrin: "Training Deep Nets with Sublinear Memory Cost", 2016. Of each layer only its input is kept;
when the backward pass comes to the layer, its forward pass is done once more, with the same dropout. Evaluation and
zeroth-order methods, which keep no activations, go on as ever.
"""

from typing import Any

import torch

from fedseed.errors import RecipeError


def checkpoint_activations(model: torch.nn.Module, base: str = "") -> None:
    """Let a model of transformers checkpoint each of its layers while it trains.

    Args:
        model: the base, before an adapter is put into it.
        base: its name, for the error.

    Raises:
        RecipeError: a model of this class has no layers that could be checkpointed.
    """
    enable: Any = getattr(model, "activation_checkpointing_enable", None)  # as transformers calls it from 5 on
    enable = enable or getattr(model, "gradient_checkpointing_enable", None)
    try:
        if enable is None:
            raise ValueError("it is no model of transformers")
        enable({"use_reentrant": False})
    except ValueError as error:
        raise RecipeError(
            f'model.activation_checkpointing = true: model.base = "{base}" is a {type(model).__name__}, whose layers '
            f"can't be checkpointed ({str(error).splitlines()[0]}); leave it out, or take a smaller training.batch"
        ) from error
    # transformers makes embeddings' outputs need a gradient, which only re-entrant checkpoints ask for
    if hasattr(model, "_require_grads_hook"):
        getattr(model, "disable_input_require_grads")()  # noqa: B009 (mypy knows no such method)
