"""Picture data sets: CIFAR-10 and CIFAR-100 from their original files, and scikit-learn's digits,
which need no download.

Krizhevsky: "Learning Multiple Layers of Features from Tiny Images", 2009: 32 x 32 pixels in colour,
in the binary version. A record has one byte for each label, then all red, all green and all blue
values, row by row. The python version is not supported, because reading a pickle can run any code.

Alpaydin, Kaynak: "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository,
1998: 8 x 8 pixels; the 1,797 images in scikit-learn.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveInt

from fedseed.errors import RecipeError, to_install
from fedseed.randomness import Domain, permutation
from fedseed.tasks.data import Picture, TaskData
from fedseed.tasks.dealt import DealtTask, Labelled, pick
from fedseed.tasks.files import data_folder, read_text

SIDE = 32  # side of a CIFAR image in pixels
# seed of the images' order; fixed, so that everybody has the same images for the base
SHARE_SEED = 8
SIZE = 1797
# test set: the first images of the order
TEST = 400
# the last images of the order were used to pre-train the base "digits"; no client or test has them
BASE = 500


class PictureTask(DealtTask):
    """Settings that all picture tasks have in common: those of `DealtTask`, and the numbers of
    pictures.

    Args:
        examples: number of training pictures of all clients together; None: all that are not for
            validation.
        validation: number of pictures of the train part that no client gets, for choosing settings.
        evaluation: number of pictures of the test part to evaluate on; None: all.
    """

    fields: ClassVar[tuple[str, ...]] = ("class",)

    examples: PositiveInt | None = None
    validation: NonNegativeInt = 0
    evaluation: PositiveInt | None = None

    @abstractmethod
    def read_rows(self) -> tuple[Sequence[Labelled], Sequence[Picture], tuple[str, ...]]:
        """Return the train part with its labels for partitions, the test part, and the names of
        classes.

        Raises the errors of `load`.
        """

    def parts(self) -> tuple[Sequence[Labelled], TaskData]:
        train, test, classes = self.read_rows()
        order = permutation(self.seed, Domain.PARTITION, len(train), 0).tolist()
        count = len(order) if self.examples is None else self.validation + self.examples
        if count > len(order) or self.validation >= count:
            request = (
                f"task.examples = {self.examples or 'all'} and task.validation = {self.validation}"
            )
            raise RecipeError(f"{request}: the train part has only {len(order):,} pictures")
        client_pictures = pick(train, order[self.validation : count])
        validation = [train[i].example for i in order[: self.validation]]
        evaluation = pick(
            test, permutation(self.seed, Domain.PARTITION, len(test), 1)[: self.evaluation]
        )
        notes = (
            f"{len(client_pictures):,} training and {len(validation):,} validation pictures of "
            f"{len(order):,} in the train part, {len(evaluation):,} test pictures of "
            f"{len(test):,}, {len(classes)} classes"
        )
        return client_pictures, TaskData(
            (), {"": evaluation}, validation, (notes,), classes=classes
        )


class CIFAR(PictureTask):
    """Settings that both CIFAR data sets have in common: those of `PictureTask`, and the files.

    Args:
        path: the folder with the files of the binary version, or the folder that contains it.
    """

    path: str

    archive: ClassVar[str]  # the folder of the binary version
    train_files: ClassVar[Sequence[str]]
    test_file: ClassVar[str]
    # the labels of a record in order: the file with their names
    labels: ClassVar[Mapping[str, str]]

    def read_rows(self) -> tuple[list[Labelled], list[Picture], tuple[str, ...]]:
        hint = f"give {self.archive} of www.cs.toronto.edu/~kriz/cifar.html (the binary version)"
        folder = data_folder(self.path, hint)
        if (folder / self.archive).is_dir():
            folder = folder / self.archive
        if not (folder / self.test_file).is_file():
            raise RecipeError(
                f'task.path = "{self.path}": the folder does not have {self.test_file}; {hint}'
            )
        texts = {field: read_text(folder / file) for field, file in self.labels.items()}
        names = {
            field: [line.strip() for line in text.split("\n") if line.strip()]
            for field, text in texts.items()
        }
        field_name = next((field for field in self.fields if self.dealt_by(field)), "class")
        train = list(
            chain.from_iterable(
                self._pictures(folder / file, names, field_name) for file in self.train_files
            )
        )
        test = [one.example for one in self._pictures(folder / self.test_file, names, field_name)]
        return train, test, tuple(names["class"])

    def _pictures(
        self, path: Path, names: Mapping[str, Sequence[str]], field_name: str
    ) -> Iterator[Labelled]:
        """Yield the pictures of a file, each with the name of its label in `field_name`."""
        width = len(self.labels) + 3 * SIDE * SIDE
        try:
            data = np.frombuffer(path.read_bytes(), np.uint8)
        except OSError as error:
            raise RecipeError(f"{path}: can't be read: {error.strerror}") from error
        if not len(data) or len(data) % width:
            raise RecipeError(
                f"{path}: {len(data):,} bytes are not a whole number of records of {width:,}; "
                "download the file again"
            )
        for number, record in enumerate(data.reshape(-1, width), 1):
            labels = dict(zip(self.labels, record[: len(self.labels)].tolist(), strict=True))
            for field, label in labels.items():
                if label >= len(names[field]):
                    numbers = f"a number from 0 to {len(names[field]) - 1}"
                    raise RecipeError(
                        f"{path} record {number}: {field} is {label}, but must be {numbers}"
                    )
            pixels = record[len(self.labels) :].reshape(3, SIDE, SIDE).transpose(1, 2, 0)
            yield Labelled(Picture(pixels, labels["class"]), names[field_name][labels[field_name]])


class CIFAR10Task(CIFAR):
    """Settings of the "cifar10" task: those of `CIFAR`."""

    name: Literal["cifar10"] = "cifar10"
    about: ClassVar[str] = "CIFAR-10 (32 x 32 pixels, 10 classes) from its binary version"
    archive: ClassVar[str] = "cifar-10-batches-bin"
    train_files: ClassVar[Sequence[str]] = tuple(f"data_batch_{n}.bin" for n in range(1, 6))
    test_file: ClassVar[str] = "test_batch.bin"
    labels: ClassVar[Mapping[str, str]] = {"class": "batches.meta.txt"}


class CIFAR100Task(CIFAR):
    """Settings of the "cifar100" task: those of `CIFAR`.

    `partition.field` can also be "superclass" (20 clients).
    """

    name: Literal["cifar100"] = "cifar100"
    about: ClassVar[str] = "CIFAR-100 (32 x 32 pixels, 100 classes) from its binary version"
    fields: ClassVar[tuple[str, ...]] = ("class", "superclass")
    archive: ClassVar[str] = "cifar-100-binary"
    train_files: ClassVar[Sequence[str]] = ("train.bin",)
    test_file: ClassVar[str] = "test.bin"
    labels: ClassVar[Mapping[str, str]] = {
        "superclass": "coarse_label_names.txt",
        "class": "fine_label_names.txt",
    }


def digit_pictures(classes: Sequence[int], start: int = 0, stop: int = -BASE) -> list[Picture]:
    """Return scikit-learn's images of some digits, each labelled with the index of its digit in
    `classes`.

    The images are in a fixed random order. Pixels range from 0 (paper) to 255 (ink).

    Args:
        classes: the digits, from 0 to 9.
        start: index of the first image in the order.
        stop: index after the last image; default: all except those that the base was trained on.

    Raises:
        RecipeError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise RecipeError(
            'task.name = "digits": this task needs scikit-learn, which has the images: '
            f"{to_install('digits')}"
        ) from error
    sixteenths, labels = load_digits(return_X_y=True)
    pixels: NDArray[np.uint8] = ((sixteenths.reshape(-1, 8, 8, 1) * 255 + 8) // 16).astype(np.uint8)
    order = permutation(SHARE_SEED, Domain.PARTITION, SIZE)[slice(start, stop)].tolist()
    return [
        Picture(pixels[i], classes.index(int(labels[i]))) for i in order if labels[i] in classes
    ]


class DigitsTask(PictureTask):
    """Settings of the "digits" task: those of `PictureTask`, and the digits to use.

    Args:
        classes: the digits to classify; images of other digits are left out.
    """

    name: Literal["digits"] = "digits"
    about: ClassVar[str] = (
        "scikit-learn's handwritten digits (8 x 8 pixels), for vision without a download"
    )
    classes: list[int] = Field(default_factory=lambda: list(range(10)))
    validation: NonNegativeInt = 200

    def read_rows(self) -> tuple[list[Labelled], list[Picture], tuple[str, ...]]:
        digits = set(self.classes)
        if not 2 <= len(self.classes) == len(digits) or not digits <= set(range(10)):
            raise RecipeError(
                f"task.classes = {self.classes}: expected two or more different digits from 0 to 9"
            )
        train = [
            Labelled(p, str(self.classes[p.label])) for p in digit_pictures(self.classes, TEST)
        ]
        return train, digit_pictures(self.classes, 0, TEST), tuple(map(str, self.classes))
