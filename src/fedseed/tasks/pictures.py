"""Pictures: CIFAR-10 and CIFAR-100 from their original files, and scikit-learn's digits, the
offline stand-in.

Krizhevsky: "Learning Multiple Layers of Features from Tiny Images", 2009: 32 x 32 pixels in colour,
in the binary version. A record is a byte for each label, then all red values row by row, green and
blue. The python version is not
read: a pickle runs what it names.

Alpaydin, Kaynak: "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository,
1998: 8 x 8 pixels; the 1,797 images that scikit-learn carries.
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

SIDE = 32  # pixels of CIFAR's
# of the images' order; fixed, so that the base's images are the same for everybody
SHARE_SEED = 8
SIZE = 1797
# the first images of the order are the test set
TEST = 400
# the last images of the order were for pre-training the base "digits": nobody else has them
BASE = 500


class PictureTask(DealtTask):
    """Settings that all picture tasks share: those of `DealtTask`, and how many pictures are taken.

    Args:
        examples: training pictures of all clients together; None: all that `validation` leaves.
        validation: pictures of the train part that no client gets, to choose settings on.
        evaluation: pictures of the test part that the run reports on; None: all of them.
    """

    fields: ClassVar[tuple[str, ...]] = ("class",)

    examples: PositiveInt | None = None
    validation: NonNegativeInt = 0
    evaluation: PositiveInt | None = None

    @abstractmethod
    def read_rows(self) -> tuple[Sequence[Labelled], Sequence[Picture], tuple[str, ...]]:
        """Return the train part with what partitions go by, the test part, and names of classes.

        Raises as `load`.
        """

    def parts(self) -> tuple[Sequence[Labelled], TaskData]:
        train, test, classes = self.read_rows()
        order = permutation(self.seed, Domain.PARTITION, len(train), 0).tolist()
        count = len(order) if self.examples is None else self.validation + self.examples
        if count > len(order) or self.validation >= count:
            request = (
                f"task.examples = {self.examples or 'all'} and task.validation = {self.validation}"
            )
            raise RecipeError(f"{request}: the train part has {len(order):,} pictures")
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
    """Settings that both data sets share: those of `PictureTask`, and the files.

    Args:
        path: a folder with the files of the binary version, or one that holds that.
    """

    path: str

    archive: ClassVar[str]  # the folder of the binary version
    train_files: ClassVar[Sequence[str]]
    test_file: ClassVar[str]
    # a record's, in their order: the file of names
    labels: ClassVar[Mapping[str, str]]

    def read_rows(self) -> tuple[list[Labelled], list[Picture], tuple[str, ...]]:
        hint = f"give {self.archive} of www.cs.toronto.edu/~kriz/cifar.html (the binary version)"
        folder = data_folder(self.path, hint)
        if (folder / self.archive).is_dir():
            folder = folder / self.archive
        if not (folder / self.test_file).is_file():
            raise RecipeError(
                f'task.path = "{self.path}": the folder has no {self.test_file}; {hint}'
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
        """Yield the pictures of a file, each with the name of its label of the field "
        "`field_name`.
        """
        width = len(self.labels) + 3 * SIDE * SIDE
        try:
            data = np.frombuffer(path.read_bytes(), np.uint8)
        except OSError as error:
            raise RecipeError(f"{path}: can't be read: {error.strerror}") from error
        if not len(data) or len(data) % width:
            raise RecipeError(
                f"{path}: {len(data):,} bytes are not whole records of {width:,}; get the file anew"
            )
        for number, record in enumerate(data.reshape(-1, width), 1):
            labels = dict(zip(self.labels, record[: len(self.labels)].tolist(), strict=True))
            for field, label in labels.items():
                if label >= len(names[field]):
                    numbers = f"a number from 0 to {len(names[field]) - 1}"
                    raise RecipeError(f"{path} record {number}: {field} is {numbers}, not {label}")
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

    `partition.field` may also be "superclass" (20 clients).
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
    """Return scikit-learn's images of some digits, each labelled by its digit's place in
    `classes`.

    All images are in a fixed random order; a pixel is from 0 (paper) to 255 (ink).

    Args:
        classes: the digits.
        start: the first image of the order.
        stop: one past the last; by default all but the base's own.

    Raises:
        RecipeError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise RecipeError(
            'task.name = "digits": it needs scikit-learn, which carries the images: '
            f"{to_install('digits')}"
        ) from error
    sixteenths, labels = load_digits(return_X_y=True)
    pixels: NDArray[np.uint8] = ((sixteenths.reshape(-1, 8, 8, 1) * 255 + 8) // 16).astype(np.uint8)
    order = permutation(SHARE_SEED, Domain.PARTITION, SIZE)[slice(start, stop)].tolist()
    return [
        Picture(pixels[i], classes.index(int(labels[i]))) for i in order if labels[i] in classes
    ]


class DigitsTask(PictureTask):
    """Settings of the "digits" task: those of `PictureTask`, and the classes.

    Args:
        classes: the digits that are told apart; images of others are left out.
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
                f"task.classes = {self.classes}: two or more different digits from 0 to 9 are "
                "needed"
            )
        train = [
            Labelled(p, str(self.classes[p.label])) for p in digit_pictures(self.classes, TEST)
        ]
        return train, digit_pictures(self.classes, 0, TEST), tuple(map(str, self.classes))
