"""Secure sums in a federation: what a coordinator does with a sum in place of answers, and how
clients mask theirs.

    client        update -> vector -> whole numbers -> masked words -> an update message
    coordinator   masked words -> their sum -> one update that stands for all -> method.aggregate

Over a transport what the coordinator asks is broadcast, and what clients say comes back as their
answers:

    broadcast     K | clients, as in a plan | ask
    answer        FK | the ask's first 15 bytes | kind | what is said

A kind is 1: the answer; 0: why there is none; 2: why, where the client has opened the round before.
The cryptography is `fedseed.privacy.secure`'s. Free of torch.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedseed.errors import FedseedError, MessageError
from fedseed.federation.control import MOST_EXAMPLES
from fedseed.federation.coordinator import Coordinator, Round
from fedseed.federation.membership import Roster
from fedseed.federation.messages import EVERYBODY, Message, MessageKind
from fedseed.federation.protocol import SAID, plan_message
from fedseed.federation.session import RESEND_SECONDS, Late, Session, Wait
from fedseed.methods import Method
from fedseed.methods.base import Answer, Answers
from fedseed.methods.payload import About, Array, Payload, Scalar, State
from fedseed.privacy.protection import summand
from fedseed.privacy.secure import LostError, OpenedBeforeError, TooFewError
from fedseed.privacy.secure.client import SecureClient
from fedseed.privacy.secure.fixed import Words
from fedseed.privacy.secure.messages import SETUP_BYTES, Phase, Terms, unframed
from fedseed.privacy.secure.settings import SecureSums, secure_problem
from fedseed.privacy.secure.summing import Asking, Summing, keep_proof
from fedseed.text import shown

FIRST_OUT = 8  # rounds that somebody is left out of at first, who may have lied in a sum
# steps of fixed point: with fewer the largest value of a vector is rounded by more than a hundredth
FINE = 50
ABOUT_BYTES = 15  # phase, setup, and where they matter round and attempt
NOTHING, SOMETHING, OPENED = 0, 1, 2


def count_words(method: Method, state: State) -> int:
    """Return how many words a client sends: its vector, and its weight unless votes are
    counted.
    """
    kind = summand(method)
    return kind.words(About(method, state, "update")) + (not kind.counted)


@dataclass(frozen=True)
class Masked(Payload):
    """An update as the coordinator gets it."""

    setup: Annotated[int, Scalar("u8")]  # names the keys
    words: Annotated[Words, Array("u8", "words")]  # the vector and the weight, added to masks


class Suspects:
    """Finds who lies where sums prove that somebody does: clients are left out in turn, until sums
    are possible ones.

    Whoever was in most of the lies is the next, the first by number of several: so one liar is left
    out after as many lies as there are clients at the most. It is left out for `FIRST_OUT` rounds,
    each further time for twice as many.
    """

    def __init__(self) -> None:
        self.news: list[tuple[int, str]] = []  # of whom there is something to be said, and what
        self._lies: Counter[int] = Counter()  # sums of lies that each was in
        self._rounds: dict[int, int] = {}  # for how many rounds it was left out last
        self._out, self._until, self._found = -1, 0, True

    def among(self, number: int, clients: Collection[int], least: int) -> set[int]:
        """Return who of these is left out of a round, unless fewer than `least` would remain."""
        return (
            {self._out}.intersection(clients)
            if number <= self._until and len(clients) > least
            else set()
        )

    def lied(self, number: int, clients: Sequence[int]) -> None:
        """Note that the sum of a round with these clients proves that one of them lies."""
        if self._out not in clients:
            self._rounds.pop(self._out, None)
        self._lies.update(clients)
        self._out = max(clients, key=self._lies.__getitem__)
        self._rounds[self._out] = 2 * self._rounds.get(self._out, FIRST_OUT // 2)
        self._until, self._found = number + self._rounds[self._out], False

    def believed(self, number: int, clients: Sequence[int]) -> None:
        """Nothing is wrong with the sum of a round with these clients."""
        if not self._found and self._out not in clients:
            self._found = True
            text = (
                f"sums of rounds with it could not be, and that of round {number}, without it, can"
            )
            self.news.append((self._out, f"{text}: it is left out until round {self._until}"))


class SecureCoordinator(Coordinator):
    """A coordinator that gets masked words.

    A round goes on after the last answer: `opening` says how.

    Args:
        settings: the recipe's.
        common: what a `Coordinator` takes.

    Raises ValueError: that can't be (`secure_problem`).
    """

    sums = True

    def __init__(self, settings: SecureSums, *common: Any) -> None:
        super().__init__(*common)
        if problem := secure_problem(settings, self.method, self.aggregation, self.per_round):
            raise ValueError(problem)
        self.secure = settings
        self.summing = Summing(
            settings.threshold, settings.form(summand(self.method).counted), settings.ahead
        )
        self.suspects = Suspects()
        # of the open round; why there is none and will be none
        self._sum: Words | str | None = None
        # by client; 0: not told
        self._declared, self.examples = self.examples, [0] * len(self.examples)

    def open(self, number: int, attempt: int = 0, alive: Any = None) -> list[int]:
        """Begin a round, or begin it again.

        Who has broken the rules, or may have, takes no part.
        """
        self._sum = None
        there = (
            set(range(len(self.examples)) if alive is None else alive) - self.summing.barred.keys()
        )
        return super().open(
            number, attempt, there - self.suspects.among(number, there, self.secure.least)
        )

    def agreeing(self) -> Asking[None]:
        """Ask for keys before the plans of the open round go out: who sends none is not asked for
        an update.
        """
        current = self.current
        setup = yield from self.summing.prepare(current.number, current.attempt, current.clients)
        current.clients = [client for client in current.clients if client in setup.members]

    def opening(self) -> Asking[None]:
        """Open the sum after the last answer has come: `close` makes the step of it."""
        current = self.current
        vectors = {client: update.words for client, update in current.updates.items()}
        self._sum, members = yield from self.summing.open(current.number, current.attempt, vectors)
        for client in vectors.keys() - set(members):
            del current.updates[client], current.received[client]

    def lose(self, reason: str) -> None:
        """Give up the open round's sum, which can't be had: `close` makes an empty step, and says
        why.
        """
        current, self._sum = self.current, reason
        current.updates, current.received = {}, {}

    def _read(self, current: Round, data: bytes) -> tuple[Any, float]:
        kind, count, name = (
            self.summing.form.dtype,
            count_words(self.method, self.state),
            data[:SETUP_BYTES],
        )
        if len(data) != (size := SETUP_BYTES + count * kind.itemsize):
            raise MessageError(f"{len(data)} bytes of masked words: {count} words take {size}")
        assert self.summing.setup is not None
        if name != self.summing.setup.terms.setup:
            raise MessageError("it is masked with other keys than those of this attempt")
        return Masked(int.from_bytes(name, "little"), np.frombuffer(data[SETUP_BYTES:], kind)), 0.0

    def weighted_answers(self) -> Answers:
        """Return one answer that stands for all of them; none, if nobody had anything to send."""
        current = self.current
        kind, form, answers = (
            summand(self.method),
            self.summing.form,
            Answers(current.number, (), self.aggregation),
        )
        self.untaken = self._sum if isinstance(self._sum, str) else None
        if not current.updates:
            return answers
        if self._sum is None or isinstance(self._sum, str):
            raise RuntimeError("the round's sum was not opened")
        about = About(self.method, self.state, "update", current.number)
        self.untaken = self._impossible(current, self._sum, kind.counted)
        if self.untaken is not None:
            self.suspects.lied(current.number, sorted(current.updates))
            return answers
        self.suspects.believed(current.number, sorted(current.updates))
        vector = (
            form.read(self._sum) if kind.counted else form.read(self._sum[:-1]) / int(self._sum[-1])
        )
        return replace(answers, answers=(Answer(EVERYBODY, 1.0, kind.of(vector, about)),))

    def _impossible(self, current: Round, words: Words, counted: bool) -> str | None:
        """Return why no honest clients have this sum, or nobody has anything to send.

        None: neither.
        """
        what, most = "weights", len(current.updates)
        if counted:
            what, found = "votes", int(np.abs(self.summing.form.read(words)).max(initial=0))
        elif (found := int(words[-1])) == 0:
            return "no client says that it has anything to send: the sum of their weights is 0"
        elif self.method.weighting == "examples":
            most = sum(self._declared[client] or MOST_EXAMPLES for client in current.updates)
        lie = f"the sum of the {what} is {found:,}, which can be {most:,} at most: a client lies"
        return lie if found > most else None


@dataclass
class Masking:
    """The clients of one process, by number: their secrets, and what becomes of their updates."""

    settings: SecureSums  # the recipe's
    method: Method
    examples: Mapping[int, int]  # how many examples each has
    warn: Callable[[str], None] | None = None  # told once if values are too small
    # what signs for them; of others a new key, which proves nothing
    identities: Mapping[int, Ed25519PrivateKey] = field(default_factory=dict)
    # public keys that sign for clients; None: whatever the coordinator says
    known: Mapping[int, bytes] | None = None
    # files for the newest round that each has opened
    places: Mapping[int, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.form = self.settings.form(summand(self.method).counted)
        keys = {n: self.identities.get(n) or Ed25519PrivateKey.generate() for n in self.examples}
        common = self.settings.threshold, self.form
        self.clients = {
            n: SecureClient(n, *common, key, self.known, self.places.get(n))
            for n, key in keys.items()
        }

    def update(self, state: State, plan: Message, client: int, update: bytes | None) -> bytes:
        """Return the message that a client sends in place of its update.

        Args:
            state: the one before the round's step.
            plan: what it answers.
            client: its number.
            update: its update message; None: it has nothing to send, which is not told either.

        Raises MessageError: no keys were agreed on for this attempt.
        """
        words = self._words(state, plan.round, client, update)
        payload = self.clients[client].masked(plan.round, plan.attempt, words)
        return Message(
            MessageKind.UPDATE, self.method.code, plan.round, client, payload, plan.attempt
        ).encode()

    def _words(self, state: State, number: int, client: int, update: bytes | None) -> Words:
        """weight * vector and the weight, as whole numbers; zeros where there is nothing."""
        kind, about = summand(self.method), About(self.method, state, "update", number)
        if update is None:
            return np.zeros(count_words(self.method, state), self.form.dtype)
        payload = Message.decode(update).payload
        vector = self.method.decode_update(state, number, payload).vector(about)
        if kind.counted:
            return self.form.write(vector)
        weight = self.examples[client] if self.method.weighting == "examples" else 1
        most, step = float(np.abs(vector).max(initial=0.0)) * weight, 2.0**-self.form.fraction
        if self.warn is not None and 0 < most < FINE * step:
            self.warn(
                f"round {number}: values of at most {most:.1e} are added up in steps of "
                f"{step:.1e}: they lose "
                f"{step / 2 / most:.0%} and more; raise secure_sums.fraction_bits, "
                f"{self.form.fraction} now, 48 at most"
            )
            self.warn = None
        return np.append(self.form.write(vector, weight), self.form.dtype.type(weight))


def first_round(ask: bytes) -> int | None:
    """Return the round that new keys are asked for.

    None: something else is asked, or nothing that can be read.
    """
    with suppress(MessageError):
        phase, setup, body = unframed(ask)
        return Terms.decode(setup, body).round if phase is Phase.KEYS else None
    return None


def answered(masking: Masking | None, client: int, ask: bytes) -> bytes:
    """Return a client's message that answers an ask.

    `masking`: its process' secrets, None: it has none yet.
    """
    try:
        if masking is None:
            raise MessageError("this process has no keys yet")
        kind, data = SOMETHING, masking.clients[client].answer(ask)
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
    # who has let a deadline pass in this round: nobody waits for it again
    slow: set[int] = field(default_factory=set)
    up: int = 0  # bytes that were said
    down: int = 0  # bytes that were asked
    _asks: dict[int, bytes] = field(default_factory=dict)
    _answers: dict[int, bytes | None] = field(default_factory=dict)
    _named: set[int] = field(default_factory=set)  # who was said to be barred
    _opened: set[int] = field(default_factory=set)  # who says that it has opened the round before
    _waited: float = 0.0  # seconds for the last ask
    _failed: int = 0  # conversations of this round: deadlines may be too short for all

    def begin(self) -> None:
        """Begin a round."""
        for client, why in self.coordinator.suspects.news:
            self.session.rejected.add(self.roster.names[client], why)
        self.coordinator.suspects.news.clear()
        self.up = self.down = 0
        self.slow, self._opened, self._failed = set(), set(), 0

    async def hold(self, asking: Asking[None]) -> None:
        """Hold a conversation.

        Raises TooFewError, and LostError if too few are left that have not opened the round.
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
            self._name_barred()

    async def _ask(self, asks: dict[int, bytes]) -> dict[int, bytes]:
        """Ask, and wait for all that may still come.

        Who is there and lets time pass is left out, as in a plan's.
        """
        self._asks, self._answers, least = asks, {}, self.coordinator.secure.least
        self.down += sum(map(len, asks.values()))

        def here() -> Set[int]:
            if not self._answers:  # it may be this side: everybody is waited for
                return asks.keys()
            return self.roster.present() - (
                self.slow if len(self._answers) >= least else frozenset()
            )

        async def send(missing: Set[int], again: bool) -> None:
            alike: dict[bytes, list[int]] = {}
            for client in sorted(missing):
                alike.setdefault(asks[client], []).append(client)
            for ask, clients in alike.items():
                await self.session.end.broadcast(b"K" + plan_message(clients, False, ask)[1:])

        wait = Wait(
            self.late, self.roster.work(asks), min(least, len(asks) - 1), 2 ** min(self._failed, 6)
        )
        late = await wait.answers(lambda: asks.keys() - self._answers.keys(), here, send)
        phase = Phase(next(iter(asks.values()))[0]).name
        for client in sorted(late - self.slow):
            name = self.roster.names[client]
            wait.leave_out(client, f"{name} has not answered {phase} of secure sums {wait.within}")
        self.slow |= late
        self._waited = wait.seconds
        if self._opened and len(set(self.coordinator.current.clients) - self._opened) < least:
            raise LostError(
                f"{len(self._opened)} clients have opened it before, and do not again: its sum is "
                "lost"
            )
        return {client: answer for client, answer in self._answers.items() if answer is not None}

    def take(self, client: int, data: bytes) -> None:
        """Take a client's answer. Raises MessageError."""
        start = len(SAID) + ABOUT_BYTES
        if len(data) <= start:
            raise MessageError("an answer to an ask of secure sums that is cut short")
        ask, kind, body = self._asks.get(client), data[start], data[start + 1 :]
        if ask is None or client in self._answers or data[len(SAID) : start] != ask[:ABOUT_BYTES]:
            return  # it comes twice, or late
        self.up += len(body)
        name = self.roster.names[client]
        self._answers[client] = body if kind == SOMETHING else None
        if kind == OPENED:
            self._opened.add(client)  # whoever says so alone may lie
            self.session.progress.warn(
                f"{name} has opened this round, or a later one, before, and does not again"
            )
        elif kind != SOMETHING:
            self.session.progress.warn(
                f"{name} says nothing for a secure sum: {shown(body.decode(errors='replace'))}"
            )
        if self._answers.keys() >= self._asks.keys():
            self.session.stir()

    def _name_barred(self) -> None:
        """Say who has broken the rules, once, and whose answers are in doubt.

        Raises FedseedError: too few are left.
        """
        barred, doubted = self.coordinator.summing.barred, self.coordinator.summing.doubted
        names, proofs = self.roster.names, self.session.settings.proofs
        for client in barred.keys() - self._named:
            self._named.add(client)
            self.session.rejected.add(names[client], barred[client].reason)
            if proofs is not None:
                keep_proof(proofs, client, barred[client])
        for client, why in doubted.items():
            self.session.rejected.add(names[client], why)
            self.late.leave_out(
                client,
                max(RESEND_SECONDS, self._waited),
                f"what {names[client]} says can't be taken",
            )
            self.slow.add(client)
        doubted.clear()
        left = len(names) - len(barred)
        if left < (least := self.coordinator.secure.least):
            raise FedseedError(
                f"{left} clients are left that keep to the rules of secure sums, {least} are "
                "needed (secure_sums.threshold)"
            )
