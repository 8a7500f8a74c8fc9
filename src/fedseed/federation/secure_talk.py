"""Secure sums over a transport: what the coordinator asks is broadcast, what clients say comes back as their answers.

    broadcast    K | clients, as in a plan | ask
    answer       FK | the ask's first 15 bytes | kind | what is said

A kind is 1: the answer; 0: why there is none; 2: why, where the client has opened the round before.
"""

from typing import TypeVar

from fedseed.errors import FedseedError, MessageError
from fedseed.federation.membership import Roster
from fedseed.federation.protocol import SAID, plan_message
from fedseed.federation.secure import Masking, SecureCoordinator
from fedseed.federation.session import RESEND_SECONDS, Session
from fedseed.privacy.secure.errors import LostError, OpenedBeforeError
from fedseed.privacy.secure.summing import Asking
from fedseed.text import shown

T = TypeVar("T")
ABOUT_BYTES = 15  # phase, setup, and where they matter round and attempt
NOTHING, SOMETHING, OPENED = 0, 1, 2


def answered(masking: Masking, client: int, ask: bytes) -> bytes:
    """A client's message that answers an ask.

    Args:
        masking: its process' secrets.
        client: its number.
        ask: the ask.
    """
    try:
        kind, data = SOMETHING, masking.answer(client, ask)
    except OpenedBeforeError as error:
        kind, data = OPENED, str(error).encode()
    except MessageError as error:
        kind, data = NOTHING, str(error).encode()
    return SAID + ask[:ABOUT_BYTES] + bytes([kind]) + data


class SecureTalk:
    """Holds the conversations of secure sums.

    Args:
        session: the conversation with the clients.
        roster: the clients.
        coordinator: asks.
    """

    def __init__(self, session: Session, roster: Roster, coordinator: SecureCoordinator) -> None:
        self.session = session
        self.roster = roster
        self.coordinator = coordinator
        self.up = self.down = 0  # bytes said and asked
        self._asks: dict[int, bytes] = {}
        self._answers: dict[int, bytes | None] = {}
        self._named: set[int] = set()
        self._opened: set[int] = set()  # who says that it has opened the round before

    def begin(self) -> None:
        """A round begins."""
        self.up = self.down = 0
        self._opened = set()

    async def hold(self, asking: Asking[T]) -> T:
        """Hold a conversation. Raises TooFewError, and LostError if too few are left that have not opened the round."""
        try:
            asks = next(asking)
            while True:
                asks = asking.send(await self._ask(asks))
        except StopIteration as done:
            found: T = done.value
            return found
        finally:
            self._asks = {}
            self._name_barred()

    async def _ask(self, asks: dict[int, bytes]) -> dict[int, bytes]:
        """Ask, and wait for all that may still come."""
        self._asks, self._answers = asks, {}
        self.down += sum(map(len, asks.values()))
        clock = self.session.clock
        deadline, resend = clock() + self.session.settings.deadline, clock()
        while missing := asks.keys() - self._answers.keys():
            now = clock()
            if now >= deadline or (self._answers and not missing & self.roster.present()):
                break
            if now >= resend:
                await self._send({client: asks[client] for client in sorted(missing)})
                resend = now + RESEND_SECONDS
            await self.session.pause(0.25)
        if self._opened and len(set(self.coordinator.taking_part) - self._opened) < self.coordinator.secure.least:
            raise LostError(f"{len(self._opened)} clients have opened it before, and do not again: its sum is lost")
        return {client: answer for client, answer in self._answers.items() if answer is not None}

    async def _send(self, asks: dict[int, bytes]) -> None:
        alike: dict[bytes, list[int]] = {}
        for client, ask in asks.items():
            alike.setdefault(ask, []).append(client)
        for ask, clients in alike.items():
            await self.session.end.broadcast(b"K" + plan_message(clients, False, ask)[1:])

    def take(self, client: int, data: bytes) -> None:
        """A client's answer. Raises MessageError."""
        start = len(SAID) + ABOUT_BYTES
        if len(data) <= start:
            raise MessageError("an answer to an ask of secure sums that is cut short")
        ask, kind, body = self._asks.get(client), data[start], data[start + 1 :]
        if ask is None or client in self._answers or data[len(SAID) : start] != ask[:ABOUT_BYTES]:
            return  # it comes twice, or late
        self.up += len(body)
        name = self.roster.names[client]
        if kind == SOMETHING:
            self._answers[client] = body
        elif kind == OPENED:
            self._opened.add(client)  # whoever says so alone may lie
            self._answers[client] = None
            self.session.progress.warn(f"{name} has opened this round, or a later one, before, and does not again")
        else:
            self._answers[client] = None
            self.session.progress.warn(f"{name} says nothing for a secure sum: {shown(body.decode(errors='replace'))}")
        if self._answers.keys() >= self._asks.keys():
            self.session.stir()

    def _name_barred(self) -> None:
        """Say who has broken the rules, once. Raises FedseedError: too few are left."""
        barred = self.coordinator.summing.barred
        for client in barred.keys() - self._named:
            self._named.add(client)
            self.session.rejected.add(self.roster.names[client], barred[client])
        left = len(self.roster.names) - len(barred)
        if left < (least := self.coordinator.secure.least):
            raise FedseedError(
                f"{left} clients are left that keep to the rules of secure sums, {least} are needed "
                "(secure_sums.threshold)"
            )
