"""One client's side of secure sums: it keeps its secrets in memory, and decides itself what it
says.

Whatever a coordinator asks, a client masks one vector with the keys of a round's attempt, and no
    second one; says of each member of that attempt a share of one of its two secrets, never of
    both; says none before `threshold` survivors have signed the same list of survivors that it has
    signed itself; opens a round once, whatever the attempt, and none below one that it has opened:
    two sums tell their difference; opens only the newest attempt that it has masked its vector for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedseed.durable import write_whole
from fedseed.errors import MessageError, StorageError
from fedseed.privacy.secure import OpenedBeforeError, keys
from fedseed.privacy.secure.dealing import Fault, Part, about, deal, part_bytes, read_parts
from fedseed.privacy.secure.fixed import FixedPoint, Words
from fedseed.privacy.secure.messages import (
    HASH_BYTES,
    Bundle,
    Phase,
    Terms,
    digest_of,
    framed,
    numbers,
    pieces,
    read_bundles,
    read_numbers,
    read_round,
    share_ask,
    signed_parts,
    told,
    unframed,
)
from fedseed.privacy.secure.settings import FEWEST, MOST_ROUNDS
from fedseed.privacy.secure.shamir import SECRET_BYTES

KEPT = 4  # setups that are remembered


@dataclass
class _Setup:
    """What a client knows of a setup."""

    terms: Terms  # what was asked for
    sealing: X25519PrivateKey  # the key that shares for it are encrypted for
    masks: list[bytes]  # a seed of 16 bytes for each round, that of its key pair
    selves: list[bytes]  # the same of its own mask
    bundles: dict[int, Bundle] = field(default_factory=dict)  # everybody's public keys
    agreed: bytes = b""  # their digest
    # by holder: a part of its secrets, and the key that it is sealed with
    dealt: dict[int, tuple[X25519PrivateKey, Part]] = field(default_factory=dict)
    members: tuple[int, ...] = ()  # who is masked against; empty until all shares have come
    # of each member and round, the shares of both secrets, one behind the other
    held: dict[int, list[bytes]] = field(default_factory=dict)
    # for each round that it was asked for, its vector and what became of it
    masked: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    # for each of these the survivors that it has signed, and the SHA-256 of the ask that had them
    signed: dict[int, tuple[tuple[int, ...], bytes]] = field(default_factory=dict)
    # asks and answers: an ask that comes again is answered alike
    said: dict[tuple[int, ...], tuple[bytes, bytes]] = field(default_factory=dict)

    def signed_by(self, client: int, signature: bytes, asked: bytes, said: bytes) -> bool:
        """Return whether a client has signed this answer to an ask of this setup."""
        about = told(self.agreed, client, asked, said)
        return keys.signature_fits(self.bundles[client].identity, signature, about)


@dataclass
class SecureClient:
    """A client."""

    number: int
    threshold: int  # with fewer than so many clients it opens nothing, whatever it is asked
    form: FixedPoint  # how words are written
    # signs; a new key proves nothing but that messages have one author
    identity: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    # the others' public keys that sign; None: whatever the coordinator says
    known: Mapping[int, bytes] | None = None
    # a file for the newest round that it has opened; None: nothing is kept
    place: Path | None = None
    _setups: dict[bytes, _Setup] = field(default_factory=dict)  # the newest last
    _latest: tuple[int, int] = (0, 0)  # the newest round and attempt that a vector was masked for

    def __post_init__(self) -> None:
        self.opened = 0  # the newest round
        if self.place is not None:
            try:
                self.place.parent.mkdir(parents=True, exist_ok=True)
                self.opened = int(self.place.read_bytes()) if self.place.exists() else 0
            except (OSError, ValueError) as error:
                raise StorageError(
                    f"{self.place} holds the newest round that a client has opened: {error}"
                ) from error

    def answer(self, ask: bytes) -> bytes:
        """Return what to say to an ask; the same ask is answered alike.

        Raises MessageError: nothing, and why.
        """
        phase, name, body = unframed(ask)
        if phase is Phase.KEYS:
            if name not in self._setups:
                self._begin(Terms.decode(name, body))
        elif name not in self._setups:
            raise MessageError("a setup that this client has no keys for")
        setup = self._setups[name]
        place: tuple[int, ...] = (
            phase,
            *(read_round(body)[:2] if phase in (Phase.CONFIRM, Phase.OPEN) else ()),
        )
        if place in setup.said:
            before, answer = setup.said[place]
            if before != ask:
                raise MessageError(f"{phase.name.lower()} were asked for otherwise before")
            return answer
        says = {
            Phase.KEYS: self._keys,
            Phase.SHARES: self._shares,
            Phase.DELIVER: self._take,
            Phase.REVEAL: self._reveal,
            Phase.CONFIRM: self._confirm,
            Phase.OPEN: self._open,
            Phase.DISOWN: self._disown,
        }
        said = framed(phase, name, says[phase](setup, body))
        agreed = b"" if phase is Phase.KEYS else setup.agreed
        if phase is Phase.OPEN:
            agreed += sha256(setup.said[(Phase.DELIVER,)][0]).digest()
        answer = said + self.identity.sign(told(agreed, self.number, sha256(ask).digest(), said))
        # these show that others have lied, however often
        if phase not in (Phase.REVEAL, Phase.DISOWN):
            setup.said[place] = ask, answer
        return answer

    def masked(self, round: int, attempt: int, words: Words) -> bytes:
        """Return this client's part of a round's sum: the setup's name, and the masked words.

        Raises:
            MessageError: there are no keys for it, another vector was masked with them, or a later
                round has begun.
        """
        setup, at = self._for(round, attempt)
        plain = words.tobytes()
        if at in setup.masked:
            before, answer = setup.masked[at]
            if before != plain:
                raise MessageError(f"round {round}: another vector was masked with these keys")
            return answer
        self._never_again(round)
        if (round, attempt) <= self._latest:
            raise MessageError(
                f"round {round}: a vector was masked for this attempt, or for a later one"
            )
        self._latest = round, attempt
        total = words + keys.self_mask(setup.selves[at], len(words), self.form)
        own = keys.private(setup.masks[at])
        for member in setup.members:
            if member != self.number:
                key = keys.pair_key(own, setup.bundles[member].masks[at], setup.terms.setup, at)
                total += keys.pair_mask(key, self.number, member, len(words), self.form)
        setup.masked[at] = plain, setup.terms.setup + total.tobytes()
        return setup.masked[at][1]

    def _for(self, round: int, attempt: int) -> tuple[_Setup, int]:
        """Return the newest setup with keys for an attempt of a round, and its place there.

        Raises MessageError.
        """
        for setup in reversed(self._setups.values()):
            if setup.members and (at := setup.terms.place(round, attempt)) is not None:
                return setup, at
        raise MessageError(f"no keys were agreed on for round {round}, attempt {attempt}")

    def _begin(self, terms: Terms) -> None:
        """Make secrets, if the terms will do."""
        self._never_again(terms.round)
        asked = len(terms.clients)
        if self.number not in terms.clients or not 1 <= terms.count <= MOST_ROUNDS:
            raise MessageError(
                f"terms of a setup for {terms.count} rounds, of which client {self.number} is no "
                "part"
            )
        if (
            terms.threshold < self.threshold
            or not asked < 2 * terms.threshold <= 2 * asked
            or asked < FEWEST
        ):
            raise MessageError(
                f"a threshold of {terms.threshold} of {asked} clients: at least {self.threshold}, "
                f"a majority, and {FEWEST} clients are needed"
            )
        masks, selves = ([token_bytes(SECRET_BYTES) for _ in range(terms.count)] for _ in range(2))
        self._setups[terms.setup] = _Setup(terms, X25519PrivateKey.generate(), masks, selves)
        while len(self._setups) > KEPT:
            del self._setups[next(iter(self._setups))]

    def _keys(self, setup: _Setup, body: bytes) -> bytes:
        bundle = Bundle(
            keys.public(self.identity),
            keys.public(setup.sealing),
            tuple(keys.public(keys.private(seed)) for seed in setup.masks),
            tuple(keys.committed(seed) for seed in setup.selves),
        )
        return bundle.encode()

    def _shares(self, setup: _Setup, body: bytes) -> bytes:
        """Cut both secrets of every round into shares, a part for each client."""
        bundles, terms = read_bundles(body, setup.terms.count), setup.terms
        own = signed_parts(setup.said[(Phase.KEYS,)][1])[1:]
        if self.number not in bundles or bundles[self.number].encode() != b"".join(own):
            raise MessageError("another key in this client's name")
        if len(bundles) < max(terms.threshold, FEWEST) or not bundles.keys() <= set(terms.clients):
            raise MessageError(
                f"keys of {len(bundles)} clients, or of others: {terms.threshold} are needed"
            )
        asked = sha256(terms.encode()).digest()
        for client, bundle in bundles.items():
            if self.known is not None and self.known.get(client) != bundle.identity:
                raise MessageError(f"client {client} signs with another key than is known")
            said = told(
                b"",
                client,
                asked,
                framed(Phase.KEYS, terms.setup, replace(bundle, signature=b"").encode()),
            )
            if not keys.signature_fits(bundle.identity, bundle.signature, said):
                raise MessageError(f"client {client} has not signed its keys")
        setup.bundles, setup.agreed = bundles, digest_of(bundles)
        secrets = [
            secret for both in zip(setup.masks, setup.selves, strict=True) for secret in both
        ]
        setup.dealt = deal(secrets, terms.setup, self.number, bundles, terms.threshold)
        return b"".join(part.encode() for _, part in setup.dealt.values())

    def _take(self, setup: _Setup, body: bytes) -> bytes:
        """Take everybody's shares; says whose can't be read."""
        members, rest = read_numbers(body)
        if not setup.dealt:
            raise MessageError("shares before this client was asked for its own")
        if self.number not in members or not set(members) <= setup.bundles.keys():
            raise MessageError("members that have sent no keys, or without this client")
        if len(members) < max(setup.terms.threshold, FEWEST):
            raise MessageError(f"{len(members)} members: {setup.terms.threshold} are needed")
        accused = {}
        for member, data in zip(
            members, pieces(rest, len(members), part_bytes(setup.terms.count)), strict=True
        ):
            use = about(setup.terms.setup, member, self.number)
            try:
                part = Part.decode(data, setup.terms.count)
                setup.held[member] = part.shares(setup.sealing, part.key, use)
            except MessageError:
                accused[member] = sha256(data).digest()
        if not accused:
            setup.members = members
        return numbers(list(accused)) + b"".join(accused.values())

    def _reveal(self, setup: _Setup, body: bytes) -> bytes:
        """Show the key of a part that its holder says it can't read: if it can, it has lied."""
        accusers, rest = read_numbers(body)
        (accuser,), asked = accusers[:1] or (self.number,), rest[:HASH_BYTES]
        said, accusing, signature = signed_parts(rest[HASH_BYTES:])
        whom, hashes = read_numbers(accusing)
        if accuser not in setup.dealt or unframed(said)[:2] != (Phase.DELIVER, setup.terms.setup):
            raise MessageError(f"client {accuser} has accused nobody")
        key, part = setup.dealt[accuser]
        dealt = self.number, sha256(part.encode()).digest()
        accused = dealt in zip(whom, pieces(hashes, len(whom)), strict=True)
        if not accused or not setup.signed_by(accuser, signature, asked, said):
            raise MessageError(f"client {accuser} has not accused this client of what it has dealt")
        return key.private_bytes_raw()

    def _confirm(self, setup: _Setup, body: bytes) -> bytes:
        """Sign whose vectors are in the sum: one list for each attempt."""
        round, attempt, rest = read_round(body)
        members, rest = read_numbers(rest)
        survivors, rest = read_numbers(rest)
        at = setup.terms.place(round, attempt)
        if rest or at is None or at not in setup.masked:
            raise MessageError(
                f"round {round}, attempt {attempt}: this client has sent nothing there"
            )
        if (
            self.number not in survivors
            or not set(survivors) <= set(members)
            or members != setup.members
        ):
            raise MessageError(
                f"round {round}: other members, survivors that are none, or without this client"
            )
        if len(survivors) < (least := max(setup.terms.threshold, FEWEST)):
            raise MessageError(f"round {round}: {len(survivors)} survivors: {least} are needed")
        self._may_open(round, attempt)
        setup.signed[at] = (
            survivors,
            sha256(framed(Phase.CONFIRM, setup.terms.setup, body)).digest(),
        )
        return b""

    def _never_again(self, round: int) -> None:
        """Refuse a round that is no newer than the newest that was opened.

        Raises OpenedBeforeError.
        """
        if round <= self.opened:
            raise OpenedBeforeError(
                f"round {round} or a later one was opened before: two sums tell their difference"
            )

    def _may_open(self, round: int, attempt: int) -> None:
        """Refuse what was opened before, and attempts that a later one has replaced.

        Raises MessageError.
        """
        self._never_again(round)
        if (round, attempt) != self._latest:
            raise MessageError(
                f"round {round}: this client has masked a vector for a later attempt"
            )

    def _open(self, setup: _Setup, body: bytes) -> bytes:
        """Say shares: of survivors those of their own masks, of the others those of their keys."""
        round, attempt, rest = read_round(body)
        signers, rest = read_numbers(rest)
        at = setup.terms.place(round, attempt)
        if at is None or at not in setup.signed:
            raise MessageError(f"round {round}: this client has signed nobody's list of survivors")
        self._may_open(round, attempt)
        (survivors, asked), said = setup.signed[at], framed(Phase.CONFIRM, setup.terms.setup)
        signed = [
            signer
            for signer, signature in zip(
                signers, pieces(rest, len(signers), keys.SIGNATURE_BYTES), strict=True
            )
            if signer in survivors and setup.signed_by(signer, signature, asked, said)
        ]
        if len(signed) < setup.terms.threshold:
            raise MessageError(
                f"round {round}: {len(signed)} have signed these survivors: "
                f"{setup.terms.threshold} must"
            )
        if self.place is not None:
            write_whole(self.place, b"%d" % round)  # before anything is said
        self.opened = round
        return b"".join(
            setup.held[member][2 * at + (member in survivors)] for member in setup.members
        )

    def _disown(self, setup: _Setup, body: bytes) -> bytes:
        """Say the key of the mask that is shared with a dealer whose shares are wrong: it protects
        nobody else.
        """
        round, attempt, rest = read_round(body)
        at, fault = setup.terms.place(round, attempt), Fault.decode(rest)
        dealer = setup.bundles.get(fault.dealer)
        if at is None or dealer is None:
            raise MessageError(f"round {round}: client {fault.dealer} has dealt nothing for it")
        said, parts, signature = signed_parts(fault.answer)
        asked = sha256(share_ask(setup.terms.setup, setup.bundles)).digest()
        if (
            unframed(said)[0] is not Phase.SHARES
            or not setup.signed_by(fault.dealer, signature, asked, said)
            or not fault.shown(
                read_parts(parts, list(setup.bundles), setup.terms.count),
                dealer,
                at,
                setup.terms.threshold,
            )
        ):
            raise MessageError(
                f"round {round}: nothing shows that client {fault.dealer} has dealt wrongly"
            )
        return keys.pair_key(keys.private(setup.masks[at]), dealer.masks[at], setup.terms.setup, at)
