"""A room with a coordinator and some clients of a secure sum, and somebody who hears everything."""

from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from secrets import randbelow, token_bytes

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedseed.errors import MessageError
from fedseed.privacy.secure import TooFewError, keys
from fedseed.privacy.secure.client import SecureClient
from fedseed.privacy.secure.dealing import deal, hash_share, name_part
from fedseed.privacy.secure.fixed import FixedPoint
from fedseed.privacy.secure.messages import Phase, numbers, pieces, read_numbers, unframe
from fedseed.privacy.secure.shamir import PRIME, SHARE_BYTES
from fedseed.privacy.secure.summing import Summing

FORM = FixedPoint(64, 20, 16)


def converse(asking, say):
    """Hold a conversation with clients whose answers to an ask `say` gives; None: there is none."""
    try:
        asks = next(asking)
        while True:
            answers = {client: say(client, ask) for client, ask in asks.items()}
            asks = asking.send(
                {client: answer for client, answer in answers.items() if answer is not None}
            )
    except StopIteration as done:
        return done.value


@contextmanager
def in_the_clear():
    """All masks are zeros: what is added up is what clients have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "mask", lambda key, count, form: np.zeros(count, form.dtype))
        yield


class Room:
    """Args: how many clients; how many open; gone: phase -> who is silent from there on.

    Changed: what is done to what.

    `changed` is called with (client, phase, answer) and returns what the coordinator gets.
    """

    def __init__(self, clients=5, threshold=3, form=FORM, ahead=1, known=False):
        own = {n: Ed25519PrivateKey.generate() for n in range(clients)}
        self.known = {n: keys.public(key) for n, key in own.items()} if known else None
        self.clients = {n: SecureClient(n, threshold, form, own[n], self.known) for n in own}
        self.summing = Summing(threshold, form, ahead, self.known)
        self.form = form
        self.gone = {}
        self.changed = lambda client, phase, answer: answer
        self.asked = lambda client, phase, ask: ask
        self.heard = []  # what the coordinator got: (client, phase or "vector", bytes)

    def say(self, client, ask):
        phase = unframe(ask)[0]
        if client in self.gone.get(phase, ()):
            return None
        answer = self.changed(
            client, phase, self.clients[client].answer(self.asked(client, phase, ask))
        )
        if answer is not None:
            self.heard.append((client, phase, answer))
        return answer

    def lies(self, client, lie):
        """A client lies from now on."""
        honest = self.clients[client]
        self.clients[client] = Liar(
            client, honest.threshold, self.form, honest.identity, self.known, lie=lie
        )

    def round(self, values, round=1):
        """A round, as often as it takes: the sum, who is in it, and the attempts."""
        out, say = set(), self.say

        def quietly(client, ask):
            try:
                return say(client, ask)
            except MessageError:
                assert isinstance(self.clients[client], Liar)
                return None

        self.say = quietly
        for attempt in range(20):
            there = [
                client
                for client in self.clients
                if client not in self.summing.barred and client not in out
            ]
            try:
                self.prepare(round, attempt, there)
                asking = self.summing.open(round, attempt, self.vectors(values, round, attempt))
                return *converse(asking, self.say), attempt + 1
            except TooFewError:
                out |= self.summing.doubted.keys()
            finally:
                self.summing.doubted.clear()

    def prepare(self, round=1, attempt=0, clients=None):
        return converse(
            self.summing.prepare(round, attempt, clients or sorted(self.clients)), self.say
        )

    def vectors(self, values, round=1, attempt=0):
        """Masked words of the members who do not go before they send them."""
        found = {}
        for client in self.summing.setup.members:
            if client not in self.gone.get("vector", ()):
                data = self.clients[client].mask_words(round, attempt, values[client])
                self.heard.append((client, "vector", data))
                assert data[:8] == self.summing.setup.terms.setup
                found[client] = np.frombuffer(data[8:], dtype=self.form.dtype)
        return found

    def open(self, vectors, round=1, attempt=0):
        return converse(self.summing.open(round, attempt, vectors), self.say)[0]

    def total(self, values, round=1, attempt=0, clients=None):
        """A whole round: the sum, and who is in it."""
        self.prepare(round, attempt, clients)
        vectors = self.vectors(values, round, attempt)
        return self.open(vectors, round, attempt), sorted(vectors)


LIES = (
    "weak keys",
    "no keys",
    "unreadable",
    "unreadable to one",
    "unreadable, and shows nothing",
    "other hashes",
    "wrong shares",
    "wrong shares to one",
    "another secret",
    "too few parts",
    "accuses one",
    "accuses all",
    "accuses with another part",
    "signs rubbish",
    "another share",
    "shares of nothing",
    "nobody's signature",
    "wrong shares, and is silent",
    "accuses all, and deals wrongly",
)
ABSURD = "a sum that can't be"  # 1,000 votes, or a weight of 2^40: its other messages are right
# nothing that they have signed shows it
UNPROVEN = {"nobody's signature", "unreadable, and shows nothing"}


class Liar(SecureClient):
    """A client that breaks the rules in one way of `LIES`, as often as it can, and signs what it
    says.
    """

    def __init__(self, *arguments, lie, silent=(), **more):
        super().__init__(*arguments, **more)
        self.lie = lie
        self.silent = {Phase[name] for name in silent}

    def mask_words(self, round, attempt, words):
        if self.lie == ABSURD:
            words = words.copy()
            words[-1] = 1000 if len(words) == 1 else 1 << 40
        return super().mask_words(round, attempt, words)

    def answer(self, ask):
        phase = unframe(ask)[0]
        hides = {
            "unreadable, and shows nothing": Phase.REVEAL,
            "wrong shares, and is silent": Phase.OPEN,
        }
        if phase in self.silent or hides.get(self.lie) is phase:
            raise MessageError("silent")
        try:
            answer = super().answer(ask)
        except KeyError as error:  # it has gone on without a share that it would need
            raise MessageError(f"client {error} has dealt it nothing") from error
        return answer[:-1] + bytes([answer[-1] ^ 1]) if self.lie == "nobody's signature" else answer

    def _keys(self, setup, body):
        found = super()._keys(setup, body)
        return {"weak keys": found[:64] + bytes(32) + found[96:], "no keys": found[:-5]}.get(
            self.lie, found
        )

    def _shares(self, setup, body):
        found = super()._shares(setup, body)
        victims = [holder for holder in setup.dealt_parts if holder != self.number]
        victims = victims[:1] if "to one" in self.lie else victims
        if self.lie == "too few parts":
            return found[: len(found) // 2]
        if self.lie == "another secret":
            secrets = [token_bytes(16) for _ in range(2 * setup.terms.count)]
            setup.dealt_parts = deal(
                secrets, setup.terms.setup, self.number, setup.bundles, setup.terms.threshold
            )
        for holder in victims:
            key, part = setup.dealt_parts[holder]
            shares = [randbelow(PRIME).to_bytes(SHARE_BYTES, "little") for _ in part.hashes]
            use = name_part(setup.terms.setup, self.number, holder)
            text = keys.seal(
                keys.agree(key, setup.bundles[holder].sealing, use), b"".join(shares), use
            )
            if "unreadable" in self.lie:
                part = replace(part, text=token_bytes(len(part.text)))
            elif self.lie == "other hashes":
                part = replace(part, text=text)
            elif "wrong shares" in self.lie or "deals wrongly" in self.lie:
                part = replace(part, text=text, hashes=tuple(map(hash_share, shares)))
            setup.dealt_parts[holder] = key, part
        return b"".join(part.encode() for _, part in setup.dealt_parts.values())

    def _receive_shares(self, setup, body):
        found = super()._receive_shares(setup, body)
        if not self.lie.startswith("accuses"):
            setup.members = read_numbers(body)[0]  # it goes on whatever it got
            return found
        members, rest = read_numbers(body)
        others = [
            (m, data)
            for m, data in zip(members, pieces(rest, len(members)), strict=True)
            if m != self.number
        ]
        whom = others if "all" in self.lie else others[-1:]
        digests = [sha256(data + b"!" * ("another" in self.lie)).digest() for _, data in whom]
        return numbers([member for member, _ in whom]) + b"".join(digests)

    def _confirm(self, setup, body):
        return super()._confirm(setup, body) + b"rubbish" * (self.lie == "signs rubbish")

    def _open(self, setup, body):
        found = super()._open(setup, body)
        if self.lie == "another share":
            return found[:-SHARE_BYTES] + randbelow(PRIME).to_bytes(SHARE_BYTES, "little")
        return b"" if self.lie == "shares of nothing" else found
