"""A recipe's `[privacy]`: the protected data, bounds, noise, and budget."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from fedseed.hinting import Hinting

Level = Literal["example", "client"]


class PrivacySettings(BaseModel, metaclass=Hinting):
    """Differential privacy of scalars (docs/privacy.md).

    Args:
        level: the protected data. "example": each single example, protected from everybody
            including the coordinator; each client bounds an example's effect on its losses, and
            adds noise before it sends. "client": all data of a client, protected from everybody but
            the coordinator, which bounds the clients' vectors and adds noise to their sum.
        clip: C, the bound on a vector's length. "example": the vector of an example's loss
            differences, one for each direction of an estimate. "client": the vector that a client
            sends: its projections rho, or Ferret's coefficients.
        noise: the noise's standard deviation, divided by clip.
        delta: the probability with which epsilon may be exceeded.
        budget: the largest epsilon; the run ends before the round that would spend more. At
            "example" level each client also keeps to this budget over all its runs on the same
            data. Not set: the run has all its rounds, and a client gives at most that number of
            answers over all its runs.
        sampling: "example" level only: how a batch is drawn. "poisson": each example by itself with
            probability batch / examples, with the client's own secret random numbers, which makes
            epsilon smaller. "none": in an order that depends on the recipe's seed and is known to
            everybody, so epsilon assumes that an example is in every batch.
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
                'level = "client" does not use sampling or examples: it is public which clients '
                "take part, so each round of a client counts in full"
            )
        if self.sampling == "poisson" and self.examples is None:
            raise ValueError(
                'sampling = "poisson" needs examples, the public number of a client\'s examples '
                "that epsilon is computed with"
            )
        if self.sampling == "none" and self.examples is not None:
            raise ValueError(
                'examples needs sampling = "poisson": without it epsilon does not depend on them'
            )
        return self


# the only reason that a client of a private run gives for sending nothing, because other reasons
# would reveal data
WITHHELD = "nothing to send"
