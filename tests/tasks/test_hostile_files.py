"""Data files of somebody else: what they cost is bounded by their size, and what is wrong is one
line.
"""

import pytest

from fedseed.errors import RecipeError
from fedseed.tasks.files import each_row
from support.memory import at_most


def rows(path, text):
    path.write_text(text)
    return list(each_row(path, "train"))


@pytest.mark.parametrize("ending", [".jsonl", ".json"])
@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000, '{"a":' * 20_000])
def test_json_that_never_ends(tmp_path, ending, value):
    path = tmp_path / f"a{ending}"
    try:
        (found,) = rows(path, value)
    except RecipeError as error:
        found = error
    assert isinstance(found, RecipeError) and str(path) in str(found) and len(str(found)) < 400


def test_a_wide_header_is_not_in_every_message(tmp_path):
    """300 kB of columns: each of 2,000 short rows names a few of them.

    Twice the same is found at once.
    """
    header = ",".join(f"c{n}" for n in range(40_000))
    with at_most(100 << 20):
        found = rows(tmp_path / "a.csv", header + "\n" + "x\n" * 2000)
    assert len(found) == 2000 and all(
        isinstance(row, RecipeError) and len(str(row)) < 600 for row in found
    )
    with pytest.raises(RecipeError, match='two columns have the name "c7"'):
        rows(tmp_path / "a.csv", header + ",c7\nx\n")


def test_a_parquet_file_of_a_few_bytes_and_many_rows(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    table = pa.table(
        {"prompt": pa.nulls(2_000_000, pa.string()), "completion": pa.nulls(2_000_000, pa.string())}
    )
    parquet.write_table(table, path)
    del table
    assert path.stat().st_size < 1 << 20
    with (
        at_most(1 << 20),
        pytest.raises(RecipeError, match=r"a\.parquet: .* cells of .* too much for real data"),
    ):
        list(each_row(path, "train"))
    text = "x" * (1 << 19)
    parquet.write_table(
        pa.table({"prompt": [text] * 200, "completion": ["y"] * 200}), path, compression="zstd"
    )
    assert path.stat().st_size < 1 << 20
    with pytest.raises(RecipeError, match=r"too much for real data"):
        list(each_row(path, "train"))
    parquet.write_table(pa.table({"prompt": ["a"] * 5000, "completion": ["b"] * 5000}), path)
    assert len(list(each_row(path, "train"))) == 5000
