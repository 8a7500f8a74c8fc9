"""Sign orbit files with Ed25519, and check their signatures.

A signature is in a file PATH.sig beside the orbit's: the 64 bytes of RFC 8032 over the file's
bytes, so that other tools can check it (openssl pkeyutl -verify -pubin -inkey KEY.pub -rawin -in
PATH -sigfile PATH.sig). Keys are PEM.
"""

import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from fedseed.durable import write_whole
from fedseed.errors import OrbitError, StorageError
from fedseed.orbit.file import Orbit, read_file


def generate_key(path: Path) -> Path:
    """Make a key: a private file `path`, readable by its owner only, and a public one, `path`.pub,
    which is returned.

    Raises OrbitError: one of the files exists; StorageError: a file can't be written.
    """
    public = path.with_name(path.name + ".pub")
    for file in (path, public):
        if file.exists():
            raise OrbitError(f"{file} exists: a key is never overwritten")
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(private)
    except OSError as error:
        raise StorageError(f"{path}: can't be written: {error.strerror}") from error
    write_whole(
        public,
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    )
    return public


def private_key(path: Path) -> ed25519.Ed25519PrivateKey:
    """Return the private key in a file. Raises OrbitError if it holds none."""
    try:
        key = serialization.load_pem_private_key(read_file(path), password=None)
    except (ValueError, TypeError) as error:
        raise OrbitError(f"{path}: not a private key in PEM form without a password") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise OrbitError(f"{path}: not an Ed25519 key")
    return key


def sign(path: Path, key_file: Path) -> Path:
    """Check and sign an orbit, and return the signature's file, PATH.sig.

    Raises OrbitError: the orbit is damaged, or the file holds no private Ed25519 key.
    """
    key = private_key(key_file)
    data = read_file(path)
    Orbit.parse(data, str(path))
    signature_file = path.with_name(path.name + ".sig")
    write_whole(signature_file, key.sign(data))
    return signature_file


def verify(path: Path, key_file: Path, signature: Path | None = None) -> None:
    """Raise OrbitError unless a signature (by default PATH.sig) of an orbit's file is valid for a
    public key (PEM).
    """
    try:
        key = serialization.load_pem_public_key(read_file(key_file))
    except ValueError as error:
        raise OrbitError(f"{key_file}: not a public key in PEM form") from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise OrbitError(f"{key_file}: not an Ed25519 key")
    signature = signature or path.with_name(path.name + ".sig")
    try:
        key.verify(read_file(signature), read_file(path))
    except InvalidSignature as error:
        raise OrbitError(
            f"{path}: {signature.name} is not a signature of this file by this key"
        ) from error
