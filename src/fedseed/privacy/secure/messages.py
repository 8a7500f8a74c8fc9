"""What coordinator and clients say to each other besides plans and masked vectors.

Little-endian, no padding.

    ask      phase u8 | setup 8 bytes | ...        answer   the same phase and setup | ... |
    signature 64 bytes
    KEYS     round u32, attempt u16, count u16, threshold u16, clients      the keys of a `Bundle`
    SHARES   the bundles of all                                             a `Part` for each of
    them
    DELIVER  members, and the part of each for this client                  whose can't be read, and
    a hash of each part
    REVEAL   an accuser, the SHA-256 of its ask, and its answer             the key that its part
    was sealed with
    CONFIRM  round, attempt, members, survivors                             nothing: the signature
    counts
    OPEN     round, attempt, who has signed, and the signatures             a share of one secret of
    each member
    DISOWN   round, attempt, and a `Fault`: a dealer's shares are wrong     the key of the mask
    shared with the dealer

A setup has keys and shares for `count` rounds: the attempt of a round that it was made for, and the
first attempts of the rounds after it. A signature says who answers, to which ask, and knowing which
keys (`told`).
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
    """What is asked for."""

    KEYS = 1
    SHARES = 2
    DELIVER = 3
    CONFIRM = 4
    OPEN = 5
    REVEAL = 6
    DISOWN = 7


def framed(phase: Phase, setup: bytes, body: bytes = b"") -> bytes:
    """Return an ask or an answer as bytes."""
    return bytes([phase]) + setup + body


def unframed(data: bytes) -> tuple[Phase, bytes, bytes]:
    """Return phase, setup and body. Raises MessageError."""
    if len(data) < 1 + SETUP_BYTES or data[0] not in Phase.__members__.values():
        raise MessageError("not a message of secure sums")
    return Phase(data[0]), data[1 : 1 + SETUP_BYTES], data[1 + SETUP_BYTES :]


def signed_parts(answer: bytes) -> tuple[bytes, bytes, bytes]:
    """Return what an answer says, its body, and its signature. Raises MessageError."""
    said, signature = answer[:-SIGNATURE_BYTES], answer[-SIGNATURE_BYTES:]
    return said, unframed(said)[2], signature


def told(agreed: bytes, client: int, asked: bytes, said: bytes) -> bytes:
    """Return what a client signs.

    Args:
        agreed: the digest of everybody's keys; empty while they are not known, and with the hash of
            what was delivered to it behind it where it says shares. It is what a signature of an
            earlier setup can't have: so keys that were told in another run, whose secrets may be
            known by now, do not pass.
        client: its number.
        asked: the SHA-256 of the ask.
        said: its answer without the signature.
    """
    return (
        b"fedseed secure sums: answer"
        + sha256(agreed).digest()
        + _COUNT.pack(client)
        + asked
        + said
    )


def numbers(clients: Sequence[int]) -> bytes:
    """Clients' numbers, and how many."""
    return struct.pack(f"<I{len(clients)}I", len(clients), *clients)


def read_numbers(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Numbers in ascending order, and what follows them. Raises MessageError."""
    count = _COUNT.unpack_from(data)[0] if len(data) >= _COUNT.size else MOST_CLIENTS + 1
    stop = _COUNT.size * (1 + count)
    if count > MOST_CLIENTS or len(data) < stop:
        raise MessageError("a list of clients that is cut short, or too long")
    found = struct.unpack_from(f"<{count}I", data, _COUNT.size)
    if list(found) != sorted(set(found)):
        raise MessageError("a list of clients that is not in order")
    return tuple(found), data[stop:]


def pieces(data: bytes, count: int, size: int | None = None) -> list[bytes]:
    """So many pieces of equal length. Raises MessageError.

    Args:
        data: all of them.
        count: how many.
        size: bytes of each; None: whatever there is of each.
    """
    size = len(data) // max(1, count) if size is None else size
    if len(data) != count * size:
        raise MessageError(f"{len(data)} bytes where {count} pieces of {size} were expected")
    return [data[at * size : (at + 1) * size] for at in range(count)]


@dataclass(frozen=True)
class Terms:
    """What keys are asked for."""

    setup: bytes  # names it
    round: int  # the first round
    attempt: int  # of that round
    count: int  # rounds
    threshold: int  # how many clients open a sum together
    clients: tuple[int, ...]  # who is asked

    def encode(self) -> bytes:
        """Return the ask as bytes."""
        about = _TERMS.pack(self.round, self.attempt, self.count, self.threshold)
        return framed(Phase.KEYS, self.setup, about + numbers(self.clients))

    @classmethod
    def decode(cls, setup: bytes, body: bytes) -> "Terms":
        """Read what `encode` has written. Raises MessageError."""
        if len(body) < _TERMS.size:
            raise MessageError("terms that are cut short")
        clients, rest = read_numbers(body[_TERMS.size :])
        if rest:
            raise MessageError("terms with something behind them")
        number, attempt, count, threshold = _TERMS.unpack_from(body)
        return cls(setup, number, attempt, count, threshold, clients)

    def place(self, round: int, attempt: int) -> int | None:
        """Return which of its keys are for this attempt of a round; None: none."""
        at = round - self.round
        fits = attempt == self.attempt if at == 0 else attempt == 0
        return at if fits and 0 <= at < self.count else None


@dataclass(frozen=True)
class Bundle:
    """A client's public keys for a setup, signed."""

    identity: bytes  # the key that it signs with
    sealing: bytes  # the key that shares for it are encrypted for
    masks: tuple[bytes, ...]  # for each round, the key that masks are agreed on with
    commitments: tuple[bytes, ...]  # for each round, that of its own mask
    signature: bytes = b""  # of the answer that they came in

    def encode(self) -> bytes:
        """Return it as it travels."""
        return b"".join(
            (self.identity, self.sealing, *self.masks, *self.commitments, self.signature)
        )

    @classmethod
    def decode(cls, data: bytes, count: int) -> "Bundle":
        """Read what `encode` has written, for so many rounds. Raises MessageError."""
        keys = pieces(data[:-SIGNATURE_BYTES], 2 + 2 * count, KEY_BYTES)
        return cls(
            keys[0],
            keys[1],
            tuple(keys[2 : 2 + count]),
            tuple(keys[2 + count :]),
            data[-SIGNATURE_BYTES:],
        )


def share_ask(setup: bytes, bundles: Mapping[int, Bundle]) -> bytes:
    """Return the ask that hands out everybody's public keys."""
    parts = b"".join(bundle.encode() for bundle in bundles.values())
    return framed(Phase.SHARES, setup, numbers(list(bundles)) + parts)


def digest_of(bundles: Mapping[int, Bundle]) -> bytes:
    """Return a digest that tells everybody's public keys of a setup from all others."""
    return sha256(share_ask(b"", bundles)).digest()


def read_bundles(body: bytes, count: int) -> dict[int, Bundle]:
    """Return the keys in such an ask. Raises MessageError."""
    clients, rest = read_numbers(body)
    return {
        c: Bundle.decode(data, count)
        for c, data in zip(clients, pieces(rest, len(clients)), strict=True)
    }


def round_ask(phase: Phase, setup: bytes, round: int, attempt: int, body: bytes) -> bytes:
    """Return an ask about an attempt of a round."""
    return framed(phase, setup, _ROUND.pack(round, attempt) + body)


def read_round(body: bytes) -> tuple[int, int, bytes]:
    """Return round, attempt, and what follows. Raises MessageError."""
    if len(body) < _ROUND.size:
        raise MessageError("a message of secure sums that is cut short")
    number, attempt = _ROUND.unpack_from(body)
    return number, attempt, body[_ROUND.size :]
