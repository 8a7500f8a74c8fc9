"""CIFAR-10 and CIFAR-100: 32 x 32 colour pictures, from the original pickle batches or the hub's parquet files.

Krizhevsky: "Learning Multiple Layers of Features from Tiny Images", 2009.

The originals are Python pickles, and unpickling a file runs whatever it names. Here only what these files need is
known, and even that is not NumPy's own code but stand-ins that keep shape, type and bytes: a file that names anything
else is refused before anything of it runs.
"""

import io
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import RecipeError, to_install
from fedseed.tasks.data import Picture
from fedseed.tasks.files import data_folder
from fedseed.tasks.pictures import Labelled, PictureTask

SIDE = 32
PIXELS = 3 * SIDE * SIDE  # a row: all red values row by row, then green, then blue


class _DType:
    """Stands for numpy.dtype: keeps its name."""

    def __init__(self, name: Any = "", *_: Any) -> None:
        self.name = _text(name)

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like; nothing that bytes have."""


class _Array:
    """Stands for numpy.ndarray: keeps shape, type and bytes."""

    shape: tuple[int, ...] = ()
    data = b""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _DType) or dtype.name not in ("u1", "|u1", "uint8") or fortran:
            raise pickle.UnpicklingError("an array that is not of bytes in C order")
        if not isinstance(data, bytes) or not all(type(n) is int and n >= 0 for n in shape) or prod(shape) != len(data):
            raise pickle.UnpicklingError(f"an array of shape {shape} without its bytes")
        self.shape, self.data = tuple(shape), data

    def array(self) -> NDArray[np.uint8]:
        """The real array, read-only."""
        return np.frombuffer(self.data, dtype=np.uint8).reshape(self.shape)


class _Function:
    """Stands for a function: it can be called, and nothing about it can be changed by the file."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a function with a state")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """How Python 3 writes bytes in Python 2's protocols."""
    return text.encode(encoding) if encoding in ("latin1", "latin-1") else b""


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Function(_reconstruct),
    ("numpy._core.multiarray", "_reconstruct"): _Function(_reconstruct),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _Function(_encode),
}


class _RefusedError(Exception):
    pass


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise _RefusedError(f"{module}.{name}") from None


def read_batch(path: Path) -> Mapping[str, Any]:
    """A pickled dictionary of lists, texts, numbers and arrays of bytes; nothing else can be in it.

    Args:
        path: one of CIFAR's files.

    Returns:
        By key: arrays as uint8 arrays, everything else as it is; texts are bytes, keys are text.

    Raises:
        RecipeError: missing, damaged, or not such a file; nothing of it has run then.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecipeError(f"{path}: can't be read: {error.strerror}") from error
    try:
        batch = _Restricted(io.BytesIO(data), encoding="bytes").load()
    except _RefusedError as refused:
        raise RecipeError(
            f"{path}: refused: it would call {refused}, which no CIFAR file does; get the files anew from "
            "www.cs.toronto.edu/~kriz/cifar.html"
        ) from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise RecipeError(f"{path}: damaged or cut short ({_first_line(error)}); get the file anew") from error
    if not isinstance(batch, dict):
        raise RecipeError(f"{path}: a dictionary is expected, not {type(batch).__name__}")
    return {_text(k): v.array() if isinstance(v, _Array) else v for k, v in batch.items() if isinstance(k, bytes | str)}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class CIFAR(PictureTask):
    """Settings that both data sets share: those of `PictureTask`, and the files.

    Args:
        path: the folder with the original files, or one that holds that folder; or with the hub's parquet files.
    """

    path: str

    archive: ClassVar[str]  # the original folder's name
    train_files: ClassVar[Sequence[str]]
    test_file: ClassVar[str]
    meta_file: ClassVar[str]
    label_keys: ClassVar[Mapping[str, str]]  # field -> key of the batches; "class" first
    parquet_keys: ClassVar[Mapping[str, str]]
    name_keys: ClassVar[Mapping[str, str]]  # field -> key of the meta file
    counts: ClassVar[Mapping[str, int]]  # field -> how many names it has

    @property
    def hint(self) -> str:
        """What the folder should be."""
        return f"give the folder {self.archive} of www.cs.toronto.edu/~kriz/cifar.html (the python version)"

    def read(self) -> tuple[Labelled, Labelled, tuple[str, ...]]:
        """Train part, test part, the classes' names.

        Raises:
            RecipeError: a file is missing or malformed.
        """
        folder = data_folder(self.path, self.hint)
        if (folder / self.archive).is_dir():
            folder = folder / self.archive
        if not (folder / self.meta_file).is_file():
            parquet = sorted(folder.rglob("*.parquet"))
            if parquet:
                return self._read_parquet(parquet)
            raise RecipeError(f'task.path = "{self.path}": the folder has no {self.meta_file}; {self.hint}')
        meta = read_batch(folder / self.meta_file)
        names = {field: self._names(meta, key, folder / self.meta_file) for field, key in self.name_keys.items()}
        train = [self._batch(folder / name, names) for name in self.train_files]
        test = self._batch(folder / self.test_file, names)
        fields: dict[str, Sequence[str]] = {
            field: [v for part in train for v in part.fields[field]] for field in self.fields[1:]
        }
        return Labelled([p for part in train for p in part.pictures], fields), test, names["class"]

    def _names(self, meta: Mapping[str, Any], key: str, path: Path) -> tuple[str, ...]:
        names = meta.get(key)
        if not isinstance(names, list) or not names or not all(isinstance(n, bytes | str) for n in names):
            raise RecipeError(f'{path}: "{key}": a list of names is expected')
        return tuple(map(_text, names))

    def _batch(self, path: Path, names: Mapping[str, Sequence[str]]) -> Labelled:
        batch = read_batch(path)
        data = batch.get("data")
        if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != PIXELS or not len(data):
            found = data.shape if isinstance(data, np.ndarray) else type(data).__name__
            raise RecipeError(f'{path}: "data": rows of {PIXELS:,} bytes are expected, not {found}')
        labels = {}
        for field, key in self.label_keys.items():
            values, known = batch.get(key), len(names[field])
            if not isinstance(values, list) or len(values) != len(data):
                raise RecipeError(f'{path}: "{key}": a list of {len(data):,} labels is expected')
            wrong = next((v for v in values if type(v) is not int or not 0 <= v < known), None)
            if wrong is not None:
                raise RecipeError(f'{path}: "{key}" has {wrong!r}: labels are numbers from 0 to {known - 1}')
            labels[field] = values
        pixels = data.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
        pictures = [Picture(p, label) for p, label in zip(pixels, labels["class"], strict=True)]
        return Labelled(pictures, {f: [names[f][v] for v in labels[f]] for f in self.fields[1:]})

    def _read_parquet(self, paths: Sequence[Path]) -> tuple[Labelled, Labelled, tuple[str, ...]]:
        found: dict[str, list[dict[str, Any]]] = {"train": [], "test": []}
        names: dict[str, tuple[str, ...]] = {}
        for path in paths:
            part = next((part for part in found if path.name.startswith(part)), None)
            if part is not None:
                rows, names = self._rows(path)
                found[part] += rows
        for part, rows in found.items():
            if not rows:
                raise RecipeError(f'task.path = "{self.path}": no file {part}-....parquet with a row')
        train, test = (
            Labelled(
                [Picture(row["pixels"], row["class"]) for row in rows],
                {f: [names[f][row[f]] for row in rows] for f in self.fields[1:]},
            )
            for rows in found.values()
        )
        return train, test, names["class"]

    def _rows(self, path: Path) -> tuple[list[dict[str, Any]], dict[str, tuple[str, ...]]]:
        """Rows of a parquet file, and the fields' names, which the hub keeps in the schema's metadata."""
        try:
            from pyarrow import ArrowException, parquet
        except ImportError as error:
            raise RecipeError(f"{path}: parquet files need pyarrow: {to_install('parquet')}, or {self.hint}") from error
        from PIL import Image

        try:
            table = parquet.read_table(path)
        except (ArrowException, OSError) as error:
            raise RecipeError(f"{path}: not a parquet file, or damaged ({_first_line(error)})") from error
        described = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
        features = described.get("info", {}).get("features", {})
        image = next((name for name in ("img", "image") if name in table.column_names), None)
        if image is None:
            raise RecipeError(f'{path}: no column "img"; it has {", ".join(table.column_names)}')
        columns, names = {}, {}
        for field, key in self.parquet_keys.items():
            if key not in table.column_names:
                raise RecipeError(f'{path}: no column "{key}"; it has {", ".join(table.column_names)}')
            columns[field] = table.column(key).to_pylist()
            known = features.get(key, {}).get("names")
            names[field] = tuple(known or map(str, range(self.counts[field])))
        rows = []
        for number, value in enumerate(table.column(image).to_pylist()):
            try:
                with Image.open(io.BytesIO(value["bytes"]), formats=("PNG",)) as opened:
                    pixels = np.asarray(opened.convert("RGB"))
            except (OSError, TypeError, KeyError) as error:
                raise RecipeError(f'{path} row {number}: "{image}": not a PNG ({_first_line(error)})') from error
            row = {field: values[number] for field, values in columns.items()}
            for field, label in row.items():
                if type(label) is not int or not 0 <= label < len(names[field]):
                    raise RecipeError(f"{path} row {number}: {self.parquet_keys[field]} = {label!r}: no such class")
            rows.append({"pixels": pixels, **row})
        return rows, names


class CIFAR10Task(CIFAR):
    """Settings of the "cifar10" task: those of `CIFAR`."""

    name: Literal["cifar10"] = "cifar10"
    about: ClassVar[str] = "CIFAR-10 (32 x 32 pixels, 10 classes) from its python batches or the hub's parquet files"
    archive: ClassVar[str] = "cifar-10-batches-py"
    train_files: ClassVar[Sequence[str]] = tuple(f"data_batch_{n}" for n in range(1, 6))
    test_file: ClassVar[str] = "test_batch"
    meta_file: ClassVar[str] = "batches.meta"
    label_keys: ClassVar[Mapping[str, str]] = {"class": "labels"}
    parquet_keys: ClassVar[Mapping[str, str]] = {"class": "label"}
    name_keys: ClassVar[Mapping[str, str]] = {"class": "label_names"}
    counts: ClassVar[Mapping[str, int]] = {"class": 10}


class CIFAR100Task(CIFAR):
    """Settings of the "cifar100" task: those of `CIFAR`; `partition.field` may also be "superclass" (20 clients)."""

    name: Literal["cifar100"] = "cifar100"
    about: ClassVar[str] = "CIFAR-100 (32 x 32 pixels, 100 classes) from its python files or the hub's parquet files"
    fields: ClassVar[tuple[str, ...]] = ("class", "superclass")
    archive: ClassVar[str] = "cifar-100-python"
    train_files: ClassVar[Sequence[str]] = ("train",)
    test_file: ClassVar[str] = "test"
    meta_file: ClassVar[str] = "meta"
    label_keys: ClassVar[Mapping[str, str]] = {"class": "fine_labels", "superclass": "coarse_labels"}
    parquet_keys: ClassVar[Mapping[str, str]] = {"class": "fine_label", "superclass": "coarse_label"}
    name_keys: ClassVar[Mapping[str, str]] = {"class": "fine_label_names", "superclass": "coarse_label_names"}
    counts: ClassVar[Mapping[str, int]] = {"class": 100, "superclass": 20}
