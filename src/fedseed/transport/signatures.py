"""Who wrote a message, proven: each carries its author's Ed25519 signature, made with the NKEY that
opens the server.

A server lets nobody publish under another's subject, but its own answers go to whatever subject a
question names. So a subject alone proves nothing. A signature covers the subject, the data, and
what came before where an order matters (`Chain`). It travels in a header: the data stays as it is.

A key file, as `fedseed keys` writes it, has a line with the owner's seed, and lines that say whose
signatures count:

    SUA...                    the seed
    coordinator UA...         the coordinator's public key
    client NAME UB...         that of a client (its name as in subjects), for the coordinator
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
MOST_OTHERS = 10_000  # messages in a log that did not count, which are known again
# A server has its clients sign a challenge of its choice with the same key: a text, and no text
# begins with 255.
_BEGINNING = b"\xfffedseed 1\0"
_KEY_BYTES = 32

Headers = Mapping[str, str] | None


def seed_of(path: Path) -> str:
    """Return the seed in a key file. Raises RecipeError if there is none."""
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
    """Return what stands in a key file.

    Args:
        seed: the owner's.
        coordinator: the coordinator's public key, for everybody else.
        clients: names and public keys of the clients, for the coordinator; one may have several.
    """
    lines = [seed]
    if coordinator is not None:
        lines.append(f"coordinator {coordinator}")
    lines += [f"client {token(name)} {key}" for name, key in clients]
    return "\n".join(lines) + "\n"


def _public(text: str, where: str) -> VerifyKey:
    """Return a public NKEY: a byte for its kind, the key, and a checksum."""
    try:
        data = base64.b32decode(text)
    except ValueError:
        data = b""
    if len(data) != _KEY_BYTES + 3 or nkeys.crc16(data[:-2]) != int.from_bytes(data[-2:], "little"):
        raise RecipeError(f"{where}: not a public NKEY")
    return VerifyKey(data[1:-2])


def _digested(subject: str, data: bytes, after: bytes) -> bytes:
    """Return what is signed: all parts, none of which can be taken for a piece of another."""
    digest = hashlib.blake2b(data, digest_size=_KEY_BYTES).digest()
    return _BEGINNING + digest + len(after).to_bytes(4, "little") + after + subject.encode()


@dataclass(frozen=True)
class Signatures:
    """Signs for one side, and checks the other."""

    own: SigningKey | None = field(default=None, repr=False)  # signs; None: nothing is signed
    # whose messages are the coordinator's; None: not known, and not checked
    coordinator: VerifyKey | None = None
    # whose are a client's, by name; one may have several keys. None: not known, and not checked
    clients: Mapping[str, tuple[VerifyKey, ...]] | None = None

    @classmethod
    def read(cls, path: Path | None, coordinating: bool = False) -> "Signatures":
        """Return those that a key file allows; without one, none.

        Args:
            path: the file.
            coordinating: it is the coordinator's own.

        Raises:
            RecipeError: it is no key file.
        """
        if path is None:
            return cls()
        try:
            own = SigningKey(bytes(nkeys.decode_seed(seed_of(path).encode())[1]))
        except (nkeys.NkeysError, ValueError) as error:
            raise RecipeError(f"{path}: not an NKEY seed") from error
        coordinator = own.verify_key if coordinating else None
        clients: dict[str, tuple[VerifyKey, ...]] = {}
        for number, line in enumerate(_lines(path), start=1):
            match line.split():
                case ["coordinator", key] if not coordinating:
                    coordinator = _public(key, f"{path}: line {number}")
                case ["client", part, key] if (name := name_of(part)) is not None:
                    clients[name] = (*clients.get(name, ()), _public(key, f"{path}: line {number}"))
        return cls(own, coordinator, clients or None)

    def headers(self, subject: str, data: bytes, after: bytes = b"") -> dict[str, str] | None:
        """Return the header with a signature of 64 bytes; None: there is no key.

        Args:
            subject: where the message goes.
            data: the message.
            after: what else it covers.
        """
        if self.own is None:
            return None
        signature = self.own.sign(_digested(subject, data, after)).signature
        return {HEADER: base64.b64encode(signature).decode()}

    def of_coordinator(
        self, subject: str, data: bytes, headers: Headers, after: bytes = b""
    ) -> bool:
        """Return whether a message is the coordinator's, as far as that is checked."""
        return self.coordinator is None or _fits(self.coordinator, subject, data, headers, after)

    def of_client(
        self, name: str, subject: str, data: bytes, headers: Headers, after: bytes = b""
    ) -> bool:
        """Return whether a message is that client's, as far as that is checked."""
        if self.clients is None:
            return True
        return any(_fits(key, subject, data, headers, after) for key in self.clients.get(name, ()))

    def line(self, name: str) -> bytes | None:
        """Return which messages must stay in order: those of one key.

        None: none, or nobody's key is known.
        """
        keys = (self.clients or {}).get(name, ())
        return min((bytes(key) for key in keys), default=None)


def signature_in(headers: Headers) -> bytes | None:
    """Return the signature that a message carries, whosever it is; None: none."""
    text = (headers or {}).get(HEADER, "")
    try:
        signature = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return signature if len(signature) == SIGNATURE_BYTES else None


def _fits(key: VerifyKey, subject: str, data: bytes, headers: Headers, after: bytes) -> bool:
    signature = signature_in(headers)
    if signature is None:
        return False
    try:
        key.verify(_digested(subject, data, after), signature)
    except BadSignatureError:
        return False
    return True


@dataclass
class Chain:
    """Tells a log's entries from what others have written there.

    An entry's signature covers the signature before it. So an entry counts at one place only, and
    of two coordinators that write at once the log's order says which of them goes on.
    """

    signatures: Signatures  # check the coordinator's; where they can't, every entry counts
    subject: str  # the log's
    head: bytes = b""  # the signature of the last entry that counts
    # what did not count; it may stand there a thousand times
    _others: set[bytes] = field(default_factory=set)
    _after: bytes = b""  # after which entry that was

    @property
    def checks(self) -> bool:
        """Return whether anything is told apart."""
        return self.signatures.coordinator is not None

    def take(self, data: bytes, headers: Headers) -> bool:
        """Return whether this entry counts, after those that counted before."""
        signature = signature_in(headers) or b""
        if not self.checks:
            self.head = signature
            return True
        if self._after != self.head:
            self._others, self._after = set(), self.head
        seen = hashlib.blake2b(data, digest_size=16, key=signature).digest()
        if seen in self._others:
            return False
        if not self.signatures.of_coordinator(self.subject, data, headers, self.head):
            if len(self._others) < MOST_OTHERS:
                self._others.add(seen)
            return False
        self.head = signature
        return True

    def sign(self, data: bytes) -> tuple[dict[str, str], bytes]:
        """Return the header of the next entry, if it is signed, and what `head` is once it stands
        in the log.
        """
        headers = self.signatures.headers(self.subject, data, self.head) or {}
        return headers, signature_in(headers) or b""
