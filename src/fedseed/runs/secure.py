"""A simulation's rounds with secure sums: the whole conversation, between clients and a coordinator of one process."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from fedseed.errors import FedseedError, MessageError
from fedseed.federation.messages import FRAME_BYTES, Message
from fedseed.federation.rounds import Gathered
from fedseed.federation.secure import Masking, SecureCoordinator
from fedseed.methods.payload import State
from fedseed.privacy.secure.errors import LostError, TooFewError
from fedseed.privacy.secure.summing import Asking, converse
from fedseed.reports.progress import Progress

MOST_ATTEMPTS = 20
T = TypeVar("T")


class SecureRounds:
    """Gathers masked words of clients that are all at hand.

    Args:
        coordinator: the coordinator.
        masking: all clients' secrets.
        names: of the clients.
        rounds: how many the run has.
        progress: shows the run going on.
    """

    def __init__(
        self, coordinator: SecureCoordinator, masking: Masking, names: Sequence[str], rounds: int, progress: Progress
    ) -> None:
        self.coordinator = coordinator
        self.masking = masking
        self.names = names
        self.rounds = rounds
        self.progress = progress
        self._gathered = Gathered((), 0)

    def answer(self, client: int, ask: bytes) -> bytes | None:
        """A client's answer to an ask of the coordinator's."""
        try:
            said = self.masking.answer(client, ask)
        except MessageError as error:
            self.progress.warn(f"{self.names[client]} answers nothing: {error}")
            return None
        self._gathered.secure_up += len(said)
        return said

    def send(self, client: int, state: State, plan: Message, update: bytes | None) -> bytes | None:
        """A client's masked update; None: it has no keys for this attempt."""
        try:
            return self.masking.update(state, plan, client, update)
        except MessageError as error:
            self.progress.warn(f"{self.names[client]} sends nothing: {error}")
            return None

    def gather(
        self,
        gathered: Gathered,
        plans: Mapping[int, bytes],
        updates: Mapping[int, bytes | None],
        refuse: Callable[[int, str], None],
    ) -> None:
        """Let the open round's clients send their vectors until a sum is opened.

        Args:
            gathered: told what came of it.
            plans: of those who take part, by client.
            updates: their updates; None: nothing to send.
            refuse: told whose update does not count, and why.

        Raises:
            FedseedError: too few clients are left that keep to the rules.
        """
        coordinator, start = self.coordinator, time.perf_counter()
        self._gathered = gathered
        number = Message.decode(next(iter(plans.values()))).round
        for attempt in range(MOST_ATTEMPTS):
            clients = list(plans) if attempt == 0 else coordinator.open(number, attempt, plans.keys())
            try:
                if (asking := coordinator.agreeing(self.rounds + 1 - number)) is not None:
                    members = self._talk(asking).members
                    coordinator.without([client for client in clients if client not in members])
                self._receive(attempt, plans, updates)
                coordinator.screen()
                coordinator.take_sum(self._talk(coordinator.opening()))
                break
            except LostError as error:
                coordinator.lose(str(error))
                break
            except TooFewError as error:
                gathered.update_bytes = []
                self.progress.warn(f"round {number}: {error}; it is begun again")
                if len(plans.keys() - coordinator.summing.barred.keys()) < (least := coordinator.secure.least):
                    raise FedseedError(
                        f"round {number}: fewer than {least} clients (secure_sums.threshold) are left that keep to the "
                        f"rules: {error}"
                    ) from error
        else:
            raise FedseedError(f"round {number} was begun {MOST_ATTEMPTS} times, and no sum could be opened")
        for client in sorted(plans.keys() - set(coordinator.answered)):
            refuse(client, coordinator.summing.barred.get(client, "it has gone"))
        gathered.spent.seconds["secure_sums"] = time.perf_counter() - start

    def _talk(self, asking: Asking[T]) -> T:
        def say(client: int, ask: bytes) -> bytes | None:
            self._gathered.secure_down += len(ask)
            return self.answer(client, ask)

        return converse(asking, say)

    def _receive(self, attempt: int, plans: Mapping[int, bytes], updates: Mapping[int, bytes | None]) -> None:
        coordinator, number = self.coordinator, Message.decode(next(iter(plans.values()))).round
        plan = Message.decode(coordinator.plan())
        assert (plan.round, plan.attempt) == (number, attempt)
        for client in coordinator.taking_part:
            message = self.send(client, coordinator.state, plan, updates[client])
            if message is not None:
                self._gathered.update_bytes.append(len(message) - FRAME_BYTES)
                coordinator.receive(message, client)
