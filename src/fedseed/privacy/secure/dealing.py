"""Deals a client's secrets so that lies about a share can be proven afterwards.

A dealer signs once what it has dealt, with a hash of each share. Each part is sealed with its own
key, so the dealer can reveal a single part to everybody.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedseed.errors import MessageError
from fedseed.privacy.secure import keys
from fedseed.privacy.secure.messages import Bundle, numbers, pieces, read_numbers
from fedseed.privacy.secure.shamir import SHARE_BYTES, read_share, recover_secret, split

# bytes of a share's hash: enough that a holder can't find another share with the same hash, and
# that the share can't be guessed from it
PROOF_BYTES = 16


@dataclass(frozen=True)
class HeldPart:
    """A holder's part of a dealer's secrets: the sealing key, sealed shares, and their hashes."""

    key: bytes
    text: bytes
    hashes: tuple[bytes, ...]

    def encode(self) -> bytes:
        """Return the part as bytes."""
        return self.key + self.text + b"".join(self.hashes)

    @classmethod
    def decode(cls, data: bytes, count: int) -> "HeldPart":
        """Return the inverse of `encode`, for two secrets in each of `count` rounds.

        The data must have the length `part_bytes`.
        """
        stop = len(data) - 2 * count * PROOF_BYTES
        return cls(
            data[: keys.KEY_BYTES],
            data[keys.KEY_BYTES : stop],
            tuple(pieces(data[stop:], 2 * count)),
        )

    def shares(
        self, private_key: X25519PrivateKey, public_key: bytes, part_id: bytes
    ) -> list[bytes]:
        """Return the shares, decrypted with one side's private key and the other side's public key.

        Raises:
            MessageError: they can't be decrypted, are not shares, or have other hashes.
        """
        shares = pieces(
            keys.unseal(keys.agree(private_key, public_key, part_id), self.text, part_id),
            len(self.hashes),
            SHARE_BYTES,
        )
        if tuple(map(hash_share, shares)) != self.hashes:
            raise MessageError("these are not the shares that were hashed")
        for share in shares:
            read_share(share)
        return shares


def part_bytes(count: int) -> int:
    """Return the bytes of a part for `count` rounds."""
    return keys.KEY_BYTES + keys.TAG_BYTES + 2 * count * (SHARE_BYTES + PROOF_BYTES)


def name_part(setup: bytes, dealer: int, holder: int) -> bytes:
    """Return the name of a part, to which its encryption is bound."""
    return b"shares" + setup + numbers([dealer]) + numbers([holder])


def hash_share(share: bytes) -> bytes:
    """Return a hash that later identifies a share."""
    return sha256(b"fedseed secure sums: share" + share).digest()[:PROOF_BYTES]


def deal(
    secrets: Sequence[bytes],
    setup: bytes,
    dealer: int,
    bundles: Mapping[int, Bundle],
    threshold: int,
) -> dict[int, tuple[X25519PrivateKey, HeldPart]]:
    """Return a part of a dealer's secrets for each holder, and the key that seals it.

    Raises MessageError if a holder's public key is unusable.
    """
    holder_numbers = [holder + 1 for holder in bundles]
    shares_by_secret = [split(secret, holder_numbers, threshold) for secret in secrets]
    parts = {}
    for index, (holder, bundle) in enumerate(bundles.items()):
        shares = [shares_of_secret[index] for shares_of_secret in shares_by_secret]
        key = X25519PrivateKey.generate()
        part_id = name_part(setup, dealer, holder)
        sealing_key = keys.agree(key, bundle.sealing, part_id)
        text = keys.seal(sealing_key, b"".join(shares), part_id)
        parts[holder] = key, HeldPart(keys.public(key), text, tuple(map(hash_share, shares)))
    return parts


def read_parts(body: bytes, holders: Sequence[int], count: int) -> dict[int, HeldPart]:
    """Return a dealer's parts, by holder. Raises MessageError if they are invalid."""
    parts = pieces(body, len(holders), part_bytes(count))
    return {
        holder: HeldPart.decode(data, count) for holder, data in zip(holders, parts, strict=True)
    }


def matches_commitment(
    bundle: Bundle, position: int, is_self_mask: bool, secret: bytes | None
) -> bool:
    """Return whether a secret fits the hash or the public key that its client has sent."""
    if secret is None:
        return False
    if is_self_mask:
        return keys.commit(secret) == bundle.commitments[position]
    return keys.public(keys.private(secret)) == bundle.masks[position]


@dataclass(frozen=True)
class Fault:
    """Proof that a dealer has dealt wrongly: its signed shares do not fit its public keys."""

    dealer: int
    own: bool  # whether the shares are of the seed of its own mask, not of its key
    shares: Mapping[int, bytes]  # the needed number of shares, by holder
    answer: bytes  # the dealer's signed answer with these shares

    def encode(self) -> bytes:
        """Return the fault as bytes."""
        header = numbers([self.dealer]) + numbers(list(self.shares)) + bytes([self.own])
        return header + b"".join(self.shares.values()) + self.answer

    @classmethod
    def decode(cls, data: bytes) -> "Fault":
        """Return the inverse of `encode`. Raises MessageError if it is invalid."""
        dealers, rest = read_numbers(data)
        holders, rest = read_numbers(rest)
        if len(dealers) != 1:
            raise MessageError("not a proof against one dealer")
        stop = 1 + len(holders) * SHARE_BYTES
        shares = dict(zip(holders, pieces(rest[1:stop], len(holders), SHARE_BYTES), strict=True))
        return cls(dealers[0], rest[:1] == b"\1", shares, rest[stop:])

    def is_proven(
        self, parts: Mapping[int, HeldPart], bundle: Bundle, position: int, threshold: int
    ) -> bool:
        """Return whether the dealer's parts and public keys prove the fault.

        Args:
            parts: the dealer's parts, by holder.
            bundle: its public keys.
            position: a round's position in the setup.
            threshold: number of shares that recover a secret.
        """
        shares = self.shares.items()
        if len(shares) != threshold or not self.shares.keys() <= parts.keys():
            return False
        secret = recover_secret(
            {holder + 1: int.from_bytes(share, "little") for holder, share in shares}
        )
        return not matches_commitment(bundle, position, self.own, secret) and all(
            parts[holder].hashes[2 * position + self.own] == hash_share(share)
            for holder, share in shares
        )
