"""Make the torch optimiser of a client's local steps: the only place that does.

torch's `fused` optimisers take one pass over weights, gradient and averages, where its others take
one for each operation: on a CPU, Adam's step is three to four times as fast. SGD has the same bits
either way. Adam, AdamW and Adagrad differ from the unfused ones in the last bits, as a processor
with other instructions differs, too; the number of threads changes none of them.
"""

from collections.abc import Sequence
from typing import Any

import torch

from fedseed.training.settings import OPTIMIZERS, LocalTraining

# kinds of devices on which torch has fused kernels for an optimiser, from torch 2.6 on
FUSED = {
    "sgd": ("cpu", "cuda"),
    "adam": ("cpu", "cuda"),
    "adamw": ("cpu", "cuda"),
    "adagrad": ("cpu",),
}


def can_fuse(name: str, weights: Sequence[torch.Tensor]) -> bool:
    """Return whether torch's fused version of an optimiser may step on some weights.

    It may on float32 tensors only: on 16-bit ones it rounds at other places than torch's plain
    optimisers do, so `small_steps = "nearest"` would lose other steps than published codes lose.

    Args:
        name: the optimiser's name in a recipe.
        weights: the tensors, each on any device.
    """
    kinds = FUSED.get(name, ())
    return all(w.dtype == torch.float32 and w.device.type in kinds for w in weights)


def make_optimizer(
    training: LocalTraining, weights: Sequence[torch.Tensor]
) -> torch.optim.Optimizer:
    """Return torch's optimiser for the settings, fused where `can_fuse` says so.

    Elsewhere torch chooses: its `foreach` version on a GPU; on a CPU one tensor after the other,
    where `foreach` would be no faster.

    Args:
        training: the settings.
        weights: the tensors to step on.
    """
    options: dict[str, Any] = {
        "lr": training.learning_rate,
        "weight_decay": training.weight_decay,
    }
    if training.optimizer in ("sgd", "rmsprop"):
        options["momentum"] = training.momentum
    if can_fuse(training.optimizer, weights):
        options["fused"] = True
    # averages that are made here, such as Adagrad's, lie with their weights all the same
    with torch.device("cpu"):
        optimizer: torch.optim.Optimizer = getattr(torch.optim, OPTIMIZERS[training.optimizer])(
            weights, **options
        )
    return optimizer
