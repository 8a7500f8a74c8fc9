"""The cryptography of secure sums: X25519 and HKDF agree on keys, AES-GCM encrypts shares, AES-CTR
makes masks.

All primitives come from the package `cryptography`. Each key has one use, which is part of HKDF's
info.
"""

from hashlib import sha256

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedseed.errors import MessageError
from fedseed.privacy.secure.fixed import FixedPoint, Words

KEY_BYTES = 32
TAG_BYTES = 16  # bytes added by encryption
SIGNATURE_BYTES = 64
_NONCE = bytes(12)  # each key encrypts one message


def derive(secret: bytes, use: bytes) -> bytes:
    """Return a key for one use, by HKDF with SHA-256."""
    return HKDF(
        algorithm=SHA256(), length=KEY_BYTES, salt=None, info=b"fedseed secure sums: " + use
    ).derive(secret)


def private(seed: bytes) -> X25519PrivateKey:
    """Return the key pair of a 16-byte seed, so that a recovered seed gives the key."""
    return X25519PrivateKey.from_private_bytes(derive(seed, b"mask key"))


def public(key: X25519PrivateKey | Ed25519PrivateKey) -> bytes:
    """Return the public half of a key, 32 bytes."""
    return key.public_key().public_bytes_raw()


def commit(seed: bytes) -> bytes:
    """Return a hash with which a recovered seed of a self mask can be checked.

    The seed has 128 bits, so it can't be guessed from the hash.
    """
    return sha256(b"fedseed secure sums: self mask" + seed).digest()


def check_public(data: bytes) -> None:
    """Raise MessageError for a public key of small order, with which shared secrets are known to
    everybody.
    """
    agree(X25519PrivateKey.generate(), data, b"")


def agree(private_key: X25519PrivateKey, public_key: bytes, use: bytes) -> bytes:
    """Return the key that two sides agree on, for one use.

    Args:
        private_key: this side's key.
        public_key: the other side's key.
        use: the key's use, the same on both sides.

    Raises:
        MessageError: the public key can't be used.
    """
    try:
        return derive(private_key.exchange(X25519PublicKey.from_public_bytes(public_key)), use)
    except ValueError as error:
        raise MessageError("an unusable public key") from error


def seal(key: bytes, text: bytes, context: bytes) -> bytes:
    """Encrypt `text`; `context` is bound to it, but not encrypted.

    The key must never encrypt anything else.
    """
    return AESGCM(key).encrypt(_NONCE, text, context)


def unseal(key: bytes, data: bytes, context: bytes) -> bytes:
    """Decrypt the output of `seal`.

    Raises MessageError: it was encrypted with another key or context.
    """
    try:
        return AESGCM(key).decrypt(_NONCE, data, context)
    except InvalidTag as error:
        raise MessageError("it is not encrypted with the agreed key") from error


def mask(key: bytes, count: int, form: FixedPoint) -> Words:
    """Return `count` words that look random to everybody without the key.

    They come from AES-256 in counter mode, from 0.
    """
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(count * form.dtype.itemsize)), dtype=form.dtype)


def self_mask(seed: bytes, count: int, form: FixedPoint) -> Words:
    """Return a client's own mask, PRG(b_u)."""
    return mask(derive(seed, b"self mask"), count, form)


def pair_key(
    private_key: X25519PrivateKey, public_key: bytes, setup: bytes, position: int
) -> bytes:
    """Return the key of the mask that two clients share in a round, by its position in a setup.

    Raises MessageError if a public key is unusable.
    """
    return agree(private_key, public_key, b"pair mask" + setup + position.to_bytes(2, "little"))


def pair_mask(key: bytes, client: int, other_client: int, count: int, form: FixedPoint) -> Words:
    """Return the mask that a client adds for another one.

    It is +PRG(s_uv) for the client with the lower number, and -PRG(s_uv) for the other.

    Args:
        key: the pair's key (`pair_key`).
        client: the client's number.
        other_client: the other client's number.
        count: the number of words.
        form: the encoding of words.
    """
    mask_words = mask(key, count, form)
    return mask_words if client < other_client else np.zeros(1, form.dtype) - mask_words


def signature_fits(key: bytes, signature: bytes, text: bytes) -> bool:
    """Return whether this is the key's signature for this text."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True
