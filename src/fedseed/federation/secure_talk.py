"""Secure sums over a transport: what the coordinator asks is broadcast, what clients say comes back as their answers.

    broadcast    K | clients, as in a plan | ask
    answer       FK | the ask's first 15 bytes | kind | what is said

A kind is 1: the answer; 0: why there is none; 2: why, where the client has opened the round before.
"""

from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from fedseed.errors import FedseedError, MessageError
from fedseed.federation.membership import Roster
from fedseed.federation.protocol import SAID, plan_message
from fedseed.federation.secure import Masking, SecureCoordinator
from fedseed.federation.session import RESEND_SECONDS, Late, Session, Wait
from fedseed.privacy.secure import LostError, OpenedBeforeError, TooFewError
from fedseed.privacy.secure.messages import Phase, Terms, unframed
from fedseed.privacy.secure.summing import Asking, keep_proof
from fedseed.text import shown

T = TypeVar("T")
ABOUT_BYTES = 15  # phase, setup, and where they matter round and attempt
NOTHING, SOMETHING, OPENED = 0, 1, 2


def first_round(ask: bytes) -> int | None:
    """The round that new keys are asked for; None: something else is asked, or nothing that can be read."""
    with suppress(MessageError):
        phase, setup, body = unframed(ask)
        return Terms.decode(setup, body).round if phase is Phase.KEYS else None
    return None


def answered(masking: Masking | None, client: int, ask: bytes) -> bytes:
    """A client's message that answers an ask.

    Args:
        masking: its process' secrets; None: it has none yet.
        client: its number.
        ask: the ask.
    """
    try:
        if masking is None:
            raise MessageError("this process has no keys yet")
        kind, data = SOMETHING, masking.answer(client, ask)
    except OpenedBeforeError as error:
        kind, data = OPENED, str(error).encode()
    except MessageError as error:
        kind, data = NOTHING, str(error).encode()
    return SAID + ask[:ABOUT_BYTES] + bytes([kind]) + data


@dataclass
class SecureTalk:
    """Holds the conversations of secure sums."""

    session: Session
    roster: Roster
    coordinator: SecureCoordinator  # asks
    late: Late[int]  # whoever lets a deadline pass is left out for a while
    slow: set[int] = field(default_factory=set)  # who has let a deadline pass in this round: nobody waits for it again
    up: int = 0  # bytes that were said
    down: int = 0  # bytes that were asked
    _asks: dict[int, bytes] = field(default_factory=dict)
    _answers: dict[int, bytes | None] = field(default_factory=dict)
    _named: set[int] = field(default_factory=set)  # who was said to be barred
    _opened: set[int] = field(default_factory=set)  # who says that it has opened the round before
    _waited: float = 0.0  # seconds for the last ask
    _failed: int = 0  # conversations of this round: deadlines may be too short for all

    def begin(self) -> None:
        """A round begins."""
        for client, why in self.coordinator.suspects.news:
            self.session.rejected.add(self.roster.names[client], why)
        self.coordinator.suspects.news.clear()
        self.up = self.down = 0
        self.slow, self._opened, self._failed = set(), set(), 0

    async def agree(self) -> None:
        """Agree on keys with the open round's clients; who has sent none takes no part. Raises as `_hold`."""
        self.coordinator.keep((await self._hold(self.coordinator.agreeing())).members)

    async def open_sum(self, answered: Set[int]) -> None:
        """Open the sum of what has come from the clients that have answered. Raises as `_hold`."""
        await self._hold(self.coordinator.opening())
        for client in answered - self.slow:
            self.late.back(client)

    async def _hold(self, asking: Asking[T]) -> T:
        """Hold a conversation. Raises TooFewError, and LostError if too few are left that have not opened the round."""
        try:
            asks = next(asking)
            while True:
                asks = asking.send(await self._ask(asks))
        except StopIteration as done:
            found: T = done.value
            return found
        except TooFewError:
            self._failed += 1
            raise
        finally:
            self._asks = {}
            self._name_barred()

    async def _ask(self, asks: dict[int, bytes]) -> dict[int, bytes]:
        """Ask, and wait for all that may still come. Who is there and lets time pass is left out, as in a plan's."""
        self._asks, self._answers, least = asks, {}, self.coordinator.secure.least
        self.down += sum(map(len, asks.values()))

        def here() -> Set[int]:
            if not self._answers:  # it may be this side: everybody is waited for
                return asks.keys()
            return self.roster.present() - (self.slow if len(self._answers) >= least else frozenset())

        async def send(missing: Set[int], again: bool) -> None:
            await self._send({client: asks[client] for client in sorted(missing)})

        wait = Wait(self.late, self.roster.work(asks), min(least, len(asks) - 1), 2 ** min(self._failed, 6))
        late = await wait.answers(lambda: asks.keys() - self._answers.keys(), here, send)
        phase = Phase(next(iter(asks.values()))[0]).name
        for client in sorted(late - self.slow):
            name = self.roster.names[client]
            wait.leave_out(client, f"{name} has not answered {phase} of secure sums {wait.within}")
        self.slow |= late
        self._waited = wait.seconds
        if self._opened and len(set(self.coordinator.current.clients) - self._opened) < least:
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
        """Say who has broken the rules, once, and whose answers are in doubt. Raises FedseedError: too few are left."""
        barred, doubted = self.coordinator.summing.barred, self.coordinator.summing.doubted
        for client in barred.keys() - self._named:
            self._named.add(client)
            self.session.rejected.add(self.roster.names[client], barred[client].reason)
            if self.session.settings.proofs is not None:
                keep_proof(self.session.settings.proofs, client, barred[client])
        for client, why in doubted.items():
            self.session.rejected.add(self.roster.names[client], why)
            seconds = max(RESEND_SECONDS, self._waited)
            self.late.leave_out(client, seconds, f"what {self.roster.names[client]} says can't be taken")
            self.slow.add(client)
        doubted.clear()
        left = len(self.roster.names) - len(barred)
        if left < (least := self.coordinator.secure.least):
            raise FedseedError(
                f"{left} clients are left that keep to the rules of secure sums, {least} are needed "
                "(secure_sums.threshold)"
            )
