"""The coordinator's side of secure sums: it asks, carries sealed shares, opens sums, and finds out
who lies.

Conversations are generators: they yield what is asked of whom, and are sent what came back, so that
who carries the bytes decides how long to wait. Whom they bar depends on nothing but what clients
have signed: `convicted` holds the same conversation again over what was heard, so anybody can check
it.
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

from fedseed.durable import write_whole
from fedseed.errors import MessageError
from fedseed.privacy.secure import LostError, TooFewError, keys, shamir
from fedseed.privacy.secure.dealing import Fault, Part, about, fits, hashed, part_bytes, read_parts
from fedseed.privacy.secure.fixed import FixedPoint, Words
from fedseed.privacy.secure.messages import (
    HASH_BYTES,
    SETUP_BYTES,
    Bundle,
    Phase,
    Terms,
    digest_of,
    framed,
    numbers,
    pieces,
    read_numbers,
    round_ask,
    share_ask,
    signed_parts,
    told,
    unframed,
)
from fedseed.privacy.secure.settings import FEWEST

OPENING_TRIES = 4  # that shares are asked for: no other attempt of the round will be opened
MOST_ASKED = 700_000  # bytes of a message to or from a client: a usual server takes a little more
T = TypeVar("T")
Heard = Mapping[int, bytes]  # answers to what was asked at once, by client
# yields asks by client, is sent the answers that came
Asking = Generator[dict[int, bytes], Heard, T]


@dataclass
class Setup:
    """Keys that were agreed on, and what was said on the way there."""

    terms: Terms  # for which rounds
    bundles: Mapping[int, Bundle] = field(default_factory=dict)  # public keys by client
    agreed: bytes = b""  # the digest of the keys
    # sealed shares by dealer and holder; the dealers are the members
    parts: Mapping[int, Mapping[int, Part]] = field(default_factory=dict)
    # the hash of what each member was sent of these
    delivered: Mapping[int, bytes] = field(default_factory=dict)
    heard: list[Heard] = field(default_factory=list)  # all answers so far

    @property
    def members(self) -> tuple[int, ...]:
        """Return the clients whose shares all members have."""
        return tuple(self.parts)


@dataclass(frozen=True)
class Proof:
    """Why a client is barred, and the answers that show it."""

    reason: str  # for a person
    terms: Terms  # of the setup
    heard: tuple[Heard, ...]  # what was answered, one ask after another
    # round, attempt and survivors, where a sum was being opened
    opening: tuple[int, int, tuple[int, ...]] | None = None


@dataclass
class Summing:
    """A coordinator."""

    threshold: int  # how many clients open a sum together
    form: FixedPoint  # how words are written
    ahead: int = 1  # for how many rounds keys are agreed on at once
    # the public keys that sign for clients, by number; None: what they say
    known: Mapping[int, bytes] | None = None
    setup: Setup | None = None
    # clients that have broken the rules: they are asked no more
    barred: dict[int, Proof] = field(default_factory=dict)
    # whose answers count for nothing, and why, until cleared
    doubted: dict[int, str] = field(default_factory=dict)

    def prepare(self, round: int, attempt: int, clients: Sequence[int]) -> Asking[Setup]:
        """Agrees on keys for a round, and those after it, unless that was done before with the same
        clients.

        Args:
            round: the round.
            attempt: how often it was begun before.
            clients: who takes part, in ascending order.

        Returns:
            The setup; its members are those of the clients whose masks and shares there are.

        Raises:
            TooFewError: fewer than the threshold have answered, or somebody is barred or doubted.
        """
        found = self.setup
        if (
            found is not None
            and found.terms.place(round, attempt) is not None
            and found.members == tuple(clients)
        ):
            return found
        each = MOST_ASKED // max(1, len(clients)) - part_bytes(0) - 4 * keys.KEY_BYTES
        fit = each // (part_bytes(1) - part_bytes(0))
        ahead = max(1, min(self.ahead, fit))
        terms = Terms(
            token_bytes(SETUP_BYTES), round, attempt, ahead, self.threshold, tuple(clients)
        )
        return (yield from _Agreeing(self, Setup(terms)).setup())

    def open(
        self, round: int, attempt: int, vectors: Mapping[int, Words]
    ) -> Asking[tuple[Words, tuple[int, ...]]]:
        """Return the sum of the vectors without masks, and whose they are: all but those who have
        dealt wrongly.

        Args:
            round: the round.
            attempt: how often it was begun before.
            vectors: masked words of the survivors, by client.

        Raises:
            TooFewError: too few are left, and no share was asked for.
            LostError: shares were asked for, and the sum can't be had.
        """
        assert self.setup is not None
        return (yield from _Opening(self, self.setup, round, attempt, vectors).total())

    def enough(
        self, clients: Sequence[int] | Mapping[int, object], what: str, least: int = 0
    ) -> None:
        """Raises TooFewError if the clients are fewer than the threshold, or than `least`."""
        if len(clients) < (needed := max(self.threshold, least)):
            raise TooFewError(
                f"{len(clients)} clients {what}: {needed} are needed, nothing is opened"
            )


class _Talk:
    """A conversation: what was heard in it, and which clients it shows to have broken the rules."""

    def __init__(self, summing: Summing, setup: Setup) -> None:
        self.summing = summing
        self.keys = setup
        self.heard = list(setup.heard)
        self.opening: tuple[int, int, tuple[int, ...]] | None = None

    def bar(self, client: int, reason: str) -> None:
        """Bars a client that has broken the rules, as what was heard shows."""
        self.summing.barred.setdefault(
            client, Proof(reason, self.keys.terms, tuple(self.heard), self.opening)
        )

    def ask(
        self, asks: Mapping[int, bytes], read: Callable[[int, bytes], T]
    ) -> Asking[dict[int, T]]:
        """Return what was read in answers.

        Bars whoever has signed what can't be; ignores what is not signed.
        """
        came = yield dict(asks)
        self.heard.append({client: came[client] for client in sorted(asks.keys() & came.keys())})
        found = {}
        for client, answer in self.heard[-1].items():
            try:
                body = self._signed(client, asks[client], answer)
            except MessageError as error:
                self.summing.doubted[client] = str(error)
                continue
            try:
                found[client] = read(client, body)
            except MessageError as error:
                self.bar(client, f"its {unframed(answer)[0].name.lower()} message: {error}")
        return found

    def _signed(self, client: int, ask: bytes, answer: bytes) -> bytes:
        """Return what a client has answered.

        Raises MessageError: that is not signed, or answers something else.
        """
        said, body, signature = signed_parts(answer)
        phase, name, _ = unframed(ask)
        if unframed(said)[:2] != (phase, name):
            raise MessageError("it answers what it was not asked")
        agreed, known = self.keys.agreed, self.summing.known
        if phase is Phase.KEYS:
            identity = body[: keys.KEY_BYTES] if known is None else known.get(client, b"")
            if identity != body[: keys.KEY_BYTES]:
                raise MessageError("it signs with another key than is known")
        else:
            identity = self.keys.bundles[client].identity
        if phase is Phase.OPEN:
            agreed += self.keys.delivered[client]
        if not keys.signature_fits(
            identity, signature, told(agreed, client, sha256(ask).digest(), said)
        ):
            raise MessageError("its answer is not signed with its key")
        return body


class _Agreeing(_Talk):
    """The conversation that keys are agreed on in."""

    def setup(self) -> Asking[Setup]:
        """Return the keys. Raises TooFewError."""
        summing, terms = self.summing, self.keys.terms
        summing.setup = None
        self.keys.bundles = yield from self.ask(
            dict.fromkeys(terms.clients, terms.encode()), self._read_keys
        )
        summing.enough(self.keys.bundles, "have sent keys", FEWEST)
        self.keys.agreed = digest_of(self.keys.bundles)
        holders = list(self.keys.bundles)
        ask = share_ask(terms.setup, self.keys.bundles)
        self.keys.parts = yield from self.ask(
            dict.fromkeys(holders, ask), lambda client, body: read_parts(body, holders, terms.count)
        )
        summing.enough(self.keys.parts, "have sent shares", FEWEST)
        asks = {
            holder: framed(
                Phase.DELIVER,
                terms.setup,
                numbers(list(self.keys.parts))
                + b"".join(parts[holder].encode() for parts in self.keys.parts.values()),
            )
            for holder in self.keys.parts
        }
        self.keys.delivered = {holder: sha256(ask).digest() for holder, ask in asks.items()}
        before = len(summing.barred)
        accused = yield from self.ask(asks, self._read_receipt)
        if any(accused.values()):
            yield from self._judge(accused)
        if len(summing.barred) > before or any(accused.values()):
            out = sorted({*list(summing.barred)[before:], *summing.doubted})
            raise TooFewError(
                f"clients {out} are left out: somebody's shares can't be read, or it says so"
            )
        self.keys.heard, summing.setup = self.heard, self.keys
        return summing.setup

    def _read_keys(self, client: int, body: bytes) -> Bundle:
        bundle = Bundle.decode(
            body + self.heard[-1][client][-keys.SIGNATURE_BYTES :], self.keys.terms.count
        )
        for key in (bundle.sealing, *bundle.masks):
            keys.check_public(key)
        return bundle

    def _read_receipt(self, client: int, body: bytes) -> tuple[int, ...]:
        """Return whose shares a client says that it can't read."""
        accused, hashes = read_numbers(body)
        if not set(accused) <= self.keys.parts.keys() - {client} or pieces(
            hashes, len(accused), HASH_BYTES
        ) != [sha256(self.keys.parts[dealer][client].encode()).digest() for dealer in accused]:
            raise MessageError("it accuses others of what they have not sent")
        return accused

    def _judge(self, accused: Mapping[int, Sequence[int]]) -> Asking[None]:
        """Let each dealer show what the part of one accuser was sealed with: then everybody can
        read it, or nobody.
        """
        said, pairs, asks = self.heard[-1], {}, {}
        for dealer in sorted({dealer for whom in accused.values() for dealer in whom}):
            accusers = [client for client, whom in accused.items() if dealer in whom]
            pairs[dealer] = accuser = accusers[dealer % len(accusers)]
            shown = numbers([accuser]) + self.keys.delivered[accuser] + said[accuser]
            asks[dealer] = framed(Phase.REVEAL, self.keys.terms.setup, shown)

        def read(dealer: int, body: bytes) -> X25519PrivateKey:
            key = X25519PrivateKey.from_private_bytes(pieces(body, 1, keys.KEY_BYTES)[0])
            if keys.public(key) != self.keys.parts[dealer][pairs[dealer]].key:
                raise MessageError("it shows another key than its shares were sealed with")
            return key

        opened = yield from self.ask(asks, read)
        for dealer in asks.keys() - opened.keys() - self.summing.barred.keys():
            self.summing.doubted[dealer] = (
                "others say that they can't read its shares, and it does not show them"
            )
        for dealer, key in opened.items():
            accuser = pairs[dealer]
            try:
                use = about(self.keys.terms.setup, dealer, accuser)
                self.keys.parts[dealer][accuser].shares(
                    key, self.keys.bundles[accuser].sealing, use
                )
                self.bar(
                    accuser,
                    f"it says that it can't read the shares of client {dealer}, which can be read",
                )
            except MessageError as error:
                self.bar(
                    dealer, f"client {accuser} can't read the shares that it has sealed: {error}"
                )


class _Opening(_Talk):
    """The conversation that a sum is opened in."""

    def __init__(
        self, summing: Summing, setup: Setup, round: int, attempt: int, vectors: Mapping[int, Words]
    ) -> None:
        super().__init__(summing, setup)
        self.vectors = vectors
        self.survivors = tuple(sorted(vectors))
        self.attempt, self.opening = (round, attempt), (round, attempt, self.survivors)
        at = setup.terms.place(round, attempt)
        assert at is not None
        self.at = at

    def total(self) -> Asking[tuple[Words, tuple[int, ...]]]:
        """Return the sum, and who is in it. Raises TooFewError, LostError."""
        summing, members = self.summing, self.keys.members
        summing.enough(self.survivors, "have sent their vectors", FEWEST)
        ask = self._ask(Phase.CONFIRM, numbers(members) + numbers(self.survivors))
        signers = yield from self.ask(
            dict.fromkeys(self.survivors, ask), lambda client, body: pieces(body, 0)
        )
        summing.enough(signers, "have signed who is in the sum")
        if self.survivors != members:
            summing.setup = None  # who comes back may have lost its keys
        signatures = [self.heard[-1][client][-keys.SIGNATURE_BYTES :] for client in signers]
        ask = self._ask(Phase.OPEN, numbers(list(signers)) + b"".join(signatures))
        try:
            held = yield from self._insist(
                dict.fromkeys(self.survivors, ask), self._read_shares, summing.threshold
            )
            summing.enough(held, "have said their shares")
            secrets, faults = self._secrets(dict(list(held.items())[: summing.threshold]))
            left = tuple(client for client in self.survivors if client not in faults)
            pairs = {}
            if faults:
                summing.enough(left, "are left that have dealt as they should", FEWEST)
            for dealer, fault in faults.items():
                ask = self._ask(Phase.DISOWN, fault.encode())
                pairs[dealer] = yield from self._insist(
                    dict.fromkeys(left, ask),
                    lambda client, body: pieces(body, 1, keys.KEY_BYTES)[0],
                    len(left),
                )
                if len(pairs[dealer]) < len(left):
                    raise TooFewError(
                        f"not everybody has said its part of the masks of client {dealer}"
                    )
        except TooFewError as error:
            summing.setup = None
            raise LostError(
                f"{error}; shares were asked for, so no other attempt of the round is opened"
            ) from error
        return self._unmasked(left, secrets, pairs), left

    def _ask(self, phase: Phase, body: bytes) -> bytes:
        return round_ask(phase, self.keys.terms.setup, *self.attempt, body)

    def _insist(
        self, asks: Mapping[int, bytes], read: Callable[[int, bytes], T], least: int
    ) -> Asking[dict[int, T]]:
        """Ask up to OPENING_TRIES times: the same ask is answered alike."""
        found: dict[int, T] = {}
        for _ in range(OPENING_TRIES):
            found |= yield from self.ask(
                {client: asks[client] for client in asks if client not in found}, read
            )
            if len(found) >= least:
                break
        return found

    def _read_shares(self, client: int, body: bytes) -> list[bytes]:
        """Return a share of each member."""
        shares = pieces(body, len(self.keys.members), shamir.SHARE_BYTES)
        for (dealer, parts), share in zip(self.keys.parts.items(), shares, strict=True):
            if parts[client].hashes[2 * self.at + (dealer in self.survivors)] != hashed(share):
                raise MessageError(f"another share of client {dealer}'s secret than it was dealt")
        return shares

    def _secrets(
        self, held: Mapping[int, Sequence[bytes]]
    ) -> tuple[dict[int, bytes], dict[int, Fault]]:
        """Return one seed of each member (of survivors their own mask's, else their key's), or its
        fault.
        """
        secrets, faults = {}, {}
        by = shamir.factors([holder + 1 for holder in held])
        for column, member in enumerate(self.keys.members):
            shares, own = (
                {holder: row[column] for holder, row in held.items()},
                member in self.survivors,
            )
            secret = shamir.join(
                {h + 1: int.from_bytes(share, "little") for h, share in shares.items()}, by
            )
            if secret is None or not fits(self.keys.bundles[member], self.at, own, secret):
                self.bar(member, "the shares that it dealt do not fit the keys that it had sent")
                faults[member] = Fault(member, own, shares, self.heard[1][member])
            else:
                secrets[member] = secret
        return secrets, faults

    def _unmasked(
        self,
        left: Sequence[int],
        secrets: Mapping[int, bytes],
        pairs: Mapping[int, Mapping[int, bytes]],
    ) -> Words:
        """Take away what did not cancel: own masks, and the masks for those who are not in the
        sum.
        """
        form, setup = self.summing.form, self.keys.terms.setup
        total: Words = np.sum([self.vectors[client] for client in left], axis=0, dtype=form.dtype)
        for member, secret in secrets.items():
            if member in left:
                total = total - keys.self_mask(secret, len(total), form)
                continue
            own = keys.private(secret)
            # what it would have added for them is the opposite of what they did for it
            for other in left:
                key = keys.pair_key(own, self.keys.bundles[other].masks[self.at], setup, self.at)
                total = total + keys.pair_mask(key, member, other, len(total), form)
        for dealer, found in pairs.items():
            for other, key in found.items():
                total = total + keys.pair_mask(key, dealer, other, len(total), form)
        return total


def convicted(proof: Proof, known: Mapping[int, bytes] | None = None) -> frozenset[int]:
    """Return who is barred by what was heard.

    Anybody can check it, and who has kept to the rules is never barred.

    Args:
        proof: what was heard.
        known: the public keys that sign for clients, by number; None: whatever they say.
    """
    form = FixedPoint(64, 0, 1)
    summing, heard = (
        Summing(proof.terms.threshold, form, proof.terms.count, known),
        iter(proof.heard),
    )

    def again(asking: Asking[object]) -> None:
        try:
            next(asking)
            for answers in heard:
                asking.send(answers)
        except (StopIteration, TooFewError, LostError):
            pass

    again(_Agreeing(summing, Setup(proof.terms)).setup())
    if proof.opening is not None and summing.setup is not None:
        round, attempt, survivors = proof.opening
        again(summing.open(round, attempt, dict.fromkeys(survivors, np.zeros(1, form.dtype))))
    return frozenset(summing.barred)


def keep_proof(folder: Path, client: int, proof: Proof) -> None:
    """Write why a client is barred into the file of its number. Raises StorageError."""
    heard = [
        {str(one): b64encode(answer).decode() for one, answer in answers.items()}
        for answers in proof.heard
    ]
    about = {
        "reason": proof.reason,
        "terms": b64encode(proof.terms.encode()).decode(),
        "heard": heard,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{client}.json", json.dumps({**about, "opening": proof.opening}).encode())


def kept_proofs(
    folder: Path, known: Mapping[int, bytes] | None
) -> tuple[dict[int, Proof], list[Path]]:
    """Read the proofs in a folder, and holds the conversation of each again.

    Args:
        folder: where `keep_proof` has written them; it need not be there.
        known: the public keys that sign for clients, by number; None: whatever they say.

    Returns:
        The proofs by client, and the files that show nothing.
    """
    found, others = {}, []
    for path in sorted(folder.glob("*.json")):
        try:
            about = json.loads(path.read_bytes())
            _, setup, terms = unframed(b64decode(about["terms"]))
            heard = [
                {int(one): b64decode(text) for one, text in answers.items()}
                for answers in about["heard"]
            ]
            opening = about["opening"] and (*about["opening"][:2], tuple(about["opening"][2]))
            proof = Proof(str(about["reason"]), Terms.decode(setup, terms), tuple(heard), opening)
            if int(path.stem) not in convicted(proof, known):
                raise ValueError("it shows nothing")
            found[int(path.stem)] = proof
        except (MessageError, ValueError, TypeError, KeyError, AttributeError):
            others.append(path)
    return found, others
