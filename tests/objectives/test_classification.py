"""Classification of texts and pictures: logits are transformers', heads the shared stream's, F1 is
scikit-learn's.
"""

import numpy as np
import pytest
import torch
from transformers import CanineConfig, CanineForSequenceClassification, CanineTokenizer

from fedseed import Basis, ParameterSpace
from fedseed.errors import RecipeError
from fedseed.models.heads import Head
from fedseed.models.loading import load_model
from fedseed.models.traits import traits_of
from fedseed.objectives.classification import Images, TextClasses
from fedseed.objectives.evaluation import choice_metrics
from fedseed.randomness import Domain, derive
from fedseed.tasks.data import Choice, Picture
from fedseed.tasks.metrics import macro_f1
from support.text_bases import write

OPTIONS = (" negative", " positive")
TEXTS = ["the film was great", "bad", "a fine story and not at all bad", "terrible film"]
EXAMPLES = [Choice(f"{text}\nLabel:", OPTIONS, i % 2, text=text) for i, text in enumerate(TEXTS)]
HEAD = Head(("negative", "positive"), 7)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {
        kind: str(write(tmp_path_factory.mktemp("texts") / kind, kind))
        for kind in ("bert", "llama")
    }


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_losses_are_transformers_in_any_batch(folders, kind):
    model, tokenizer = load_model(folders[kind], architecture="classification", head=HEAD)
    objective = TextClasses(tokenizer)
    items = objective.prepare(EXAMPLES)
    expected = []
    for example in EXAMPLES:
        ids = tokenizer(example.text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            expected.append(float(model(input_ids=ids, labels=torch.tensor([example.gold])).loss))
    with torch.no_grad():
        assert objective.losses(model, items).tolist() == pytest.approx(expected, rel=1e-5)
        assert [float(objective.losses(model, [item])) for item in items] == pytest.approx(
            expected, rel=1e-5
        )
        space = ParameterSpace(model)
        basis = Basis("rademacher", seed=3)
        with space.perturbed(basis, 1, 0.02):
            seen = objective.losses(model, items)
        space.add(basis, [1.0], 0.02, first=1)
        assert torch.allclose(seen, objective.losses(model, items), rtol=1e-5)


def test_a_new_head_and_a_pooler_come_from_the_seed(folders):
    model, _ = load_model(folders["bert"], architecture="classification", head=HEAD)
    # as a replay loads it: the orbit names the classes
    again, _ = load_model(folders["bert"], head=HEAD)
    other, _ = load_model(
        folders["bert"], architecture="classification", head=Head(HEAD.classes, 8)
    )
    drawn = [
        "classifier.weight",
        "classifier.bias",
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
    ]
    basis = Basis("normal", derive(7, Domain.HEAD))
    for name, p in model.named_parameters():
        new, bias = name in drawn, name.endswith("bias")
        assert torch.equal(p, again.get_parameter(name)) and not (new and bias and p.any())
        assert torch.equal(p, other.get_parameter(name)) == (not new or bias)
        if new and not bias:
            expected = basis.direction(drawn.index(name), 0, p.numel()) * np.float32(0.3)
            assert np.array_equal(p.detach().numpy().reshape(-1), expected)
    assert model.config.id2label == {0: "negative", 1: "positive"}


def test_metrics(folders):
    from sklearn.metrics import f1_score

    model, tokenizer = load_model(folders["bert"], architecture="classification", head=HEAD)
    objective = TextClasses(tokenizer)
    objective.batch = 3
    with torch.no_grad():
        found = objective.scores(model, objective.prepare(EXAMPLES)).argmax(1).tolist()
    gold = [example.gold for example in EXAMPLES]
    metrics = choice_metrics(model, objective, objective.prepare(EXAMPLES))
    assert metrics["accuracy"] == 100 * np.mean(np.equal(found, gold))
    assert metrics["macro_f1"] == pytest.approx(100 * f1_score(gold, found, average="macro"))
    assert TextClasses(tokenizer, max_length=1).prepare(EXAMPLES) == []
    g = np.random.default_rng(0)
    for _ in range(20):
        right, said = g.integers(0, 5, 30), g.integers(0, 4, 30)
        expected = 100 * f1_score(right, said, average="macro")
        assert macro_f1(said.tolist(), right.tolist()) == pytest.approx(expected)
    with pytest.raises(ValueError, match="1 predictions for 2 references"):
        macro_f1([1], [1, 0])


# -- pictures
# ------------------------------------------------------------------------------------------------


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
    wanted = torch.cat(
        [processor(images=item.pixels, return_tensors="pt")["pixel_values"] for item in items]
    )
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
    assert torch.equal(
        objective.pixel_values(objective.prepare(grey)), objective.pixel_values(colour)
    )
    with pytest.raises(
        RecipeError, match="a picture has 4 channels, but the model's image processor takes 3"
    ):
        objective.prepare(pictures(1, (8, 8, 4)))


def test_texts_shorter_than_canines_convolution_are_padded_to_it():
    """CANINE reads four characters at a time; transformers raises an error for fewer."""
    config = CanineConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        num_hash_buckets=64,
        num_labels=2,
        local_transformer_stride=8,
    )
    torch.manual_seed(5)
    model = CanineForSequenceClassification(config).eval()
    traits_of(model).equal_lengths = True
    tokenizer = CanineTokenizer()
    objective = TextClasses(tokenizer, 64)
    texts = ["", "a", "ab", "no", "a longer text"]
    items = [item for text in texts for item in objective.items(Choice(text, ("no", "yes"), 0))]
    assert [len(item.ids) for item in items] == [2, 3, 4, 4, 15]
    with torch.no_grad():
        found = objective.scores(model, items)
        for item, logits in zip(items, found, strict=True):
            padded = tokenizer.pad(
                {"input_ids": [list(item.ids)]},
                padding="max_length",
                max_length=max(4, len(item.ids)),
                return_tensors="pt",
            )
            torch.testing.assert_close(model(**padded).logits[0], logits)
