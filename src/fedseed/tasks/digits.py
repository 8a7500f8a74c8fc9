"""scikit-learn's handwritten digits, 8 x 8 pixels: the offline stand-in for vision.

Alpaydin, Kaynak: "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998; the 1,797 images
that scikit-learn carries.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt

from fedseed.errors import RecipeError, to_install
from fedseed.randomness import Domain, permutation
from fedseed.tasks.data import Picture
from fedseed.tasks.dealt import Labelled
from fedseed.tasks.pictures import PictureTask

SHARE_SEED = 8  # of the images' order; fixed, so that the base's images are the same for everybody
SIZE = 1797
TEST = 400  # the first so many images of the order
BASE_CLASSES = (0, 1, 2, 3, 4)  # what the base "digits" was pre-trained on
BASE = 500  # the last so many images of the order belong to it: no client and no test has them


def images() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All images in a fixed random order, and their digits.

    Returns:
        uint8, shape (1797, 8, 8, 1), from 0 (paper) to 255 (ink); int64, shape (1797,).

    Raises:
        RecipeError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise RecipeError(
            f'task.name = "digits": it needs scikit-learn, which carries the images: {to_install("digits")}'
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    order = permutation(SHARE_SEED, Domain.PARTITION, len(labels))
    sixteenths: NDArray[Any] = pixels.reshape(-1, 8, 8, 1)[order]
    return ((sixteenths * 255 + 8) // 16).astype(np.uint8), labels[order].astype(np.int64)


def digit_pictures(classes: Sequence[int], start: int = 0, stop: int = -BASE) -> list[Picture]:
    """Images of some digits, labelled by the digit's place in `classes`.

    Args:
        classes: the digits.
        start: the first image of the fixed order.
        stop: one past the last; by default all but the base's own.
    """
    pixels, labels = images()
    mine = [i for i in range(*slice(start, stop).indices(len(labels))) if labels[i] in classes]
    return [Picture(pixels[i], classes.index(int(labels[i]))) for i in mine]


def pictures_of_base() -> list[Picture]:
    """The images that the base "digits" is pre-trained on: those of its classes in the part that is its own."""
    return digit_pictures(BASE_CLASSES, -BASE, SIZE)


class DigitsTask(PictureTask):
    """Settings of the "digits" task: those of `PictureTask`, and the classes.

    Args:
        classes: the digits that are told apart; images of others are left out.
    """

    name: Literal["digits"] = "digits"
    about: ClassVar[str] = "scikit-learn's handwritten digits (8 x 8 pixels), for vision without a download"
    classes: list[int] = Field(default_factory=lambda: list(range(10)))
    validation: NonNegativeInt = 200

    def read(self) -> tuple[list[Labelled], list[Picture], tuple[str, ...]]:
        wanted = set(self.classes)
        if not 2 <= len(self.classes) == len(wanted) or not wanted <= set(range(10)):
            raise RecipeError(f"task.classes = {self.classes}: two or more different digits from 0 to 9 are needed")
        train = [Labelled(p, str(self.classes[p.label])) for p in digit_pictures(self.classes, TEST)]
        return train, digit_pictures(self.classes, 0, TEST), tuple(map(str, self.classes))
