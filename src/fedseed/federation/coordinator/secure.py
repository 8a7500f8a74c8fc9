"""The coordinator's side of secure sums: asks clients, and uses a sum instead of single answers."""

from collections import Counter
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from fedseed.errors import FedseedError, MessageError
from fedseed.federation.control import MOST_EXAMPLES
from fedseed.federation.coordinator.coordinator import Coordinator, CurrentRound
from fedseed.federation.coordinator.membership import Roster
from fedseed.federation.coordinator.session import RESEND_SECONDS, Session, Stragglers, Wait
from fedseed.federation.messages import EVERYBODY
from fedseed.federation.protocol import SAID, plan_message
from fedseed.federation.secure import ASK_ID_BYTES, OPENED, SOMETHING, count_words
from fedseed.methods.base import Answer, Answers
from fedseed.methods.payload import Array, DecodeContext, Payload, Scalar
from fedseed.privacy.protection import summand
from fedseed.privacy.secure import LostError, TooFewError
from fedseed.privacy.secure.fixed import Words
from fedseed.privacy.secure.messages import SETUP_BYTES, Phase
from fedseed.privacy.secure.settings import SecureSums, secure_problem
from fedseed.privacy.secure.summing import Asking, Summing, save_proof
from fedseed.text import show_text

FIRST_EXCLUSION = 8  # length in rounds of a client's first exclusion, if it may have lied in a sum


@dataclass(frozen=True)
class Masked(Payload):
    """A masked update, as the coordinator gets it."""

    setup: Annotated[int, Scalar("u8")]  # number of the keys' setup
    words: Annotated[Words, Array("u8", "words")]  # the vector and the weight, plus masks


class Suspects:
    """Finds lying clients, when a sum proves that one of its clients lies.

    Suspects are left out in turn until sums become possible. The next suspect is the client that
    was in most of the false sums; among several, the first by number. So a single liar is found
    after at most as many false sums as there are clients. The first exclusion lasts
    `FIRST_EXCLUSION` rounds, and each further one twice as long.
    """

    def __init__(self) -> None:
        # clients that were found to lie, with messages about them
        self.news: list[tuple[int, str]] = []
        self._false_sums: Counter[int] = Counter()  # number of false sums that each client was in
        self._exclusions: dict[int, int] = {}  # length in rounds of each client's last exclusion
        self._suspect, self._until, self._is_confirmed = -1, 0, True

    def among(self, number: int, clients: Collection[int], minimum: int) -> set[int]:
        """Return the clients to leave out of a round, unless fewer than `minimum` would remain."""
        if number <= self._until and len(clients) > minimum:
            return {self._suspect}.intersection(clients)
        return set()

    def record_false_sum(self, number: int, clients: Sequence[int]) -> None:
        """Record that the sum of a round with these clients proves that one of them lies."""
        if self._suspect not in clients:
            self._exclusions.pop(self._suspect, None)
        self._false_sums.update(clients)
        self._suspect = max(clients, key=self._false_sums.__getitem__)
        last_exclusion = self._exclusions.get(self._suspect, FIRST_EXCLUSION // 2)
        self._exclusions[self._suspect] = 2 * last_exclusion
        self._until = number + self._exclusions[self._suspect]
        self._is_confirmed = False

    def record_true_sum(self, number: int, clients: Sequence[int]) -> None:
        """Record that the sum of a round with these clients can be honest."""
        if not self._is_confirmed and self._suspect not in clients:
            self._is_confirmed = True
            text = (
                f"sums of rounds with it were impossible, and the sum of round {number}, "
                "without it, is possible"
            )
            self.news.append((self._suspect, f"{text}: it is left out until round {self._until}"))


class SecureCoordinator(Coordinator):
    """A coordinator that gets masked updates.

    After the last answer, `opening` continues the round.

    Args:
        settings: the recipe's settings of secure sums.
        common: the arguments of `Coordinator`.

    Raises ValueError if secure sums are not possible with these settings (`secure_problem`).
    """

    sums = True

    def __init__(self, settings: SecureSums, *common: Any) -> None:
        super().__init__(*common)
        problem = secure_problem(settings, self.method, self.aggregation, self.per_round)
        if problem:
            raise ValueError(problem)
        self.secure = settings
        self.summing = Summing(
            settings.threshold, settings.form(summand(self.method).counted), settings.ahead
        )
        self.suspects = Suspects()
        # the open round's sum, or the reason why there is none
        self._sum: Words | str | None = None
        # the clients' declared numbers of examples (0: not known); `Coordinator` must not use them
        self._declared, self.examples = self.examples, [0] * len(self.examples)

    def open(self, number: int, attempt: int = 0, alive: Any = None) -> list[int]:
        """Begin a round, or begin it again.

        Clients that have broken the rules, and suspects, take no part.
        """
        self._sum = None
        candidates = set(range(len(self.examples)) if alive is None else alive)
        candidates -= self.summing.barred.keys()
        suspects = self.suspects.among(number, candidates, self.secure.least)
        return super().open(number, attempt, candidates - suspects)

    def agreeing(self) -> Asking[None]:
        """Ask for keys before the plans of the open round are sent.

        A client that sends no keys is not asked for an update.
        """
        current = self.current
        setup = yield from self.summing.prepare(current.number, current.attempt, current.clients)
        current.clients = [client for client in current.clients if client in setup.members]

    def opening(self) -> Asking[None]:
        """Open the sum after the last answer; `close` then makes a step from it."""
        current = self.current
        vectors = {client: update.words for client, update in current.updates.items()}
        self._sum, members = yield from self.summing.open(current.number, current.attempt, vectors)
        for client in vectors.keys() - set(members):
            del current.updates[client], current.received[client]

    def lose(self, reason: str) -> None:
        """Give up the open round's sum; `close` then makes an empty step with this reason."""
        current, self._sum = self.current, reason
        current.updates, current.received = {}, {}

    def _decode_update(self, current: CurrentRound, data: bytes | memoryview) -> tuple[Any, float]:
        word_type = self.summing.form.dtype
        count = count_words(self.method, self.state)
        setup_name = data[:SETUP_BYTES]
        size = SETUP_BYTES + count * word_type.itemsize
        if len(data) != size:
            raise MessageError(f"{len(data)} bytes of masked words, but {count} words take {size}")
        assert self.summing.setup is not None
        if setup_name != self.summing.setup.terms.setup:
            raise MessageError("it is masked with keys of another attempt")
        words = np.frombuffer(data[SETUP_BYTES:], word_type)
        return Masked(int.from_bytes(setup_name, "little"), words), 0.0

    def weighted_answers(self) -> Answers:
        """Return one answer in place of all answers; empty if no client had an update."""
        current = self.current
        kind = summand(self.method)
        form = self.summing.form
        answers = Answers(current.number, (), self.aggregation)
        self.untaken = self._sum if isinstance(self._sum, str) else None
        if not current.updates:
            return answers
        if self._sum is None or isinstance(self._sum, str):
            raise RuntimeError("the round's sum was not opened")
        context = DecodeContext(self.method, self.state, "update", current.number)
        self.untaken = self._impossible(current, self._sum, kind.counted)
        if self.untaken is not None:
            self.suspects.record_false_sum(current.number, sorted(current.updates))
            return answers
        self.suspects.record_true_sum(current.number, sorted(current.updates))
        if kind.counted:
            vector = form.decode(self._sum)
        else:
            vector = form.decode(self._sum[:-1]) / int(self._sum[-1])
        return replace(
            answers, answers=(Answer(EVERYBODY, 1.0, kind.from_vector(vector, context)),)
        )

    def _impossible(self, current: CurrentRound, words: Words, counted: bool) -> str | None:
        """Return the reason why a sum can't be that of honest clients, or has no weight.

        None if there is no such reason.
        """
        summed = "weights"
        highest = len(current.updates)
        if counted:
            summed = "votes"
            total = int(np.abs(self.summing.form.decode(words)).max(initial=0))
        else:
            total = int(words[-1])
            if total == 0:
                return "no client has an update to send: the sum of their weights is 0"
            if self.method.weighting == "examples":
                highest = sum(self._declared[client] or MOST_EXAMPLES for client in current.updates)
        if total <= highest:
            return None
        return (
            f"the sum of the {summed} is {total:,}, but can be at most {highest:,}: a client lies"
        )


@dataclass
class SecureTalk:
    """Holds the conversations of secure sums with the clients."""

    session: Session
    roster: Roster
    coordinator: SecureCoordinator  # makes the asks and takes the answers
    stragglers: Stragglers[int]
    # clients that have missed a deadline in this round; it does not wait for them again
    slow: set[int] = field(default_factory=set)
    bytes_up: int = 0  # bytes of replies
    bytes_down: int = 0  # bytes of asks
    _asks: dict[int, bytes] = field(default_factory=dict)
    _answers: dict[int, bytes | None] = field(default_factory=dict)
    _shown_barred: set[int] = field(default_factory=set)  # barred clients that were shown
    _opened: set[int] = field(default_factory=set)  # clients that have opened this round before
    _waited: float = 0.0  # seconds for the last ask
    # number of failed conversations in this round: the deadlines may be too short for all clients
    _failed: int = 0

    def begin(self) -> None:
        """Begin a round."""
        for client, reason in self.coordinator.suspects.news:
            self.session.rejected.add(self.roster.names[client], reason)
        self.coordinator.suspects.news.clear()
        self.bytes_up = self.bytes_down = 0
        self.slow, self._opened, self._failed = set(), set(), 0

    async def hold(self, asking: Asking[None]) -> None:
        """Exchange asks and answers until the conversation ends.

        Raises TooFewError if too few clients answer, and LostError if too few of them have not
        opened this round before.
        """
        try:
            asks = next(asking)
            while True:
                asks = asking.send(await self._ask(asks))
        except StopIteration:
            return
        except TooFewError:
            self._failed += 1
            raise
        finally:
            self._asks = {}
            self._show_barred()

    async def _ask(self, asks: dict[int, bytes]) -> dict[int, bytes]:
        """Send asks, and wait for all answers that may still come.

        Reachable clients that miss the deadline are left out, as with plans.
        """
        self._asks, self._answers = asks, {}
        minimum = self.coordinator.secure.least
        self.bytes_down += sum(map(len, asks.values()))

        def reachable() -> Set[int]:
            # without any answer the fault may be on this side, so wait for all clients
            if not self._answers:
                return asks.keys()
            if len(self._answers) >= minimum:
                return self.roster.present() - self.slow
            return self.roster.present()

        async def send(missing: Set[int], is_repeated: bool) -> None:
            clients_by_ask: dict[bytes, list[int]] = {}
            for client in sorted(missing):
                clients_by_ask.setdefault(asks[client], []).append(client)
            for ask, clients in clients_by_ask.items():
                await self.session.end.broadcast(b"K" + plan_message(clients, False, ask)[1:])

        wait = Wait(
            self.stragglers,
            self.roster.work(asks),
            min(minimum, len(asks) - 1),
            2 ** min(self._failed, 6),
        )
        late = await wait.collect_answers(
            lambda: asks.keys() - self._answers.keys(), reachable, send
        )
        phase = Phase(next(iter(asks.values()))[0]).name
        for client in sorted(late - self.slow):
            name = self.roster.names[client]
            wait.leave_out(client, f"{name} has not answered {phase} of secure sums {wait.within}")
        self.slow |= late
        self._waited = wait.seconds
        unopened = set(self.coordinator.current.clients) - self._opened
        if self._opened and len(unopened) < minimum:
            raise LostError(
                f"{len(self._opened)} clients have opened it before and refuse to open it again: "
                "its sum is lost"
            )
        return {client: answer for client, answer in self._answers.items() if answer is not None}

    def take(self, client: int, data: bytes) -> None:
        """Take a client's reply. Raises MessageError if it is refused."""
        start = len(SAID) + ASK_ID_BYTES
        if len(data) <= start:
            raise MessageError("a cut-off answer to an ask of secure sums")
        ask, kind, body = self._asks.get(client), data[start], data[start + 1 :]
        is_current = ask is not None and data[len(SAID) : start] == ask[:ASK_ID_BYTES]
        if not is_current or client in self._answers:
            return  # repeated, or late
        self.bytes_up += len(body)
        name = self.roster.names[client]
        self._answers[client] = body if kind == SOMETHING else None
        if kind == OPENED:
            self._opened.add(client)  # counted, because a single client may lie about this
            self.session.progress.warn(
                f"{name} has opened this or a later round before, and refuses to open it again"
            )
        elif kind != SOMETHING:
            self.session.progress.warn(
                f"{name} gives no answer for a secure sum: "
                f"{show_text(body.decode(errors='replace'))}"
            )
        if self._answers.keys() >= self._asks.keys():
            self.session.stir()

    def _show_barred(self) -> None:
        """Show each barred client once, and leave out clients with doubted answers.

        Raises FedseedError: too few clients are left.
        """
        barred, doubted = self.coordinator.summing.barred, self.coordinator.summing.doubted
        names, proofs = self.roster.names, self.session.settings.proofs
        for client in barred.keys() - self._shown_barred:
            self._shown_barred.add(client)
            self.session.rejected.add(names[client], barred[client].reason)
            if proofs is not None:
                save_proof(proofs, client, barred[client])
        for client, reason in doubted.items():
            self.session.rejected.add(names[client], reason)
            self.stragglers.leave_out(
                client,
                max(RESEND_SECONDS, self._waited),
                f"the answer of {names[client]} can't be accepted",
            )
            self.slow.add(client)
        doubted.clear()
        remaining = len(names) - len(barred)
        minimum = self.coordinator.secure.least
        if remaining < minimum:
            raise FedseedError(
                f"only {remaining} clients are left that follow the rules of secure sums, but "
                f"{minimum} are needed (secure_sums.threshold)"
            )
