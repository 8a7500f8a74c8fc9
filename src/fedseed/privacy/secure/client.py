"""One client's side of secure sums: it keeps its secrets in memory, and decides itself what it says.

Whatever a coordinator asks, a client
    masks one vector with the keys of a round's attempt, and no second one;
    says of each member of that attempt a share of one of its two secrets, never of both;
    says none before `threshold` survivors have signed the same list of survivors that it has signed itself;
    opens a round once, whatever the attempt, and none below one that it has opened: two sums tell their difference;
    opens only the newest attempt that it has masked its vector for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_bytes

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedseed.durable import write_whole
from fedseed.errors import MessageError, StorageError
from fedseed.privacy.secure import keys
from fedseed.privacy.secure.errors import OpenedBeforeError
from fedseed.privacy.secure.fixed import FixedPoint, Words
from fedseed.privacy.secure.messages import (
    Bundle,
    Phase,
    Terms,
    digest_of,
    framed,
    listed,
    numbers,
    pieces,
    read_bundles,
    read_numbers,
    read_round,
    round_ask,
    statement,
    unframed,
)
from fedseed.privacy.secure.settings import FEWEST, MOST_ROUNDS
from fedseed.privacy.secure.shamir import SECRET_BYTES, SHARE_BYTES, read_share, split

KEPT = 4  # setups that are remembered


@dataclass
class _Setup:
    """What a client knows of a setup.

    Args:
        terms: what was asked for.
        sealing: the key that shares for it are encrypted for.
        masks: a seed of 16 bytes for each round, that of its key pair.
        selves: the same of its own mask.
        bundles: everybody's public keys.
        agreed: their digest.
        members: who is masked against; empty until all shares have come.
        held: of each member and round, the shares of both secrets, one behind the other.
        masked: for each round that it was asked for, its vector and what became of it.
        signed: for each of these the survivors that it has signed.
        said: asks and answers: an ask that comes again is answered alike.
    """

    terms: Terms
    sealing: X25519PrivateKey
    masks: list[bytes]
    selves: list[bytes]
    bundles: dict[int, Bundle] = field(default_factory=dict)
    agreed: bytes = b""
    members: tuple[int, ...] = ()
    held: dict[int, list[bytes]] = field(default_factory=dict)
    masked: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    signed: dict[int, tuple[int, ...]] = field(default_factory=dict)
    said: dict[tuple[int, ...], tuple[bytes, bytes]] = field(default_factory=dict)


class SecureClient:
    """A client.

    Args:
        number: its number.
        threshold: with fewer than so many clients it opens nothing, whatever it is asked.
        form: how words are written.
        identity: signs; None: a new key, which proves nothing but that messages have one author.
        known: the others' public keys that sign, by number; None: whatever the coordinator says.
        place: a file for the newest round that it has opened, for when it is started again; None: nothing is kept.
    """

    def __init__(
        self, number: int, threshold: int, form: FixedPoint, identity: Ed25519PrivateKey | None = None,
        known: Mapping[int, bytes] | None = None, place: Path | None = None,
    ) -> None:  # fmt: skip
        self.number = number
        self.threshold = threshold
        self.form = form
        self._identity = identity or Ed25519PrivateKey.generate()
        self._known = known
        self._setups: dict[bytes, _Setup] = {}  # the newest last
        self._place = place
        self.opened = _read_opened(place)  # the newest round
        self._latest = (0, 0)  # the newest round and attempt that a vector was masked for

    def answer(self, ask: bytes) -> bytes:
        """What to say to an ask; the same ask is answered alike. Raises MessageError: nothing, and why."""
        phase, name, body = unframed(ask)
        if phase is Phase.KEYS:
            if name not in self._setups:
                self._begin(Terms.decode(name, body))
        elif name not in self._setups:
            raise MessageError("a setup that this client has no keys for")
        setup = self._setups[name]
        place = (phase, *(read_round(body)[:2] if phase in (Phase.CONFIRM, Phase.OPEN) else ()))
        if place in setup.said:
            before, answer = setup.said[place]
            if before != ask:
                raise MessageError(f"{phase.name.lower()} were asked for otherwise before")
            return answer
        says = {
            Phase.KEYS: self._keys, Phase.SHARES: self._shares, Phase.DELIVER: self._take, Phase.CONFIRM: self._confirm,
            Phase.OPEN: self._open,
        }  # fmt: skip
        answer = says[phase](setup, body)
        setup.said[place] = ask, answer
        return answer

    def masked(self, round: int, attempt: int, words: Words) -> bytes:
        """This client's part of a round's sum: the setup's name, and the masked words.

        Raises:
            MessageError: there are no keys for it, another vector was masked with them, or a later round has begun.
        """
        setup = self._for(round, attempt)
        at = setup.terms.place(round, attempt)
        assert at is not None
        plain = words.tobytes()
        if at in setup.masked:
            before, answer = setup.masked[at]
            if before != plain:
                raise MessageError(f"round {round}: another vector was masked with these keys")
            return answer
        self._never_again(round)
        if (round, attempt) <= self._latest:
            raise MessageError(f"round {round}: a vector was masked for this attempt, or for a later one")
        self._latest = round, attempt
        total = words + keys.self_mask(setup.selves[at], len(words), self.form)
        own, use = keys.private(setup.masks[at]), pair_use(setup.terms, at)
        for member in setup.members:
            if member != self.number:
                key = setup.bundles[member].masks[at]
                total += keys.pair_mask(own, self.number, member, key, use, len(words), self.form)
        setup.masked[at] = plain, setup.terms.setup + total.tobytes()
        return setup.masked[at][1]

    # -- a setup -----------------------------------------------------------------------------------------------------

    def _for(self, round: int, attempt: int) -> _Setup:
        """The newest setup with keys for an attempt of a round. Raises MessageError."""
        for setup in reversed(self._setups.values()):
            if setup.members and setup.terms.place(round, attempt) is not None:
                return setup
        raise MessageError(f"no keys were agreed on for round {round}, attempt {attempt}")

    def _begin(self, terms: Terms) -> None:
        """Make secrets, if the terms will do."""
        self._never_again(terms.round)
        asked = len(terms.clients)
        if self.number not in terms.clients or not 1 <= terms.count <= MOST_ROUNDS:
            raise MessageError(f"terms of a setup for {terms.count} rounds, of which client {self.number} is no part")
        if terms.threshold < self.threshold or not asked < 2 * terms.threshold <= 2 * asked or asked < FEWEST:
            raise MessageError(
                f"a threshold of {terms.threshold} of {asked} clients: at least {self.threshold}, a majority, and "
                f"{FEWEST} clients are needed"
            )
        masks, selves = ([token_bytes(SECRET_BYTES) for _ in range(terms.count)] for _ in range(2))
        self._setups[terms.setup] = _Setup(terms, X25519PrivateKey.generate(), masks, selves)
        while len(self._setups) > KEPT:
            del self._setups[next(iter(self._setups))]

    def _keys(self, setup: _Setup, body: bytes) -> bytes:
        bundle = Bundle(
            keys.identity_bytes(self._identity),
            keys.public(setup.sealing),
            tuple(keys.public(keys.private(seed)) for seed in setup.masks),
            tuple(keys.committed(seed) for seed in setup.selves),
        )
        signature = self._identity.sign(bundle.signed(setup.terms))
        setup.bundles[self.number] = Bundle(
            bundle.identity, bundle.sealing, bundle.masks, bundle.commitments, signature
        )
        return framed(Phase.KEYS, setup.terms.setup, setup.bundles[self.number].encode())

    def _shares(self, setup: _Setup, body: bytes) -> bytes:
        """Cut both secrets of every round into shares, a sealed text for each of the others."""
        bundles = read_bundles(body, setup.terms.count)
        if bundles.get(self.number) != setup.bundles.get(self.number) or not bundles.keys() <= set(setup.terms.clients):
            raise MessageError("keys of others than were asked, or another key in this client's name")
        if len(bundles) < max(setup.terms.threshold, FEWEST):
            raise MessageError(f"keys of {len(bundles)} clients: {setup.terms.threshold} are needed")
        for client, bundle in bundles.items():
            check_bundle(client, bundle, setup.terms, self._known)
        setup.bundles, setup.agreed = bundles, digest_of(bundles)
        at = [client + 1 for client in bundles]
        shared = [
            [split(seed, at, setup.terms.threshold) for seed in both]
            for both in zip(setup.masks, setup.selves, strict=True)
        ]
        texts = []
        for holder, client in enumerate(bundles):
            text = b"".join(part[holder] for both in shared for part in both)
            if client == self.number:
                setup.held[client] = pieces(text, 2 * setup.terms.count, SHARE_BYTES)
                continue
            key = self._sealing_key(setup, self.number, client)
            texts.append(keys.seal(key, text, setup.terms.setup))
        return listed(setup.terms.setup, Phase.SHARES, [c for c in bundles if c != self.number], texts)

    def _sealing_key(self, setup: _Setup, sender: int, receiver: int) -> bytes:
        other = setup.bundles[receiver if sender == self.number else sender].sealing
        use = b"shares" + setup.terms.setup + numbers([sender]) + numbers([receiver])
        return keys.agreed(setup.sealing, other, use)

    def _take(self, setup: _Setup, body: bytes) -> bytes:
        """Take the others' shares; says whose can't be read."""
        members, rest = read_numbers(body)
        if self.number not in setup.held:
            raise MessageError("shares before this client was asked for its own")
        if self.number not in members or not set(members) <= setup.bundles.keys():
            raise MessageError("members that have sent no keys, or without this client")
        if len(members) < max(setup.terms.threshold, FEWEST):
            raise MessageError(f"{len(members)} members: {setup.terms.threshold} are needed")
        others = [member for member in members if member != self.number]
        accused = []
        size = 2 * setup.terms.count * SHARE_BYTES
        for member, text in zip(others, pieces(rest, len(others), size + keys.TAG_BYTES), strict=True):
            try:
                key = self._sealing_key(setup, member, self.number)
                setup.held[member] = pieces(keys.unseal(key, text, setup.terms.setup), size // SHARE_BYTES, SHARE_BYTES)
                for share in setup.held[member]:
                    read_share(share)
            except MessageError:
                accused.append(member)
        if not accused:
            setup.members = members
        return framed(Phase.DELIVER, setup.terms.setup, numbers(accused))

    # -- opening a sum -----------------------------------------------------------------------------------------------

    def _confirm(self, setup: _Setup, body: bytes) -> bytes:
        """Sign whose vectors are in the sum: one list for each attempt."""
        round, attempt, rest = read_round(body)
        survivors, rest = read_numbers(rest)
        at = setup.terms.place(round, attempt)
        if rest or at is None or at not in setup.masked:
            raise MessageError(f"round {round}, attempt {attempt}: this client has sent nothing there")
        if self.number not in survivors or not set(survivors) <= set(setup.members):
            raise MessageError(f"round {round}: survivors that are no members, or without this client")
        if len(survivors) < (least := max(setup.terms.threshold, FEWEST)):
            raise MessageError(f"round {round}: {len(survivors)} survivors: {least} are needed")
        self._may_open(round, attempt)
        setup.signed[at] = survivors
        text = statement(setup.terms.setup, round, attempt, setup.members, survivors, setup.agreed)
        return round_ask(Phase.CONFIRM, setup.terms.setup, round, attempt, self._identity.sign(text))

    def _never_again(self, round: int) -> None:
        """Refuse a round that is no newer than the newest that was opened. Raises OpenedBeforeError."""
        if round <= self.opened:
            raise OpenedBeforeError(f"round {round} or a later one was opened before: two sums tell their difference")

    def _may_open(self, round: int, attempt: int) -> None:
        """Refuse what was opened before, and attempts that a later one has replaced. Raises MessageError."""
        self._never_again(round)
        if (round, attempt) != self._latest:
            raise MessageError(f"round {round}: this client has masked a vector for a later attempt")

    def _open(self, setup: _Setup, body: bytes) -> bytes:
        """Say shares: of survivors those of their own masks, of the others those of their keys."""
        round, attempt, rest = read_round(body)
        survivors, rest = read_numbers(rest)
        signers, rest = read_numbers(rest)
        at = setup.terms.place(round, attempt)
        if at is None or setup.signed.get(at) != survivors:
            raise MessageError(f"round {round}: other survivors than this client has signed")
        self._may_open(round, attempt)
        text = statement(setup.terms.setup, round, attempt, setup.members, survivors, setup.agreed)
        signatures = pieces(rest, len(signers), keys.SIGNATURE_BYTES)
        signed = [
            signer
            for signer, signature in zip(signers, signatures, strict=True)
            if signer in survivors and keys.signature_fits(setup.bundles[signer].identity, signature, text)
        ]
        if len(signed) < setup.terms.threshold:
            raise MessageError(
                f"round {round}: {len(signed)} have signed these survivors: {setup.terms.threshold} must"
            )
        if self._place is not None:
            write_whole(self._place, b"%d" % round)  # before anything is said
        self.opened = round
        shares = [setup.held[member][2 * at + (member in survivors)] for member in setup.members]
        return round_ask(Phase.OPEN, setup.terms.setup, round, attempt, b"".join(shares))


def _read_opened(place: Path | None) -> int:
    """The newest opened round in a client's file; 0: there is none. Raises StorageError."""
    if place is None:
        return 0
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        return int(place.read_bytes()) if place.exists() else 0
    except (OSError, ValueError) as error:
        raise StorageError(f"{place} holds the newest round that a client has opened: {error}") from error


def pair_use(terms: Terms, at: int) -> bytes:
    """Names a round's masks in the agreement of their keys."""
    return terms.setup + at.to_bytes(2, "little")


def check_bundle(client: int, bundle: Bundle, terms: Terms, known: Mapping[int, bytes] | None = None) -> None:
    """Whether public keys can be used, and are signed by whom they should be. Raises MessageError: whose."""
    if known is not None and known.get(client) != bundle.identity:
        raise MessageError(f"client {client} signs with another key than is known")
    if not keys.signature_fits(bundle.identity, bundle.signature, bundle.signed(terms)):
        raise MessageError(f"client {client} has not signed its keys")
    if len({bundle.sealing, *bundle.masks}) != 1 + len(bundle.masks):
        raise MessageError(f"client {client} uses a key twice")
