"""A round over a network: plans go out, answers come in, until there are enough of them or time is over."""

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedseed.errors import MessageError, NetworkError
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.cost import Cost
from fedseed.federation.large import Room, Stored, about_of, carry, fetch, is_stored
from fedseed.federation.membership import Roster
from fedseed.federation.messages import FRAME_BYTES, Message
from fedseed.federation.protocol import SAID, SILENT, plan_message, read_silent
from fedseed.federation.session import RESEND_SECONDS, Late, Session, Wait
from fedseed.privacy.secure.errors import LostError, TooFewError
from fedseed.privacy.settings import WITHHELD

if TYPE_CHECKING:
    from fedseed.federation.secure_talk import SecureTalk

MOST_PAUSE = 30.0  # seconds before a round is begun again


@dataclass
class Gathered:
    """What became of an open round.

    Args:
        clients: who took part, in ascending order.
        plan_bytes: payload of a plan.
        update_bytes: payload of each update that came.
        skipped: clients whose update does not count, and why.
        refused: messages that were refused.
        spent: what the clients' work cost, as far as it is known by now.
        secure_up: bytes that all clients have said for secure sums, besides their updates.
        secure_down: bytes that all clients were asked.
    """

    clients: Sequence[int]
    plan_bytes: int
    update_bytes: list[int] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    refused: int = 0
    spent: Cost = field(default_factory=Cost)
    secure_up: int = 0
    secure_down: int = 0


@dataclass
class OpenRound:
    """The round that is open.

    Args:
        number: the round.
        attempt: how often it was begun before.
        clients: who takes part.
        missing: how many of them have not answered.
        silent: who has nothing to send, and why.
        refused: whose answer was refused, and why.
        bytes_up: the payload of each update that counts, by client.
        again: to whom the plan went out once more, and how many answers to that have not come.
    """

    number: int
    attempt: int
    clients: frozenset[int]
    missing: int
    silent: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    bytes_up: dict[int, int] = field(default_factory=dict)
    again: Counter[int] = field(default_factory=Counter)


class Rounds:
    """Opens rounds and takes what clients answer.

    Args:
        session: the conversation.
        roster: the clients.
        coordinator: plans, and combines answers.
        largest: bytes of the largest message a client may send.
    """

    def __init__(self, session: Session, roster: Roster, coordinator: Coordinator, largest: int) -> None:
        self.session = session
        self.roster = roster
        self.coordinator = coordinator
        self.open: OpenRound | None = None
        self.repeated = 0
        self.grace = float("inf")  # until when all clients are waited for, as before the first round
        self._largest = largest
        self._running = False  # whether a round was begun here
        self.idle: set[int] = set()  # who has sent nothing before, which is said once of those without examples
        self.late = Late[int](session)  # who has let the others wait since its last answer that counts
        self._fetching: set[asyncio.Task[None]] = set()
        self._before: OpenRound | None = None  # the one before the open one
        self._room = Room(largest)
        self.secure: SecureTalk | None = None
        if coordinator.sums:  # only then its libraries are loaded
            from fedseed.federation import secure, secure_talk

            assert isinstance(coordinator, secure.SecureCoordinator)
            self.secure = secure_talk.SecureTalk(session, roster, coordinator, self.late)

    def take(self, name: str, data: bytes) -> None:
        """A client's answer. Raises MessageError."""
        current = self.open
        if current is None and not self._running:
            return  # it answers what was asked before this coordinator started
        number = self.roster.numbers.get(name)
        if number is None:
            raise MessageError("this run has no client of this name")
        try:
            if data[:2] == SAID and self.secure is not None:
                self.secure.take(number, data)
            elif (past := self._repeated(name, number, data)) is not None:
                past.again[number] -= 1
            elif data[:2] == SILENT:
                self._take_silent(number, data)
            elif current is None:
                about = "" if is_stored(data) else f", this is for round {Message.decode(data).round}"
                raise MessageError(f"no round is open{about}")
            elif is_stored(data):
                self._begin_fetch(current, name, number, data)
            else:
                self.coordinator.receive(data, number)
                self._count(current, number, len(data))
        except MessageError as error:
            self._refuse(name, number, str(error))
            if current is not None and self.session.at_hand:
                self._one_less(current)

    def _repeated(self, name: str, client: int, data: bytes) -> OpenRound | None:
        """The round that an answer is about, if it has come before, and again because its plan went out again."""
        for past in (self.open, self._before):
            if past is not None and past.again[client] > 0:
                answered = client in (past.silent if data[:2] == SILENT else past.bytes_up)
                answered |= past is self.open and self._fetches(name) > 0
                if about_of(data) == (past.number, past.attempt) and answered:
                    return past
        return None

    def _fetches(self, name: str) -> int:
        """Returns how many of a client's answers are being fetched."""
        return sum(task.get_name() == name for task in self._fetching)

    def _refuse(self, name: str, number: int, reason: str) -> None:
        self.session.rejected.add(name, reason)
        if self.open is not None:
            self.open.refused[number] = reason

    def _count(self, current: OpenRound, number: int, size: int) -> None:
        if self.secure is None:  # otherwise much comes after it
            self.late.back(number)
        current.bytes_up[number] = size - FRAME_BYTES
        if current.silent.pop(number, None) is None:
            self._one_less(current)

    def _one_less(self, current: OpenRound) -> None:
        current.missing -= 1
        if current.missing == 0:
            self.session.stir()

    def _check_wanted(self, current: OpenRound, client: int, silent: Collection[int] = ()) -> None:
        if client not in current.clients or client in self.coordinator.answered or client in silent:
            raise MessageError(f"client {client} has answered round {current.number} already, or takes no part in it")

    def _take_silent(self, client: int, data: bytes) -> None:
        number, attempt, reason = read_silent(data)
        current = self.open
        if current is None or (number, attempt) != (current.number, current.attempt):
            raise MessageError(f"round {number} attempt {attempt} is not open")
        self._check_wanted(current, client, current.silent)
        if self.secure is None:
            self.late.back(client)
        current.silent[client] = reason
        self._one_less(current)

    def _begin_fetch(self, current: OpenRound, name: str, number: int, data: bytes) -> None:
        """Get a large update, if what its frame says can count."""
        about, reference = about_of(data), Stored.decode(data)
        if about != (current.number, current.attempt):
            raise MessageError(f"round {current.number} was expected, round {about[0]} came")
        self._check_wanted(current, number)
        if reference.size > self._largest:
            raise MessageError(f"a message of {reference.size:,} bytes: at most {self._largest:,} are accepted")
        if self._fetches(name) >= 2:
            raise MessageError("too many large messages at once")
        task = asyncio.create_task(self._fetch(name, number, data, reference), name=name)
        self._fetching.add(task)
        task.add_done_callback(self._fetching.discard)

    async def _fetch(self, name: str, number: int, data: bytes, reference: Stored) -> None:
        owner = self.roster.host_of(name)
        try:
            async with self._room.taken(reference.size):
                self._still_open()  # it may have waited long
                message = await fetch(self.session.end, data, owner, self._largest)
                current = self._still_open()
                self.coordinator.receive(message, number)
                self._count(current, number, len(message))
        except MessageError as error:
            if self.open is not None and self.open.again[number] > 0:  # it was put there anew, and comes again
                self.open.again[number] -= 1
            else:
                self._refuse(name, number, str(error))
        except NetworkError as error:  # it comes again
            self.session.progress.warn(f"the update of {name} can't be fetched now: {error}")
        else:
            await self.session.end.drop(owner, reference.name)

    def _still_open(self) -> OpenRound:
        if self.open is None:
            raise MessageError("it came when its round was over")
        return self.open

    async def gather(self, number: int) -> Gathered:
        """Open a round, as often as it takes, and gather what counts."""
        try:
            gathered = await self._gather(number)
        except LostError as error:
            assert self.secure is not None
            clients = self.coordinator.taking_part
            self.secure.coordinator.lose(str(error))
            gathered = Gathered(clients, 0, skipped=[(client, str(error)) for client in clients])
        else:
            self._before = self.open
        self.open, gathered.refused = None, self.session.rejected.since()
        if self.secure is not None:
            gathered.secure_up, gathered.secure_down = self.secure.up, self.secure.down
        return gathered

    async def _gather(self, number: int) -> Gathered:
        minimum, attempt = self.session.settings.minimum, 0
        if self.secure is not None:
            self.secure.begin()
        while True:
            clients = self.coordinator.open(number, attempt, self.late.without(await self._enough(), self._least))
            if len(clients) < minimum:  # privacy lets nobody take the place of those that are away
                await self.session.pause(0.25)
                continue
            self._running = True
            if attempt and self.secure is not None:  # liars may have no end of reasons
                await self.session.pause(min(0.25 * 2 ** min(attempt, 10), MOST_PAUSE))
            if self.secure is not None and not await self._agreed(number):
                attempt += 1
                continue
            plans = self.coordinator.plans()
            asked = self.coordinator.taking_part
            self._before = self.open or self._before
            self.open = current = OpenRound(number, attempt, frozenset(asked), len(asked))
            reason = await self._ask(current, plans)
            outliers = self.coordinator.screen()  # they have answered: asked again they would say the same
            for client, why in outliers.items():
                del current.bytes_up[client]
                self._refuse(self.roster.names[client], client, why)
            answered = len(self.coordinator.answered) + len(current.silent) + len(outliers)
            if answered >= minimum and (self.secure is None or await self._opened(number)):
                break
            attempt += 1
            self.repeated += 1
            if answered < minimum:
                why = f"{answered} answers, {minimum} are needed"
                self.session.progress.warn(f"round {number}: {why}: it is begun again")
        without = sorted(current.clients - set(self.coordinator.answered))
        skipped = [(client, self._why(current, client, reason)) for client in without]
        skipped += [(client, "it has sent no keys") for client in clients if client not in current.clients]
        sizes = [current.bytes_up[client] for client in sorted(current.bytes_up)]
        return Gathered(clients, len(next(iter(plans))) - FRAME_BYTES, sizes, skipped)

    async def _agreed(self, number: int) -> bool:
        """Agree on keys with the open round's clients; False: too few have. Raises LostError."""
        assert self.secure is not None
        coordinator = self.secure.coordinator
        try:
            if (asking := coordinator.agreeing()) is not None:
                members = (await self.secure.hold(asking)).members
                coordinator.without([client for client in coordinator.taking_part if client not in members])
        except TooFewError as error:
            self.repeated += 1
            self.session.progress.warn(f"round {number}: {error}: it is begun again")
            return False
        return True

    async def _opened(self, number: int) -> bool:
        """Open the sum of what has come; False: too few are there to. Raises LostError."""
        assert self.secure is not None and self.open is not None
        try:
            await self.secure.hold(self.secure.coordinator.opening())
        except TooFewError as error:
            self.session.progress.warn(f"round {number}: {error}: it is begun again")
            return False
        self.open.refused |= {client: proof.reason for client, proof in self.secure.coordinator.summing.barred.items()}
        for client in self.open.clients - self.missing(self.open) - self.secure.slow:
            self.late.back(client)
        return True

    @property
    def _least(self) -> int:
        """Clients that a round needs."""
        sums = 0 if self.secure is None else self.secure.coordinator.secure.least
        return max(self.session.settings.minimum, sums)

    def missing(self, current: OpenRound) -> frozenset[int]:
        """Returns the clients that the open round waits for."""
        return current.clients - set(self.coordinator.answered) - current.silent.keys()

    def _why(self, current: OpenRound, client: int, reason: str) -> str:
        """Returns why a client's update does not count; it is said aloud, too."""
        name, number = self.roster.names[client], current.number
        if client in current.silent:
            private = self.coordinator.private  # a reason would depend on the client's data
            why = WITHHELD if private else current.silent[client]
            if self.coordinator.examples[client] or client not in self.idle:  # once, if it has nothing to learn from
                self.session.progress.warn(f"round {number}: {name} sends nothing: {why}")
            self.idle.add(client)
            return why
        why = f"refused: {current.refused[client]}" if client in current.refused else reason
        self.session.progress.warn(f"round {number}: nothing of {name} counts: {why}")
        return why

    async def _ask(self, current: OpenRound, plans: dict[bytes, list[int]]) -> str:
        """Send the plans and wait for answers; why some are missing."""
        names = [f"plan-{current.number}-{current.attempt}-{clients[0]}" for clients in plans.values()]
        asked = {
            await carry(self.session.end, plan, name): clients
            for (plan, clients), name in zip(plans.items(), names, strict=True)
        }
        for carried, clients in asked.items():
            await self._send(carried, clients, len(clients) == len(self.roster.names))
        reason = await self._answers(current, asked)
        for name, carried in zip(names, asked, strict=True):
            if is_stored(carried):
                await self.session.end.drop(None, name)
        return reason

    async def _send(self, carried: bytes, clients: Sequence[int], everybody: bool = False) -> None:
        message = plan_message(clients, everybody, carried)
        await self.session.end.broadcast(message, [self.roster.names[client] for client in clients])

    async def _answers(self, current: OpenRound, asked: dict[bytes, list[int]]) -> str:
        """Wait for answers: all of them, or the deadline, or until nobody is left to wait for."""
        clock = self.session.clock
        deadline = clock() + self.session.settings.deadline
        between = self.session.end.resend_seconds
        resend = clock() + between
        wait = Wait(self.late, self.roster.work(current.clients), self._least)
        while current.missing:
            await self.session.pause(0.25)
            missing = self.missing(current)
            held = wait.holding(current.clients - missing)
            if not current.missing:
                break
            now, here = clock(), missing & self.roster.present()
            if now >= deadline or (here and here <= held):
                self._leave_out(current, wait)
                return f"no answer {wait.within}"
            if not here:
                return "it has gone"
            if now >= resend:
                fetched = {client for client in missing if self._fetches(self.roster.names[client])}
                for carried, clients in asked.items():
                    if again := [client for client in clients if client in missing - fetched]:
                        current.again.update(again)
                        await self._send(carried, again)
                resend = now + between
        return ""

    def _leave_out(self, current: OpenRound, wait: Wait[int]) -> None:
        """The deadline, or the patience, is over: whoever is there and has sent nothing that counts would go on so.

        It is asked again when it has been left out for twice as long as it was waited for, and, each time in a row that
        it lets the others wait, for twice as long as the time before.
        """
        if not self.coordinator.answered and not current.silent:
            return  # nobody has answered: that is no reason to prefer one to another
        for client in sorted(self.missing(current) & self.roster.present()):
            why = f"nothing of {self.roster.names[client]} that counts has come {wait.within}"
            wait.leave_out(client, f"round {current.number}: {why}")

    async def _enough(self) -> frozenset[int]:
        """Wait until enough clients are there for a round; who they are."""
        settings = self.session.settings
        told = called = 0.0
        while True:
            barred = frozenset() if self.secure is None else frozenset(self.secure.coordinator.summing.barred)
            here, least = self.roster.present() - barred, self._least
            grace = self.grace - self.session.clock()
            wanted = min(self.roster.wanted(settings.start_with), len(self.roster.names) - len(barred))
            if len(here) >= (least if grace <= 0 else max(wanted, least)):
                self.grace = 0.0
                return here
            now = time.monotonic()
            if now > called + RESEND_SECONDS:
                await self.session.call()
                called = now
            if grace <= 0 and now > told + 30:
                self.session.progress.warn(f"{len(here)} clients are alive, a round needs {least}: waiting")
                told = now
            await self.session.pause(0.25)
