"""Data files of somebody else: what they cost is bounded by their size, and what is wrong is one line."""

import io
import json
import pickle
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseed.errors import RecipeError
from fedseed.tasks import CIFAR10Task
from fedseed.tasks.pickled import named, read_batch
from fedseed.tasks.sources import each_row
from support.memory import at_most
from support.pictures import python2_pickle

BOMBS = {
    "a text of 2 GB": b"B" + struct.pack("<I", 0x7FFFFFFF) + b"abc.",
    "a text of 2 ** 62 bytes": b"\x8e" + struct.pack("<Q", 1 << 62) + b".",
    "an array of bytes": b"\x96" + struct.pack("<Q", 1 << 31) + b".",
    "a number of 2 GB": b"\x8b" + struct.pack("<i", 0x7FFFFFFF) + b".",
    "a place far out": b"]r" + struct.pack("<I", 0x0FFFFFFF) + b".",
    "a place far out, in digits": b"]p100000000\n.",
    "a frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b".",
    "lists": b"(" + b"]" * 2_000_000 + b"l.",
    "sets": b"(" + b"\x8f" * 1_000_000 + b"l.",
    "one text again and again": b"\x80\x02X" + struct.pack("<I", 100_000) + b"a" * 100_000
    + b"q\x000c_codecs\nencode\nq\x010]q\x02(" + b"h\x01h\x00\x85R" * 20_000 + b"e.",
    "tuples of tuples": b"\x80\x02}(K\x01" + b"2\x86" * 60 + b"K\x00u.",
    "tuples by name": b"\x80\x02}(K\x01\x85q\x00"
    + b"".join(b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(60)) + b"K\x00u.",
    "a tuple noted late": b"\x80\x02K\x01\x85]0q\x00h\x00\x86.",
}  # fmt: skip


@pytest.mark.parametrize("kind", BOMBS)
def test_a_pickle_that_asks_for_more_than_it_has(kind, tmp_path):
    path = tmp_path / "data_batch_1"
    path.write_bytes(BOMBS[kind])
    with at_most(64 * len(BOMBS[kind]) + (1 << 20)), pytest.raises(RecipeError, match="data_batch_1: damaged") as error:
        read_batch(path)
    assert len(str(error.value)) < 400


def test_lists_of_lists_are_not_written_out(cifar10):
    """A label that is a list of the same list twice, sixty times over: its text would be 2 ** 60 long."""
    folder = cifar10()
    inner = []
    for _ in range(60):
        inner = [inner, inner]
    batch = pickle.loads((folder / "data_batch_1").read_bytes(), encoding="bytes")
    for wrong, said in ((inner, "list"), (1 << 500, "a number of many digits"), ("x" * 10**6, "'xxx")):
        batch[b"labels"][3] = wrong
        (folder / "data_batch_1").write_bytes(pickle.dumps(batch, protocol=2))
        with pytest.raises(RecipeError, match=f'"labels" has {said}') as error:
            CIFAR10Task(path=str(folder)).load()
        assert len(str(error.value)) < 400
    assert named("a\x1b[2J") == "'a\\x1b[2J'" and named(None) == "None" and named(1.5) == "1.5"


WHOLE = python2_pickle({"data": np.zeros((2, 3072), dtype=np.uint8), "labels": [1, 2], "filenames": ["a", "b"]})


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(max_size=9)), max_size=6), st.booleans())
@settings(deadline=None, max_examples=100)
def test_any_pickle_is_read_or_refused_in_bounded_memory(tmp_path_factory, changes, arbitrary):
    data = bytearray(b"\x80\x02" if arbitrary else WHOLE)
    for at, with_ in changes:
        data[at : at + len(with_)] = with_
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    path.write_bytes(data)
    with at_most(4 << 20):
        try:
            read_batch(path)
        except RecipeError as error:
            assert len(str(error)) < 2000


def rows(path, text):
    path.write_text(text)
    return list(each_row(path, "train"))


@pytest.mark.parametrize("ending", [".jsonl", ".json"])
@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000, '{"a":' * 20_000])
def test_json_that_never_ends(tmp_path, ending, value):
    path = tmp_path / f"a{ending}"
    try:
        (found,) = rows(path, value if ending == ".json" else value + "\n")
    except RecipeError as error:
        found = error
    assert isinstance(found, RecipeError) and str(path) in str(found) and len(str(found)) < 400


def test_a_wide_header_is_not_in_every_message(tmp_path):
    """300 kB of columns: each of 2,000 short rows names a few of them; twice the same is found at once."""
    header = ",".join(f"c{n}" for n in range(40_000))
    with at_most(100 << 20):
        found = rows(tmp_path / "a.csv", header + "\n" + "x\n" * 2000)
    assert len(found) == 2000 and all(isinstance(row, RecipeError) and len(str(row)) < 600 for row in found)
    with pytest.raises(RecipeError, match='two columns are called "c7"'):
        rows(tmp_path / "a.csv", header + ",c7\nx\n")


def test_a_parquet_file_of_a_few_bytes_and_many_rows(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    table = pa.table({"prompt": pa.nulls(2_000_000, pa.string()), "completion": pa.nulls(2_000_000, pa.string())})
    parquet.write_table(table, path)
    del table
    assert path.stat().st_size < 1 << 20
    with at_most(1 << 20), pytest.raises(RecipeError, match=r"a\.parquet: .* cells of .* more than data does"):
        list(each_row(path, "train"))
    text = "x" * (1 << 19)
    parquet.write_table(pa.table({"prompt": [text] * 200, "completion": ["y"] * 200}), path, compression="zstd")
    assert path.stat().st_size < 1 << 20
    with pytest.raises(RecipeError, match=r"more than data does"):
        list(each_row(path, "train"))
    parquet.write_table(pa.table({"prompt": ["a"] * 5000, "completion": ["b"] * 5000}), path)
    assert len(list(each_row(path, "train"))) == 5000


def png(width, height):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("sides", [(20_000, 20_000), (8000, 8000), (33, 32), (0, 0)])
def test_a_picture_of_many_pixels_is_not_inflated(tmp_path, sides):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pa.table({"img": [{"bytes": png(*sides)}], "label": [1]})
    for part in ("train", "test"):
        parquet.write_table(table, tmp_path / f"{part}-0.parquet")
    with at_most(8 << 20), pytest.raises(RecipeError, match=r'test-0.parquet row 0: "img": not a PNG'):
        CIFAR10Task(path=str(tmp_path)).load()


def test_a_described_column_that_is_damaged(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for described in ("[", "[1]", json.dumps({"info": {"features": 3}}), "[" * 100_000):
        table = pa.table({"img": [{"bytes": b""}], "label": [1]}).replace_schema_metadata({"huggingface": described})
        sink = io.BytesIO()
        parquet.write_table(table, sink)
        (tmp_path / "train-0.parquet").write_bytes(sink.getvalue())
        with pytest.raises(RecipeError, match="its description of columns is damaged"):
            CIFAR10Task(path=str(tmp_path)).load()
