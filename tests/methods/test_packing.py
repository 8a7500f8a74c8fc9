"""Codecs for small numbers and for entries of a long vector, beside bytes and places by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedseed.errors import MessageError
from fedseed.methods import topk as packing
from fedseed.methods.payload import About, Reader
from fedseed.methods.topk import (
    CHUNK,
    EntriesCodec,
    check_places,
    chunks_of,
    nothing,
    pack,
    packed_bytes,
    unpack,
)  # fmt: skip
from fedseed.weights.layout import Layout, TensorEntry

SIZE = 4 * CHUNK + 100
LAYOUT = Layout((TensorEntry("a", (SIZE,), "float32"),), (0, SIZE))


def about(kind="step"):
    return About(SimpleNamespace(), SimpleNamespace(layout=LAYOUT), kind)


def test_bytes_by_hand():
    assert pack(np.array([0x123, 0xABC]), 12).hex() == "23c1ab"
    assert pack(np.array([1, 2, 3, 4, 5]), 3).hex() == "d158"  # 1 + 2 * 8 + 3 * 64 + ..., lowest byte first
    assert [packed_bytes(5, width) for width in (1, 3, 8, 12, 16)] == [1, 2, 5, 8, 10]
    assert pack(np.zeros(0, np.uint16), 5) == b"" and packed_bytes(0, 5) == 0


def test_every_bit_of_the_padding_is_looked_at():
    for width, count in ((1, 1), (3, 11), (12, 1), (5, 3)):
        data = pack(np.full(count, (1 << width) - 1), width)
        for bit in range(count * width % 8, 8):
            padded = data[:-1] + bytes([data[-1] | 1 << bit])
            with pytest.raises(MessageError, match=f"more than {count} numbers of {width} bits"):
                unpack(padded, width, count)
        for wrong in (data[:-1], data + b"\0"):
            with pytest.raises(MessageError, match=f"{count} numbers of {width} bits take {len(data)}"):
                unpack(wrong, width, count)


ENTRIES = {
    "in all chunks": [5, 4095, 4096, 4097, 2 * CHUNK + 9, 3 * CHUNK + 8, 4 * CHUNK, SIZE - 1],
    "not in the first": [CHUNK + 900, CHUNK + 901, 2 * CHUNK + 3, 4 * CHUNK + 1, 4 * CHUNK + 2],
    "not in the last": [7, CHUNK + 6, 2 * CHUNK + 5, 3 * CHUNK + 4000],
    "in the last": [SIZE - 2],
    "none": [],
}


@pytest.mark.parametrize("which", ENTRIES)
def test_entries_are_read_back(which):
    indices = np.array(ENTRIES[which], dtype=np.int64)
    made = packing.scattered(indices, np.arange(1, len(indices) + 1, dtype=np.float32), chunks_of(SIZE))
    assert made.counts.tolist() == [sum(i // CHUNK == chunk for i in indices) for chunk in range(5)]
    data = EntriesCodec().write(made)
    assert len(data) == 2 * 5 + packed_bytes(len(indices), 12) + 2 * len(indices)
    for kind in ("step", "update"):
        reader = Reader(data)
        back = EntriesCodec().read(reader, about(kind), [])
        assert reader.left == 0
        np.testing.assert_array_equal(back.indices, indices)
        np.testing.assert_array_equal(back.values, made.values)
    with pytest.raises(MessageError, match="too short" if which == "none" else "bytes of entries"):
        EntriesCodec().read(Reader(data[:-1]), about(), [])


def test_nobodys_entries_take_no_bytes_in_a_step_only():
    assert [len(part) for part in nothing()] == [0, 0, 0]
    assert EntriesCodec().write(nothing()) == b""
    assert [len(part) for part in EntriesCodec().read(Reader(b""), about(), [])] == [0, 0, 0]
    with pytest.raises(MessageError, match="too short"):
        EntriesCodec().read(Reader(b""), about("update"), [])
    assert [chunks_of(size) for size in (1, CHUNK, CHUNK + 1, 2 * CHUNK)] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("counts", "places", "text"),
    [
        ([2, 0, 3, 0, 1], [8, 9, 1, 2, 3, 0], None),
        ([1, 1, 1, 1, 1], [900, 800, 700, 600, 99], None),  # a new chunk may begin lower
        ([0, 1, 1, 2, 0], [5, 3, 100, 4000], None),  # as of chunks that are longer than the last one
        ([0, 0, 0, 0, 0], [], None),
        ([3, 3, 0, 0, 0], [1, 2, 3, 1, 5, 4], "entry 5 of 6: places in a chunk must ascend"),
        ([0, 2, 2, 0, 0], [1, 2, 7, 7], "entry 3 of 4: places in a chunk must ascend"),  # the first chunk is empty
        ([0, 0, 0, 0, 4], [3, 2, 1, 0], "entry 1 of 4: places in a chunk must ascend"),
        ([5, 0, 0, 0, 3], [1, 2, 3, 4, 5, 1, 2, 100], "place 100 in the last chunk, which has 100 entries"),
        ([0, 0, 0, 0, 1], [4095], "place 4095 in the last chunk, which has 100 entries"),
    ],
)
def test_places_ascend_in_each_chunk_and_lie_in_the_vector(counts, places, text):
    given = np.array(counts, dtype=np.uint16), np.array(places, dtype=np.uint16)
    if text is None:
        check_places(*given, SIZE)
    else:
        with pytest.raises(MessageError, match=text):
            check_places(*given, SIZE)
        with pytest.raises(MessageError, match=text):
            data = EntriesCodec().write(packing.Scattered(*given, np.ones(len(places), np.float32)))
            EntriesCodec().read(Reader(data), about(), [])
