"""What coordinator and clients of a secure sum say to each other, byte by byte."""

import struct
from hashlib import sha256

import pytest

from fedseed.errors import MessageError
from fedseed.privacy.secure.dealing import PROOF_BYTES, Fault, Part, part_bytes, read_parts
from fedseed.privacy.secure.keys import KEY_BYTES, SIGNATURE_BYTES
from fedseed.privacy.secure.messages import (
    Bundle,
    Phase,
    Terms,
    digest_of,
    framed,
    numbers,
    pieces,
    read_bundles,
    read_numbers,
    read_round,
    round_ask,
    share_ask,
    signed_parts,
    told,
    unframed,
)
from fedseed.privacy.secure.settings import MOST_CLIENTS
from fedseed.privacy.secure.shamir import SHARE_BYTES

SETUP = b"12345678"
TERMS = Terms(SETUP, 5, 2, 3, 4, (0, 2, 7))


def bundle(first, rounds=2, signature=bytes(SIGNATURE_BYTES)):
    """Keys that are all different: the bytes `first`, `first` + 1, and so on."""
    keys = [bytes([first + n]) * KEY_BYTES for n in range(2 + 2 * rounds)]
    return Bundle(keys[0], keys[1], tuple(keys[2 : 2 + rounds]), tuple(keys[2 + rounds :]), signature)


def test_frames():
    assert framed(Phase.OPEN, SETUP, b"body") == b"\5" + SETUP + b"body"
    assert unframed(b"\5" + SETUP + b"body") == (Phase.OPEN, SETUP, b"body")
    assert unframed(framed(Phase.KEYS, SETUP)) == (Phase.KEYS, SETUP, b"")
    for wrong in (b"", b"\1" + SETUP[1:], b"\0" + SETUP, b"\x08" + SETUP):
        with pytest.raises(MessageError, match="not a message of secure sums"):
            unframed(wrong)
    said, signature = framed(Phase.OPEN, SETUP, b"body"), b"s" * SIGNATURE_BYTES
    assert signed_parts(said + signature) == (said, b"body", signature)
    with pytest.raises(MessageError, match="not a message of secure sums"):
        signed_parts(said)


def test_lists_of_clients():
    assert numbers([1, 2, 258]) == struct.pack("<4I", 3, 1, 2, 258)
    assert read_numbers(numbers([1, 2, 258]) + b"more") == ((1, 2, 258), b"more")
    assert read_numbers(numbers([1, 2])) == ((1, 2), b"") and read_numbers(bytes(4)) == ((), b"")
    most = list(range(MOST_CLIENTS))
    assert read_numbers(numbers(most)) == (tuple(most), b"")
    cut = "a list of clients that is cut short, or too long"
    for wrong in (b"", bytes(3), numbers([1, 2])[:-1], numbers([*most, MOST_CLIENTS]), b"\xff" * 4):
        with pytest.raises(MessageError, match=cut):
            read_numbers(wrong)
    for disordered in ([2, 1], [1, 1], [1, 3, 2]):
        with pytest.raises(MessageError, match="not in order"):
            read_numbers(numbers(disordered))


def test_pieces_are_equally_long():
    assert pieces(b"abcdef", 3) == [b"ab", b"cd", b"ef"] == pieces(b"abcdef", 3, 2)
    assert pieces(b"abc", 1) == [b"abc"] and pieces(b"", 0) == [] == pieces(b"", 0, 7) and pieces(b"", 2) == [b"", b""]
    for data, count, size in ((b"abcde", 2, None), (b"a", 0, None), (b"abcdef", 3, 3), (b"abcdef", 2, 2)):
        with pytest.raises(MessageError, match=f"{len(data)} bytes where {count} pieces"):
            pieces(data, count, size)


def test_terms():
    body = struct.pack("<IHHH", 5, 2, 3, 4) + numbers([0, 2, 7])
    assert TERMS.encode() == b"\1" + SETUP + body
    assert Terms.decode(SETUP, body) == TERMS
    for wrong, text in (
        (body[:9], "terms that are cut short"),
        (body[:10], "a list of clients that is cut short"),
        (body[:-1], "a list of clients that is cut short"),
        (body + b"\0", "something behind them"),
    ):
        with pytest.raises(MessageError, match=text):
            Terms.decode(SETUP, wrong)


def test_keys_are_for_one_attempt_of_each_round():
    """Those of the first round for the attempt that they were made for, those of the others for the first attempt."""
    places = {(round, attempt): TERMS.place(round, attempt) for round in range(10) for attempt in range(4)}
    assert {key: at for key, at in places.items() if at is not None} == {(5, 2): 0, (6, 0): 1, (7, 0): 2}


@pytest.mark.parametrize("rounds", [1, 3])
def test_bundles(rounds):
    mine = bundle(1, rounds, b"s" * SIGNATURE_BYTES)
    keys = b"".join(bytes([1 + n]) * KEY_BYTES for n in range(2 + 2 * rounds))
    assert mine.encode() == keys + b"s" * SIGNATURE_BYTES
    assert Bundle.decode(mine.encode(), rounds) == mine
    for wrong in (b"", mine.encode()[:-1], mine.encode() + b"\0", keys, bundle(1, rounds + 1).encode()):
        with pytest.raises(MessageError, match="bytes where"):
            Bundle.decode(wrong, rounds)


def test_everybodys_bundles():
    all_of = {0: bundle(1), 3: bundle(20), 9: bundle(40)}
    ask = share_ask(SETUP, all_of)
    body = numbers([0, 3, 9]) + b"".join(one.encode() for one in all_of.values())
    assert ask == b"\2" + SETUP + body and read_bundles(body, 2) == all_of
    assert digest_of(all_of) == sha256(b"\2" + body).digest()
    for wrong in (body[:-1], body + b"\0", numbers([0, 3]) + body[16:]):
        with pytest.raises(MessageError, match="bytes where"):
            read_bundles(wrong, 2)


def test_what_is_said_of_a_round():
    assert round_ask(Phase.CONFIRM, SETUP, 7, 1, b"body") == b"\4" + SETUP + struct.pack("<IH", 7, 1) + b"body"
    assert read_round(struct.pack("<IH", 7, 1) + b"body") == (7, 1, b"body")
    assert read_round(struct.pack("<IH", 7, 1)) == (7, 1, b"")
    with pytest.raises(MessageError, match="cut short"):
        read_round(struct.pack("<IH", 7, 1)[:-1])


def test_what_a_client_signs_says_who_answers_which_ask_knowing_which_keys():
    about = [b"agreed", 7, b"a" * 32, b"said"]
    who, whole = b"fedseed secure sums: answer" + sha256(b"agreed").digest() + struct.pack("<I", 7), told(*about)
    assert whole == who + b"a" * 32 + b"said"
    for at, other in enumerate((b"", 8, b"b" * 32, b"sai")):
        assert told(*about[:at], other, *about[at + 1 :]) != whole


def test_parts_and_faults():
    part = Part(b"k" * KEY_BYTES, b"t" * (4 * SHARE_BYTES + 16), tuple(bytes([n]) * PROOF_BYTES for n in range(4)))
    assert len(part.encode()) == part_bytes(2) == KEY_BYTES + 16 + 4 * (SHARE_BYTES + PROOF_BYTES)
    assert read_parts(part.encode() * 2, [3, 5], 2) == {3: part, 5: part}
    with pytest.raises(MessageError, match="pieces of"):
        read_parts(part.encode() * 2, [3], 2)
    fault = Fault(9, True, {1: b"a" * SHARE_BYTES, 4: b"b" * SHARE_BYTES}, b"answer")
    text = numbers([9]) + numbers([1, 4]) + b"\1" + b"a" * SHARE_BYTES + b"b" * SHARE_BYTES + b"answer"
    assert fault.encode() == text and Fault.decode(text) == fault
    for wrong in (b"", text[:4], text[:10], text[:30], numbers([]) + text[8:]):
        with pytest.raises(MessageError):
            Fault.decode(wrong)
