"""A plug-in in one file: signSGD with majority vote, a method with gradients.

    fedseed list methods --plugin examples/plugin_majority_vote.py
    fedseed run recipe.toml --plugin examples/plugin_majority_vote.py

with a recipe that has

    [method]
    name = "majority-vote"
    rate = 1e-3
    training = { learning_rate = 0.1, steps = 4, batch = 4 }

Bernstein, Wang, Azizzadenesheli, Anandkumar: "signSGD: Compressed Optimisation for Non-Convex
Problems", ICML 2018, Algorithm 2, with a round's local change in place of a gradient:

    up       s_i = sign(w_start - w_end)      client i, after local steps; a bit for each weight
    down     s   = sign(sum_i s_i)            the majority; a bit for each weight
    w     <- w - rate s

A sign has two values here: a weight that has not changed, and a tie, count as -1.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveFloat

import fedseed
from fedseed.errors import NonFiniteError
from fedseed.methods import Method
from fedseed.methods.base import Answers
from fedseed.methods.payload import Bits, Nothing, Payload, Reader, State
from fedseed.training.protocol import Client
from fedseed.training.settings import LocalTraining
from fedseed.weights.change import NOTHING, Change, Entries, Patch


def count_weights(reader: Reader) -> int:
    """Return how many bits a message has: one for each trainable weight."""
    return reader.context.state.layout.size


def signs_of(values: NDArray[np.floating]) -> NDArray[np.int8]:
    """Return +1 for positive values and -1 for all others."""
    return np.where(values > 0, 1, -1).astype(np.int8)


@dataclass(frozen=True)
class Votes(Payload):
    """A sign for each weight; in a step there is none if nobody answered."""

    signs: Annotated[NDArray[np.int8], Bits(length=count_weights)]


@fedseed.register_method
class MajorityVote(Method):
    """The method's settings.

    Args (besides those of `Method`):
        rate: how far a round moves each weight.
        training: local training.
    """

    name: Literal["majority-vote"] = "majority-vote"
    code: ClassVar[int] = 201  # 128 to 255 are for methods of others
    about: ClassVar[str] = "a bit for each weight: the sign of the local change, by majority"
    update_type = step_type = Votes
    entrywise: ClassVar[bool] = True  # messages grow with the model
    lasting_entries: ClassVar[bool] = True  # an entry is the same weight in every round

    rate: PositiveFloat = 1e-3
    training: LocalTraining = LocalTraining()

    def train(self, state: State, plan: Nothing, client: Client) -> Votes:
        """Train locally, and return the signs of the change."""
        client.first_order(self.training.for_round(client.round))
        change = client.difference()
        if not np.isfinite(change).all():
            raise NonFiniteError("the local update is not finite: a weight overflowed")
        return Votes(signs_of(change))

    def aggregate(self, state: State, answers: Answers) -> Votes:
        """Return the majority of the clients' signs, or what the recipe's rule makes of them."""
        if not answers:
            return Votes(np.zeros(0, dtype=np.int8))
        return Votes(
            signs_of(answers.tally([update.signs.astype(np.float64) for update in answers.updates]))
        )

    def change(self, state: State, step: Votes) -> Change:
        """Return w <- w - rate s."""
        if not len(step.signs):
            return NOTHING
        return Entries([Patch(0, step.signs.astype(np.float32))], scale=-self.rate)
