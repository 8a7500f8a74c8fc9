"""A round over a network: plans go out, answers come in, until there are enough of them or time is
over.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from fedseed.errors import MessageError, NetworkError
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.cost import Cost
from fedseed.federation.large import Room, Stored, about_of, carry, fetch, is_stored
from fedseed.federation.membership import Roster
from fedseed.federation.messages import FRAME_BYTES, Message
from fedseed.federation.protocol import SAID, SILENT, plan_message, read_silent
from fedseed.federation.session import RESEND_SECONDS, Late, Session, Wait
from fedseed.privacy.secure import LostError, TooFewError
from fedseed.privacy.settings import WITHHELD

if TYPE_CHECKING:
    from fedseed.federation.secure import SecureTalk

MOST_PAUSE = 30.0  # seconds before a round is begun again


@dataclass
class Gathered:
    """What became of an open round."""

    clients: Sequence[int]  # who took part, in ascending order
    plan_bytes: int  # payload of a plan
    update_bytes: list[int] = field(default_factory=list)  # payload of each update that came
    # clients whose update does not count, and why
    skipped: list[tuple[int, str]] = field(default_factory=list)
    refused: int = 0  # messages
    # what the clients' work cost, as far as it is known by now
    spent: Cost = field(default_factory=Cost)
    secure_up: int = 0  # bytes that all clients have said for secure sums, besides their updates
    secure_down: int = 0  # bytes that all clients were asked


@dataclass
class OpenRound:
    """The round that is open."""

    number: int
    attempt: int  # how often it was begun before
    clients: frozenset[int]  # who takes part
    missing: set[int]  # who of them is waited for
    silent: dict[int, str] = field(default_factory=dict)  # who has nothing to send, and why
    refused: dict[int, str] = field(default_factory=dict)  # whose answer was refused, and why
    # the payload of each update that counts, by client
    bytes_up: dict[int, int] = field(default_factory=dict)
    # how many answers to repeated plans are still to come
    again: Counter[int] = field(default_factory=Counter)


@dataclass
class Rounds:
    """Opens rounds and takes what clients answer."""

    session: Session
    roster: Roster
    coordinator: Coordinator  # plans, and combines answers
    largest: int  # bytes of the largest message a client may send
    open: OpenRound | None = None
    repeated: int = 0
    grace: float = inf  # until when all clients are waited for, as before the first round
    # who has sent nothing: said once of those without examples
    idle: set[int] = field(default_factory=set)
    secure: "SecureTalk | None" = None
    _running: bool = False  # whether a round was begun here
    # a client's answers that are being fetched, by its name
    _fetching: defaultdict[str, set[asyncio.Task[None]]] = field(
        default_factory=lambda: defaultdict(set)
    )
    _before: OpenRound | None = None  # the one before the open one

    def __post_init__(self) -> None:
        # who has let the others wait since its last answer that counts
        self.late = Late[int](self.session)
        self._room = Room(self.largest)
        if self.coordinator.sums:  # only then its libraries are loaded
            from fedseed.federation.secure import SecureCoordinator, SecureTalk

            assert isinstance(self.coordinator, SecureCoordinator)
            self.secure = SecureTalk(self.session, self.roster, self.coordinator, self.late)

    def take(self, name: str, data: bytes) -> None:
        """Take a client's answer. Raises MessageError."""
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
                about = (
                    "" if is_stored(data) else f", this is for round {Message.decode(data).round}"
                )
                raise MessageError(f"no round is open{about}")
            elif is_stored(data):
                self._begin_fetch(current, name, number, data)
            else:
                self._receive(current, number, data)
        except MessageError as error:
            self._refuse(name, number, str(error))
            if current is not None and self.session.at_hand:
                self._wait_no_more(current, number)

    def _repeated(self, name: str, client: int, data: bytes) -> OpenRound | None:
        """Return the round of an answer that has come before and comes again because its plan went
        out again.
        """
        for past in (self.open, self._before):
            if past is not None and past.again[client] > 0:
                answered = client in (past.silent if data[:2] == SILENT else past.bytes_up)
                answered |= past is self.open and bool(self._fetching[name])
                if about_of(data) == (past.number, past.attempt) and answered:
                    return past
        return None

    def _refuse(self, name: str, number: int, reason: str) -> None:
        self.session.rejected.add(name, reason)
        if self.open is not None:
            self.open.refused[number] = reason

    def _receive(self, current: OpenRound, client: int, message: bytes) -> None:
        self.coordinator.receive(message, client)
        current.bytes_up[client] = len(message) - FRAME_BYTES
        current.silent.pop(client, None)
        self._wait_no_more(current, client, in_time=True)

    def _wait_no_more(self, current: OpenRound, client: int, in_time: bool = False) -> None:
        if in_time and self.secure is None:  # otherwise much comes after it
            self.late.back(client)
        current.missing.discard(client)
        if not current.missing:
            self.session.stir()

    def _check_wanted(self, current: OpenRound, client: int, silent: Collection[int] = ()) -> None:
        if (
            client not in current.clients
            or client in self.coordinator.current.updates
            or client in silent
        ):
            raise MessageError(
                f"client {client} has answered round {current.number} already, or takes no part in "
                "it"
            )

    def _take_silent(self, client: int, data: bytes) -> None:
        number, attempt, reason = read_silent(data)
        current = self.open
        if current is None or (number, attempt) != (current.number, current.attempt):
            raise MessageError(f"round {number} attempt {attempt} is not open")
        self._check_wanted(current, client, current.silent)
        current.silent[client] = reason
        self._wait_no_more(current, client, in_time=True)

    def _begin_fetch(self, current: OpenRound, name: str, number: int, data: bytes) -> None:
        """Get a large update, if what its frame says can count."""
        about, reference = about_of(data), Stored.decode(data)
        if about != (current.number, current.attempt):
            raise MessageError(f"round {current.number} was expected, round {about[0]} came")
        self._check_wanted(current, number)
        if reference.size > self.largest:
            raise MessageError(
                f"a message of {reference.size:,} bytes: at most {self.largest:,} are accepted"
            )
        if len(self._fetching[name]) >= 2:
            raise MessageError("too many large messages at once")
        task = asyncio.create_task(self._fetch(name, number, data, reference))
        self._fetching[name].add(task)
        task.add_done_callback(self._fetching[name].discard)

    async def _fetch(self, name: str, number: int, data: bytes, reference: Stored) -> None:
        owner = self.roster.host_of(name)
        try:
            async with self._room.taken(reference.size):
                self._still_open()  # it may have waited long
                message = await fetch(self.session.end, data, owner, self.largest)
                self._receive(self._still_open(), number, message)
        except MessageError as error:
            # it was put there anew, and comes again
            if self.open is not None and self.open.again[number] > 0:
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
        attempt, gathered = 0, None
        if self.secure is not None:
            self.secure.begin()
        while gathered is None:
            clients = self.coordinator.open(
                number, attempt, self.late.without(await self._enough(), self._least)
            )
            # privacy lets nobody take the place of those who are away
            if len(clients) < self.session.settings.minimum:
                await self.session.pause(0.25)
                continue
            self._running = True
            if attempt and self.secure is not None:  # liars may have no end of reasons
                await self.session.pause(min(0.25 * 2 ** min(attempt, 10), MOST_PAUSE))
            try:
                gathered = await self._attempt(number, attempt, clients)
                self._before = self.open
            except TooFewError as error:
                attempt += 1
                self.repeated += 1
                self.session.progress.warn(f"round {number}: {error}: it is begun again")
            except LostError as error:
                assert self.secure is not None
                asked = self.coordinator.current.clients
                self.secure.coordinator.lose(str(error))
                gathered = Gathered(asked, 0, skipped=[(client, str(error)) for client in asked])
        self.open, gathered.refused = None, self.session.rejected.since()
        if self.secure is not None:
            gathered.secure_up, gathered.secure_down = self.secure.up, self.secure.down
        return gathered

    async def _attempt(self, number: int, attempt: int, clients: Sequence[int]) -> Gathered:
        """Ask the open round's clients, and gather what counts.

        Raises TooFewError, or LostError.
        """
        if self.secure is not None:
            await self.secure.hold(self.secure.coordinator.agreeing())
        plans = self.coordinator.plans()
        asked = self.coordinator.current.clients
        self._before = self.open or self._before
        self.open = current = OpenRound(number, attempt, frozenset(asked), set(asked))
        within = await self._ask(current, plans)
        # they have answered: asked again they would say the same
        outliers = self.coordinator.screen()
        for client, why in outliers.items():
            del current.bytes_up[client]
            self._refuse(self.roster.names[client], client, why)
        answered = len(self.coordinator.current.updates) + len(current.silent) + len(outliers)
        if answered < (minimum := self.session.settings.minimum):
            raise TooFewError(f"{answered} answers, {minimum} are needed")
        if self.secure is not None:
            await self.secure.hold(self.secure.coordinator.opening())
            for client in current.clients - current.missing - self.secure.slow:
                self.late.back(client)
            current.refused |= {
                c: proof.reason for c, proof in self.secure.coordinator.summing.barred.items()
            }
        without = sorted(current.clients - set(self.coordinator.current.updates))
        skipped = [(client, self._why(current, client, within)) for client in without]
        skipped += [
            (client, "it has sent no keys") for client in clients if client not in current.clients
        ]
        sizes = [current.bytes_up[client] for client in sorted(current.bytes_up)]
        return Gathered(clients, len(next(iter(plans))) - FRAME_BYTES, sizes, skipped)

    @property
    def _least(self) -> int:
        """Clients that a round needs."""
        sums = 0 if self.secure is None else self.secure.coordinator.secure.least
        return max(self.session.settings.minimum, sums)

    def _why(self, current: OpenRound, client: int, within: str) -> str:
        """Return why a client's update does not count, and warns of it.

        `within`: how long it was waited for.
        """
        name, number = self.roster.names[client], current.number
        if client in current.silent:
            # the reason would depend on the client's data
            why = WITHHELD if self.coordinator.private else current.silent[client]
            # once, if it has nothing to learn from
            if self.coordinator.examples[client] or client not in self.idle:
                self.session.progress.warn(f"round {number}: {name} sends nothing: {why}")
            self.idle.add(client)
            return why
        if client in current.refused:
            why = f"refused: {current.refused[client]}"
        else:
            why = f"no answer {within}" if client in self.roster.present() else "it has gone"
        self.session.progress.warn(f"round {number}: nothing of {name} counts: {why}")
        return why

    async def _ask(self, current: OpenRound, plans: dict[bytes, list[int]]) -> str:
        """Send the plans and wait for answers; return for how long.

        Who lets the others wait is left out (`Late`).
        """
        end, names = self.session.end, self.roster.names
        blobs = [
            f"plan-{current.number}-{current.attempt}-{clients[0]}" for clients in plans.values()
        ]
        carried = [await carry(end, plan, blob) for plan, blob in zip(plans, blobs, strict=True)]

        async def send(missing: Set[int], again: bool) -> None:
            missing = (
                {client for client in missing if not self._fetching[names[client]]}
                if again
                else missing
            )
            for message, clients in zip(carried, plans.values(), strict=True):
                if asked := [client for client in clients if client in missing]:
                    current.again.update(asked if again else ())
                    everybody = len(asked) == len(names)
                    await end.broadcast(
                        plan_message(asked, everybody, message), [names[client] for client in asked]
                    )

        wait = Wait(self.late, self.roster.work(current.clients), self._least)
        late = await wait.answers(lambda: current.missing, self.roster.present, send)
        for client in sorted(late):
            why = f"nothing of {names[client]} that counts has come {wait.within}"
            wait.leave_out(client, f"round {current.number}: {why}")
        for blob, message in zip(blobs, carried, strict=True):
            if is_stored(message):
                await end.drop(None, blob)
        return wait.within

    async def _enough(self) -> frozenset[int]:
        """Wait until enough clients are there for a round; who they are."""
        settings = self.session.settings
        told = called = 0.0
        while True:
            barred = (
                frozenset()
                if self.secure is None
                else frozenset(self.secure.coordinator.summing.barred)
            )
            here, least = self.roster.present() - barred, self._least
            grace = self.grace - self.session.clock()
            wanted = min(
                self.roster.wanted(settings.start_with), len(self.roster.names) - len(barred)
            )
            if len(here) >= (least if grace <= 0 else max(wanted, least)):
                self.grace = 0.0
                return here
            now = time.monotonic()
            if now > called + RESEND_SECONDS:
                await self.session.call()
                called = now
            if grace <= 0 and now > told + 30:
                self.session.progress.warn(
                    f"{len(here)} clients are alive, a round needs {least}: waiting"
                )
                told = now
            await self.session.pause(0.25)
