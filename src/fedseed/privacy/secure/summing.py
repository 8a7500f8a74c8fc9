"""The coordinator's side of secure sums: it asks, forwards sealed shares, opens sums, and finds
liars.

Conversations are generators: they yield asks by client, and are sent the answers. So the caller
transports the bytes, and decides how long to wait. Clients are barred only because of messages that
they have signed: `replay_proof` repeats a conversation with the recorded answers, so that anybody
can check it.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedseed.durable import finished_files, write_whole
from fedseed.errors import MessageError
from fedseed.privacy.secure import LostError, TooFewError, keys, shamir
from fedseed.privacy.secure.dealing import (
    Fault,
    HeldPart,
    hash_share,
    matches_commitment,
    name_part,
    part_bytes,
    read_parts,
)
from fedseed.privacy.secure.fixed import FixedPoint, Words
from fedseed.privacy.secure.messages import (
    HASH_BYTES,
    SETUP_BYTES,
    Bundle,
    Phase,
    Terms,
    digest_of,
    frame,
    numbers,
    pieces,
    read_numbers,
    round_ask,
    share_ask,
    signed_parts,
    signing_payload,
    unframe,
)
from fedseed.privacy.secure.settings import FEWEST

OPENING_TRIES = 4  # how often shares are asked for; there is no other attempt at opening the round
# the most bytes of a message to or from a client; a server's usual limit is a little higher
MOST_ASKED = 700_000
T = TypeVar("T")
Heard = Mapping[int, bytes]  # answers to one ask, by client
# a generator that yields asks by client and is sent their answers
Asking = Generator[dict[int, bytes], Heard, T]


@dataclass
class Setup:
    """Agreed keys, and the answers that led to them."""

    terms: Terms
    bundles: Mapping[int, Bundle] = field(default_factory=dict)  # public keys by client
    agreed: bytes = b""  # the digest of the keys
    # sealed shares by dealer and holder; the dealers become the members
    parts: Mapping[int, Mapping[int, HeldPart]] = field(default_factory=dict)
    # the hash of the shares delivered to each member
    delivered: Mapping[int, bytes] = field(default_factory=dict)
    heard: list[Heard] = field(default_factory=list)  # all answers so far

    @property
    def members(self) -> tuple[int, ...]:
        """The clients whose shares all members have."""
        return tuple(self.parts)


@dataclass(frozen=True)
class Proof:
    """The reason why a client is barred, and the answers that prove it."""

    reason: str  # the reason, as text for people
    terms: Terms  # terms of the setup
    heard: tuple[Heard, ...]  # answers to one ask after another
    # round, attempt and survivors, if a sum was being opened
    opening: tuple[int, int, tuple[int, ...]] | None = None


@dataclass
class Summing:
    """A coordinator of secure sums."""

    threshold: int  # number of clients needed to open a sum
    form: FixedPoint  # the encoding of words
    ahead: int = 1  # number of rounds for which keys are agreed on at once
    # the clients' public keys, by number; None: the keys that clients send
    known: Mapping[int, bytes] | None = None
    setup: Setup | None = None
    # clients that have broken the rules, which are no longer asked
    barred: dict[int, Proof] = field(default_factory=dict)
    # clients whose answers were rejected, with the reasons, until cleared
    doubted: dict[int, str] = field(default_factory=dict)

    def prepare(self, round: int, attempt: int, clients: Sequence[int]) -> Asking[Setup]:
        """Agree on keys for a round and later ones, unless the same clients already have keys.

        Args:
            round: the round.
            attempt: how often the round began before.
            clients: participants, in ascending order.

        Returns:
            The setup; its members are the clients with masks and shares.

        Raises:
            TooFewError: fewer than the threshold have answered, or a client is barred or doubted.
        """
        current = self.setup
        if (
            current is not None
            and current.terms.place(round, attempt) is not None
            and current.members == tuple(clients)
        ):
            return current
        part_room = MOST_ASKED // max(1, len(clients)) - part_bytes(0) - 4 * keys.KEY_BYTES
        fit = part_room // (part_bytes(1) - part_bytes(0))
        ahead = max(1, min(self.ahead, fit))
        terms = Terms(
            token_bytes(SETUP_BYTES), round, attempt, ahead, self.threshold, tuple(clients)
        )
        return (yield from _Agreeing(self, Setup(terms)).setup())

    def open(
        self, round: int, attempt: int, vectors: Mapping[int, Words]
    ) -> Asking[tuple[Words, tuple[int, ...]]]:
        """Return the unmasked sum of the vectors, and the clients in it.

        Clients that have dealt wrongly are left out.

        Args:
            round: the round.
            attempt: how often the round began before.
            vectors: masked words of the survivors, by client.

        Raises:
            TooFewError: too few clients are left, before any share was asked for.
            LostError: shares were asked for, but the sum can't be recovered.
        """
        assert self.setup is not None
        return (yield from _Opening(self, self.setup, round, attempt, vectors).total())

    def check_enough(
        self,
        clients: Sequence[int] | Mapping[int, object],
        achievement: str,
        minimum: int = 0,
    ) -> None:
        """Raise TooFewError if the clients are fewer than the threshold, or than `minimum`."""
        needed = max(self.threshold, minimum)
        if len(clients) < needed:
            raise TooFewError(
                f"{len(clients)} clients {achievement}, but {needed} are needed: no sum is opened"
            )


class _Talk:
    """A conversation: its answers so far, and the clients that they prove to be cheating."""

    def __init__(self, summing: Summing, setup: Setup) -> None:
        self.summing = summing
        self.keys = setup
        self.heard = list(setup.heard)
        self.opening: tuple[int, int, tuple[int, ...]] | None = None

    def bar(self, client: int, reason: str) -> None:
        """Bar a client that has broken the rules, with the answers as proof."""
        self.summing.barred.setdefault(
            client, Proof(reason, self.keys.terms, tuple(self.heard), self.opening)
        )

    def ask(
        self, asks: Mapping[int, bytes], parse: Callable[[int, bytes], T]
    ) -> Asking[dict[int, T]]:
        """Ask clients; return their parsed answers.

        A client that has signed an impossible answer is barred. An unsigned answer is ignored.
        """
        replies = yield dict(asks)
        self.heard.append(
            {client: replies[client] for client in sorted(asks.keys() & replies.keys())}
        )
        results = {}
        for client, answer in self.heard[-1].items():
            try:
                body = self._signed(client, asks[client], answer)
            except MessageError as error:
                self.summing.doubted[client] = str(error)
                continue
            try:
                results[client] = parse(client, body)
            except MessageError as error:
                self.bar(client, f"its {unframe(answer)[0].name.lower()} message: {error}")
        return results

    def _signed(self, client: int, ask: bytes, answer: bytes) -> bytes:
        """Return the body of a client's answer.

        Raises MessageError if it is not signed, or answers another ask.
        """
        content, body, signature = signed_parts(answer)
        phase, name, _ = unframe(ask)
        if unframe(content)[:2] != (phase, name):
            raise MessageError("it answers a different ask")
        agreed, public_keys = self.keys.agreed, self.summing.known
        if phase is Phase.KEYS:
            identity = body[: keys.KEY_BYTES]
            if public_keys is not None and public_keys.get(client, b"") != identity:
                raise MessageError("it signs with a key that differs from the known one")
        else:
            identity = self.keys.bundles[client].identity
        if phase is Phase.OPEN:
            agreed += self.keys.delivered[client]
        payload = signing_payload(agreed, client, sha256(ask).digest(), content)
        if not keys.signature_fits(identity, signature, payload):
            raise MessageError("its answer is not signed with its key")
        return body


class _Agreeing(_Talk):
    """The conversation that agrees on keys."""

    def setup(self) -> Asking[Setup]:
        """Agree on keys. Raises TooFewError if too few clients answer."""
        summing, terms = self.summing, self.keys.terms
        summing.setup = None
        self.keys.bundles = yield from self.ask(
            dict.fromkeys(terms.clients, terms.encode()), self._read_keys
        )
        summing.check_enough(self.keys.bundles, "have sent keys", FEWEST)
        self.keys.agreed = digest_of(self.keys.bundles)
        holders = list(self.keys.bundles)
        ask = share_ask(terms.setup, self.keys.bundles)
        self.keys.parts = yield from self.ask(
            dict.fromkeys(holders, ask), lambda client, body: read_parts(body, holders, terms.count)
        )
        summing.check_enough(self.keys.parts, "have sent shares", FEWEST)
        asks = {holder: self._delivery(holder) for holder in self.keys.parts}
        self.keys.delivered = {holder: sha256(ask).digest() for holder, ask in asks.items()}
        barred_before = len(summing.barred)
        accused = yield from self.ask(asks, self._read_receipt)
        if any(accused.values()):
            yield from self._judge(accused)
        if len(summing.barred) > barred_before or any(accused.values()):
            left_out = sorted({*list(summing.barred)[barred_before:], *summing.doubted})
            raise TooFewError(
                f"clients {left_out} are left out, because some shares can't be read or are "
                "said to be unreadable"
            )
        self.keys.heard, summing.setup = self.heard, self.keys
        return summing.setup

    def _delivery(self, holder: int) -> bytes:
        """Return the ask that delivers all members' parts to a holder."""
        parts = b"".join(parts[holder].encode() for parts in self.keys.parts.values())
        body = numbers(list(self.keys.parts)) + parts
        return frame(Phase.DELIVER, self.keys.terms.setup, body)

    def _read_keys(self, client: int, body: bytes) -> Bundle:
        bundle = Bundle.decode(
            body + self.heard[-1][client][-keys.SIGNATURE_BYTES :], self.keys.terms.count
        )
        for key in (bundle.sealing, *bundle.masks):
            keys.check_public(key)
        return bundle

    def _read_receipt(self, client: int, body: bytes) -> tuple[int, ...]:
        """Return the dealers whose shares a client can't read."""
        accused, hashes = read_numbers(body)
        if not set(accused) <= self.keys.parts.keys() - {client} or pieces(
            hashes, len(accused), HASH_BYTES
        ) != [sha256(self.keys.parts[dealer][client].encode()).digest() for dealer in accused]:
            raise MessageError("it accuses others of shares that they have not sent")
        return accused

    def _judge(self, accused: Mapping[int, Sequence[int]]) -> Asking[None]:
        """Let each dealer reveal the key of one accuser's part, so that everybody can read it.

        If it can be read, the accuser has lied; otherwise the dealer has.
        """
        receipts, pairs, asks = self.heard[-1], {}, {}
        all_accused = {dealer for dealers in accused.values() for dealer in dealers}
        for dealer in sorted(all_accused):
            accusers = [client for client, dealers in accused.items() if dealer in dealers]
            pairs[dealer] = accuser = accusers[dealer % len(accusers)]
            accusation = numbers([accuser]) + self.keys.delivered[accuser] + receipts[accuser]
            asks[dealer] = frame(Phase.REVEAL, self.keys.terms.setup, accusation)

        def parse(dealer: int, body: bytes) -> X25519PrivateKey:
            key = X25519PrivateKey.from_private_bytes(pieces(body, 1, keys.KEY_BYTES)[0])
            if keys.public(key) != self.keys.parts[dealer][pairs[dealer]].key:
                raise MessageError("it shows a key that its shares were not sealed with")
            return key

        opened = yield from self.ask(asks, parse)
        for dealer in asks.keys() - opened.keys() - self.summing.barred.keys():
            self.summing.doubted[dealer] = (
                "others can't read its shares, and it does not reveal them"
            )
        for dealer, key in opened.items():
            accuser = pairs[dealer]
            try:
                part_id = name_part(self.keys.terms.setup, dealer, accuser)
                self.keys.parts[dealer][accuser].shares(
                    key, self.keys.bundles[accuser].sealing, part_id
                )
                self.bar(
                    accuser,
                    f"it claims that the shares of client {dealer} are unreadable, but they "
                    "are readable",
                )
            except MessageError as error:
                self.bar(
                    dealer, f"client {accuser} can't read the shares that it has sealed: {error}"
                )


class _Opening(_Talk):
    """The conversation that opens a sum."""

    def __init__(
        self, summing: Summing, setup: Setup, round: int, attempt: int, vectors: Mapping[int, Words]
    ) -> None:
        super().__init__(summing, setup)
        self.vectors = vectors
        self.survivors = tuple(sorted(vectors))
        self.attempt, self.opening = (round, attempt), (round, attempt, self.survivors)
        position = setup.terms.place(round, attempt)
        assert position is not None
        self.position = position

    def total(self) -> Asking[tuple[Words, tuple[int, ...]]]:
        """Return the sum, and the clients in it. Raises the errors of `Summing.open`."""
        summing, members = self.summing, self.keys.members
        summing.check_enough(self.survivors, "have sent their vectors", FEWEST)
        ask = self._ask(Phase.CONFIRM, numbers(members) + numbers(self.survivors))
        signers = yield from self.ask(
            dict.fromkeys(self.survivors, ask), lambda client, body: pieces(body, 0)
        )
        summing.check_enough(signers, "have signed who is in the sum")
        if self.survivors != members:
            summing.setup = None  # because returning clients may have lost their keys
        signatures = [self.heard[-1][client][-keys.SIGNATURE_BYTES :] for client in signers]
        ask = self._ask(Phase.OPEN, numbers(list(signers)) + b"".join(signatures))
        try:
            shares = yield from self._insist(
                dict.fromkeys(self.survivors, ask), self._read_shares, summing.threshold
            )
            summing.check_enough(shares, "have revealed their shares")
            secrets, faults = self._secrets(dict(list(shares.items())[: summing.threshold]))
            contributors = tuple(client for client in self.survivors if client not in faults)
            pairs = {}
            if faults:
                summing.check_enough(contributors, "are left that have dealt correctly", FEWEST)
            for dealer, fault in faults.items():
                ask = self._ask(Phase.DISOWN, fault.encode())
                pairs[dealer] = yield from self._insist(
                    dict.fromkeys(contributors, ask),
                    lambda client, body: pieces(body, 1, keys.KEY_BYTES)[0],
                    len(contributors),
                )
                if len(pairs[dealer]) < len(contributors):
                    raise TooFewError(
                        f"not all clients have revealed their part of the masks of client {dealer}"
                    )
        except TooFewError as error:
            summing.setup = None
            raise LostError(
                f"{error}; shares were asked for, so no other attempt at this round will be opened"
            ) from error
        return self._unmasked(contributors, secrets, pairs), contributors

    def _ask(self, phase: Phase, body: bytes) -> bytes:
        return round_ask(phase, self.keys.terms.setup, *self.attempt, body)

    def _insist(
        self, asks: Mapping[int, bytes], parse: Callable[[int, bytes], T], minimum: int
    ) -> Asking[dict[int, T]]:
        """Ask up to OPENING_TRIES times; a repeated ask gets the same answer."""
        results: dict[int, T] = {}
        for _ in range(OPENING_TRIES):
            results |= yield from self.ask(
                {client: asks[client] for client in asks if client not in results}, parse
            )
            if len(results) >= minimum:
                break
        return results

    def _read_shares(self, client: int, body: bytes) -> list[bytes]:
        """Return a client's share of each member."""
        shares = pieces(body, len(self.keys.members), shamir.SHARE_BYTES)
        for (dealer, parts), share in zip(self.keys.parts.items(), shares, strict=True):
            position = 2 * self.position + (dealer in self.survivors)
            if parts[client].hashes[position] != hash_share(share):
                raise MessageError(
                    f"it reveals a different share of client {dealer}'s secret than it was dealt"
                )
        return shares

    def _secrets(
        self, shares_by_holder: Mapping[int, Sequence[bytes]]
    ) -> tuple[dict[int, bytes], dict[int, Fault]]:
        """Recover one seed of each member, or the proof of its fault.

        For a survivor it is the seed of its own mask, for another member the seed of its key.
        """
        secrets, faults = {}, {}
        weights = shamir.factors([holder + 1 for holder in shares_by_holder])
        for column, member in enumerate(self.keys.members):
            shares = {holder: row[column] for holder, row in shares_by_holder.items()}
            is_survivor = member in self.survivors
            values = {
                holder + 1: int.from_bytes(share, "little") for holder, share in shares.items()
            }
            secret = shamir.recover_secret(values, weights)
            bundle = self.keys.bundles[member]
            if secret is None or not matches_commitment(bundle, self.position, is_survivor, secret):
                self.bar(member, "the shares that it dealt do not fit the keys that it sent")
                faults[member] = Fault(member, is_survivor, shares, self.heard[1][member])
            else:
                secrets[member] = secret
        return secrets, faults

    def _unmasked(
        self,
        contributors: Sequence[int],
        secrets: Mapping[int, bytes],
        pairs: Mapping[int, Mapping[int, bytes]],
    ) -> Words:
        """Remove the masks that did not cancel: clients' own masks, and masks for clients outside
        the sum.
        """
        form, setup = self.summing.form, self.keys.terms.setup
        total: Words = np.sum(
            [self.vectors[client] for client in contributors], axis=0, dtype=form.dtype
        )
        for member, secret in secrets.items():
            if member in contributors:
                total = total - keys.self_mask(secret, len(total), form)
                continue
            pair_secret = keys.private(secret)
            # the missing client's mask for a contributor is the negative of the contributor's mask
            # for it
            for contributor in contributors:
                public_key = self.keys.bundles[contributor].masks[self.position]
                key = keys.pair_key(pair_secret, public_key, setup, self.position)
                total = total + keys.pair_mask(key, member, contributor, len(total), form)
        for dealer, pair_keys in pairs.items():
            for contributor, key in pair_keys.items():
                total = total + keys.pair_mask(key, dealer, contributor, len(total), form)
        return total


def replay_proof(proof: Proof, known: Mapping[int, bytes] | None = None) -> frozenset[int]:
    """Return the clients that a proof bars.

    Anybody can check a proof, and a client that follows the rules is never barred.

    Args:
        proof: the recorded answers.
        known: the clients' public keys, by number; None: the keys that they sent.
    """
    form = FixedPoint(64, 0, 1)
    summing = Summing(proof.terms.threshold, form, proof.terms.count, known)
    transcript = iter(proof.heard)

    def replay(asking: Asking[object]) -> None:
        try:
            next(asking)
            for answers in transcript:
                asking.send(answers)
        except (StopIteration, TooFewError, LostError):
            pass

    replay(_Agreeing(summing, Setup(proof.terms)).setup())
    if proof.opening is not None and summing.setup is not None:
        round, attempt, survivors = proof.opening
        replay(summing.open(round, attempt, dict.fromkeys(survivors, np.zeros(1, form.dtype))))
    return frozenset(summing.barred)


def save_proof(folder: Path, client: int, proof: Proof) -> None:
    """Write the proof against a client into a file named by its number. Raises StorageError if it
    can't be written.
    """
    transcript = []
    for answers in proof.heard:
        transcript.append(
            {str(number): b64encode(answer).decode() for number, answer in answers.items()}
        )
    table = {
        "reason": proof.reason,
        "terms": b64encode(proof.terms.encode()).decode(),
        "heard": transcript,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{client}.json", json.dumps({**table, "opening": proof.opening}).encode())


def load_proofs(
    folder: Path, known: Mapping[int, bytes] | None
) -> tuple[dict[int, Proof], list[Path]]:
    """Read and check the proofs in a folder.

    Args:
        folder: the folder of `save_proof`; it need not exist.
        known: the clients' public keys, by number; None: the keys that they sent.

    Returns:
        The proofs by client, and the files that prove nothing.
    """
    proofs, invalid_files = {}, []
    for path in finished_files(folder, "*.json"):
        try:
            table = json.loads(path.read_bytes())
            _, setup, terms = unframe(b64decode(table["terms"]))
            transcript = []
            for answers in table["heard"]:
                transcript.append(
                    {int(number): b64decode(text) for number, text in answers.items()}
                )
            opening = table["opening"] and (*table["opening"][:2], tuple(table["opening"][2]))
            proof = Proof(
                str(table["reason"]), Terms.decode(setup, terms), tuple(transcript), opening
            )
            if int(path.stem) not in replay_proof(proof, known):
                raise ValueError("it proves nothing")
            proofs[int(path.stem)] = proof
        except (MessageError, ValueError, TypeError, KeyError, AttributeError):
            invalid_files.append(path)
    return proofs, invalid_files
