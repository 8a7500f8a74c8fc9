"""A recipe's `[attack]`."""

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, model_validator

from fedseed.attacks.updates import TUNED, AttackKind


class AttackSettings(BaseModel):
    """Byzantine clients: what they do and how many there are (the last ones).

    Args:
        kind: "sign" reverses what a client sends, "random" replaces it by something unrelated, "noise" adds to it;
            "multiplier" multiplies each projection by 1 + N(0, 1) (a vote is reversed where that is negative), as
            FeedSign's Fig. 2 does to all clients; "labels" flips the labels that it trains on. In simulations only:
            "alie" (a little against the honest mean, as much as honest clients differ), "inner-product" (a multiple of
            the honest mean, reversed), "mimic" (what one honest client sends), "largest" (reversed, and as large as
            `[bounds]` accept), "claims" (reversed, and a thousand times the examples).
        clients: how many; the last ones.
        strength: how many standard deviations "alie" goes (1.5), how many times the honest mean "inner-product" is (as
            many as reverse the mean of all), how many times its examples "claims" says that it has (1000).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    kind: AttackKind
    clients: PositiveInt
    strength: PositiveFloat | None = None

    @model_validator(mode="after")
    def _some_have_a_strength(self) -> "AttackSettings":
        if self.strength is not None and self.kind not in TUNED:
            raise ValueError(f'strength: kind = "{self.kind}" has none; "alie", "inner-product" and "claims" have')
        return self
