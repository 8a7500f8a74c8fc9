"""The coordinator of a simulation whose clients add up their gradients in the memory of one
model.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fedseed.aggregation.base import claims, shares
from fedseed.errors import MessageError
from fedseed.federation.coordinator.coordinator import Coordinator, CurrentRound
from fedseed.methods.base import ALL, Answer, Answers
from fedseed.methods.fedsgd import Gradient
from fedseed.methods.payload import Content, DecodeContext

TERMS_BYTES = 4


class SummedCoordinator(Coordinator):
    """Takes the sum of a round's gradients instead of single gradients.

    A client's message has only the number of terms in its loss, but its bytes are counted as if the
    gradient were in it. Single gradients can't be compared, so `bounds` apply to the sum.

    Args:
        common: the arguments of `Coordinator`.

    Raises ValueError if the rule is not linear, if the method is private, or if `Coordinator`
    raises it.
    """

    adds_gradients: ClassVar[bool] = True

    def __init__(self, *common: Any) -> None:
        super().__init__(*common)
        if not self.aggregation.linear:
            raise ValueError(
                f'method.summed = true: aggregation.name = "{self.aggregation.name}" needs each '
                'client\'s gradient; leave out summed, or set aggregation.name = "mean"'
            )
        if self.protection is not None:
            raise ValueError(
                "method.summed = true: [privacy] bounds each client's gradient; leave one of the "
                "two out"
            )
        self._sum = memoryview(b"")

    def weigh(self, clients: Sequence[int], terms: Sequence[int]) -> list[float]:
        """Return the weight c_i of each client, assuming that all of them answer.

        Args:
            clients: the clients' numbers.
            terms: the number of terms in each client's loss; 0: the client has nothing to send.
        """
        examples = [self.examples[client] for client in clients]
        numbers = claims(self.method.weighting, examples, terms)
        return shares(
            [number if count else 0 for number, count in zip(numbers, terms, strict=True)]
        )

    def take_sum(self, data: memoryview) -> None:
        """Take sum_i c_i g_i over the clients that answer in the open round."""
        self._sum = data

    def receive(self, data: bytes, sender: int) -> None:
        super().receive(data, sender)
        # the size that the gradient itself would have in a message
        current, layout = self.current, self.state.layout
        content = current.received[sender]
        current.received[sender] = Content(
            bytes=TERMS_BYTES + layout.dense_bytes,
            scalars=layout.size,
            integers=content.integers,
            bits=content.bits,
        )

    def _decode_update(self, current: CurrentRound, data: bytes | memoryview) -> tuple[Any, float]:
        if len(data) != TERMS_BYTES:
            raise MessageError(
                f"{len(data)} bytes instead of a number of terms, which takes {TERMS_BYTES}"
            )
        update = Gradient(int.from_bytes(data, "little"), b"")
        update.check(DecodeContext(self.method, self.state, "update", current.number))
        return update, 0.0

    def weighted_answers(self) -> Answers:
        """Return a single answer with the sum, in place of all answers; empty if no client
        answered.
        """
        current = self.current
        answers = Answers(current.number, (), self.aggregation)
        if not current.updates:
            return answers
        terms = sum(update.terms for update in current.updates.values())
        # an array that shares the sum's memory, because bytes would be a second copy of the
        # gradient
        data: Any = self._sum
        update = Gradient(terms, data)
        # if the sum is not finite, the new weights are refused later
        with np.errstate(all="ignore"):
            current.sizes[ALL] = update.size(
                DecodeContext(self.method, self.state, "update", current.number)
            )
        return replace(answers, answers=(Answer(ALL, 1.0, update),))
