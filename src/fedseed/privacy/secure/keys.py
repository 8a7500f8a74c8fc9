"""What secrets are made of: X25519 and HKDF agree on keys, AES-GCM encrypts shares, AES-CTR makes
masks.

Everything comes from `cryptography`; each key is used for one thing, and says so in HKDF's info.
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
TAG_BYTES = 16  # that encryption adds
SIGNATURE_BYTES = 64
_NONCE = bytes(12)  # each key encrypts one message


def derived(secret: bytes, use: bytes) -> bytes:
    """Return a key for one use, by HKDF with SHA-256."""
    return HKDF(
        algorithm=SHA256(), length=KEY_BYTES, salt=None, info=b"fedseed secure sums: " + use
    ).derive(secret)


def private(seed: bytes) -> X25519PrivateKey:
    """Return the key pair of a seed of 16 bytes: whoever has put the seed together has the key."""
    return X25519PrivateKey.from_private_bytes(derived(seed, b"mask key"))


def public(key: X25519PrivateKey | Ed25519PrivateKey) -> bytes:
    """Return the public half of a key, 32 bytes."""
    return key.public_key().public_bytes_raw()


def committed(seed: bytes) -> bytes:
    """Return a hash to check the self mask's seed by once it is put together.

    128 bits can't be guessed before.
    """
    return sha256(b"fedseed secure sums: self mask" + seed).digest()


def check_public(data: bytes) -> None:
    """Raises MessageError if a public key can't be used: a point of small order, whose secrets
    everybody knows.
    """
    agreed(X25519PrivateKey.generate(), data, b"")


def agreed(own: X25519PrivateKey, other: bytes, use: bytes) -> bytes:
    """Return the key that two agree on, for one use.

    Args:
        own: a private key.
        other: the other side's public key.
        use: what for; both sides say the same.

    Raises:
        MessageError: the public key can't be used.
    """
    try:
        return derived(own.exchange(X25519PublicKey.from_public_bytes(other)), use)
    except ValueError as error:
        raise MessageError("a public key that no secret key has") from error


def seal(key: bytes, text: bytes, about: bytes) -> bytes:
    """Encrypts `text`; `about` is bound to it and not hidden.

    The key must never encrypt anything else.
    """
    return AESGCM(key).encrypt(_NONCE, text, about)


def unseal(key: bytes, data: bytes, about: bytes) -> bytes:
    """Decrypts what `seal` made.

    Raises MessageError if it was not encrypted with this key and this `about`.
    """
    try:
        return AESGCM(key).decrypt(_NONCE, data, about)
    except InvalidTag as error:
        raise MessageError("it is not encrypted with the key that was agreed on") from error


def mask(key: bytes, count: int, form: FixedPoint) -> Words:
    """Return `count` words that nobody without the key tells from random ones: AES-256 in counter
    mode, from 0.
    """
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(count * form.dtype.itemsize)), dtype=form.dtype)


def self_mask(seed: bytes, count: int, form: FixedPoint) -> Words:
    """Return a client's own mask, PRG(b_u)."""
    return mask(derived(seed, b"self mask"), count, form)


def pair_key(own: X25519PrivateKey, other: bytes, setup: bytes, at: int) -> bytes:
    """Return the key of the mask that two clients share in a round, by its place in a setup.

    Raises MessageError.
    """
    return agreed(own, other, b"pair mask" + setup + at.to_bytes(2, "little"))


def pair_mask(key: bytes, me: int, other: int, count: int, form: FixedPoint) -> Words:
    """Return what a client adds for one other: +PRG(s_uv) if its number is the lower one, else
    -PRG(s_uv).

    Args:
        key: the pair's (`pair_key`).
        me: the client's number.
        other: the other's.
        count: how many words.
        form: how words are written.
    """
    found = mask(key, count, form)
    return found if me < other else np.zeros(1, form.dtype) - found


def signature_fits(key: bytes, signature: bytes, text: bytes) -> bool:
    """Return whether the signature is this key's of this text."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True
