"""CIFAR-10 and CIFAR-100: 32 x 32 colour pictures, from the hub's parquet files or the original binary version.

Krizhevsky: "Learning Multiple Layers of Features from Tiny Images", 2009. A record of the binary version is a byte for
each label, then all red values row by row, green and blue. The python version is not read: a pickle runs what it names.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import RecipeError
from fedseed.tasks.data import Picture
from fedseed.tasks.dealt import Labelled
from fedseed.tasks.files import data_folder, parse_json, read_text
from fedseed.tasks.parquet import read_parquet
from fedseed.tasks.pictures import PictureTask

SIDE = 32
Names = Mapping[str, Sequence[str]]  # of the labels, by field
Row = tuple[NDArray[np.uint8], dict[str, Any]]  # pixels, and a label's number by field


class CIFAR(PictureTask):
    """Settings that both data sets share: those of `PictureTask`, and the files.

    Args:
        path: a folder with the hub's parquet files, or with the files of the binary version, or one that holds that.
    """

    path: str

    archive: ClassVar[str]  # the folder of the binary version
    train_files: ClassVar[Sequence[str]]
    test_file: ClassVar[str]
    labels: ClassVar[Mapping[str, tuple[str, str, int]]]  # a record's: column on the hub, file of names, their number

    @property
    def hint(self) -> str:
        """What the folder should be."""
        return (
            f"give a folder with the hub's parquet files (train-....parquet, test-....parquet), or {self.archive} of "
            "www.cs.toronto.edu/~kriz/cifar.html (the binary version)"
        )

    def read(self) -> tuple[list[Labelled], list[Picture], tuple[str, ...]]:
        folder = data_folder(self.path, self.hint)
        folder = folder / self.archive if (folder / self.archive).is_dir() else folder
        files = sorted(folder.rglob("*.parquet"))
        parts: dict[str, list[Row]] = {"train": [], "test": []}
        if (folder / self.test_file).is_file():
            names: Names = {field: _lines(folder / file) for field, (_, file, _) in self.labels.items()}
            parts["train"] = [row for name in self.train_files for row in self._records(folder / name, names)]
            parts["test"] = list(self._records(folder / self.test_file, names))
        elif not files:
            raise RecipeError(f'task.path = "{self.path}": the folder has no {self.test_file}; {self.hint}')
        else:
            for path, part in ((path, part) for path in files for part in parts if path.name.startswith(part)):
                more, names = self._parquet(path)
                parts[part] += more
        for part, rows in parts.items():
            if not rows:
                raise RecipeError(f'task.path = "{self.path}": no file {part}-....parquet with a row')
        by = next((field for field in self.fields if self.dealt_by(field)), "class")
        train = [Labelled(Picture(p, labels["class"]), names[by][labels[by]]) for p, labels in parts["train"]]
        return train, [Picture(p, labels["class"]) for p, labels in parts["test"]], tuple(names["class"])

    def _checked(self, where: str, labels: dict[str, Any], names: Names) -> dict[str, Any]:
        for field, label in labels.items():
            if type(label) is not int or not 0 <= label < len(names[field]):
                known = f"{self.labels[field][0]} is a number from 0 to {len(names[field]) - 1}"
                raise RecipeError(f"{where}: {known}, not {str(label)[:40]}")
        return labels

    def _records(self, path: Path, names: Names) -> Iterator[Row]:
        """Returns the pictures of a binary file."""
        width = len(self.labels) + 3 * SIDE * SIDE
        try:
            data = np.frombuffer(path.read_bytes(), np.uint8)
        except OSError as error:
            raise RecipeError(f"{path}: can't be read: {error.strerror}") from error
        if not len(data) or len(data) % width:
            raise RecipeError(f"{path}: {len(data):,} bytes are not whole records of {width:,}; get the file anew")
        for number, record in enumerate(data.reshape(-1, width), 1):
            labels = dict(zip(self.labels, record[: len(self.labels)].tolist(), strict=True))
            pixels = record[len(self.labels) :].reshape(3, SIDE, SIDE).transpose(1, 2, 0)
            yield pixels, self._checked(f"{path} record {number}", labels, names)

    def _parquet(self, path: Path) -> tuple[list[Row], Names]:
        """Returns the pictures of a parquet file, and the labels' names, which the hub keeps in the schema's notes."""
        found, about, there = read_parquet(path, f", or {self.hint}")
        try:
            features = parse_json(about.get("huggingface", "{}")).get("info", {}).get("features", {})
            noted = {field: features.get(key, {}).get("names") for field, (key, _, _) in self.labels.items()}
        except (ValueError, AttributeError) as error:
            raise RecipeError(f"{path}: its description of columns is damaged ({_first_line(error)})") from error
        names = {field: noted[field] or list(map(str, range(count))) for field, (_, _, count) in self.labels.items()}
        image = "image" if "image" in there else "img"
        missing = [key for key in (image, *(key for key, _, _ in self.labels.values())) if key not in there]
        if missing:
            raise RecipeError(f'{path}: no column "{missing[0]}"; it has {", ".join(there)}')
        rows = []
        for number, row in enumerate(found):
            where = f"{path} row {number}"
            labels = {field: row[key] for field, (key, _, _) in self.labels.items()}
            rows.append((_png(row[image], where), self._checked(where, labels, names)))
        return rows, names


class CIFAR10Task(CIFAR):
    """Settings of the "cifar10" task: those of `CIFAR`."""

    name: Literal["cifar10"] = "cifar10"
    about: ClassVar[str] = "CIFAR-10 (32 x 32 pixels, 10 classes) from the hub's parquet files or its binary version"
    archive: ClassVar[str] = "cifar-10-batches-bin"
    train_files: ClassVar[Sequence[str]] = tuple(f"data_batch_{n}.bin" for n in range(1, 6))
    test_file: ClassVar[str] = "test_batch.bin"
    labels: ClassVar[Mapping[str, tuple[str, str, int]]] = {"class": ("label", "batches.meta.txt", 10)}


class CIFAR100Task(CIFAR):
    """Settings of the "cifar100" task: those of `CIFAR`; `partition.field` may also be "superclass" (20 clients)."""

    name: Literal["cifar100"] = "cifar100"
    about: ClassVar[str] = "CIFAR-100 (32 x 32 pixels, 100 classes) from the hub's parquet files or its binary version"
    fields: ClassVar[tuple[str, ...]] = ("class", "superclass")
    archive: ClassVar[str] = "cifar-100-binary"
    train_files: ClassVar[Sequence[str]] = ("train.bin",)
    test_file: ClassVar[str] = "test.bin"
    labels: ClassVar[Mapping[str, tuple[str, str, int]]] = {
        "superclass": ("coarse_label", "coarse_label_names.txt", 20),
        "class": ("fine_label", "fine_label_names.txt", 100),
    }


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in read_text(path).split("\n") if line.strip()]


def _png(value: Any, where: str) -> NDArray[np.uint8]:
    """Returns the pixels of a picture as the hub keeps it."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(value["bytes"]), formats=("PNG",)) as opened:
            if opened.size != (SIDE, SIDE):  # before anything is inflated
                raise OSError(f"{opened.size[0]} x {opened.size[1]} pixels, not {SIDE} x {SIDE}")
            return np.asarray(opened.convert("RGB"))
    except (OSError, TypeError, KeyError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise RecipeError(f"{where}: not a PNG ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
