import builtins

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedseed.errors import RecipeError
from fedseed.tasks import DigitsTask
from fedseed.tasks.digits import BASE, BASE_CLASSES, SIZE, TEST, images, pictures_of_base
from fedseed.tasks.partition import Dirichlet


def keys(pictures):
    return [(p.pixels.tobytes(), p.label) for p in pictures]


def test_pixels_are_scikit_learns_scaled_to_bytes():
    pixels, labels = images()
    source, targets = load_digits(return_X_y=True)
    assert pixels.shape == (SIZE, 8, 8, 1) and pixels.dtype == np.uint8 and (pixels.min(), pixels.max()) == (0, 255)
    back = np.rint(pixels.reshape(SIZE, 64) / 255 * 16)
    assert sorted(map(tuple, np.c_[back, labels])) == sorted(map(tuple, np.c_[source, targets]))


def test_nobody_has_an_image_of_the_base_or_of_the_test():
    data = DigitsTask(clients=5).load()
    held = [key for client in data.clients for key in keys(client.examples)]
    test, validation, base = keys(data.evaluation[""]), keys(data.validation), keys(pictures_of_base())
    assert len(test) == TEST and len(validation) == 200 and len(held) == SIZE - TEST - BASE - 200
    assert len(base) == 270 and {label for _, label in base} == set(range(5)) == set(BASE_CLASSES)
    everything = held + test + validation + base
    assert len(set(everything)) == len(everything)
    other = DigitsTask(clients=5, seed=3).load()  # whoever draws otherwise keeps the test
    assert keys(other.evaluation[""]) == test and keys(other.validation) != validation
    assert data.notes[0] == (
        "697 training and 200 validation pictures of 897 in the train part, 400 test pictures of 400, 10 classes"
    )


def test_some_classes_only():
    data = DigitsTask(clients=2, classes=[7, 5], partition=Dirichlet(alpha=1.0), validation=20).load()
    assert data.classes == ("7", "5")
    everything = keys(DigitsTask(validation=0).load().evaluation[""])
    sevens = [(pixels, 0) for pixels, label in everything if label == 7]
    assert [key for key in keys(data.evaluation[""]) if key[1] == 0] == sevens
    for classes in ([3], [1, 1], [1, 10], []):
        with pytest.raises(RecipeError, match=r"task.classes = .*: two or more different digits"):
            DigitsTask(classes=classes).load()


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RecipeError, match=r"it needs scikit-learn.*pip install '.\[digits\]'"):
        DigitsTask().load()
