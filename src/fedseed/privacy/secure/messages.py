"""Asks and answers of secure sums: all messages but plans and masked vectors.

Little-endian, no padding.

    ask      phase u8 | setup 8 bytes | body
    answer   the same phase and setup | body | signature 64 bytes

    phase     body of the ask                              body of the answer
    KEYS      round u32, attempt u16, count u16,           the keys of a `Bundle`
              threshold u16, clients
    SHARES    the bundles of all                           a `Part` for each of them
    DELIVER   members, their parts for this client         dealers of unreadable parts, hashes
    REVEAL    an accuser, the SHA-256 of its ask,          the key that sealed the accuser's part
              its answer
    CONFIRM   round, attempt, members, survivors           none: the signature counts
    OPEN      round, attempt, signers, signatures          a share of one secret of each member
    DISOWN    round, attempt, a `Fault` of a dealer        the key of the mask shared with it

A setup has keys and shares for `count` rounds: the attempt of a round that it was made for, and the
first attempts of the rounds after it. A signature covers the author, the ask, and the keys that the
author knows (`signing_payload`).
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256

from fedseed.errors import MessageError
from fedseed.privacy.secure.keys import KEY_BYTES, SIGNATURE_BYTES
from fedseed.privacy.secure.settings import MOST_CLIENTS

SETUP_BYTES = 8
HASH_BYTES = 32
_TERMS = struct.Struct("<IHHH")
_ROUND = struct.Struct("<IH")
_COUNT = struct.Struct("<I")


class Phase(IntEnum):
    """The kind of an ask."""

    KEYS = 1
    SHARES = 2
    DELIVER = 3
    CONFIRM = 4
    OPEN = 5
    REVEAL = 6
    DISOWN = 7


def frame(phase: Phase, setup: bytes, body: bytes = b"") -> bytes:
    """Return an ask or an answer as bytes."""
    return bytes([phase]) + setup + body


def unframe(data: bytes) -> tuple[Phase, bytes, bytes]:
    """Return phase, setup and body. Raises MessageError if the bytes are invalid."""
    if len(data) < 1 + SETUP_BYTES or data[0] not in Phase.__members__.values():
        raise MessageError("not a message of secure sums")
    return Phase(data[0]), data[1 : 1 + SETUP_BYTES], data[1 + SETUP_BYTES :]


def signed_parts(answer: bytes) -> tuple[bytes, bytes, bytes]:
    """Return an answer without signature, its body, and its signature. Raises MessageError if it is
    invalid.
    """
    content, signature = answer[:-SIGNATURE_BYTES], answer[-SIGNATURE_BYTES:]
    return content, unframe(content)[2], signature


def signing_payload(agreed: bytes, client: int, ask_hash: bytes, content: bytes) -> bytes:
    """Return the bytes that a client signs.

    Args:
        agreed: the digest of all clients' keys (empty while they are not known), followed by the
            hash of the delivered shares when shares are revealed. A signature from an earlier setup
            has a different digest, so keys from another run, whose secrets may be known by now, are
            not accepted.
        client: the client's number.
        ask_hash: the SHA-256 of the ask.
        content: the answer without the signature.
    """
    return (
        b"fedseed secure sums: answer"
        + sha256(agreed).digest()
        + _COUNT.pack(client)
        + ask_hash
        + content
    )


def numbers(clients: Sequence[int]) -> bytes:
    """Encode a list of clients' numbers."""
    return struct.pack(f"<I{len(clients)}I", len(clients), *clients)


def read_numbers(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Decode a list of ascending numbers; return it and the remaining data. Raises MessageError if
    it is invalid.
    """
    count = _COUNT.unpack_from(data)[0] if len(data) >= _COUNT.size else MOST_CLIENTS + 1
    stop = _COUNT.size * (1 + count)
    if count > MOST_CLIENTS or len(data) < stop:
        raise MessageError("a list of clients that is cut off or too long")
    clients = struct.unpack_from(f"<{count}I", data, _COUNT.size)
    if list(clients) != sorted(set(clients)):
        raise MessageError("a list of clients that is not in order")
    return tuple(clients), data[stop:]


def pieces(data: bytes, count: int, size: int | None = None) -> list[bytes]:
    """Divide data into pieces of equal length. Raises MessageError if the length does not fit.

    Args:
        data: all pieces.
        count: the number of pieces.
        size: bytes of each piece; None: computed from the data's length.
    """
    size = len(data) // max(1, count) if size is None else size
    if len(data) != count * size:
        raise MessageError(f"{len(data)} bytes, but expected {count} pieces of {size}")
    return [data[index * size : (index + 1) * size] for index in range(count)]


@dataclass(frozen=True)
class Terms:
    """The terms of an ask for keys."""

    setup: bytes  # the setup's name
    round: int  # the first round
    attempt: int  # attempt of the first round
    count: int  # number of rounds
    threshold: int  # number of clients needed to open a sum
    clients: tuple[int, ...]  # clients that are asked

    def encode(self) -> bytes:
        """Return the ask as bytes."""
        header = _TERMS.pack(self.round, self.attempt, self.count, self.threshold)
        return frame(Phase.KEYS, self.setup, header + numbers(self.clients))

    @classmethod
    def decode(cls, setup: bytes, body: bytes) -> "Terms":
        """Return the inverse of `encode`. Raises MessageError if it is invalid."""
        if len(body) < _TERMS.size:
            raise MessageError("cut-off terms")
        clients, rest = read_numbers(body[_TERMS.size :])
        if rest:
            raise MessageError("terms with additional data after them")
        number, attempt, count, threshold = _TERMS.unpack_from(body)
        return cls(setup, number, attempt, count, threshold, clients)

    def place(self, round: int, attempt: int) -> int | None:
        """Return the position of the keys for this attempt of a round; None if there are none."""
        position = round - self.round
        fits = attempt == self.attempt if position == 0 else attempt == 0
        return position if fits and 0 <= position < self.count else None


@dataclass(frozen=True)
class Bundle:
    """A client's public keys for a setup, signed."""

    identity: bytes  # the key for signatures
    sealing: bytes  # the key that shares for it are encrypted for
    masks: tuple[bytes, ...]  # for each round, the key that agrees on masks
    commitments: tuple[bytes, ...]  # for each round, the commitment to its own mask
    signature: bytes = b""  # signature of the answer with these keys

    def encode(self) -> bytes:
        """Return the bundle as bytes."""
        return b"".join(
            (self.identity, self.sealing, *self.masks, *self.commitments, self.signature)
        )

    @classmethod
    def decode(cls, data: bytes, count: int) -> "Bundle":
        """Return the inverse of `encode`, for `count` rounds. Raises MessageError if it is
        invalid.
        """
        keys = pieces(data[:-SIGNATURE_BYTES], 2 + 2 * count, KEY_BYTES)
        return cls(
            keys[0],
            keys[1],
            tuple(keys[2 : 2 + count]),
            tuple(keys[2 + count :]),
            data[-SIGNATURE_BYTES:],
        )


def share_ask(setup: bytes, bundles: Mapping[int, Bundle]) -> bytes:
    """Return the ask that distributes everybody's public keys."""
    parts = b"".join(bundle.encode() for bundle in bundles.values())
    return frame(Phase.SHARES, setup, numbers(list(bundles)) + parts)


def digest_of(bundles: Mapping[int, Bundle]) -> bytes:
    """Return a digest that identifies everybody's public keys of a setup."""
    return sha256(share_ask(b"", bundles)).digest()


def read_bundles(body: bytes, count: int) -> dict[int, Bundle]:
    """Return the keys in an ask of `share_ask`. Raises MessageError if they are invalid."""
    clients, rest = read_numbers(body)
    return {
        client: Bundle.decode(data, count)
        for client, data in zip(clients, pieces(rest, len(clients)), strict=True)
    }


def round_ask(phase: Phase, setup: bytes, round: int, attempt: int, body: bytes) -> bytes:
    """Return an ask about an attempt of a round."""
    return frame(phase, setup, _ROUND.pack(round, attempt) + body)


def read_round(body: bytes) -> tuple[int, int, bytes]:
    """Return round, attempt, and the remaining data. Raises MessageError if it is too short."""
    if len(body) < _ROUND.size:
        raise MessageError("a cut-off message of secure sums")
    number, attempt = _ROUND.unpack_from(body)
    return number, attempt, body[_ROUND.size :]
