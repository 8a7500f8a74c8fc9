"""The coordinator's side of secure sums: it asks, carries sealed shares, and opens sums.

Both conversations are generators: they yield what is asked of whom, and are sent what came back, so that who carries
the bytes decides how long is waited.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_bytes
from typing import TypeVar

import numpy as np

from fedseed.errors import MessageError
from fedseed.privacy.secure import keys, shamir
from fedseed.privacy.secure.client import check_bundle, pair_use
from fedseed.privacy.secure.errors import LostError, TooFewError
from fedseed.privacy.secure.fixed import FixedPoint, Words
from fedseed.privacy.secure.messages import (
    SETUP_BYTES,
    Bundle,
    Phase,
    Terms,
    digest_of,
    listed,
    numbers,
    pieces,
    read_numbers,
    read_round,
    read_shares,
    round_ask,
    share_ask,
    statement,
    unframed,
)
from fedseed.privacy.secure.settings import FEWEST

OPENING_TRIES = 4  # that shares are asked for: no other attempt of the round will be opened
MOST_ASKED = 700_000  # bytes of everybody's public keys, which all are sent: a message of a usual server
T = TypeVar("T")
Fits = Callable[[bytes | None], bool]
Asking = Generator[dict[int, bytes], dict[int, bytes], T]  # yields asks by client, is sent the answers that came


@dataclass(frozen=True)
class Setup:
    """Keys that were agreed on.

    Args:
        terms: for which rounds.
        bundles: public keys by client.
        members: whose shares all have.
        agreed: the digest of the keys.
    """

    terms: Terms
    bundles: Mapping[int, Bundle]
    members: tuple[int, ...]
    agreed: bytes


class Summing:
    """A coordinator.

    Args:
        threshold: how many clients open a sum together.
        form: how words are written.
        ahead: for how many rounds keys are agreed on at once.
        known: the public keys that sign for clients, by number; None: whatever they say.
    """

    def __init__(
        self, threshold: int, form: FixedPoint, ahead: int = 1, known: Mapping[int, bytes] | None = None
    ) -> None:
        self.threshold = threshold
        self.form = form
        self.ahead = ahead
        self.known = known
        self.setup: Setup | None = None
        self.barred: dict[int, str] = {}  # clients that have broken the rules, and how: they are asked no more

    def prepare(self, round: int, attempt: int, clients: Sequence[int], count: int | None = None) -> Asking[Setup]:
        """Agree on keys for a round, and those after it, unless that was done before with the same clients.

        Args:
            round: the round.
            attempt: how often it was begun before.
            clients: who takes part, in ascending order.
            count: for how many rounds at the most; None: as many as are agreed on at once.

        Returns:
            The setup; its members are those of the clients whose masks and shares there are.

        Raises:
            TooFewError: fewer than the threshold have answered, or somebody has broken the rules.
        """
        found = self.setup
        if found is not None and found.terms.place(round, attempt) is not None and found.members == tuple(clients):
            return found
        self.setup = None
        fit = (MOST_ASKED // max(1, len(clients)) - 4 * keys.KEY_BYTES) // (2 * keys.KEY_BYTES)
        ahead = max(1, min(self.ahead, fit, self.ahead if count is None else count))
        terms = Terms(token_bytes(SETUP_BYTES), round, attempt, ahead, self.threshold, tuple(clients))
        bundles = self._bundles(terms, (yield dict.fromkeys(clients, terms.encode())))
        ask = share_ask(terms.setup, bundles)
        texts = self._texts(terms, bundles, (yield dict.fromkeys(bundles, ask)))
        members = tuple(texts)
        asks = {c: listed(terms.setup, Phase.DELIVER, members, [texts[m][c] for m in members if m != c]) for c in texts}
        self._accusations(terms, members, (yield asks))
        self.setup = Setup(terms, bundles, members, digest_of(bundles))
        return self.setup

    def open(self, round: int, attempt: int, vectors: Mapping[int, Words]) -> Asking[Words]:
        """The sum of the vectors without their masks.

        Args:
            round: the round.
            attempt: how often it was begun before.
            vectors: masked words of the survivors, by client.

        Raises:
            TooFewError: too few are left, and no share was asked for.
            LostError: shares were asked for, and the sum can't be had.
        """
        setup = self.setup
        assert setup is not None
        survivors = sorted(vectors)
        self.enough(survivors, "have sent their vectors", FEWEST)
        name = setup.terms.setup
        ask = round_ask(Phase.CONFIRM, name, round, attempt, numbers(survivors))
        signed = self._signatures(setup, round, attempt, survivors, (yield dict.fromkeys(survivors, ask)))
        body = numbers(survivors) + numbers(list(signed)) + b"".join(signed.values())
        ask = round_ask(Phase.OPEN, name, round, attempt, body)
        at = setup.terms.place(round, attempt)
        assert at is not None
        held: dict[int, list[int]] = {}
        if survivors != list(setup.members):
            self.setup = None  # who comes back may have lost its keys
        for _ in range(OPENING_TRIES):  # the same ask is answered alike
            asked = [client for client in survivors if client not in held and client not in self.barred]
            held |= self._held(setup, round, attempt, (yield dict.fromkeys(asked, ask)))
            if len(held) >= self.threshold:
                break
        try:
            self.enough(held, "have said their shares")
            secrets = self._secrets(setup, at, survivors, held)
        except TooFewError as error:
            self.setup = None
            raise LostError(f"{error}; shares were asked for, so no other attempt of the round is opened") from error
        total = np.sum(list(vectors.values()), axis=0, dtype=self.form.dtype)
        return self._unmasked(setup, at, survivors, secrets, total)

    # -- what came back ----------------------------------------------------------------------------------------------

    def bar(self, client: int, reason: str) -> None:
        """A client has broken the rules."""
        self.barred.setdefault(client, reason)

    def enough(self, clients: Sequence[int] | Mapping[int, object], what: str, least: int = 0) -> None:
        """Whether so many clients can go on: the threshold, and at least so many. Raises TooFewError."""
        if len(clients) < (needed := max(self.threshold, least)):
            raise TooFewError(f"{len(clients)} clients {what}: {needed} are needed, nothing is opened")

    def _read(self, phase: Phase, setup: bytes, data: bytes) -> bytes:
        found, name, body = unframed(data)
        if (found, name) != (phase, setup):
            raise MessageError(f"{found.name.lower()} of another setup, or where {phase.name.lower()} were asked for")
        return body

    def _bundles(self, terms: Terms, answers: Mapping[int, bytes]) -> dict[int, Bundle]:
        bundles: dict[int, Bundle] = {}
        seen: set[bytes] = set()
        for client in sorted(answers):
            try:
                bundle = Bundle.decode(self._read(Phase.KEYS, terms.setup, answers[client]), terms.count)
                check_bundle(client, bundle, terms, self.known)
                theirs = {bundle.identity, bundle.sealing, *bundle.masks}
                if theirs & seen:
                    raise MessageError("a key that is another client's")
                for key in (bundle.sealing, *bundle.masks):
                    keys.check_public(key)
                seen |= theirs
                bundles[client] = bundle
            except MessageError as error:
                self.bar(client, f"its keys: {error}")
        self.enough(bundles, "have sent keys", FEWEST)
        return bundles

    def _texts(
        self, terms: Terms, bundles: Mapping[int, Bundle], answers: Mapping[int, bytes]
    ) -> dict[int, dict[int, bytes]]:
        """Sealed texts by sender and receiver."""
        texts: dict[int, dict[int, bytes]] = {}
        size = 2 * terms.count * shamir.SHARE_BYTES + keys.TAG_BYTES
        for client in sorted(answers):
            try:
                others, rest = read_numbers(self._read(Phase.SHARES, terms.setup, answers[client]))
                if others != tuple(other for other in bundles if other != client):
                    raise MessageError("not for those that it was asked for")
                texts[client] = dict(zip(others, pieces(rest, len(others), size), strict=True))
            except MessageError as error:
                self.bar(client, f"its shares: {error}")
        self.enough(texts, "have sent shares", FEWEST)
        return texts

    def _accusations(self, terms: Terms, members: Sequence[int], answers: Mapping[int, bytes]) -> None:
        """Bar those whose shares can't be read; who accuses more than stand by it is barred instead."""
        pairs: set[tuple[int, int]] = set()
        for client, answer in answers.items():
            try:
                accused, rest = read_numbers(self._read(Phase.DELIVER, terms.setup, answer))
                if rest or not set(accused) <= set(members) - {client}:
                    raise MessageError("accuses whom it has heard nothing of")
                pairs |= {(client, other) for other in accused}
            except MessageError as error:
                self.bar(client, f"its receipt: {error}")
                raise TooFewError(f"client {client} is left out: {error}") from error
        named = []
        while pairs:
            worst = max(members, key=lambda c: (sum(c in pair for pair in pairs), any(c == b for _, b in pairs)))
            deals = any(worst == accused for _, accused in pairs)
            why = "the shares that it has sealed can't be read" if deals else "it says of others' shares what is not so"
            self.bar(worst, why)
            named.append(worst)
            pairs = {pair for pair in pairs if worst not in pair}
        if named:
            raise TooFewError(f"clients {named} are left out: {self.barred[named[0]]}")

    def _signatures(
        self, setup: Setup, round: int, attempt: int, survivors: Sequence[int], answers: Mapping[int, bytes]
    ) -> dict[int, bytes]:
        text = statement(setup.terms.setup, round, attempt, setup.members, survivors, setup.agreed)
        found = {}
        for client in sorted(answers):
            try:
                *about, signature = read_round(self._read(Phase.CONFIRM, setup.terms.setup, answers[client]))
                if about != [round, attempt] or not keys.signature_fits(
                    setup.bundles[client].identity, signature, text
                ):  # fmt: skip
                    raise MessageError("not of these survivors")
                found[client] = signature
            except MessageError as error:
                self.bar(client, f"its signature: {error}")
        self.enough(found, "have signed who is in the sum")
        return found

    def _held(self, setup: Setup, round: int, attempt: int, answers: Mapping[int, bytes]) -> dict[int, list[int]]:
        """Shares by holder, one for each member."""
        held: dict[int, list[int]] = {}
        for client in sorted(answers):
            try:
                *about, body = read_round(self._read(Phase.OPEN, setup.terms.setup, answers[client]))
                if about != [round, attempt]:
                    raise MessageError("of another round")
                held[client] = [shamir.read_share(share) for share in read_shares(body, len(setup.members))]
            except MessageError as error:
                self.bar(client, f"its shares of others' secrets: {error}")
        return held

    # -- secrets -----------------------------------------------------------------------------------------------------

    def _secrets(
        self, setup: Setup, at: int, survivors: Sequence[int], held: Mapping[int, Sequence[int]]
    ) -> dict[int, bytes]:
        """One seed of each member: of survivors that of their own mask, of the others that of their key."""
        alive, secrets, first = set(survivors), {}, list(held)[: self.threshold]
        by = shamir.factors([holder + 1 for holder in first])
        for column, member in enumerate(setup.members):

            def fits(secret: bytes | None, member: int = member) -> bool:
                bundle = setup.bundles[member]
                if secret is None:
                    return False
                if member in alive:
                    return keys.committed(secret) == bundle.commitments[at]
                return keys.public(keys.private(secret)) == bundle.masks[at]

            shares = {holder + 1: row[column] for holder, row in held.items()}
            secret = shamir.join({holder + 1: held[holder][column] for holder in first}, by)
            if not fits(secret):
                secret = self._despite_liars(shares, fits)
            if secret is None:
                self.bar(member, "the shares that it dealt do not fit the keys that it had sent")
                raise TooFewError(f"client {member} is left out: {self.barred[member]}")
            secrets[member] = secret
        return secrets

    def _despite_liars(self, shares: Mapping[int, int], fits: Fits) -> bytes | None:
        """The secret that some of the shares give; who holds others is barred."""
        for holders, secret in shamir.candidates(shares, self.threshold):
            if not fits(secret):
                continue
            for other in shares.keys() - set(holders):
                with_it = {holder: shares[holder] for holder in (*holders[1:], other)}
                if shamir.join(with_it) != secret:
                    self.bar(other - 1, "it says another share of a secret than it was dealt")
            return secret
        return None

    def _unmasked(
        self, setup: Setup, at: int, survivors: Sequence[int], secrets: Mapping[int, bytes], total: Words
    ) -> Words:
        """Take away what did not cancel: survivors' own masks, and theirs for those who are not in the sum."""
        use = pair_use(setup.terms, at)
        for member, secret in secrets.items():
            if member in survivors:
                total = total - keys.self_mask(secret, len(total), self.form)
                continue
            own = keys.private(secret)
            for other in survivors:  # what it would have added for them is the opposite of what they did for it
                key = setup.bundles[other].masks[at]
                total = total + keys.pair_mask(own, member, other, key, use, len(total), self.form)
        return total


def converse(asking: Asking[T], say: Callable[[int, bytes], bytes | None]) -> T:
    """Hold a conversation where everybody is at hand.

    Args:
        asking: what the coordinator asks.
        say: a client's answer to an ask; None: there is none.
    """
    try:
        asks = next(asking)
        while True:
            answers = {client: say(client, ask) for client, ask in asks.items()}
            asks = asking.send({client: answer for client, answer in answers.items() if answer is not None})
    except StopIteration as done:
        return done.value
