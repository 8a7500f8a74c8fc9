"""Runs the rounds of a federation.

The coordinator sends plans, and collects answers until there are enough or the time is over.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from fedseed.errors import MessageError, NetworkError
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.federation.coordinator.membership import Roster
from fedseed.federation.coordinator.session import RESEND_SECONDS, Session, Stragglers, Wait
from fedseed.federation.cost import Cost
from fedseed.federation.large import Room, Stored, carry, fetch, is_stored, round_and_attempt
from fedseed.federation.messages import FRAME_BYTES, Message
from fedseed.federation.protocol import SAID, SILENT, plan_message, read_silent
from fedseed.privacy.secure import LostError, TooFewError
from fedseed.privacy.settings import WITHHELD
from fedseed.reports.progress import LastingTroubles

if TYPE_CHECKING:
    from fedseed.federation.coordinator.secure import SecureTalk

MOST_PAUSE = 30.0  # longest pause before a round begins again


@dataclass
class Gathered:
    """The result of a round."""

    clients: Sequence[int]  # participants in ascending order
    plan_bytes: int  # bytes of a plan's payload
    update_bytes: list[int] = field(default_factory=list)  # bytes of the payload of each update
    # clients whose update does not count, with the reasons
    skipped: list[tuple[int, str]] = field(default_factory=list)
    refused: int = 0  # number of refused messages
    # the cost of the clients' work, if known
    spent: Cost = field(default_factory=Cost)
    secure_up: int = 0  # bytes from all clients for secure sums, in addition to their updates
    secure_down: int = 0  # bytes of asks to all clients


@dataclass
class OpenRound:
    """An open round, with its answers."""

    number: int
    attempt: int  # how often the round began before
    clients: frozenset[int]  # participants
    missing: set[int]  # participants without an answer yet
    # clients that send no update, with the reasons
    silent: dict[int, str] = field(default_factory=dict)
    # clients with a refused answer, with the reasons
    refused: dict[int, str] = field(default_factory=dict)
    # the payload of each update that counts, by client
    bytes_up: dict[int, int] = field(default_factory=dict)
    # answers to repeated plans that have not come yet
    repeats: Counter[int] = field(default_factory=Counter)


@dataclass
class Rounds:
    """Opens rounds and collects the clients' answers."""

    session: Session
    roster: Roster
    coordinator: Coordinator  # makes plans and combines answers
    largest: int  # the most bytes of a client's message
    open: OpenRound | None = None
    repeated: int = 0
    grace: float = inf  # until this time a round waits for all clients, as the first round does
    # clients that have shown up without an update; those without examples are reported only once
    idle: set[int] = field(default_factory=set)
    secure: "SecureTalk | None" = None
    _running: bool = False  # whether this process has begun a round
    # running downloads of a client's answers, by its name
    _fetching: defaultdict[str, set[asyncio.Task[None]]] = field(
        default_factory=lambda: defaultdict(set)
    )
    _previous: OpenRound | None = None

    def __post_init__(self) -> None:
        # clients that have delayed the others since their last counted answer
        self.stragglers = Stragglers[int](self.session)
        self._room = Room(self.largest)
        self._troubles = LastingTroubles(self.session.progress.warn)
        # only secure sums need the libraries of this module
        if self.coordinator.sums:
            from fedseed.federation.coordinator.secure import SecureCoordinator, SecureTalk

            assert isinstance(self.coordinator, SecureCoordinator)
            self.secure = SecureTalk(self.session, self.roster, self.coordinator, self.stragglers)

    def take(self, name: str, data: bytes) -> None:
        """Take a client's answer. Raises MessageError if it is refused."""
        current = self.open
        if current is None and not self._running:
            return  # an answer to an earlier coordinator
        number = self.roster.numbers.get(name)
        if number is None:
            raise MessageError("this run has no client of this name")
        try:
            if data[:2] == SAID and self.secure is not None:
                self.secure.take(number, data)
                return
            repeated_round = self._repeated(name, number, data)
            if repeated_round is not None:
                repeated_round.repeats[number] -= 1
            elif data[:2] == SILENT:
                self._take_silent(number, data)
            elif current is None:
                round_text = ""
                if not is_stored(data):
                    round_text = f", but this answers round {Message.decode(data).round}"
                raise MessageError(f"no round is open{round_text}")
            elif is_stored(data):
                self._begin_fetch(current, name, number, data)
            else:
                self._receive(current, number, data)
        except MessageError as error:
            self._refuse(name, number, str(error))
            if current is not None and self.session.at_hand:
                self._stop_waiting(current, number)

    def _repeated(self, name: str, client: int, data: bytes) -> OpenRound | None:
        """Return the round of an answer that is a repetition, sent because its plan was
        repeated.
        """
        for candidate in (self.open, self._previous):
            if candidate is None or candidate.repeats[client] <= 0:
                continue
            is_answered = client in (candidate.silent if data[:2] == SILENT else candidate.bytes_up)
            if candidate is self.open and self._fetching[name]:
                is_answered = True
            if round_and_attempt(data) == (candidate.number, candidate.attempt) and is_answered:
                return candidate
        return None

    def _refuse(self, name: str, number: int, reason: str) -> None:
        self.session.rejected.add(name, reason)
        if self.open is not None:
            self.open.refused[number] = reason

    def _receive(self, current: OpenRound, client: int, message: bytes) -> None:
        self.coordinator.receive(message, client)
        current.bytes_up[client] = self.coordinator.current.received[client].bytes
        current.silent.pop(client, None)
        self._stop_waiting(current, client, in_time=True)

    def _stop_waiting(self, current: OpenRound, client: int, in_time: bool = False) -> None:
        # in secure sums more answers follow, so this one does not readmit a straggler
        if in_time and self.secure is None:
            self.stragglers.readmit(client)
        current.missing.discard(client)
        if not current.missing:
            self.session.stir()

    def _check_expected(
        self, current: OpenRound, client: int, silent: Collection[int] = ()
    ) -> None:
        if (
            client not in current.clients
            or client in self.coordinator.current.updates
            or client in silent
        ):
            raise MessageError(
                f"client {client} has answered round {current.number} already, or does not take "
                "part in it"
            )

    def _take_silent(self, client: int, data: bytes) -> None:
        number, attempt, reason = read_silent(data)
        current = self.open
        if current is None or (number, attempt) != (current.number, current.attempt):
            raise MessageError(f"round {number} attempt {attempt} is not open")
        self._check_expected(current, client, current.silent)
        current.silent[client] = reason
        self._stop_waiting(current, client, in_time=True)

    def _begin_fetch(self, current: OpenRound, name: str, number: int, data: bytes) -> None:
        """Begin to fetch a large update, if its frame shows that it can count."""
        answered_round, reference = round_and_attempt(data), Stored.decode(data)
        if answered_round != (current.number, current.attempt):
            raise MessageError(
                f"expected an answer to round {current.number}, got one to round "
                f"{answered_round[0]}"
            )
        self._check_expected(current, number)
        if reference.size > self.largest:
            raise MessageError(
                f"a message of {reference.size:,} bytes, but at most {self.largest:,} are accepted"
            )
        if len(self._fetching[name]) >= 2:
            raise MessageError("too many large messages at once")
        task = asyncio.create_task(self._fetch(name, number, data, reference))
        self._fetching[name].add(task)
        task.add_done_callback(self._fetching[name].discard)

    async def _fetch(self, name: str, number: int, data: bytes, reference: Stored) -> None:
        owner = self.roster.host_of(name)
        try:
            async with self._room.reserve(reference.size):
                self._still_open()  # the round may have ended during the wait
                message = await fetch(self.session.end, data, owner, self.largest)
                self._receive(self._still_open(), number, message)
        except MessageError as error:
            # a client that repeats its answer replaces the blob, and sends a new reference
            if self.open is not None and self.open.repeats[number] > 0:
                self.open.repeats[number] -= 1
            else:
                self._refuse(name, number, str(error))
        except NetworkError as error:  # the client will send it again
            problem = f"the update of {name} can't be fetched now: {error}"
            self._troubles.report(name, problem)
        else:
            await self.session.end.drop(owner, reference.name)

    def _still_open(self) -> OpenRound:
        if self.open is None:
            raise MessageError("it came after its round was over")
        return self.open

    async def gather(self, number: int) -> Gathered:
        """Open a round, again if too few answer, and return its result."""
        attempt, gathered = 0, None
        if self.secure is not None:
            self.secure.begin()
        while gathered is None:
            reachable = await self._wait_for_clients()
            reachable = self.stragglers.filter_out(reachable, self._minimum)
            clients = self.coordinator.open(number, attempt, reachable)
            # if turns are counted, no other client replaces an absent one
            if len(clients) < self.session.settings.minimum:
                await self.session.pause(0.25)
                continue
            self._running = True
            # lying clients may spoil many attempts in a row, so slow down
            if attempt and self.secure is not None:
                await self.session.pause(min(0.25 * 2 ** min(attempt, 10), MOST_PAUSE))
            try:
                gathered = await self._attempt(number, attempt, clients)
                self._previous = self.open
            except TooFewError as error:
                attempt += 1
                self.repeated += 1
                self.session.progress.warn(f"round {number}: {error}: the round begins again")
            except LostError as error:
                assert self.secure is not None
                participants = self.coordinator.current.clients
                self.secure.coordinator.lose(str(error))
                gathered = Gathered(
                    participants, 0, skipped=[(client, str(error)) for client in participants]
                )
        self.open, gathered.refused = None, self.session.rejected.since()
        if self.secure is not None:
            gathered.secure_up, gathered.secure_down = self.secure.bytes_up, self.secure.bytes_down
        return gathered

    async def _attempt(self, number: int, attempt: int, clients: Sequence[int]) -> Gathered:
        """Ask the open round's clients, and return the result.

        Raises TooFewError or LostError if the round has to begin again.
        """
        if self.secure is not None:
            await self.secure.hold(self.secure.coordinator.agreeing())
        plans = self.coordinator.plans()
        participants = self.coordinator.current.clients
        self._previous = self.open or self._previous
        self.open = current = OpenRound(number, attempt, frozenset(participants), set(participants))
        within = await self._collect_updates(current, plans)
        # refuse outliers only once: asked again, these clients would answer the same
        outliers = self.coordinator.screen()
        for client, reason in outliers.items():
            del current.bytes_up[client]
            self._refuse(self.roster.names[client], client, reason)
        answered = len(self.coordinator.current.updates) + len(current.silent) + len(outliers)
        minimum = self.session.settings.minimum
        if answered < minimum:
            raise TooFewError(f"{answered} answers, but {minimum} are needed")
        if self.secure is not None:
            await self.secure.hold(self.secure.coordinator.opening())
            for client in current.clients - current.missing - self.secure.slow:
                self.stragglers.readmit(client)
            barred = self.secure.coordinator.summing.barred
            current.refused |= {client: proof.reason for client, proof in barred.items()}
        without = sorted(current.clients - set(self.coordinator.current.updates))
        skipped = [(client, self._explain_absence(current, client, within)) for client in without]
        skipped += [
            (client, "it has sent no keys") for client in clients if client not in current.clients
        ]
        sizes = [current.bytes_up[client] for client in sorted(current.bytes_up)]
        return Gathered(clients, len(next(iter(plans))) - FRAME_BYTES, sizes, skipped)

    @property
    def _minimum(self) -> int:
        """How many clients a round needs."""
        sums = 0 if self.secure is None else self.secure.coordinator.secure.least
        return max(self.session.settings.minimum, sums)

    def _explain_absence(self, current: OpenRound, client: int, within: str) -> str:
        """Return the reason why a client's update does not count, and show it.

        Args:
            current: the round.
            client: the client's number.
            within: how long the round waited, as text.
        """
        name, number = self.roster.names[client], current.number
        if client in current.silent:
            # a client's own reason would depend on its data
            reason = WITHHELD if self.coordinator.private else current.silent[client]
            # a client without examples is reported only once
            if self.coordinator.examples[client] or client not in self.idle:
                self.session.progress.warn(f"round {number}: {name} sends nothing: {reason}")
            self.idle.add(client)
            return reason
        if client in current.refused:
            reason = f"refused: {current.refused[client]}"
        elif client in self.roster.present():
            reason = f"no answer {within}"
        else:
            reason = "it is no longer reachable"
        self.session.progress.warn(f"round {number}: no update of {name} counts: {reason}")
        return reason

    async def _collect_updates(self, current: OpenRound, plans: dict[bytes, list[int]]) -> str:
        """Send the plans and wait for answers; return how long it waited, as text.

        Clients that delay the others are left out (`Stragglers`).
        """
        end, names = self.session.end, self.roster.names
        blobs = [
            f"plan-{current.number}-{current.attempt}-{clients[0]}" for clients in plans.values()
        ]
        carried = [await carry(end, plan, blob) for plan, blob in zip(plans, blobs, strict=True)]

        async def send(missing: Set[int], is_repeated: bool) -> None:
            if is_repeated:
                missing = {client for client in missing if not self._fetching[names[client]]}
            for message, clients in zip(carried, plans.values(), strict=True):
                receivers = [client for client in clients if client in missing]
                if not receivers:
                    continue
                if is_repeated:
                    current.repeats.update(receivers)
                await end.broadcast(
                    plan_message(receivers, len(receivers) == len(names), message),
                    [names[client] for client in receivers],
                )

        wait = Wait(self.stragglers, self.roster.work(current.clients), self._minimum)
        late = await wait.collect_answers(lambda: current.missing, self.roster.present, send)
        for client in sorted(late):
            reason = f"no answer of {names[client]} that counts has come {wait.within}"
            wait.leave_out(client, f"round {current.number}: {reason}")
        for blob, message in zip(blobs, carried, strict=True):
            if is_stored(message):
                await end.drop(None, blob)
        return wait.within

    async def _wait_for_clients(self) -> frozenset[int]:
        """Wait until enough clients for a round can be reached; return them."""
        settings = self.session.settings
        minimum = self._minimum
        warned_at = called_at = 0.0
        while True:
            barred: Set[int] = frozenset()
            if self.secure is not None:
                barred = frozenset(self.secure.coordinator.summing.barred)
            present = self.roster.present() - barred
            grace = self.grace - self.session.clock()
            required = minimum
            if grace > 0:
                all_clients = min(
                    self.roster.required_clients(settings.start_with),
                    len(self.roster.names) - len(barred),
                )
                required = max(all_clients, minimum)
            if len(present) >= required:
                self.grace = 0.0
                return present
            now = time.monotonic()
            if now > called_at + RESEND_SECONDS:
                await self.session.call()
                called_at = now
            if grace <= 0 and now > warned_at + 30:
                self.session.progress.warn(
                    f"{len(present)} clients are alive, but a round needs {minimum}: waiting"
                )
                warned_at = now
            await self.session.pause(0.25)
