"""Codecs for small numbers and for entries of a long vector, beside bytes and places by hand."""

from contextlib import nullcontext

import numpy as np
import pytest

from fedseed import TopK
from fedseed.errors import MessageError
from fedseed.methods.feedback import CHUNK, chunks_of
from fedseed.methods.payload import Reader, Small, pack_numbers, unpack_numbers
from fedseed.methods.topk import Combined
from fedseed.weights.layout import Layout, TensorEntry

SIZE = 4 * CHUNK + 100
METHOD = TopK()
STATE = METHOD.start(Layout((TensorEntry("a", (SIZE,), "float32"),), (0, SIZE)), 1)


def test_bytes_by_hand():
    assert pack_numbers(np.array([0x123, 0xABC]), 12).hex() == "23c1ab"
    # 1 + 2 * 8 + 3 * 64 + ..., lowest byte first
    assert pack_numbers(np.array([1, 2, 3, 4, 5]), 3).hex() == "d158"
    assert pack_numbers(np.array([True, False, True]), 1).hex() == "05"
    assert pack_numbers(np.zeros(0, np.uint16), 5) == b""
    assert [chunks_of(size) for size in (1, CHUNK, CHUNK + 1, 2 * CHUNK)] == [1, 1, 2, 2]


def test_every_bit_of_the_padding_is_looked_at():
    for width, count in ((1, 1), (2, 3), (3, 11), (12, 1), (5, 3), (16, 2)):
        numbers = np.full(count, (1 << width) - 1)
        data = pack_numbers(numbers, width)
        assert len(data) == -(-count * width // 8)
        reader = Reader(data + b"\0")
        assert (
            unpack_numbers(reader, width, count).tolist() == numbers.tolist()
            and reader.remaining == 1
        )
        for bit in range(count * width % 8 or 8, 8):
            padded = data[:-1] + bytes([data[-1] | 1 << bit])
            with pytest.raises(MessageError, match=f"after {count} numbers of {width} bits"):
                unpack_numbers(Reader(padded), width, count)
        with pytest.raises(MessageError, match="too short"):
            unpack_numbers(Reader(data[:-1]), width, count)


ENTRIES = {
    "in all chunks": [5, 4095, 4096, 4097, 2 * CHUNK + 9, 3 * CHUNK + 8, 4 * CHUNK, SIZE - 1],
    "not in the first": [CHUNK + 900, CHUNK + 901, 2 * CHUNK + 3, 4 * CHUNK + 1, 4 * CHUNK + 2],
    "in the last": [SIZE - 2],
    "none": [],
}


@pytest.mark.parametrize("which", ENTRIES)
def test_entries_are_read_back(which):
    where = np.array(ENTRIES[which], dtype=np.int64)
    made = Combined.from_entries(
        where, np.arange(1, len(where) + 1, dtype=np.float32), chunks_of(SIZE)
    )
    assert made.counts.tolist() == [sum(i // CHUNK == chunk for i in where) for chunk in range(5)]
    data = made.encode()
    assert len(data) == 2 * 5 + -(-12 * len(where) // 8) + 2 * len(where)
    (patch,) = METHOD.change(STATE, METHOD.decode_step(STATE, data)).patches
    np.testing.assert_array_equal(patch.offsets, where)
    np.testing.assert_array_equal(patch.values, made.values)
    for wrong, text in ((data[:-1], "too short"), (data + b"\0", "too long")):
        with pytest.raises(MessageError, match=text):
            METHOD.decode_step(STATE, wrong)


@pytest.mark.parametrize(
    ("counts", "places", "text"),
    [
        ([2, 0, 3, 0, 1], [8, 9, 1, 2, 3, 0], None),
        ([1, 1, 1, 1, 1], [900, 800, 700, 600, 99], None),  # a new chunk may begin lower
        # as of chunks that are longer than the last one
        ([0, 1, 1, 2, 0], [5, 3, 100, 4000], None),
        ([0, 0, 0, 0, 0], [], None),
        ([3, 3, 0, 0, 0], [1, 2, 3, 1, 5, 4], "entry 5 of 6: places in a chunk must ascend"),
        # the first chunk is empty
        ([0, 2, 2, 0, 0], [1, 2, 7, 7], "entry 3 of 4: places in a chunk must ascend"),
        ([0, 0, 0, 0, 4], [3, 2, 1, 0], "entry 1 of 4: places in a chunk must ascend"),
        (
            [5, 0, 0, 0, 3],
            [1, 2, 3, 4, 5, 1, 2, 100],
            "place 100 in the last chunk, which has only 100 entries",
        ),
        ([0, 0, 0, 0, 1], [4095], "place 4095 in the last chunk, which has only 100 entries"),
    ],
)
def test_places_ascend_in_each_chunk_and_lie_in_the_vector(counts, places, text):
    made = Combined(
        np.uint16(counts), Small(np.uint16(places), 12), np.ones(len(places), np.float32)
    )
    with nullcontext() if text is None else pytest.raises(MessageError, match=text):
        METHOD.decode_step(STATE, made.encode())


def test_a_view_of_a_message_is_read_as_bytes_are():
    data = bytes(range(1, 13))
    readers = Reader(data), Reader(memoryview(data))
    for read in (
        lambda reader: reader.take(4),
        lambda reader: bytes(reader.take_view(4)),
        lambda reader: reader.array("u2", 2).tolist(),
    ):
        from_bytes, from_view = map(read, readers)
        assert from_bytes == from_view and type(from_bytes) is type(from_view)
    for reader in readers:
        reader.end()
