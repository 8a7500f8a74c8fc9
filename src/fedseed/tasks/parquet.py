"""Parquet files: their rows, in memory that is in proportion to the file; a few bytes of them can be a billion rows."""

from pathlib import Path
from typing import Any

from fedseed.errors import RecipeError, to_install

BATCH = 1024  # rows that are unpacked at a time
FREE_BYTES, INFLATION = 64 << 20, 100  # a file may become so many bytes, and so many more for each of its own
FREE_CELLS = 1 << 20  # cells that any file may have; a larger one as many more as it has bytes


def read_parquet(path: Path, instead: str = "") -> tuple[list[dict[str, Any]], dict[str, str], list[str]]:
    """A file's rows.

    Args:
        path: the file.
        instead: what else would do, for the error where pyarrow is missing.

    Returns:
        The rows as values by column, the schema's notes as texts by key, and the columns' names.

    Raises:
        RecipeError: it can't be read, or becomes more than such a file does.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise RecipeError(f"{path}: a parquet file is read by pyarrow: {to_install('parquet')}{instead}") from error
    rows: list[dict[str, Any]] = []
    try:
        size = path.stat().st_size
        with parquet.ParquetFile(path) as file:
            about, columns = file.metadata, file.schema_arrow.names
            groups = (about.row_group(number).total_byte_size for number in range(about.num_row_groups))
            _check(path, size, sum(groups), about.num_rows * len(columns))
            unpacked = 0
            for batch in file.iter_batches(BATCH):
                unpacked += batch.nbytes
                _check(path, size, unpacked, (len(rows) + batch.num_rows) * len(columns))
                rows += batch.to_pylist()
            notes = {_text(k): _text(v) for k, v in (file.schema_arrow.metadata or {}).items()}
    except (ArrowException, OSError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise RecipeError(f"{path}: not a parquet file, or damaged ({line})") from error
    return rows, notes, columns


def _check(path: Path, size: int, unpacked: int, cells: int) -> None:
    if unpacked > FREE_BYTES + INFLATION * size or cells > FREE_CELLS + size:
        raise RecipeError(
            f"{path}: {size:,} bytes become {cells:,} cells of {unpacked:,} bytes, which is more than data does; if "
            "it is what you want, write it as .jsonl"
        )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
