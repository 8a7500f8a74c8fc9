import numpy as np
import pytest
import torch

from fedseed.errors import RecipeError
from fedseed.models.loading import load_model
from fedseed.objectives.classification import Images
from fedseed.tasks.data import Picture


def pictures(count, shape=(32, 32, 3), classes=3):
    rng = np.random.default_rng(1)
    return [Picture(rng.integers(0, 256, shape, dtype=np.uint8), i % classes) for i in range(count)]


@pytest.fixture(params=["vit", "resnet"])
def loaded(request, image_base):
    return load_model(str(image_base(request.param)))


def test_losses_in_a_batch_are_those_one_by_one(loaded):
    model, processor = loaded
    items = pictures(7)
    with torch.no_grad():
        together = Images(processor).losses(model, items)
        alone = torch.cat([Images(processor).losses(model, [item]) for item in items])
    assert together.shape == (7,) and together.dtype == torch.float32
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    assert together.std() > 0


def test_pixel_values_are_the_processors_own(loaded):
    _, processor = loaded
    items = pictures(5, (20, 30, 3))
    wanted = torch.cat([processor(images=item.pixels, return_tensors="pt")["pixel_values"] for item in items])
    objective = Images(processor)
    for _ in range(2):  # made, and kept
        assert torch.equal(objective.pixel_values(items), wanted)
    mixed = [items[3], items[3], *pictures(1), items[0]]  # kept ones, new ones and repeats
    assert torch.equal(objective.pixel_values(mixed)[[0, 1, 3]], wanted[[3, 3, 0]])


def test_grey_pictures_for_a_model_of_colours(loaded):
    _, processor = loaded
    grey = pictures(3, (16, 16, 1))
    colour = [Picture(np.repeat(p.pixels, 3, axis=2), p.label) for p in grey]
    objective = Images(processor)
    assert torch.equal(objective.pixel_values(objective.prepare(grey)), objective.pixel_values(colour))
    with pytest.raises(RecipeError, match="a picture has 4 channels, the model's image processor takes 3"):
        objective.prepare(pictures(1, (8, 8, 4)))
