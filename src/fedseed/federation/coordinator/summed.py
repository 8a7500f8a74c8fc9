"""The coordinator of a simulation whose clients add their gradients up in one model's memory."""

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
    """Takes the sum of a round's gradients in place of the gradients.

    A client's message has the number of terms of its loss alone; its bytes are counted as if the
    gradient were in it. No client's gradient can be compared with the others', so `bounds` hold for
    the sum.

    Args:
        common: the arguments of `Coordinator`.

    Raises ValueError: the rule is not linear, the method is private, or `Coordinator` refuses.
    """

    adds_gradients: ClassVar[bool] = True

    def __init__(self, *common: Any) -> None:
        super().__init__(*common)
        if not self.aggregation.linear:
            raise ValueError(
                f'method.summed = true: aggregation.name = "{self.aggregation.name}" looks at each '
                'client\'s gradient; leave summed out, or set aggregation.name = "mean"'
            )
        if self.protection is not None:
            raise ValueError(
                "method.summed = true: [privacy] bounds each client's gradient; leave one of the "
                "two out"
            )
        self._sum = memoryview(b"")

    def weigh(self, clients: Sequence[int], terms: Sequence[int]) -> list[float]:
        """Return the weight c_i of each client, if all of them answer.

        Args:
            clients: their numbers.
            terms: how many terms each one's loss is a mean of; 0: it has nothing to send.
        """
        examples = [self.examples[client] for client in clients]
        numbers = claims(self.method.weighting, examples, terms)
        return shares(
            [number if count else 0 for number, count in zip(numbers, terms, strict=True)]
        )

    def take_sum(self, data: memoryview) -> None:
        """Take sum_i c_i g_i of the clients that answer the open round."""
        self._sum = data

    def receive(self, data: bytes, sender: int) -> None:
        super().receive(data, sender)
        # what the gradient itself would be in a message
        current, layout = self.current, self.state.layout
        content = current.received[sender]
        current.received[sender] = Content(
            bytes=TERMS_BYTES + layout.dense_bytes,
            scalars=layout.size,
            integers=content.integers,
            bits=content.bits,
        )

    def _decode_update(self, current: CurrentRound, data: bytes) -> tuple[Any, float]:
        if len(data) != TERMS_BYTES:
            raise MessageError(f"{len(data)} bytes of a number of terms: it takes {TERMS_BYTES}")
        update = Gradient(int.from_bytes(data, "little"), b"")
        update.check(DecodeContext(self.method, self.state, "update", current.number))
        return update, 0.0

    def weighted_answers(self) -> Answers:
        """Return one answer, the sum, that stands for all; none if nobody answered."""
        current = self.current
        answers = Answers(current.number, (), self.aggregation)
        if not current.updates:
            return answers
        terms = sum(update.terms for update in current.updates.values())
        # read in place: as bytes it would be a second gradient
        data: Any = self._sum
        update = Gradient(terms, data)
        # a sum that is not finite makes weights that are refused
        with np.errstate(all="ignore"):
            current.sizes[ALL] = update.size(
                DecodeContext(self.method, self.state, "update", current.number)
            )
        return replace(answers, answers=(Answer(ALL, 1.0, update),))
