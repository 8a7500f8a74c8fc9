"""How a client deals its secrets, so that everybody can see afterwards who has lied about a share.

A dealer signs what it has dealt, once: of every share it is known by a hash what it was. Each part
is sealed with a key made for it alone, so the dealer can show one part, and no other, to everybody.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedseed.errors import MessageError
from fedseed.privacy.secure import keys
from fedseed.privacy.secure.messages import Bundle, numbers, pieces, read_numbers
from fedseed.privacy.secure.shamir import SHARE_BYTES, join, read_share, split

# of a share's hash: who holds a share can't find another one with it, and shares can't be guessed
PROOF_BYTES = 16


@dataclass(frozen=True)
class Part:
    """What one holder gets of a dealer: the key that it is sealed with, the sealed shares, and
    their hashes.
    """

    key: bytes
    text: bytes
    hashes: tuple[bytes, ...]

    def encode(self) -> bytes:
        """Return it as it travels."""
        return self.key + self.text + b"".join(self.hashes)

    @classmethod
    def decode(cls, data: bytes, count: int) -> "Part":
        """Read what `encode` has written, for the two secrets of so many rounds.

        It has `part_bytes`.
        """
        stop = len(data) - 2 * count * PROOF_BYTES
        return cls(
            data[: keys.KEY_BYTES],
            data[keys.KEY_BYTES : stop],
            tuple(pieces(data[stop:], 2 * count)),
        )

    def shares(self, own: X25519PrivateKey, other: bytes, about: bytes) -> list[bytes]:
        """Return what it holds, by its holder's private key and its own, or the other way round.

        Raises:
            MessageError: it can't be read, or does not hold shares, or other ones than were hashed.
        """
        found = pieces(
            keys.unseal(keys.agreed(own, other, about), self.text, about),
            len(self.hashes),
            SHARE_BYTES,
        )
        if tuple(map(hashed, found)) != self.hashes:
            raise MessageError("other shares than were hashed")
        for share in found:
            read_share(share)
        return found


def part_bytes(count: int) -> int:
    """Return the bytes of a part for so many rounds."""
    return keys.KEY_BYTES + keys.TAG_BYTES + 2 * count * (SHARE_BYTES + PROOF_BYTES)


def about(setup: bytes, dealer: int, holder: int) -> bytes:
    """Return the name of a part."""
    return b"shares" + setup + numbers([dealer]) + numbers([holder])


def hashed(share: bytes) -> bytes:
    """Return a hash that says later which share it was."""
    return sha256(b"fedseed secure sums: share" + share).digest()[:PROOF_BYTES]


def deal(
    secrets: Sequence[bytes],
    setup: bytes,
    dealer: int,
    bundles: Mapping[int, Bundle],
    threshold: int,
) -> dict[int, tuple[X25519PrivateKey, Part]]:
    """Return a part of a dealer's secrets for each holder, and the key that seals it.

    Raises MessageError.
    """
    shared = [split(secret, [holder + 1 for holder in bundles], threshold) for secret in secrets]
    found = {}
    for at, (holder, bundle) in enumerate(bundles.items()):
        shares, key, use = (
            [shares[at] for shares in shared],
            X25519PrivateKey.generate(),
            about(setup, dealer, holder),
        )
        text = keys.seal(keys.agreed(key, bundle.sealing, use), b"".join(shares), use)
        found[holder] = key, Part(keys.public(key), text, tuple(map(hashed, shares)))
    return found


def read_parts(body: bytes, holders: Sequence[int], count: int) -> dict[int, Part]:
    """Return a dealer's parts, by holder. Raises MessageError."""
    parts = pieces(body, len(holders), part_bytes(count))
    return {holder: Part.decode(data, count) for holder, data in zip(holders, parts, strict=True)}


def fits(bundle: Bundle, at: int, own: bool, secret: bytes | None) -> bool:
    """Return whether shares give the seed whose hash (of its own mask), or whose public key, a
    client has sent.
    """
    if secret is None:
        return False
    if own:
        return keys.committed(secret) == bundle.commitments[at]
    return keys.public(keys.private(secret)) == bundle.masks[at]


@dataclass(frozen=True)
class Fault:
    """Shows that a dealer has dealt wrongly: shares as it has signed them, which do not give what
    it had sent.
    """

    dealer: int  # who
    own: bool  # they are of the seed of its own mask, not of that of its key
    shares: Mapping[int, bytes]  # as many as are needed, by holder
    answer: bytes  # the dealer's answer that had them, with its signature

    def encode(self) -> bytes:
        """Return it as it travels."""
        who = numbers([self.dealer]) + numbers(list(self.shares)) + bytes([self.own])
        return who + b"".join(self.shares.values()) + self.answer

    @classmethod
    def decode(cls, data: bytes) -> "Fault":
        """Read what `encode` has written. Raises MessageError."""
        dealers, rest = read_numbers(data)
        holders, rest = read_numbers(rest)
        if len(dealers) != 1:
            raise MessageError("not the fault of one dealer")
        stop = 1 + len(holders) * SHARE_BYTES
        shares = dict(zip(holders, pieces(rest[1:stop], len(holders), SHARE_BYTES), strict=True))
        return cls(dealers[0], rest[:1] == b"\1", shares, rest[stop:])

    def shown(self, parts: Mapping[int, Part], bundle: Bundle, at: int, threshold: int) -> bool:
        """Return whether it is so, by the dealer's parts and public keys, for a round's place in
        the setup.
        """
        shares = self.shares.items()
        if len(shares) != threshold or not self.shares.keys() <= parts.keys():
            return False
        secret = join({holder + 1: int.from_bytes(share, "little") for holder, share in shares})
        return not fits(bundle, at, self.own, secret) and all(
            parts[holder].hashes[2 * at + self.own] == hashed(share) for holder, share in shares
        )
