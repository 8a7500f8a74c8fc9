"""Data files of somebody else: what they cost is bounded by their size, and what is wrong is one line."""

import io
import json
import struct
import zlib

import pytest

from fedseed.errors import RecipeError
from fedseed.tasks import CIFAR10Task
from fedseed.tasks.sources import each_row
from support.memory import at_most


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
    with at_most(8 << 20), pytest.raises(RecipeError, match=r"test-0.parquet row 0: not a PNG"):
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
