"""Settings of local first-order training (free of torch)."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from fedseed.renaming import Renamed

# recipe name -> class in torch.optim
OPTIMIZERS = {
    "sgd": "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "adagrad": "Adagrad",
    "adamax": "Adamax",
    "nadam": "NAdam",
    "radam": "RAdam",
    "rmsprop": "RMSprop",
}


class LocalTraining(Renamed):
    """How a client trains: T optimiser steps (or epochs), each over `accumulation` micro-batches of `batch` examples.

    Accumulated micro-batches give the gradient of one batch of all their examples: the loss is averaged over
    response tokens (or examples) of the whole step, not of each micro-batch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    renamed: ClassVar[dict[str, str]] = {"rate": "learning_rate"}

    optimizer: Literal["sgd", "adam", "adamw", "adagrad", "adamax", "nadam", "radam", "rmsprop"] = "sgd"
    learning_rate: PositiveFloat = Field(1e-4, description="local learning rate, eta")
    steps: PositiveInt = Field(10, description="T, optimiser steps a round; ignored if epochs is set")
    epochs: PositiveInt | None = Field(None, description="passes over the client's examples instead of steps")
    batch: PositiveInt = Field(1, description="examples in a micro-batch")
    accumulation: PositiveInt = Field(4, description="micro-batches a step")
    momentum: float = Field(0.0, ge=0, lt=1, description="for sgd and rmsprop")
    weight_decay: NonNegativeFloat = 0.0
    clip: PositiveFloat | None = Field(None, description="largest gradient norm; longer gradients are shortened")

    @property
    def step_examples(self) -> int:
        """Examples seen in one optimiser step."""
        return self.batch * self.accumulation

    def not_plain_sgd(self) -> Iterator[str]:
        """What would have to be set for a step to be -rate times the gradient of one micro-batch."""
        if self.optimizer != "sgd" or self.momentum:
            yield 'training.optimizer = "sgd" without momentum'
        if self.accumulation != 1:
            yield "training.accumulation = 1 (use training.batch)"
        if self.clip is not None:
            yield "no training.clip (it needs the norm of the whole gradient)"
