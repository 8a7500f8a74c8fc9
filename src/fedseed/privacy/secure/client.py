"""One client's side of secure sums: it keeps its secrets in memory, and limits what it reveals.

A client follows these rules, no matter what a coordinator asks for. It

    masks only one vector with the keys of a round's attempt;
    reveals for each member of that attempt a share of one of the member's two secrets, never both;
    reveals no share before `threshold` survivors have signed the same list of survivors as itself;
    opens a round only once, in any attempt, and never an earlier round than one that it has opened,
    because two sums reveal their difference;
    opens only the newest attempt for which it has masked its vector.
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
from fedseed.privacy.secure.dealing import Fault, HeldPart, deal, name_part, part_bytes, read_parts
from fedseed.privacy.secure.fixed import FixedPoint, Words
from fedseed.privacy.secure.messages import (
    HASH_BYTES,
    Bundle,
    Phase,
    Terms,
    digest_of,
    frame,
    numbers,
    pieces,
    read_bundles,
    read_numbers,
    read_round,
    share_ask,
    signed_parts,
    signing_payload,
    unframe,
)
from fedseed.privacy.secure.settings import FEWEST, MOST_ROUNDS
from fedseed.privacy.secure.shamir import SECRET_BYTES

MOST_SETUPS = 4  # the most setups that are remembered


@dataclass
class _Setup:
    """A client's state of a setup."""

    terms: Terms  # terms of the ask for keys
    sealing: X25519PrivateKey  # the key that its holders' shares are encrypted for
    masks: list[bytes]  # for each round, the 16-byte seed of the key pair
    selves: list[bytes]  # for each round, the seed of the client's own mask
    bundles: dict[int, Bundle] = field(default_factory=dict)  # public keys of all clients
    agreed: bytes = b""  # digest of the public keys
    # by holder: a part of this client's secrets, and the key that seals it
    dealt_parts: dict[int, tuple[X25519PrivateKey, HeldPart]] = field(default_factory=dict)
    # clients with which masks are shared; empty until all shares have come
    members: tuple[int, ...] = ()
    # the shares of both secrets of each member, for each round
    shares: dict[int, list[bytes]] = field(default_factory=dict)
    # for each round, the vector and its masked form
    masked: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    # for each round, the survivors that this client has signed, and the SHA-256 of the ask that
    # listed them
    signed: dict[int, tuple[tuple[int, ...], bytes]] = field(default_factory=dict)
    # asks and answers: a repeated ask gets the same answer
    answers: dict[tuple[int, ...], tuple[bytes, bytes]] = field(default_factory=dict)

    def signed_by(self, client: int, signature: bytes, ask_hash: bytes, answer: bytes) -> bool:
        """Return whether a client has signed this answer to an ask of this setup."""
        payload = signing_payload(self.agreed, client, ask_hash, answer)
        return keys.signature_fits(self.bundles[client].identity, signature, payload)


@dataclass
class SecureClient:
    """A client of secure sums."""

    number: int
    threshold: int  # least number of clients for opening a sum
    form: FixedPoint  # the encoding of words
    # key for signatures; a new key only proves that messages have the same author
    identity: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    # the others' public keys; None: any that the coordinator names
    known: Mapping[int, bytes] | None = None
    # file for the newest round that this client has opened; None: not stored
    place: Path | None = None
    _setups: dict[bytes, _Setup] = field(default_factory=dict)  # the newest last
    _latest: tuple[int, int] = (0, 0)  # the newest round and attempt with a masked vector

    def __post_init__(self) -> None:
        self.opened = 0  # the newest opened round
        if self.place is not None:
            try:
                self.place.parent.mkdir(parents=True, exist_ok=True)
                self.opened = int(self.place.read_bytes()) if self.place.exists() else 0
            except (OSError, ValueError) as error:
                raise StorageError(
                    f"{self.place} holds the newest round that a client has opened: {error}"
                ) from error

    def answer(self, ask: bytes) -> bytes:
        """Return the answer to an ask; a repeated ask gets the same answer.

        Raises MessageError if it can't answer; the message has the reason.
        """
        phase, name, body = unframe(ask)
        if phase is Phase.KEYS:
            if name not in self._setups:
                self._begin(Terms.decode(name, body))
        elif name not in self._setups:
            raise MessageError("a setup that this client has no keys for")
        setup = self._setups[name]
        # rounds share a setup, and some phases occur once in each attempt
        place: tuple[int, ...] = (phase,)
        if phase in (Phase.CONFIRM, Phase.OPEN):
            place = (phase, *read_round(body)[:2])
        if place in setup.answers:
            earlier_ask, answer = setup.answers[place]
            if earlier_ask != ask:
                raise MessageError(f"a different ask for {phase.name.lower()} came before")
            return answer
        handlers = {
            Phase.KEYS: self._keys,
            Phase.SHARES: self._shares,
            Phase.DELIVER: self._receive_shares,
            Phase.REVEAL: self._reveal,
            Phase.CONFIRM: self._confirm,
            Phase.OPEN: self._open,
            Phase.DISOWN: self._disown,
        }
        content = frame(phase, name, handlers[phase](setup, body))
        agreed = b"" if phase is Phase.KEYS else setup.agreed
        if phase is Phase.OPEN:
            agreed += sha256(setup.answers[(Phase.DELIVER,)][0]).digest()
        payload = signing_payload(agreed, self.number, sha256(ask).digest(), content)
        answer = content + self.identity.sign(payload)
        # these two phases prove that others have lied, and may be asked for any number of times
        if phase not in (Phase.REVEAL, Phase.DISOWN):
            setup.answers[place] = ask, answer
        return answer

    def mask_words(self, round: int, attempt: int, words: Words) -> bytes:
        """Return this client's part of a round's sum: the setup's name and the masked words.

        Raises:
            MessageError: there are no keys for it, another vector was masked with them, or a later
                round has begun.
        """
        setup, position = self._find_setup(round, attempt)
        plain = words.tobytes()
        if position in setup.masked:
            earlier_words, answer = setup.masked[position]
            if earlier_words != plain:
                raise MessageError(f"round {round}: another vector was masked with these keys")
            return answer
        self._refuse_opened(round)
        if (round, attempt) <= self._latest:
            raise MessageError(
                f"round {round}: a vector was masked for this attempt, or for a later one"
            )
        self._latest = round, attempt
        total = words + keys.self_mask(setup.selves[position], len(words), self.form)
        pair_secret = keys.private(setup.masks[position])
        for member in setup.members:
            if member != self.number:
                key = keys.pair_key(
                    pair_secret, setup.bundles[member].masks[position], setup.terms.setup, position
                )
                total += keys.pair_mask(key, self.number, member, len(words), self.form)
        setup.masked[position] = plain, setup.terms.setup + total.tobytes()
        return setup.masked[position][1]

    def _find_setup(self, round: int, attempt: int) -> tuple[_Setup, int]:
        """Return the newest setup with keys for an attempt of a round, and the keys' position.

        Raises MessageError if there is none.
        """
        for setup in reversed(self._setups.values()):
            position = setup.terms.place(round, attempt)
            if setup.members and position is not None:
                return setup, position
        raise MessageError(f"no keys were agreed on for round {round}, attempt {attempt}")

    def _begin(self, terms: Terms) -> None:
        """Make secrets, if the terms are acceptable."""
        self._refuse_opened(terms.round)
        client_count = len(terms.clients)
        if self.number not in terms.clients or not 1 <= terms.count <= MOST_ROUNDS:
            raise MessageError(
                f"terms of a setup for {terms.count} rounds that does not include client "
                f"{self.number}"
            )
        if (
            terms.threshold < self.threshold
            or not client_count < 2 * terms.threshold <= 2 * client_count
            or client_count < FEWEST
        ):
            raise MessageError(
                f"a threshold of {terms.threshold} of {client_count} clients, but it must be at "
                f"least {self.threshold} and a majority, of at least {FEWEST} clients"
            )
        masks = [token_bytes(SECRET_BYTES) for _ in range(terms.count)]
        selves = [token_bytes(SECRET_BYTES) for _ in range(terms.count)]
        self._setups[terms.setup] = _Setup(terms, X25519PrivateKey.generate(), masks, selves)
        while len(self._setups) > MOST_SETUPS:
            del self._setups[next(iter(self._setups))]

    def _keys(self, setup: _Setup, body: bytes) -> bytes:
        bundle = Bundle(
            keys.public(self.identity),
            keys.public(setup.sealing),
            tuple(keys.public(keys.private(seed)) for seed in setup.masks),
            tuple(keys.commit(seed) for seed in setup.selves),
        )
        return bundle.encode()

    def _shares(self, setup: _Setup, body: bytes) -> bytes:
        """Divide both secrets of every round into shares, one part for each client."""
        bundles, terms = read_bundles(body, setup.terms.count), setup.terms
        own_keys = signed_parts(setup.answers[(Phase.KEYS,)][1])[1:]
        if self.number not in bundles or bundles[self.number].encode() != b"".join(own_keys):
            raise MessageError("a different key with this client's name")
        if len(bundles) < max(terms.threshold, FEWEST) or not bundles.keys() <= set(terms.clients):
            raise MessageError(
                f"keys of {len(bundles)} clients, but at least {terms.threshold} are needed, "
                "and only of the setup's clients"
            )
        ask_hash = sha256(terms.encode()).digest()
        for client, bundle in bundles.items():
            if self.known is not None and self.known.get(client) != bundle.identity:
                raise MessageError(
                    f"client {client} signs with a key that differs from the known one"
                )
            unsigned = replace(bundle, signature=b"").encode()
            content = signing_payload(
                b"", client, ask_hash, frame(Phase.KEYS, terms.setup, unsigned)
            )
            if not keys.signature_fits(bundle.identity, bundle.signature, content):
                raise MessageError(f"client {client} has not signed its keys")
        setup.bundles, setup.agreed = bundles, digest_of(bundles)
        secrets: list[bytes] = []
        for mask, self_mask in zip(setup.masks, setup.selves, strict=True):
            secrets += [mask, self_mask]
        setup.dealt_parts = deal(secrets, terms.setup, self.number, bundles, terms.threshold)
        return b"".join(part.encode() for _, part in setup.dealt_parts.values())

    def _receive_shares(self, setup: _Setup, body: bytes) -> bytes:
        """Take everybody's shares; accuse the dealers whose shares can't be read."""
        members, rest = read_numbers(body)
        if not setup.dealt_parts:
            raise MessageError("shares of others came before this client was asked for its own")
        if self.number not in members or not set(members) <= setup.bundles.keys():
            raise MessageError("the members include clients without keys, or lack this client")
        if len(members) < max(setup.terms.threshold, FEWEST):
            raise MessageError(f"{len(members)} members, but {setup.terms.threshold} are needed")
        accused = {}
        for member, data in zip(
            members, pieces(rest, len(members), part_bytes(setup.terms.count)), strict=True
        ):
            part_id = name_part(setup.terms.setup, member, self.number)
            try:
                part = HeldPart.decode(data, setup.terms.count)
                setup.shares[member] = part.shares(setup.sealing, part.key, part_id)
            except MessageError:
                accused[member] = sha256(data).digest()
        if not accused:
            setup.members = members
        return numbers(list(accused)) + b"".join(accused.values())

    def _reveal(self, setup: _Setup, body: bytes) -> bytes:
        """Return the key of a part that its holder can't read. If others can read it, the holder
        has lied.
        """
        accusers, rest = read_numbers(body)
        accuser = accusers[0] if accusers else self.number
        ask_hash = rest[:HASH_BYTES]
        content, accusing, signature = signed_parts(rest[HASH_BYTES:])
        accused_dealers, hashes = read_numbers(accusing)
        is_receipt = unframe(content)[:2] == (Phase.DELIVER, setup.terms.setup)
        if accuser not in setup.dealt_parts or not is_receipt:
            raise MessageError(f"client {accuser} has accused no dealer")
        key, part = setup.dealt_parts[accuser]
        own_part = self.number, sha256(part.encode()).digest()
        accused = own_part in zip(
            accused_dealers, pieces(hashes, len(accused_dealers)), strict=True
        )
        if not accused or not setup.signed_by(accuser, signature, ask_hash, content):
            raise MessageError(f"client {accuser} has not accused this client")
        return key.private_bytes_raw()

    def _confirm(self, setup: _Setup, body: bytes) -> bytes:
        """Sign the list of survivors, whose vectors are in the sum. There is one list for each
        attempt.
        """
        round, attempt, rest = read_round(body)
        members, rest = read_numbers(rest)
        survivors, rest = read_numbers(rest)
        position = setup.terms.place(round, attempt)
        if rest or position is None or position not in setup.masked:
            raise MessageError(
                f"round {round}, attempt {attempt}: this client has sent nothing for it"
            )
        if (
            self.number not in survivors
            or not set(survivors) <= set(members)
            or members != setup.members
        ):
            raise MessageError(
                f"round {round}: the members differ, or the survivors are wrong or lack this client"
            )
        minimum = max(setup.terms.threshold, FEWEST)
        if len(survivors) < minimum:
            raise MessageError(
                f"round {round}: {len(survivors)} survivors, but {minimum} are needed"
            )
        self._may_open(round, attempt)
        setup.signed[position] = (
            survivors,
            sha256(frame(Phase.CONFIRM, setup.terms.setup, body)).digest(),
        )
        return b""

    def _refuse_opened(self, round: int) -> None:
        """Refuse a round that is not newer than the newest opened one.

        Raises OpenedBeforeError if it is not.
        """
        if round <= self.opened:
            raise OpenedBeforeError(
                f"round {round} or a later one was opened before, and two sums would reveal "
                "their difference"
            )

    def _may_open(self, round: int, attempt: int) -> None:
        """Refuse rounds that were opened before, and attempts that a later one has replaced.

        Raises MessageError if one of these applies.
        """
        self._refuse_opened(round)
        if (round, attempt) != self._latest:
            raise MessageError(
                f"round {round}: this client has masked a vector for a later attempt"
            )

    def _open(self, setup: _Setup, body: bytes) -> bytes:
        """Reveal shares: for survivors those of their own masks, for other members those of their
        keys.
        """
        round, attempt, rest = read_round(body)
        signers, rest = read_numbers(rest)
        position = setup.terms.place(round, attempt)
        if position is None or position not in setup.signed:
            raise MessageError(f"round {round}: this client has not signed a list of survivors")
        self._may_open(round, attempt)
        survivors, ask_hash = setup.signed[position]
        content = frame(Phase.CONFIRM, setup.terms.setup)
        signed = [
            signer
            for signer, signature in zip(
                signers, pieces(rest, len(signers), keys.SIGNATURE_BYTES), strict=True
            )
            if signer in survivors and setup.signed_by(signer, signature, ask_hash, content)
        ]
        if len(signed) < setup.terms.threshold:
            raise MessageError(
                f"round {round}: only {len(signed)} have signed these survivors, but "
                f"{setup.terms.threshold} must"
            )
        if self.place is not None:
            write_whole(self.place, b"%d" % round)  # written before any share is revealed
        self.opened = round
        return b"".join(
            setup.shares[member][2 * position + (member in survivors)] for member in setup.members
        )

    def _disown(self, setup: _Setup, body: bytes) -> bytes:
        """Reveal the key of the mask that this client shares with a dealer of wrong shares. No
        other mask uses it.
        """
        round, attempt, rest = read_round(body)
        position, fault = setup.terms.place(round, attempt), Fault.decode(rest)
        dealer = setup.bundles.get(fault.dealer)
        if position is None or dealer is None:
            raise MessageError(f"round {round}: client {fault.dealer} has dealt no shares for it")
        content, parts, signature = signed_parts(fault.answer)
        ask_hash = sha256(share_ask(setup.terms.setup, setup.bundles)).digest()
        if (
            unframe(content)[0] is not Phase.SHARES
            or not setup.signed_by(fault.dealer, signature, ask_hash, content)
            or not fault.is_proven(
                read_parts(parts, list(setup.bundles), setup.terms.count),
                dealer,
                position,
                setup.terms.threshold,
            )
        ):
            raise MessageError(
                f"round {round}: there is no proof that client {fault.dealer} has dealt wrongly"
            )
        return keys.pair_key(
            keys.private(setup.masks[position]), dealer.masks[position], setup.terms.setup, position
        )
