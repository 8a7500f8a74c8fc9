"""Compute the factor by which a schedule multiplies a learning rate.

It depends on the round's number alone.

    warm-up    round / (W + 1)                       rounds 1 to W
    constant   1                                     from round W + 1 on, as are the other two
    linear     1 - (1 - final) p                     p = (round - W - 1) / (N - W)
    cosine     final + (1 - final) (1 + cos pi p) / 2

From round W + 1 on these are the factors of transformers' schedules of the same names, at step
`round - 1` of N; in the warm-up a first step with a rate of 0 is left out. After round N the factor
stays at `final`.

As nothing is remembered from round to round, a run that stops and goes on, a replay, a site that
joins late and the coordinator all compute the same factor, with the same bits on every machine: it
is made of sums, products and quotients, which are rounded alike everywhere, without the C library's
cosine.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from fedseed.hinting import Hinting

HALF_PI = 1.5707963267948966


class Schedule(BaseModel, metaclass=Hinting):
    """Say how a learning rate changes from round to round.

    In a recipe a name is enough: `schedule = "cosine"`.

    Args:
        kind: "constant", "linear" or "cosine".
        warmup: W, rounds in which the rate rises to its full value.
        rounds: N, the rounds of the whole schedule; None: those of the run (a run that has more
            rounds later keeps it).
        final: the factor of the rate at the end, from 0 to 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Literal["constant", "linear", "cosine"] = "constant"
    warmup: NonNegativeInt = 0
    rounds: PositiveInt | None = None
    final: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0

    @model_validator(mode="before")
    @classmethod
    def _a_name_alone(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"kind": data}
        return data

    @model_validator(mode="after")
    def _warmup_is_shorter(self) -> Self:
        if self.rounds is not None and self.kind != "constant" and self.warmup >= self.rounds:
            raise ValueError(
                f"warmup = {self.warmup}: fewer than the schedule's rounds, {self.rounds}"
            )
        return self

    def factor(self, number: int) -> float:
        """Return the factor of the rate in a round, from 0 to 1.

        Args:
            number: the round, from 1.

        Raises:
            ValueError: it is not known how many rounds there are (`lasting`).
        """
        if number <= self.warmup:
            return number / (self.warmup + 1)
        if self.kind == "constant":
            return 1.0
        if self.rounds is None:
            raise ValueError(
                f'schedule.rounds: give how many rounds the "{self.kind}" schedule has'
            )
        part = min(1.0, (number - self.warmup - 1) / (self.rounds - self.warmup))
        remaining = 1.0 - part if self.kind == "linear" else _half_cosine(part)
        return self.final + (1.0 - self.final) * remaining


def _half_cosine(part: float) -> float:
    """Return (1 + cos(pi part)) / 2 = cos(pi part / 2)^2 for part from 0 to 1, to about 1e-15."""
    square = (HALF_PI * part) * (HALF_PI * part)
    cosine = 1.0
    # Taylor's series, from its smallest term: 1 - x^2/2 (1 - x^2/12 (1 - ...))
    for k in range(11, 0, -1):
        cosine = 1.0 - square / ((2 * k - 1) * (2 * k)) * cosine
    return cosine * cosine


def factor_of(schedule: Schedule | None, number: int) -> float:
    """Return the factor of a round; 1 without a schedule."""
    if schedule is None:
        return 1.0
    return schedule.factor(number)


def lasting(settings: Any, rounds: int) -> Any:
    """Give schedules as many rounds as the run has, where they do not say how many they have.

    Args:
        settings: a method, or what is in one.
        rounds: the run's rounds.

    Returns:
        The settings as they are, or a copy with the rounds filled in.

    Raises:
        ValueError: the warm-up is as long as the run, or longer.
    """
    changed: dict[str, Any] = {}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, Schedule):
            if value.rounds is None and value.kind != "constant":
                if value.warmup >= rounds:
                    raise ValueError(
                        f"schedule.warmup = {value.warmup}: fewer than the run's rounds, {rounds}"
                    )
                changed[name] = value.model_copy(update={"rounds": rounds})
        elif isinstance(value, BaseModel):
            new = lasting(value, rounds)
            if new is not value:
                changed[name] = new
    if changed:
        return settings.model_copy(update=changed)
    return settings
