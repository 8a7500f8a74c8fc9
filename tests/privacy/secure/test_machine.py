"""Secure sums as a state machine, against any number of liars that leave a threshold of honest
clients.

Who answers when, who goes, who is started again and who lies in which way is drawn, and when the
coordinator is killed."""

import time
from hashlib import sha256
from itertools import combinations
from random import Random

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from fedseed.errors import MessageError
from fedseed.privacy.secure import LostError, TooFewError, keys
from fedseed.privacy.secure.client import SecureClient
from fedseed.privacy.secure.dealing import read_parts
from fedseed.privacy.secure.messages import (
    Bundle,
    Terms,
    frame,
    numbers,
    round_ask,
    share_ask,
    signing_payload,
)
from fedseed.privacy.secure.messages import Phase as MessagePhase
from fedseed.privacy.secure.summing import Summing, replay_proof
from support.secure import FORM, LIES, UNPROVEN, Liar
from support.tiers import limit_seconds

# hypothesis likes small numbers
SEEDS = st.randoms(use_true_random=True).map(lambda random: random.getrandbits(64))


class Rounds(RuleBasedStateMachine):
    """A coordinator that keeps to the rules, in a run without end.

    Whoever is asked answers, is silent, or is started again; the order of the answers, and asks
    that come twice, are drawn, too."""

    @initialize(seed=SEEDS)
    def begin(self, seed):
        random = Random(seed)
        count = random.randint(3, 8)
        self.threshold = random.randint(count // 2 + 1, min(count, count // 2 + 2))
        liars = random.sample(range(count), random.randint(0, count - max(self.threshold, 3)))
        self.liars = {client: random.choice(LIES) for client in liars}
        self.identities = {n: Ed25519PrivateKey.generate() for n in range(count)}
        self.known = {n: keys.public(key) for n, key in self.identities.items()}
        self.known = random.choice([self.known, None])
        self.ahead = random.randint(1, 3)
        self.opened = dict.fromkeys(self.identities, 0)  # as in their files
        self.clients = {n: self.started(n) for n in self.identities}
        self.summing = Summing(self.threshold, FORM, self.ahead, self.known)
        self.sums = {}  # by round: who is in it
        self.number = self.attempt = 1
        self.vectors = {}
        self.out = set()  # of this round: doubted
        # an honest client was silent in this attempt, or has forgotten keys
        self.disturbed = self.restarted = False
        self.fresh()

    def started(self, number):
        make = Liar if number in self.liars else SecureClient
        more = {"lie": self.liars[number]} if number in self.liars else {}
        client = make(number, self.threshold, FORM, self.identities[number], self.known, **more)
        client.opened = self.opened[number]
        return client

    def fresh(self):
        """The next round."""
        self.number, self.attempt, self.out = self.number + 1, 0, set()
        self.vectors = {
            n: FORM.encode(np.random.default_rng(self.number * 10 + n).normal(size=2))
            for n in self.clients
        }

    # -- the coordinator
    # -----------------------------------------------------------------------------------------

    @rule()
    def a_round_in_peace(self):
        """Until it is over: every honest client is there."""
        number, attempts = self.number, 0
        while self.number == number:
            self.attempt_with(None)
            attempts += 1
            assert attempts <= 2 + 2 * len(self.liars)

    @rule(data=st.data())
    def an_attempt(self, data):
        """Some are silent, some are asked twice, some are started again, and perhaps the
        coordinator is.
        """
        self.attempt_with(data)

    def attempt_with(self, data):
        self.bars = set(self.summing.barred)
        self.disturbed, self.restarted = self.restarted, False
        there = [n for n in self.clients if n not in self.summing.barred and n not in self.out]
        if len(there) < max(3, self.threshold):  # who is out is asked again after a while
            self.out.clear()
            there = [n for n in self.clients if n not in self.summing.barred]
        # then a liar's silence is enough
        few = len(set(there) - self.liars.keys()) < max(3, self.threshold)
        try:
            setup = self.hold(self.summing.prepare(self.number, self.attempt, there), data)
            words = {}
            for client in setup.members:
                if data is not None and data.draw(st.integers(0, 9), "gone") == 0:
                    self.disturbed = True
                    continue
                try:
                    said = self.clients[client].mask_words(
                        self.number, self.attempt, self.vectors[client]
                    )
                    words[client] = np.frombuffer(said[8:], FORM.dtype)
                except MessageError:
                    assert client in self.liars or self.disturbed
            self.took(*self.hold(self.summing.open(self.number, self.attempt, words), data))
        except TooFewError as error:
            new = self.summing.doubted.keys() - self.out
            assert few or self.disturbed or new or self.summing.barred.keys() - self.bars, error
            self.out |= new
            self.attempt += 1
        except LostError as error:
            assert few or self.disturbed or self.summing.barred.keys() - self.bars, error
            self.fresh()
        except KeyboardInterrupt:
            self.the_coordinator_is_started_again()
        self.summing.doubted.clear()

    def hold(self, asking, data):
        """A conversation, an ask at a time."""
        try:
            asks = next(asking)
            while True:
                asks = asking.send(self.answers(asks, data))
        except StopIteration as done:
            return done.value

    def answers(self, asks, data):
        order = sorted(asks)
        silent, twice, restarted = set(), set(), set()
        if data is not None and order and data.draw(st.booleans(), "disturb"):
            order = data.draw(st.permutations(order), "order")
            which = st.sets(st.sampled_from(order), max_size=2)
            silent, twice, restarted = (
                data.draw(which, name) for name in ("silent", "twice", "restarted")
            )
            if data.draw(st.integers(0, 9), "killed") == 0:
                raise KeyboardInterrupt
        answers = {}
        for client in order:
            if client in restarted:
                self.a_client_is_started_again(client)
            for _ in range(1 + (client in twice)):
                try:
                    said = self.clients[client].answer(asks[client])
                except MessageError as error:
                    assert client in self.liars or self.disturbed, error
                    continue
                self.opened[client] = self.clients[client].opened
                if client not in silent:
                    answers[client] = said
        self.disturbed |= bool(silent - self.liars.keys())
        return answers

    def took(self, total, members):
        """A sum is opened: of enough, of vectors as they were masked, and once.

        In peace of all honest ones but those
        that were silent when they were asked to show a key."""
        assert len(members) >= max(3, self.threshold) and self.number not in self.sums
        assert (
            total == sum((self.vectors[n] for n in members), start=np.zeros(2, FORM.dtype))
        ).all()
        assert self.disturbed or self.clients.keys() - self.liars.keys() - self.out <= set(members)
        self.sums[self.number] = members
        self.fresh()

    @rule(client=st.integers(0, 6))
    def a_client_is_started_again(self, client):
        if client in self.clients:
            self.clients[client] = self.started(client)
            if client not in self.liars:
                self.disturbed = self.restarted = True

    @rule()
    def the_coordinator_is_started_again(self):
        """It knows the round, and that it was begun; a round of which shares were said is lost."""
        self.check()
        self.summing = Summing(self.threshold, FORM, self.ahead, self.known)
        self.restarted = True
        if any(opened >= self.number for opened in self.opened.values()):
            self.fresh()
        else:
            self.attempt += 1

    # -- what must be so
    # -------------------------------------------------------------------------------------------

    @invariant()
    def check(self):
        if not hasattr(self, "summing"):
            return
        for client, proof in self.summing.barred.items():
            assert client in self.liars, proof.reason
            assert client in replay_proof(proof, self.known) <= self.liars.keys()
            assert self.liars[client] not in UNPROVEN


# -- a coordinator that wants more than sums
# -------------------------------------------------------------------------


class Adversary(RuleBasedStateMachine):
    """A coordinator that asks what it likes, of whom it likes, with all that clients who help it
    know.

    It has masked two rounds' vectors for any attempt with any keys, told everybody another story,
    and started clients again. What it has heard is kept: which secrets it can put together, and so
    which sums it can open."""

    @initialize(seed=SEEDS)
    def begin(self, seed):
        random = Random(seed)
        self.count = random.randint(3, 6)
        self.threshold = random.randint(self.count // 2 + 1, self.count)
        # threshold > (count + helping) / 2
        helping = random.randint(0, 2 * self.threshold - self.count - 1)
        self.helpers = set(random.sample(range(self.count), min(helping, self.threshold - 1)))
        self.identities = {n: Ed25519PrivateKey.generate() for n in range(self.count)}
        self.known = {n: keys.public(key) for n, key in self.identities.items()}
        self.clients = {n: self.started(n) for n in self.identities}
        # terms, bundles, members by client, and by place the signatures of each list
        self.setups = []
        self.shares = {}  # by (setup, dealer, place, own): who has said one
        self.masked = {}  # by (setup, place): who has masked, against whom

    def started(self, number, opened=0):
        client = SecureClient(number, self.threshold, FORM, self.identities[number], self.known)
        client.opened = opened
        return client

    def hear(self, client, ask):
        try:
            return self.clients[client].answer(ask)
        except MessageError:
            return None

    @rule(seed=SEEDS)
    def all_at_once(self, seed):
        self.keys_and_shares(seed)
        self.vectors(seed)
        self.opening(seed)

    @rule(seed=SEEDS)
    def keys_and_shares(self, seed):
        random = Random(seed)
        asked = tuple(
            sorted(
                random.sample(range(self.count), random.randint(max(3, self.threshold), self.count))
            )
        )
        first, attempt, count = (
            random.randint(1, 2),
            random.choice([0, 0, 1, 2]),
            random.choice([1, 1, 2]),
        )
        terms = Terms(random.randbytes(8), first, attempt, count, self.threshold, asked)
        said = {c: answer for c in asked if (answer := self.hear(c, terms.encode())) is not None}
        bundles = {c: Bundle.decode(answer[9:], terms.count) for c, answer in said.items()}
        ask = share_ask(terms.setup, bundles)
        parts = {
            c: read_parts(answer[9:-64], list(bundles), terms.count)
            for c in bundles
            if (answer := self.hear(c, ask)) is not None
        }
        members, lists = {}, [list(parts)]
        if len(parts) > 1:
            lists.append(sorted(random.sample(list(parts), random.randint(1, len(parts)))))
        for client in parts:
            those = random.choices(lists, [4, 1][: len(lists)])[0]
            text = numbers(those) + b"".join(parts[m][client].encode() for m in those)
            if self.hear(client, frame(MessagePhase.DELIVER, terms.setup, text)) is not None:
                members[client] = tuple(those)
        if members:
            self.setups.append((terms, members, {}))
        for holder in self.helpers & members.keys():
            for dealer in members[holder]:
                for at in range(terms.count):
                    for own in (False, True):
                        self.shares.setdefault((terms.setup, dealer, at, own), set()).add(holder)

    def one_setup(self, random):
        """The newest as a rule, if there is one."""
        return random.choices([self.setups[-1:], self.setups[-2:-1], self.setups[:1]], [6, 1, 1])[0]

    @rule(seed=SEEDS)
    def vectors(self, seed):
        random = Random(seed)
        for terms, members, _ in self.one_setup(random):
            at = random.randrange(terms.count)
            for client in members:
                if random.random() < 0.9:
                    attempt = terms.attempt if at == 0 else 0
                    words = FORM.encode(np.random.default_rng(terms.round + at).normal(size=2))
                    try:
                        self.clients[client].mask_words(terms.round + at, attempt, words)
                    except MessageError:
                        continue
                    newest = (
                        self.clients[client]._find_setup(terms.round + at, attempt)[0].terms.setup
                    )
                    # a seed may come twice, and a setup with it
                    against = next(
                        m[client] for t, m, _ in self.setups if t.setup == newest and client in m
                    )
                    self.masked.setdefault((newest, at), {})[client] = against

    @rule(seed=SEEDS)
    def opening(self, seed):
        """Lists are signed, and shares asked for, of each client with its own list or another's."""
        random = Random(seed)
        for terms, members, signed in self.one_setup(random):
            at = random.randrange(terms.count)
            about = terms.round + at, terms.attempt if at == 0 else 0
            there = sorted(self.masked.get((terms.setup, at), {}))
            lists = [there, sorted(random.sample(there, max(0, len(there) - 1)))]
            for client in members:
                survivors = random.choices(lists, [3, 1])[0]
                body = numbers(members[client]) + numbers(survivors)
                ask = round_ask(MessagePhase.CONFIRM, terms.setup, *about, body)
                if client in self.helpers:
                    for each in lists:
                        self.sign(
                            client, terms, about, numbers(members[client]) + numbers(each), signed
                        )
                elif (answer := self.hear(client, ask)) is not None:
                    signed.setdefault((at, body), {})[client] = answer[-64:]
            for client in members:
                for (place, _), signatures in list(signed.items()):
                    if place != at:
                        continue
                    if random.random() < 0.3:  # others', of another list
                        signatures = {
                            **{c: s for one in signed.values() for c, s in one.items()},
                            **signatures,
                        }
                    text = numbers(sorted(signatures)) + b"".join(
                        signatures[c] for c in sorted(signatures)
                    )
                    answer = self.hear(
                        client, round_ask(MessagePhase.OPEN, terms.setup, *about, text)
                    )
                    if answer is not None:
                        survivors = self.clients[client]._setups[terms.setup].signed[at][0]
                        for dealer in members[client]:
                            self.shares.setdefault(
                                (terms.setup, dealer, at, dealer in survivors), set()
                            ).add(client)

    def sign(self, client, terms, about, body, signed):
        """A helper signs any list."""
        setup = self.clients[client]._setups.get(terms.setup)
        if setup is not None:
            asked = sha256(round_ask(MessagePhase.CONFIRM, terms.setup, *about, body)).digest()
            text = signing_payload(
                setup.agreed, client, asked, frame(MessagePhase.CONFIRM, terms.setup)
            )
            signed.setdefault((about[0] - terms.round, body), {})[client] = self.identities[
                client
            ].sign(text)

    @rule(seed=SEEDS)
    def a_client_is_started_again(self, seed):
        client = Random(seed).randrange(self.count)
        self.clients[client] = self.started(client, self.clients[client].opened)

    def found(self, setup, dealer, at, own):
        return (
            dealer in self.helpers
            or len(self.shares.get((setup, dealer, at, own), ())) >= self.threshold
        )

    @invariant()
    def one_sum_of_each_round(self):
        if not hasattr(self, "masked"):
            return
        sums = {}
        for (setup, at), against in self.masked.items():
            terms = next(terms for terms, _, _ in self.setups if terms.setup == setup)
            honest = sorted(against.keys() - self.helpers)
            for size in range(1, len(honest) + 1):
                for inside in combinations(honest, size):
                    own = all(self.found(setup, client, at, True) for client in inside)
                    cancels = all(
                        self.found(setup, client, at, False) or self.found(setup, other, at, False)
                        for client in inside
                        for other in range(self.count)
                        if other != client
                        and (other in against[client])
                        != (other in inside and client in against[other])
                    )
                    if own and cancels:
                        sums.setdefault(terms.round + at, set()).add(inside)
        for number, those in sums.items():
            assert len(those) == 1, (number, those)
            assert len(next(iter(those))) >= max(3, self.threshold) - len(self.helpers)


def profile(examples, steps):
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=[Phase.generate],
    )


@pytest.mark.parametrize("machine", [Rounds, Adversary])
def test_a_few_runs(machine):
    run_state_machine_as_test(machine, settings=profile(6, 12))


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Rounds, Adversary])
def test_many_runs(machine):
    """FEDSEED_SECONDS=600 for ten minutes of them."""
    end = time.monotonic() + limit_seconds(20)
    while time.monotonic() < end:
        run_state_machine_as_test(machine, settings=profile(20, 20))
