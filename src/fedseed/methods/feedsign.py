"""FeedSign and DP-FeedSign: one bit up and one bit down per step.

Cai, Chen, Zhu, Li, Du: "FeedSign: Robust Full-parameter Federated Fine-tuning of Large Models with Extremely Low
Communication Overhead of One Bit", 2025.

    vote_k = sign of rho_k, two-point, on client k's batch, along z_t (Eq. 2; the seed is the step's number)
    f      = sign(sum_k vote_k)                                       majority (Eq. 4)
    w     <- w - eta f z_t                                            Eq. 3
    DP:    f drawn by the exponential mechanism                       Eq. 21 (`fedseed.privacy.sign`)

Ties, and projections of exactly zero, are settled by the step's coin from the shared stream, so that a bit is enough.
In DP-FeedSign the clients' votes reach the coordinator as they are, and its draw is what is private. There a client
never abstains: that its losses are not usable would be told by its silence, so it votes as the coin fell.
"""

from contextlib import nullcontext, suppress
from dataclasses import dataclass
from math import log
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fedseed.attacks.updates import Attack
from fedseed.errors import NonFiniteError
from fedseed.methods.base import Answers
from fedseed.methods.client import Client
from fedseed.methods.payload import About, Bits, Nothing, Payload
from fedseed.methods.population import MOST, Population
from fedseed.methods.stepwise import StepState, Stepwise
from fedseed.methods.summands import Summand
from fedseed.privacy import PrivacySettings, PrivateSign
from fedseed.randomness import Domain
from fedseed.randomness.stream import words
from fedseed.weights.change import Change

Signs = NDArray[np.int8]
UNLIKELY = 1e-3  # that a projection is so small that the float noise of another batch size turns its sign


@dataclass(frozen=True)
class Votes(Summand):
    """A sign (+1 or -1) for each direction of the step: an update, or a step. No signs: a step that nobody voted on."""

    counted: ClassVar[bool] = True
    signs: Annotated[Signs, Bits("per_step")]

    def attacked(self, attack: Attack, drawn: NDArray[np.uint32], method: Any) -> Payload:
        """Other votes."""
        return Votes(attack.signs(self.signs, drawn))

    def with_vector(self, vector: NDArray[Any], about: About) -> Payload:
        """Its signs; its own vote where there is none."""
        return Votes(np.where(vector == 0, self.signs, np.sign(vector)).astype(np.int8))


class FeedSign(Population, Stepwise):
    """FeedSign's settings; a round is a step.

    Args (besides those of `Population` and `Stepwise`):
        votes_per_round: v, directions voted on at the same weights and applied together; with a population of n, v n.
        epsilon: DP-FeedSign: each vote is (epsilon, 0)-differentially private; None: plain majority.
    """

    name: Literal["feedsign"] = "feedsign"
    code: ClassVar[int] = 5
    about: ClassVar[str] = "one bit up, one bit down per step, by majority; epsilon makes it private (2025)"
    update_type = step_type = Votes

    votes_per_round: Annotated[int, Field(ge=1, le=1 << 16)] = 1
    epsilon: PositiveFloat | None = None
    learning_rate: PositiveFloat = 5e-6
    scale: PositiveFloat = 1e-3
    batch: PositiveInt = 16
    weighting: Literal["equal", "examples"] = "equal"

    @model_validator(mode="after")
    def _votes_have_no_size(self) -> "FeedSign":
        if self.divide_by != "nothing":
            raise ValueError(f'divide_by = "{self.divide_by}": votes have no size to divide by; leave it out')
        if self.per_step > MOST:
            raise ValueError(
                f"votes_per_round = {self.votes_per_round}, population = {self.population}: {self.per_step:,} votes a "
                f"step, at most {MOST:,} are possible"
            )
        if self.optimizer == "hiso":
            raise ValueError('optimizer = "hiso" learns from the size of projections; votes have none')
        if self.normalize != "none":
            raise ValueError(f'normalize = "{self.normalize}": votes have no scale to take away; leave it out')
        return self

    @property
    def per_step(self) -> int:
        """v, the directions of a step; with a population, v n."""
        return self.votes_per_round * self.population

    def train(self, state: StepState, plan: Nothing, client: Client) -> Votes:
        """The signs of the client's projections (Eq. 2); a loss that is not finite makes the client abstain.

        With `epsilon` it votes the coin where a loss is not usable, or where it has no example.
        """
        rho, n = np.zeros(self.per_step), self.population
        with suppress(NonFiniteError) if self.epsilon is not None else nullcontext():
            items = next(client.batches(self.batch))
            basis, along = self.directions(state.seed), self.indices(client.round)
            for at in range(0, self.per_step, n):
                with suppress(NonFiniteError) if self.epsilon is not None else nullcontext():
                    rho[at : at + n] = [r for r, _ in self.estimates_along(client, basis, along[at : at + n], items)]
        return Votes(self._settled(rho, state, client.round))

    def aggregate(self, state: StepState, answers: Answers) -> Votes:
        """Majority for each direction (Eq. 4), or a private draw (Eq. 21); of another rule's outcome the sign."""
        if not answers:
            return Votes(np.zeros(0, dtype=np.int8))
        sums = self._sums(answers)
        if self.privacy is not None:
            return Votes(np.array(self.privacy.draw(sums), dtype=np.int8))
        return Votes(self._settled(sums, state, answers.round))

    def _sums(self, answers: Answers) -> NDArray[Any]:
        """What the rule makes of the votes on each direction."""
        if answers.rule.linear:
            sums = np.zeros(self.per_step, dtype=np.int64)
            for update in answers.updates:
                sums += update.signs.astype(np.int64)  # a secure sum comes as doubles
            return sums
        return answers.combine([u.signs.astype(np.float64) for u in answers.updates])

    def log_chance(self, state: StepState, answers: Answers, step: Votes) -> float:
        """Of the private draw; of a majority that is another one, `UNLIKELY` for each vote."""
        if not answers or not len(step.signs):
            return 0.0
        if self.privacy is not None:
            return self.privacy.log_chance(self._sums(answers), step.signs)
        return log(UNLIKELY) * int((self.aggregate(state, answers).signs != step.signs).sum())

    def change(self, state: StepState, step: Votes) -> Change:
        """w <- w - eta sum_i f_i z_i, rounded once (Eq. 3)."""
        return self.descent(state, step.signs)

    def advance(self, state: StepState, step: Votes) -> StepState:
        """Count the step, also one that nobody voted on."""
        return self.count(state, step.signs)

    def _settled(self, values: NDArray[Any], state: StepState, number: int) -> Signs:
        """The signs of values, of zeros the step's coins."""
        zero, signs = values == 0, np.sign(values)
        return (np.where(zero, self.coins(state, number), signs) if zero.any() else signs).astype(np.int8)

    def coins(self, state: StepState, number: int) -> Signs:
        """The step's coins, one per vote; everybody knows them."""
        drawn = words(state.seed, Domain.COIN, 0, number * (1 << 14), -(-self.per_step // 4)).reshape(-1)
        return np.where(drawn[: self.per_step] & 1, 1, -1).astype(np.int8)

    # -- what it declares ------------------------------------------------------------------------------------------

    @property
    def together(self) -> Literal["losses"]:
        """All clients look along the step's directions."""
        return "losses"

    @property
    def incomparable(self) -> str | None:
        """A private draw is made of the votes' sum."""
        if self.epsilon is None:
            return None
        return f"epsilon = {self.epsilon:g}: the private draw is made of the sum of all votes, each counting the same"

    def unprotected(self, settings: PrivacySettings) -> str | None:
        """It has a mechanism of its own."""
        if self.epsilon is not None:
            return f"method.epsilon = {self.epsilon:g} is DP-FeedSign, with an account of its own: leave out [privacy]"
        return "[privacy] is for scalars, and votes are bits: set method.epsilon, which is DP-FeedSign, in its place"

    @property
    def unsummable(self) -> None:
        """Of the votes the majority needs nothing but their sum."""
        return None

    @property
    def odds(self) -> "FeedSign":
        """Its own; a batch is drawn for all directions."""
        return self

    @property
    def privacy(self) -> PrivateSign | None:
        """DP-FeedSign's mechanism."""
        return None if self.epsilon is None else PrivateSign(self.epsilon, self.per_step)
