import pytest
import torch

from fedseed.errors import RecipeError
from fedseed.models.heads import Head, head_parameters
from fedseed.models.loading import load_model
from fedseed.weights.digest import base_digest

TEN = Head(tuple(f"class {i}" for i in range(10)), seed=7)
OWN = ("thing 0", "thing 1", "thing 2")


@pytest.fixture(params=["vit", "resnet"])
def kind(request):
    return request.param


def head_of(model):
    parameters = dict(model.named_parameters())
    return [parameters[name] for name in head_parameters(model, "x")]


def rest_of(model):
    head = {id(p) for p in head_of(model)}
    return {n: t for n, t in model.state_dict(keep_vars=True).items() if id(t) not in head}


def test_the_backbone_is_kept_and_the_head_is_new(image_base, kind):
    folder = str(image_base(kind))
    base, _ = load_model(folder)
    model, _ = load_model(folder, head=TEN)
    assert model.config.id2label[9] == "class 9" and model.config.num_labels == 10
    weight, bias = head_of(model)
    assert weight.shape == (10, 16) and not bias.any()
    assert 0.7 * 0.02 < weight.std() < 1.3 * 0.02 and abs(weight.mean()) < 0.01
    theirs = rest_of(model)
    assert all(torch.equal(t, theirs[n]) for n, t in rest_of(base).items()) and len(theirs) == len(
        rest_of(base)
    )


def test_the_bases_own_head_is_kept_for_its_own_classes(image_base, kind):
    folder = str(image_base(kind))
    base, _ = load_model(folder)
    for classes in (OWN, OWN[::-1], ("Thing_0", "THING 1", "thing-2"), ("0", "1", "2")):
        same, _ = load_model(folder, head=Head(classes, 7))
        assert base_digest(same) == base_digest(base)
        assert list(same.config.id2label.values()) == list(OWN)
    other, _ = load_model(folder, head=Head(("a", "b", "c"), 7))  # as many, but others
    assert base_digest(other) != base_digest(base)
    assert not torch.equal(head_of(other)[0], head_of(base)[0])


def test_a_backbone_without_a_head(image_base, kind):
    folder = str(image_base(kind, backbone=True))
    with_head, _ = load_model(str(image_base(kind)), head=TEN)
    assert base_digest(load_model(folder, head=TEN)[0]) == base_digest(with_head)
    with pytest.raises(RecipeError, match=r"its files do not have all weights .*classifier"):
        load_model(folder, architecture="image")
