"""Signatures: each message carries its author's Ed25519 signature, made with the NKEY that opens
the server.

A server lets no client publish under another's subject, but sends its own answers to any subject
that a question names. So a subject alone proves nothing. A signature covers the subject, the data,
and a context where an order matters (`Chain`). It travels in a header, so the data stay as they
are.

A key file, as `fedseed keys` writes it, has a line with the owner's seed, and lines with the public
keys whose signatures count:

    SUA...                    the seed
    coordinator UA...         the coordinator's public key
    client NAME UB...         a client's (its name as in subjects), for the coordinator
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import nkeys
from nacl.exceptions import BadSignatureError

# twice as fast as OpenSSL's, and loaded by nkeys anyway
from nacl.signing import SigningKey, VerifyKey

from fedseed.errors import RecipeError
from fedseed.transport.subjects import name_of, token

HEADER = "Fedseed-Signature"
SIGNATURE_BYTES = 64
MOST_OTHERS = 10_000  # rejected messages of a log that are remembered
# A server has its clients sign a challenge of its choice with the same key. The challenge is a
# text, and no text begins with byte 255.
_BEGINNING = b"\xfffedseed 1\0"
_KEY_BYTES = 32

Headers = Mapping[str, str] | None


def seed_of(path: Path) -> str:
    """Return the seed in a key file. Raises RecipeError: there is none."""
    for line in _lines(path):
        if line.startswith("S"):
            return line
    raise RecipeError(f"{path}: there is no NKEY seed in it (a line that begins with SU)")


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not a key file: {error}") from error
    return [line.strip() for line in text.splitlines()]


def key_file(
    seed: str, coordinator: str | None = None, clients: Iterable[tuple[str, str]] = ()
) -> str:
    """Return the text of a key file.

    Args:
        seed: the owner's.
        coordinator: the coordinator's public key, for everybody else.
        clients: names and public keys of the clients, for the coordinator; a client may have
            several keys.
    """
    lines = [seed]
    if coordinator is not None:
        lines.append(f"coordinator {coordinator}")
    lines += [f"client {token(name)} {key}" for name, key in clients]
    return "\n".join(lines) + "\n"


def _public(text: str, place: str) -> VerifyKey:
    """Parse a public NKEY: a byte for its kind, the key, and a checksum."""
    try:
        data = base64.b32decode(text)
    except ValueError:
        data = b""
    if len(data) != _KEY_BYTES + 3 or nkeys.crc16(data[:-2]) != int.from_bytes(data[-2:], "little"):
        raise RecipeError(f"{place}: not a public NKEY")
    return VerifyKey(data[1:-2])


def _signed_bytes(subject: str, data: bytes, context: bytes) -> bytes:
    """Return the bytes to sign: no part can be taken for a piece of another."""
    digest = hashlib.blake2b(data, digest_size=_KEY_BYTES).digest()
    return _BEGINNING + digest + len(context).to_bytes(4, "little") + context + subject.encode()


@dataclass(frozen=True)
class Signatures:
    """The keys of one side, which sign its messages and check those of the other side."""

    own: SigningKey | None = field(default=None, repr=False)  # None: nothing is signed
    # the coordinator's public key; None: not known, and not checked
    coordinator: VerifyKey | None = None
    # the clients' public keys, by name; None: not known, and not checked
    clients: Mapping[str, tuple[VerifyKey, ...]] | None = None

    @classmethod
    def from_key_file(cls, path: Path | None, coordinating: bool = False) -> "Signatures":
        """Read the keys of a key file; without a file there are none.

        Args:
            path: the file.
            coordinating: whether it is the coordinator's own.

        Raises:
            RecipeError: it is not a key file.
        """
        if path is None:
            return cls()
        try:
            signing_key = SigningKey(bytes(nkeys.decode_seed(seed_of(path).encode())[1]))
        except (nkeys.NkeysError, ValueError) as error:
            raise RecipeError(f"{path}: not an NKEY seed") from error
        coordinator = signing_key.verify_key if coordinating else None
        clients: dict[str, tuple[VerifyKey, ...]] = {}
        for number, line in enumerate(_lines(path), start=1):
            place = f"{path}: line {number}"
            match line.split():
                case ["coordinator", key] if not coordinating:
                    coordinator = _public(key, place)
                case ["client", part, key]:
                    name = name_of(part)
                    if name is not None:
                        clients[name] = (*clients.get(name, ()), _public(key, place))
        return cls(signing_key, coordinator, clients or None)

    def headers(self, subject: str, data: bytes, context: bytes = b"") -> dict[str, str] | None:
        """Return the header with a signature of 64 bytes; None: there is no key.

        Args:
            subject: the message's subject.
            data: the message.
            context: further bytes that the signature covers.
        """
        if self.own is None:
            return None
        signature = self.own.sign(_signed_bytes(subject, data, context)).signature
        return {HEADER: base64.b64encode(signature).decode()}

    def of_coordinator(
        self, subject: str, data: bytes, headers: Headers, context: bytes = b""
    ) -> bool:
        """Return whether a message is the coordinator's; True where that is not checked."""
        return self.coordinator is None or _fits(self.coordinator, subject, data, headers, context)

    def of_client(
        self, name: str, subject: str, data: bytes, headers: Headers, context: bytes = b""
    ) -> bool:
        """Return whether a message is that client's; True where that is not checked."""
        if self.clients is None:
            return True
        return any(
            _fits(key, subject, data, headers, context) for key in self.clients.get(name, ())
        )

    def line(self, name: str) -> bytes | None:
        """Return the key whose messages must stay in order with a client's.

        None: the client has no key, or no keys are known.
        """
        keys = (self.clients or {}).get(name, ())
        return min((bytes(key) for key in keys), default=None)


def signature_in(headers: Headers) -> bytes | None:
    """Return the signature that a message carries, valid or not; None: it carries none."""
    text = (headers or {}).get(HEADER, "")
    try:
        signature = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return signature if len(signature) == SIGNATURE_BYTES else None


def _fits(key: VerifyKey, subject: str, data: bytes, headers: Headers, context: bytes) -> bool:
    signature = signature_in(headers)
    if signature is None:
        return False
    try:
        key.verify(_signed_bytes(subject, data, context), signature)
    except BadSignatureError:
        return False
    return True


@dataclass
class Chain:
    """Recognises a log's entries among messages that others have written there.

    An entry's signature covers the signature before it. So an entry counts at one place only. If
    two coordinators write at once, the log's order decides which of them goes on.
    """

    signatures: Signatures  # check the coordinator's signatures; without its key every entry counts
    subject: str  # the log's
    head: bytes = b""  # the signature of the last entry that counts
    # fingerprints of rejected messages, which may be repeated a thousand times
    _rejected: set[bytes] = field(default_factory=set)
    _rejected_head: bytes = b""  # the head at which they were rejected

    @property
    def checks(self) -> bool:
        """Whether entries are checked."""
        return self.signatures.coordinator is not None

    def take(self, data: bytes, headers: Headers) -> bool:
        """Return whether a message is the next entry that counts."""
        signature = signature_in(headers) or b""
        if not self.checks:
            self.head = signature
            return True
        if self._rejected_head != self.head:
            self._rejected, self._rejected_head = set(), self.head
        fingerprint = hashlib.blake2b(data, digest_size=16, key=signature).digest()
        if fingerprint in self._rejected:
            return False
        if not self.signatures.of_coordinator(self.subject, data, headers, self.head):
            if len(self._rejected) < MOST_OTHERS:
                self._rejected.add(fingerprint)
            return False
        self.head = signature
        return True

    def sign(self, data: bytes) -> tuple[dict[str, str], bytes]:
        """Return the next entry's header, empty without a key, and the `head` after it."""
        headers = self.signatures.headers(self.subject, data, self.head) or {}
        return headers, signature_in(headers) or b""
