"""A recipe's `[privacy]`: the protected data, bounds, noise, and budget."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from fedseed.hinting import Hinting

Level = Literal["example", "client"]


class PrivacySettings(BaseModel, metaclass=Hinting):
    """Differential privacy of scalars (docs/privacy.md).

    Args:
        level: the protected data. "example": each single example, from everybody, also from the
            coordinator: each client bounds an example's effect on its losses, and adds noise before
            it sends. "client": all data of a client, from everybody but the coordinator, which
            bounds the clients' vectors and adds noise to their sum.
        clip: C. "example": the longest vector of an example's differences of losses, one for each
            direction of an estimate. "client": the longest vector that a client sends: of
            projections rho, or of Ferret's coefficients.
        noise: the noise's deviation over clip.
        delta: the probability that epsilon leaves out.
        budget: the largest epsilon; the run ends before the round that would spend more. At
            "example" level each client also keeps to it over all its runs on the same data. Not
            set: the run has all its rounds, and a client answers as many times over all its runs.
        sampling: "example" level only: how a batch is drawn. "poisson": each example by itself,
            with probability batch / examples, by the client's own secret random numbers, which
            makes epsilon smaller. "none": in an order that the recipe's seed decides and everybody
            knows, so that epsilon is that of an example in every batch.
        examples: the number of examples that sampling assumes; it is public.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    level: Level
    clip: PositiveFloat
    noise: Annotated[float, Field(gt=0, le=1e5)]
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    budget: PositiveFloat | None = None
    sampling: Literal["none", "poisson"] = "none"
    examples: PositiveInt | None = None

    @model_validator(mode="after")
    def _sampling_is_known(self) -> "PrivacySettings":
        if self.level == "client" and (self.sampling != "none" or self.examples is not None):
            raise ValueError(
                'level = "client" takes no sampling and no examples: who takes part is public, and '
                "each round in which a client does counts in full"
            )
        if self.sampling == "poisson" and self.examples is None:
            raise ValueError(
                'sampling = "poisson" needs examples, the public number of examples of a client '
                "that epsilon is reckoned with"
            )
        if self.sampling == "none" and self.examples is not None:
            raise ValueError(
                'examples needs sampling = "poisson": without it epsilon does not use them'
            )
        return self


# the reason that a client of a private run gives for sending nothing: another would reveal data
WITHHELD = "nothing to send"
