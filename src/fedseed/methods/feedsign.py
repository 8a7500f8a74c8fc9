"""FeedSign and DP-FeedSign: one bit up and one bit down per step.

Cai, Chen, Zhu: "FeedSign: Robust Full-parameter Federated Fine-tuning of Large Models with
Extremely Low Communication Overhead of One Bit", 2025.

    vote_k = sign of rho_k                two-point, on client k's batch, along z_t (Eq. 2; the seed
                                          is the step's number)
    f      = sign(sum_k vote_k)           majority (Eq. 4)
    w     <- w - eta f z_t                Eq. 3

Ties and projections of exactly zero are decided by the step's coin from the shared stream, so that
one bit is enough.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fedseed.methods.base import Answers
from fedseed.methods.payload import Bits, Nothing, Summand
from fedseed.methods.stepwise import StepState, Stepwise
from fedseed.methods.zeroth import Population
from fedseed.randomness.stream import coins
from fedseed.training.protocol import Client

Signs = NDArray[np.int8]
MAX_VOTES = 1 << 16  # the most votes in a step


@dataclass(frozen=True)
class Votes(Summand):
    """Signs (+1 or -1) for the directions of a step: an update, or a step.

    A step without signs is one that nobody voted on.
    """

    counted: ClassVar[bool] = True
    signs: Annotated[Signs, Bits("per_step")]


class FeedSign(Population, Stepwise):
    """FeedSign's settings; a round is a step.

    Besides the arguments of `Population` and `Stepwise`:

    Args:
        votes_per_round: v, the number of directions that are voted on at the same weights and
            applied together; with a population of n, v n directions.
        epsilon: the epsilon that each drawn vote of DP-FeedSign spends (Eq. 21); None: plain
            majority (Eq. 4).
    """

    name: Literal["feedsign"] = "feedsign"
    code: ClassVar[int] = 5
    about: ClassVar[str] = (
        "one bit up and one bit down in each step, by majority; with epsilon it is "
        "DP-FeedSign (2025)"
    )
    update_type = step_type = Votes
    shares_losses = True

    votes_per_round: Annotated[int, Field(ge=1, le=MAX_VOTES)] = 1
    epsilon: PositiveFloat | None = None
    learning_rate: PositiveFloat = 5e-6
    batch: PositiveInt = 16

    @model_validator(mode="after")
    def _votes_have_no_size(self) -> "FeedSign":
        if self.divide_by != "nothing":
            raise ValueError(
                f'divide_by = "{self.divide_by}": votes have no size to divide by; remove this key'
            )
        if self.clip_projection is not None:
            raise ValueError(
                f"clip_projection = {self.clip_projection}: votes have no size to cut; remove "
                "this key"
            )
        if self.per_step > MAX_VOTES:
            raise ValueError(
                f"votes_per_round = {self.votes_per_round}, population = {self.population}: "
                f"{self.per_step:,} votes in a step, but at most {MAX_VOTES:,} are possible"
            )
        if self.optimizer == "hiso" and not self.has_many_directions:
            raise ValueError(
                'optimizer = "hiso" learns from the sum of a step\'s directions, and a single '
                "vote has no size: use several votes in a step (votes_per_round, or population)"
            )
        if self.normalize != "none":
            raise ValueError(
                f'normalize = "{self.normalize}": votes have no scale to remove; remove this key'
            )
        return self

    @property
    def per_step(self) -> int:
        return self.votes_per_round * self.population

    def train(self, state: StepState, plan: Nothing, client: Client) -> Votes:
        """Take the signs of the client's projections (Eq. 2).

        If a loss is not finite, the client abstains.
        """
        items, n = next(client.batches(self.batch)), self.population
        basis, along = self.directions(state.seed), self.indices(client.round)
        groups = [along[start : start + n] for start in range(0, self.per_step, n)]
        rho: list[float] = []
        for group in groups:
            rho += [projection.rho for projection in client.estimates(self, basis, group, items)]
        return Votes(self._break_ties(np.array(rho), state, client.round))

    def aggregate(self, state: StepState, answers: Answers) -> Votes:
        """Return the majority for each direction (Eq. 4), or the sign of another rule's outcome."""
        return Votes(
            self._break_ties(
                answers.tally([update.signs for update in answers.updates]), state, answers.round
            )
        )

    def coefficients_and_terms(self, state: StepState, step: Votes) -> tuple[Signs, None]:
        return step.signs, None

    def _break_ties(self, values: NDArray[Any], state: StepState, number: int) -> Signs:
        """Return the signs of values. A zero gets the sign of the step's coin."""
        zero, signs = values == 0, np.sign(values)
        if zero.any():
            signs = np.where(zero, self.coins(state, number), signs)
        return signs.astype(np.int8)

    def coins(self, state: StepState, number: int) -> Signs:
        """Return the step's coins, one for each vote. All parties know them."""
        return coins(state.seed, number, self.per_step)
