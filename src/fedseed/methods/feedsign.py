"""FeedSign and DP-FeedSign: one bit up and one bit down per step.

Cai, Chen, Zhu, Li, Du: "FeedSign: Robust Full-parameter Federated Fine-tuning of Large Models with Extremely Low
Communication Overhead of One Bit", 2025.

    vote_k = sign of rho_k, two-point, on client k's batch, along z_t (Eq. 2; the seed is the step's number)
    f      = sign(sum_k vote_k)                                       majority (Eq. 4)
    w     <- w - eta f z_t                                            Eq. 3
    DP:    P(f = +1) = e^{eps q+ / 4} / (e^{eps q+ / 4} + e^{eps q- / 4})    Eq. 21
                     = sigma(eps S / 2),  S = sum_k vote_k

Ties, and projections of exactly zero, are settled by the step's coin from the shared stream, so that a bit is enough.
The private draw comes from the operating system: anybody can regenerate the shared stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from secrets import SystemRandom
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt

from fedseed.errors import MessageError
from fedseed.methods.base import Attack, Client, Contribution, Nothing, Weighting
from fedseed.methods.zeroth import StepState, Stepwise
from fedseed.randomness import Domain
from fedseed.randomness.stream import words

if TYPE_CHECKING:
    from fedseed.weights.space import ParameterSpace

Signs = NDArray[np.int8]
PRIVACY_DELTA = 1e-5


@dataclass(frozen=True)
class Votes:
    """v signs (+1 or -1), one per direction: an update, or a step. No signs: a step that nobody voted on."""

    signs: Signs

    def encode(self) -> bytes:
        """ceil(v / 8) bytes, a bit 1 for +1, lowest bit first."""
        return np.packbits(self.signs > 0, bitorder="little").tobytes()

    @classmethod
    def decode(cls, data: bytes, count: int) -> "Votes":
        """The inverse of `encode`.

        Raises:
            MessageError: not ceil(count / 8) bytes, or a padding bit is set.
        """
        if len(data) != -(-count // 8):
            raise MessageError(f"{len(data)} bytes of votes: {count} votes take {-(-count // 8)}")
        bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
        if bits[count:].any():
            raise MessageError(f"more than {count} votes: a padding bit is set")
        return cls(np.where(bits[:count] > 0, 1, -1).astype(np.int8))


class FeedSign(Stepwise):
    """FeedSign's settings; a round is a step.

    Args (besides those of `ZerothOrder`):
        votes_per_round: v, directions voted on at the same weights and applied together.
        epsilon: DP-FeedSign: each vote is (epsilon, 0)-differentially private; None: plain majority.
    """

    name: Literal["feedsign"] = "feedsign"
    code: ClassVar[int] = 5
    about: ClassVar[str] = "one bit up, one bit down per step, by majority; epsilon makes it private (2025)"

    votes_per_round: Annotated[int, Field(ge=1, le=1 << 16)] = 1
    epsilon: PositiveFloat | None = None
    rate: PositiveFloat = 5e-6
    scale: PositiveFloat = 1e-3
    batch: PositiveInt = 16
    weighting: Weighting = "equal"

    @property
    def per_step(self) -> int:
        """v, the directions of a step."""
        return self.votes_per_round

    @property
    def looks_together(self) -> bool:
        """All clients look along the step's directions."""
        return True

    def advance(self, state: StepState, step: Votes) -> StepState:  # type: ignore[override]
        """Count the step, also one that nobody voted on."""
        return self.count(state, step.signs)

    def coins(self, state: StepState, number: int) -> Signs:
        """The step's coins, one per vote; everybody knows them."""
        drawn = words(state.seed, Domain.COIN, 0, number * (1 << 14), -(-self.votes_per_round // 4)).reshape(-1)
        return np.where(drawn[: self.votes_per_round] & 1, 1, -1).astype(np.int8)

    def train(self, state: StepState, plan: Nothing, client: Client) -> Votes:
        """The signs of the client's projections; a loss that is not finite makes the client abstain."""
        items = next(client.batches(self.batch))
        basis = self.directions(state.seed)
        rho = np.array([self.two_point(client, basis, k, items) for k in self.indices(client.round)])
        return Votes(np.where(rho == 0, self.coins(state, client.round), np.sign(rho)).astype(np.int8))

    def aggregate(self, state: StepState, number: int, contributions: Sequence[Contribution]) -> Votes:
        """Majority for each direction, or a private draw (Eqs. 4 and 21)."""
        if not contributions:
            return Votes(np.zeros(0, dtype=np.int8))
        sums = np.sum([u.signs.astype(np.int64) for _, _, u in contributions], axis=0)
        if self.epsilon is not None:
            secret = SystemRandom()
            return Votes(np.array([private_sign(int(s), self.epsilon, secret.random()) for s in sums], dtype=np.int8))
        return Votes(np.where(sums == 0, self.coins(state, number), np.sign(sums)).astype(np.int8))

    def apply(self, state: StepState, step: Votes, space: "ParameterSpace") -> None:
        """w <- w - eta sum_i f_i z_i, rounded once (Eq. 3)."""
        self.move(state, step.signs, space)

    def corrupt(self, state: StepState, update: Votes, kind: Attack, drawn: NDArray[np.uint32]) -> Votes:
        """Reversed votes, or coin tosses: all that can be said in a bit."""
        tosses = np.where(drawn[: len(update.signs)] & 1, 1, -1).astype(np.int8)
        return Votes(-update.signs if kind == "sign" else tosses)

    def privacy(self, rounds: int) -> dict[str, float] | None:
        """Privacy spent by DP-FeedSign.

        Each vote is (epsilon, 0)-private (Theorem D.2). Over T votes: T epsilon by plain composition, and the tighter
        epsilon at delta = 1e-5 that the `dp-accounting` package's privacy loss distributions give.
        """
        if self.epsilon is None:
            return None
        from dp_accounting.pld import common, privacy_loss_distribution

        votes = rounds * self.votes_per_round
        # an (epsilon, 0)-private vote loses +epsilon or -epsilon: steps of epsilon hold its losses without rounding
        one = privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(self.epsilon, 0.0), value_discretization_interval=self.epsilon
        )
        spent = one.self_compose(votes).get_epsilon_for_delta(PRIVACY_DELTA)
        return {
            "epsilon_per_vote": self.epsilon,
            "votes": votes,
            "epsilon_pure": votes * self.epsilon,
            "delta": PRIVACY_DELTA,
            "epsilon": min(float(spent), votes * self.epsilon),
        }

    def pack(self, payloads: Sequence[bytes]) -> bytes:
        """The votes of many steps without padding between them."""
        signs = [Votes.decode(p, self.votes_per_round).signs for p in payloads]
        return Votes(np.concatenate(signs)).encode()

    def unpack(self, data: bytes, count: int) -> list[bytes]:
        """The inverse of `pack`."""
        signs = Votes.decode(data, count * self.votes_per_round).signs
        return [Votes(part).encode() for part in signs.reshape(count, self.votes_per_round)]

    def decode_update(self, state: StepState, number: int, data: bytes) -> Votes:
        """Votes from their payload."""
        return Votes.decode(data, self.votes_per_round)

    def decode_step(self, state: StepState, data: bytes) -> Votes:
        """A step from its payload; no bytes: nobody voted."""
        return Votes.decode(data, self.votes_per_round) if data else Votes(np.zeros(0, dtype=np.int8))


def private_sign(total: int, epsilon: float, uniform: float) -> int:
    """+1 with probability sigma(epsilon S / 2), else -1 (Eq. 21 with q+ - q- = 2 S).

    Args:
        total: S, the sum of the votes.
        epsilon: privacy of this one vote.
        uniform: a secret number, uniform on [0, 1).
    """
    half = epsilon * total / 2
    probability = 1 / (1 + exp(-half)) if half > -700 else 0.0
    return 1 if uniform < probability else -1
