"""What a recipe says about secure sums."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from fedseed.privacy.secure.fixed import FixedPoint

FEWEST = 3  # clients: of a sum of two, each knows the other's part
MOST_ROUNDS = 1024  # that keys are agreed on for at once
MOST_CLIENTS = 4096


class SecureSums(BaseModel):
    """The coordinator learns the sum of a round's answers, and of no single one anything (docs/secure-sums.md).

    Args:
        threshold: clients that must be there to open a sum: more than half of a round's. With fewer nothing is opened,
            and the round is begun again. The more, the more clients may work together with the coordinator in vain.
        fraction_bits: numbers are rounded to multiples of 2^-fraction_bits before they are added up.
        most_clients: the largest number of clients in a round that whole numbers of 64 bits have room for: what a
            client sends, weight included, is limited to 2^(63 - fraction_bits) / most_clients.
        ahead: for how many rounds keys are agreed on at once, where the same clients take part in them.
        masks: false: the same whole numbers in the clear, for comparison: steps have the same bits.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    threshold: Annotated[int, Field(ge=2, le=MOST_CLIENTS)]
    fraction_bits: Annotated[int, Field(ge=0, le=48)] = 32
    most_clients: Annotated[PositiveInt, Field(ge=FEWEST, le=MOST_CLIENTS)] = 128
    ahead: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] = 16
    masks: bool = True

    def form(self, counted: bool) -> FixedPoint:
        """How numbers are written.

        Args:
            counted: whole numbers without weights, such as votes.
        """
        return (
            FixedPoint(32, 0, self.most_clients) if counted else FixedPoint(64, self.fraction_bits, self.most_clients)
        )

    def problem(self, per_round: int) -> str | None:
        """Why so many clients in a round can't be; None: they can."""
        there = f"a round has {per_round} clients (federation.per_round)"
        if per_round < FEWEST:
            return f"secure_sums: {there}, and of a sum of fewer than {FEWEST} each client knows the others' part"
        if self.threshold > per_round:
            return f"secure_sums.threshold = {self.threshold}: {there}"
        if 2 * self.threshold <= per_round:
            least = per_round // 2 + 1
            return (
                f"secure_sums.threshold = {self.threshold}: {there}; take more than half of them, {least} or more: "
                "two groups could open different sums of one round otherwise"
            )
        if per_round > self.most_clients:
            return f"secure_sums.most_clients = {self.most_clients}: {there}; take {per_round} or more"
        return None
