"""Secure sums in a federation: what a coordinator does with a sum in place of answers, and how clients mask theirs.

    client        update -> vector -> whole numbers -> masked words -> an update message
    coordinator   masked words -> their sum -> one update that stands for all -> method.aggregate

The cryptography is `fedseed.privacy.secure`'s. Free of torch.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedseed.aggregation import AggregationRule
from fedseed.errors import MessageError
from fedseed.federation.bounds import Bounds
from fedseed.federation.control import MOST_EXAMPLES
from fedseed.federation.coordinator import Coordinator, Round
from fedseed.federation.messages import EVERYBODY, Message, MessageKind
from fedseed.methods import Method
from fedseed.methods.base import Answer, Answers
from fedseed.methods.payload import About, Array, Payload, Scalar, State
from fedseed.privacy.protection import summand
from fedseed.privacy.secure.client import SecureClient
from fedseed.privacy.secure.fixed import Words
from fedseed.privacy.secure.messages import SETUP_BYTES
from fedseed.privacy.secure.settings import SecureSums, secure_problem
from fedseed.privacy.secure.summing import Asking, Summing
from fedseed.weights.layout import Layout

FIRST_OUT = 8  # rounds that somebody is left out of at first, who may have lied in a sum
FINE = 50  # steps of fixed point: with fewer the largest value of a vector is rounded by more than a hundredth


def count_words(method: Method, state: State) -> int:
    """How many words a client sends: its vector, and its weight unless votes are counted."""
    kind = summand(method)
    return kind.words(About(method, state, "update")) + (not kind.counted)


@dataclass(frozen=True)
class Masked(Payload):
    """An update as the coordinator gets it."""

    setup: Annotated[int, Scalar("u8")]  # names the keys
    words: Annotated[Words, Array("u8", "words")]  # the vector and the weight, added to masks


class Suspects:
    """Finds who lies where sums prove that somebody does: clients are left out in turn, until sums are possible ones.

    Whoever was in most of the lies is the next, the first by number of several: so one liar is left out after as many
    lies as there are clients at the most. It is left out for `FIRST_OUT` rounds, each further time for twice as many.
    """

    def __init__(self) -> None:
        self.news: list[tuple[int, str]] = []  # of whom there is something to be said, and what
        self._lies: Counter[int] = Counter()  # sums of lies that each was in
        self._rounds: dict[int, int] = {}  # for how many rounds it was left out last
        self._out, self._until, self._found = -1, 0, True

    def among(self, number: int, clients: Collection[int], least: int) -> set[int]:
        """Returns who of these is left out of a round, unless fewer than `least` would remain."""
        return {self._out}.intersection(clients) if number <= self._until and len(clients) > least else set()

    def lied(self, number: int, clients: Sequence[int]) -> None:
        """The sum of a round with these clients proves that one of them lies."""
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
            text = f"sums of rounds with it could not be, and that of round {number}, without it, can"
            self.news.append((self._out, f"{text}: it is left out until round {self._until}"))


class SecureCoordinator(Coordinator):
    """A coordinator that gets masked words. A round goes on after the last answer: `opening` says how.

    Args: those of `Coordinator`, and
        settings: the recipe's.

    Raises:
        ValueError: that can't be (`secure_problem`).
    """

    sums = True

    def __init__(
        self, settings: SecureSums, method: Method, layout: Layout, seed: int, examples: Sequence[int], per_round: int,
        aggregation: AggregationRule | None = None, bounds: Bounds | None = None,
    ) -> None:  # fmt: skip
        super().__init__(method, layout, seed, [0] * len(examples), per_round, aggregation, bounds)
        if problem := secure_problem(settings, method, self.aggregation, per_round):
            raise ValueError(problem)
        self.secure = settings
        self.summing = Summing(settings.threshold, settings.form(summand(method).counted), settings.ahead)
        self.suspects = Suspects()
        self._sum: Words | str | None = None  # of the open round; why there is none and will be none
        self._declared = list(examples)  # by client; 0: not told

    def open(self, number: int, attempt: int = 0, alive: Any = None) -> list[int]:
        """Begin a round, or begin it again; who has broken the rules, or may have, takes no part."""
        self._sum = None
        there = set(range(len(self.examples)) if alive is None else alive) - self.summing.barred.keys()
        return super().open(number, attempt, there - self.suspects.among(number, there, self.secure.least))

    def agreeing(self) -> Asking[None]:
        """The conversation before the plans of the open round go out: who sends no keys is not asked for an update."""
        current = self.current
        setup = yield from self.summing.prepare(current.number, current.attempt, current.clients)
        current.clients = [client for client in current.clients if client in setup.members]

    def opening(self) -> Asking[None]:
        """The conversation after the last answer has come: `close` makes the step of the sum that it opens."""
        current = self.current
        vectors = {client: update.words for client, update in current.updates.items()}
        self._sum, members = yield from self.summing.open(current.number, current.attempt, vectors)
        for client in vectors.keys() - set(members):
            del current.updates[client], current.received[client]

    def lose(self, reason: str) -> None:
        """The open round has been opened, and its sum can't be had: `close` makes an empty step, and says why."""
        current, self._sum = self.current, reason
        current.updates, current.received = {}, {}

    def _read(self, current: Round, data: bytes) -> tuple[Any, float]:
        kind, count, name = self.summing.form.dtype, count_words(self.method, self.state), data[:SETUP_BYTES]
        if len(data) != (size := SETUP_BYTES + count * kind.itemsize):
            raise MessageError(f"{len(data)} bytes of masked words: {count} words take {size}")
        assert self.summing.setup is not None
        if name != self.summing.setup.terms.setup:
            raise MessageError("it is masked with other keys than those of this attempt")
        return Masked(int.from_bytes(name, "little"), np.frombuffer(data[SETUP_BYTES:], kind)), 0.0

    def _weighted(self, current: Round) -> Answers:
        """One answer that stands for all of them; none, if nobody had anything to send."""
        kind, form, answers = summand(self.method), self.summing.form, Answers(current.number, (), self.aggregation)
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
        vector = form.read(self._sum) if kind.counted else form.read(self._sum[:-1]) / int(self._sum[-1])
        return replace(answers, answers=(Answer(EVERYBODY, 1.0, kind.of(vector, about)),))

    def _impossible(self, current: Round, words: Words, counted: bool) -> str | None:
        """Why no honest clients have this sum, or nobody has anything to send; None: neither."""
        what, most = "weights", len(current.updates)
        if counted:
            what, found = "votes", int(np.abs(self.summing.form.read(words)).max(initial=0))
        elif (found := int(words[-1])) == 0:
            return "no client says that it has anything to send: the sum of their weights is 0"
        elif self.method.weighting == "examples":
            most = sum(self._declared[client] or MOST_EXAMPLES for client in current.updates)
        lie = f"the sum of the {what} is {found:,}, which can be {most:,} at most: a client lies"
        return lie if found > most else None


class Masking:
    """The clients of one process: their secrets, and what becomes of their updates.

    Args:
        settings: the recipe's.
        method: the method.
        examples: how many examples each client has, by number.
        identities: what signs for them, by number; of others a new key, which proves nothing.
        known: the public keys that sign for clients, by number; None: whatever the coordinator says.
        places: files for the newest round that each has opened, by number; of others nothing outlasts this object.
    """

    def __init__(
        self, settings: SecureSums, method: Method, examples: Mapping[int, int],
        identities: Mapping[int, Ed25519PrivateKey] | None = None, known: Mapping[int, bytes] | None = None,
        places: Mapping[int, Path] | None = None,
    ) -> None:  # fmt: skip
        self.method = method
        self.form = settings.form(summand(method).counted)
        self.warn: Callable[[str], None] | None = None  # told once if values are too small
        self._examples = examples
        keys = {n: (identities or {}).get(n) or Ed25519PrivateKey.generate() for n in examples}
        self._clients = {
            n: SecureClient(n, settings.threshold, self.form, keys[n], known, (places or {}).get(n)) for n in examples
        }

    @property
    def opened(self) -> int:
        """The newest round that one of them has opened."""
        return max((client.opened for client in self._clients.values()), default=0)

    def answer(self, client: int, ask: bytes) -> bytes:
        """What a client says to an ask of the coordinator's. Raises MessageError: nothing, and why."""
        return self._clients[client].answer(ask)

    def update(self, state: State, plan: Message, client: int, update: bytes | None) -> bytes:
        """The message that a client sends in place of its update.

        Args:
            state: the one before the round's step.
            plan: what it answers.
            client: its number.
            update: its update message; None: it has nothing to send, which is not told either.

        Raises:
            MessageError: no keys were agreed on for this attempt.
        """
        words = self._words(state, plan.round, client, update)
        payload = self._clients[client].masked(plan.round, plan.attempt, words)
        return Message(MessageKind.UPDATE, self.method.code, plan.round, client, payload, plan.attempt).encode()

    def _words(self, state: State, number: int, client: int, update: bytes | None) -> Words:
        """weight * vector and the weight, as whole numbers; zeros where there is nothing."""
        kind, about = summand(self.method), About(self.method, state, "update", number)
        if update is None:
            return np.zeros(count_words(self.method, state), self.form.dtype)
        payload = Message.decode(update).payload
        vector = self.method.decode_update(state, number, payload).vector(about)
        if kind.counted:
            return self.form.write(vector)
        weight = self._examples[client] if self.method.weighting == "examples" else 1
        most, step = float(np.abs(vector).max(initial=0.0)) * weight, 2.0**-self.form.fraction
        if self.warn is not None and 0 < most < FINE * step:
            self.warn(
                f"round {number}: values of at most {most:.1e} are added up in steps of {step:.1e}: they lose "
                f"{step / 2 / most:.0%} and more; raise secure_sums.fraction_bits, {self.form.fraction} now, 48 at most"
            )
            self.warn = None
        return np.append(self.form.write(vector, weight), self.form.dtype.type(weight))
