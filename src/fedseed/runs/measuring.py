"""What a simulation measures besides the rounds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fedseed.errors import RecipeError
from fedseed.objectives.evaluation import mean_loss
from fedseed.objectives.losses import Objective
from fedseed.reports.memory import resident_memory
from fedseed.weights.devices import peak_on

Evaluation = Callable[[torch.nn.Module], dict[str, Any]]  # numbers by name; parties' own by client


def loss_of(objective: Objective, sets: Mapping[str, Sequence[Any]]) -> Evaluation:
    """Measures mean losses on sets of held-out examples, by their prefixes. Raises RecipeError if one has none."""
    prepared = {prefix: objective.prepare(examples) for prefix, examples in sets.items()}
    for prefix, items in prepared.items():
        if not items:
            raise RecipeError(f'none of the {len(sets[prefix])} examples of the evaluation set "{prefix}" is usable')

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        return {f"{prefix}loss": mean_loss(model, objective, items) for prefix, items in prepared.items()}

    return evaluate


def peak_memory(devices: Sequence[torch.device] = ()) -> int:
    """The process' peak memory in bytes: on the GPUs among some devices, otherwise resident memory."""
    held = peak_on(devices)
    return resident_memory(peak=True) if held is None else held
