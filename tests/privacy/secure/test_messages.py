"""What coordinator and clients of a secure sum say to each other, byte by byte."""

import struct
from hashlib import sha256

import pytest

from fedseed.errors import MessageError
from fedseed.privacy.secure import messages as wire
from fedseed.privacy.secure.dealing import PROOF_BYTES, Fault, HeldPart, part_bytes, read_parts
from fedseed.privacy.secure.keys import KEY_BYTES, SIGNATURE_BYTES
from fedseed.privacy.secure.settings import MOST_CLIENTS
from fedseed.privacy.secure.shamir import SHARE_BYTES

SETUP = b"12345678"
TERMS = wire.Terms(SETUP, 5, 2, 3, 4, (0, 2, 7))


def bundle(first, rounds=2, signature=bytes(SIGNATURE_BYTES)):
    """Keys that are all different: the bytes `first`, `first` + 1, and so on."""
    keys = [bytes([first + n]) * KEY_BYTES for n in range(2 + 2 * rounds)]
    return wire.Bundle(
        keys[0], keys[1], tuple(keys[2 : 2 + rounds]), tuple(keys[2 + rounds :]), signature
    )


def test_frames():
    assert wire.frame(wire.Phase.OPEN, SETUP, b"body") == b"\5" + SETUP + b"body"
    assert wire.unframe(b"\5" + SETUP + b"body") == (wire.Phase.OPEN, SETUP, b"body")
    assert wire.unframe(wire.frame(wire.Phase.KEYS, SETUP)) == (wire.Phase.KEYS, SETUP, b"")
    for wrong in (b"", b"\1" + SETUP[1:], b"\0" + SETUP, b"\x08" + SETUP):
        with pytest.raises(MessageError, match="not a message of secure sums"):
            wire.unframe(wrong)
    said, signature = wire.frame(wire.Phase.OPEN, SETUP, b"body"), b"s" * SIGNATURE_BYTES
    assert wire.signed_parts(said + signature) == (said, b"body", signature)
    with pytest.raises(MessageError, match="not a message of secure sums"):
        wire.signed_parts(said)


def test_lists_of_clients():
    assert wire.numbers([1, 2, 258]) == struct.pack("<4I", 3, 1, 2, 258)
    assert wire.read_numbers(wire.numbers([1, 2, 258]) + b"more") == ((1, 2, 258), b"more")
    assert wire.read_numbers(wire.numbers([1, 2])) == ((1, 2), b"") and wire.read_numbers(
        bytes(4)
    ) == ((), b"")
    most = list(range(MOST_CLIENTS))
    assert wire.read_numbers(wire.numbers(most)) == (tuple(most), b"")
    cut = "a list of clients that is cut off or too long"
    for wrong in (
        b"",
        bytes(3),
        wire.numbers([1, 2])[:-1],
        wire.numbers([*most, MOST_CLIENTS]),
        b"\xff" * 4,
    ):
        with pytest.raises(MessageError, match=cut):
            wire.read_numbers(wrong)
    for disordered in ([2, 1], [1, 1], [1, 3, 2]):
        with pytest.raises(MessageError, match="not in order"):
            wire.read_numbers(wire.numbers(disordered))


def test_pieces_are_equally_long():
    assert wire.pieces(b"abcdef", 3) == [b"ab", b"cd", b"ef"] == wire.pieces(b"abcdef", 3, 2)
    assert (
        wire.pieces(b"abc", 1) == [b"abc"]
        and wire.pieces(b"", 0) == [] == wire.pieces(b"", 0, 7)
        and wire.pieces(b"", 2) == [b"", b""]
    )
    for data, count, size in (
        (b"abcde", 2, None),
        (b"a", 0, None),
        (b"abcdef", 3, 3),
        (b"abcdef", 2, 2),
    ):
        with pytest.raises(MessageError, match=f"{len(data)} bytes, but expected {count} pieces"):
            wire.pieces(data, count, size)


def test_terms():
    body = struct.pack("<IHHH", 5, 2, 3, 4) + wire.numbers([0, 2, 7])
    assert TERMS.encode() == b"\1" + SETUP + body
    assert wire.Terms.decode(SETUP, body) == TERMS
    for wrong, text in (
        (body[:9], "cut-off terms"),
        (body[:10], "a list of clients that is cut off"),
        (body[:-1], "a list of clients that is cut off"),
        (body + b"\0", "additional data after them"),
    ):
        with pytest.raises(MessageError, match=text):
            wire.Terms.decode(SETUP, wrong)


def test_keys_are_for_one_attempt_of_each_round():
    """Those of the first round for the attempt that they were made for, those of the others for the
    first attempt.
    """
    places = {
        (round, attempt): TERMS.place(round, attempt) for round in range(10) for attempt in range(4)
    }
    assert {key: at for key, at in places.items() if at is not None} == {
        (5, 2): 0,
        (6, 0): 1,
        (7, 0): 2,
    }


@pytest.mark.parametrize("rounds", [1, 3])
def test_bundles(rounds):
    mine = bundle(1, rounds, b"s" * SIGNATURE_BYTES)
    keys = b"".join(bytes([1 + n]) * KEY_BYTES for n in range(2 + 2 * rounds))
    assert mine.encode() == keys + b"s" * SIGNATURE_BYTES
    assert wire.Bundle.decode(mine.encode(), rounds) == mine
    for wrong in (
        b"",
        mine.encode()[:-1],
        mine.encode() + b"\0",
        keys,
        bundle(1, rounds + 1).encode(),
    ):
        with pytest.raises(MessageError, match="bytes, but expected"):
            wire.Bundle.decode(wrong, rounds)


def test_everybodys_bundles():
    all_of = {0: bundle(1), 3: bundle(20), 9: bundle(40)}
    ask = wire.share_ask(SETUP, all_of)
    body = wire.numbers([0, 3, 9]) + b"".join(one.encode() for one in all_of.values())
    assert ask == b"\2" + SETUP + body and wire.read_bundles(body, 2) == all_of
    assert wire.digest_of(all_of) == sha256(b"\2" + body).digest()
    for wrong in (body[:-1], body + b"\0", wire.numbers([0, 3]) + body[16:]):
        with pytest.raises(MessageError, match="bytes, but expected"):
            wire.read_bundles(wrong, 2)


def test_what_is_said_of_a_round():
    assert (
        wire.round_ask(wire.Phase.CONFIRM, SETUP, 7, 1, b"body")
        == b"\4" + SETUP + struct.pack("<IH", 7, 1) + b"body"
    )
    assert wire.read_round(struct.pack("<IH", 7, 1) + b"body") == (7, 1, b"body")
    assert wire.read_round(struct.pack("<IH", 7, 1)) == (7, 1, b"")
    with pytest.raises(MessageError, match="cut-off message"):
        wire.read_round(struct.pack("<IH", 7, 1)[:-1])


def test_what_a_client_signs_says_who_answers_which_ask_knowing_which_keys():
    about = [b"agreed", 7, b"a" * 32, b"said"]
    who, whole = (
        b"fedseed secure sums: answer" + sha256(b"agreed").digest() + struct.pack("<I", 7),
        wire.signing_payload(*about),
    )
    assert whole == who + b"a" * 32 + b"said"
    for at, other in enumerate((b"", 8, b"b" * 32, b"sai")):
        assert wire.signing_payload(*about[:at], other, *about[at + 1 :]) != whole


def test_parts_and_faults():
    part = HeldPart(
        b"k" * KEY_BYTES,
        b"t" * (4 * SHARE_BYTES + 16),
        tuple(bytes([n]) * PROOF_BYTES for n in range(4)),
    )
    assert len(part.encode()) == part_bytes(2) == KEY_BYTES + 16 + 4 * (SHARE_BYTES + PROOF_BYTES)
    assert read_parts(part.encode() * 2, [3, 5], 2) == {3: part, 5: part}
    with pytest.raises(MessageError, match="pieces of"):
        read_parts(part.encode() * 2, [3], 2)
    fault = Fault(9, True, {1: b"a" * SHARE_BYTES, 4: b"b" * SHARE_BYTES}, b"answer")
    text = (
        wire.numbers([9])
        + wire.numbers([1, 4])
        + b"\1"
        + b"a" * SHARE_BYTES
        + b"b" * SHARE_BYTES
        + b"answer"
    )
    assert fault.encode() == text and Fault.decode(text) == fault
    for wrong in (b"", text[:4], text[:10], text[:30], wire.numbers([]) + text[8:]):
        with pytest.raises(MessageError):
            Fault.decode(wrong)
