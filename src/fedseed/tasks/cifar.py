"""CIFAR-10 and CIFAR-100: 32 x 32 colour pictures, from the original pickle batches or the hub's parquet files.

Krizhevsky: "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from fedseed.errors import RecipeError
from fedseed.tasks.data import Picture
from fedseed.tasks.files import data_folder, parse_json
from fedseed.tasks.parquet import read_parquet
from fedseed.tasks.pickled import named, read_batch
from fedseed.tasks.pictures import Labelled, PictureTask

SIDE = 32
PIXELS = 3 * SIDE * SIDE  # a row: all red values row by row, then green, then blue


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
        return tuple(n if isinstance(n, str) else n.decode("utf-8", "replace") for n in names)

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
                raise RecipeError(f'{path}: "{key}" has {named(wrong)}: labels are numbers from 0 to {known - 1}')
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
        from PIL import Image

        found, about, columns_there = read_parquet(path, f", or {self.hint}")
        try:
            described = parse_json(about.get("huggingface", "{}"))
            features = {k: v.get("names") for k, v in described.get("info", {}).get("features", {}).items()}
        except (ValueError, AttributeError) as error:
            raise RecipeError(f"{path}: its description of columns is damaged ({_first_line(error)})") from error
        image = next((name for name in ("img", "image") if name in columns_there), None)
        if image is None:
            raise RecipeError(f'{path}: no column "img"; it has {", ".join(columns_there)}')
        columns, names = {}, {}
        for field, key in self.parquet_keys.items():
            if key not in columns_there:
                raise RecipeError(f'{path}: no column "{key}"; it has {", ".join(columns_there)}')
            columns[field] = [row[key] for row in found]
            known = features.get(key)
            names[field] = tuple(known or map(str, range(self.counts[field])))
        rows = []
        for number, value in enumerate(row[image] for row in found):
            try:
                with Image.open(io.BytesIO(value["bytes"]), formats=("PNG",)) as opened:
                    if opened.size != (SIDE, SIDE):  # before anything is inflated
                        raise OSError(f"{opened.size[0]} x {opened.size[1]} pixels, not {SIDE} x {SIDE}")
                    pixels = np.asarray(opened.convert("RGB"))
            except (OSError, TypeError, KeyError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                raise RecipeError(f'{path} row {number}: "{image}": not a PNG ({_first_line(error)})') from error
            row = {field: values[number] for field, values in columns.items()}
            for field, label in row.items():
                if type(label) is not int or not 0 <= label < len(names[field]):
                    raise RecipeError(
                        f"{path} row {number}: {self.parquet_keys[field]} = {named(label)}: no such class"
                    )
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
