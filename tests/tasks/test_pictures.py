"""CIFAR from its binary version, and scikit-learn's digits."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedseed.errors import RecipeError
from fedseed.tasks import CIFAR10Task, CIFAR100Task, DigitsTask
from fedseed.tasks.partition import ByField
from fedseed.tasks.pictures import BASE, SIZE, TEST, digit_pictures
from support.pictures import write_cifar10, write_cifar100


def pictures(data):
    return [p for client in data.clients for p in client.examples]


def keys(pictures):
    return [(picture.pixels.tobytes(), picture.label) for picture in pictures]


def test_pixels_and_labels_are_those_of_the_file(tmp_path):
    folder = write_cifar10(tmp_path / "cifar-10-batches-bin")
    data = CIFAR10Task(path=str(folder), clients=1).load()
    assert data.classes[0] == "airplane" and data.classes[9] == "truck" and len(data.classes) == 10
    expected = []
    for number in range(1, 6):
        rows = np.fromfile(folder / f"data_batch_{number}.bin", np.uint8).reshape(-1, 3073)
        expected += [
            (np.moveaxis(row[1:].reshape(3, 32, 32), 0, 2).tobytes(), int(row[0])) for row in rows
        ]
    found = pictures(data)
    assert keys(found) == expected  # one client has all of them in the files' order
    # the folder that holds it will do
    outer = CIFAR10Task(path=str(folder.parent), clients=1).load()
    assert keys(pictures(outer)) == expected
    assert all(p.pixels.shape == (32, 32, 3) and p.pixels.dtype == np.uint8 for p in found)
    assert len(data.evaluation[""]) == 20
    assert data.notes == (
        "120 training and 0 validation pictures of 120 in the train part, 20 test pictures of 20, "
        "10 classes",
        "1 client holds 120 pictures of 10 classes (iid)",
    )


def test_cifar_100_has_classes_and_superclasses(tmp_path):
    path = str(write_cifar100(tmp_path / "cifar-100-binary"))
    data = CIFAR100Task(path=path, partition=ByField(field="superclass")).load()
    assert len(data.classes) == 100 and data.classes[42] == "fine 42"
    assert len(data.clients) == 20 and len(pictures(data)) == 200
    assert [{p.label // 5 for p in c.examples} for c in data.clients] == [{i} for i in range(20)]
    with pytest.raises(
        RecipeError,
        match=r'task.partition.field = "colour": "cifar100" has "class" and "superclass"',
    ):
        CIFAR100Task(path=path, partition=ByField(field="colour")).load()


def test_what_is_wrong_in_a_file_is_named(tmp_path):
    folder = write_cifar10(tmp_path / "cifar-10-batches-bin")
    path = folder / "data_batch_4.bin"
    good = path.read_bytes()
    for content, problem in (
        (good[:3072], ": 3,072 bytes are not a whole number of records of 3,073"),
        (
            good[:3073] + b"\x0a" + good[3074:],
            " record 2: class is 10, but must be a number from 0 to 9",
        ),
        (None, ": can't be read: No such file"),
    ):
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(RecipeError, match=f"data_batch_4.bin{problem}"):
            CIFAR10Task(path=str(folder)).load()


# -- digits
# ------------------------------------------------------------------------------------------------


def test_pixels_are_scikit_learns_scaled_to_bytes():
    made = digit_pictures(range(10), 0, SIZE)
    pixels, labels = (
        np.stack([picture.pixels for picture in made]),
        [picture.label for picture in made],
    )
    source, targets = load_digits(return_X_y=True)
    assert (
        pixels.shape == (SIZE, 8, 8, 1)
        and pixels.dtype == np.uint8
        and (pixels.min(), pixels.max()) == (0, 255)
    )
    back = np.rint(pixels.reshape(SIZE, 64) / 255 * 16)
    assert sorted(map(tuple, np.c_[back, labels])) == sorted(map(tuple, np.c_[source, targets]))


def test_nobody_has_an_image_of_the_base_or_of_the_test():
    data = DigitsTask(clients=5).load()
    parts = (
        pictures(data),
        data.evaluation[""],
        data.validation,
        digit_pictures(range(5), -BASE, SIZE),
    )
    held, test, validation, base = map(keys, parts)
    assert len(test) == TEST and len(validation) == 200 and len(held) == SIZE - TEST - BASE - 200
    assert len(base) == 270 and {label for _, label in base} == set(range(5))
    everything = held + test + validation + base
    assert len(set(everything)) == len(everything)
    other = DigitsTask(clients=5, seed=3).load()  # whoever draws otherwise keeps the test
    assert keys(other.evaluation[""]) == test and keys(other.validation) != validation
    assert data.notes[0] == (
        "697 training and 200 validation pictures of 897 in the train part, 400 test pictures of "
        "400, 10 classes"
    )
