"""Settings of local first-order training (free of torch)."""

from collections.abc import Iterator
from typing import Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from fedseed.hinting import Hinting
from fedseed.optimizers.schedule import Schedule, factor_of

Autocast = Literal["bfloat16", "float16"]

# recipe name -> class in torch.optim
OPTIMIZERS = {
    name.lower(): name
    for name in ("SGD", "Adam", "AdamW", "Adagrad", "Adamax", "NAdam", "RAdam", "RMSprop")
}


class LocalTraining(BaseModel, metaclass=Hinting):
    """How a client trains: T optimiser steps (or epochs), each over `accumulation` micro-batches of
    `batch` examples.

    Accumulated micro-batches give the gradient of one batch of all their examples: the loss is
    averaged over response tokens (or examples) of the whole step, not of each micro-batch.

    Nearly all steps are below half a unit in the last place of a 16-bit weight at usual rates
    (docs/precision.md has figures), and vanish with `small_steps` = "nearest", as in the published
    codes. A "master" copy and its gradient take 8 bytes a parameter, in place of 2 for the
    gradient.

    With "master" and "stochastic" the optimiser's averages, weight decay and `clip` are in float32,
    and what a client reports comes from where its small steps are: Ferret projects start minus
    copy; a method that sends weights rounds the copy stochastically, so that an average over
    clients keeps what each of them loses.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    optimizer: Literal["sgd", "adam", "adamw", "adagrad", "adamax", "nadam", "radam", "rmsprop"] = (
        Field("sgd", description="torch's optimiser of this name")
    )
    learning_rate: PositiveFloat = Field(1e-4, description="local learning rate, eta")
    steps: PositiveInt = Field(
        10, description="T, optimiser steps a round; ignored if epochs is set"
    )
    epochs: PositiveInt | None = Field(
        None, description="passes over the client's examples instead of steps"
    )
    batch: PositiveInt = Field(1, description="examples in a micro-batch")
    accumulation: PositiveInt = Field(
        4,
        description="micro-batches a step: a step is of batch times accumulation examples (in "
        "transformers and TRL it is 1 by default)",
    )
    batch_tokens: PositiveInt | None = Field(
        None,
        description="most tokens of a micro-batch, padding included: a step's batch times "
        "accumulation examples go through the model in their order, as many at a time as fit, and "
        "a longer one alone; not set: batch of them",
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="for sgd and rmsprop")
    weight_decay: NonNegativeFloat = Field(0.0, description="as the optimiser has it")
    clip: PositiveFloat | None = Field(
        None, description="largest gradient norm; longer gradients are shortened"
    )
    small_steps: Literal["nearest", "stochastic", "master"] = Field(
        "nearest",
        description='what becomes of steps too small for a 16-bit weight: "nearest" loses them, '
        '"master" steps on a float32 copy, "stochastic" rounds up or down by the shared stream',
    )
    autocast: Autocast | None = Field(
        None, description="dtype of forward and backward passes over float32 weights"
    )
    loss_scale: PositiveFloat | Literal["auto"] = Field(
        "auto",
        description="the loss is multiplied by it before backward passes and the gradient divided "
        "by it in float32, so that none underflows in float16; a step whose gradient overflows is "
        'skipped. "auto": where gradients are float16 and small_steps or autocast keep their '
        "steps, 65,536, halved where that is too large; else 1",
    )

    schedule: Schedule | None = Field(
        None, description="of the learning rate, by round; None: it stays the same"
    )

    @model_validator(mode="after")
    def _scaled_gradients_are_unscaled_in_float32(self) -> "LocalTraining":
        if (
            self.loss_scale not in ("auto", 1.0)
            and self.small_steps == "nearest"
            and self.autocast is None
        ):
            raise ValueError(
                f'loss_scale = {self.loss_scale:g} needs small_steps = "master" or "stochastic", '
                "or autocast: without them the gradient is divided in 16 bits, and underflows then"
            )
        return self

    def for_round(self, number: int) -> "LocalTraining":
        """Return the settings in a round: with the learning rate that the schedule gives it."""
        factor = factor_of(self.schedule, number)
        if factor == 1.0:
            return self
        return self.model_copy(update={"learning_rate": self.learning_rate * factor})

    def plain_sgd_needs(self) -> Iterator[str]:
        """Yield what would have to be set for a step to be -rate times the gradient of one
        micro-batch.
        """
        if self.optimizer != "sgd" or self.momentum:
            yield 'training.optimizer = "sgd" without momentum'
        if self.accumulation != 1:
            yield "training.accumulation = 1 (use training.batch)"
        if self.batch_tokens is not None:
            yield "no training.batch_tokens (it makes several micro-batches of a step)"
        if self.clip is not None:
            yield "no training.clip (it needs the norm of the whole gradient)"
