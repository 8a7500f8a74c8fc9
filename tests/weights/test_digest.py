"""Digests: the same on every machine, with any number of threads, and as they have always been."""

import pytest
import torch

from fedseed import ParameterSpace
from fedseed.weights.digest import LEAF_BYTES, PIECE_BYTES, base_digest, hash_tensors
from weights.test_space import Tied


def numbered(dtype, *shape):
    """A tensor whose bytes are known: element i comes of i alone."""
    values = torch.arange(torch.Size(shape).numel()) * 37 % 251
    return (values % 2 if dtype == torch.bool else values).to(dtype).reshape(shape)


def awkward():
    """Tensors that end in a leaf, at its end, beyond a piece.

    Of one element, of none, with elements out of order.
    """
    leaf, piece = LEAF_BYTES // 2, PIECE_BYTES // 2  # elements of two bytes
    half = torch.float16
    return [
        ("empty", numbered(half, 0, 3)),
        ("scalar", numbered(torch.float32)),
        ("one", numbered(torch.bool, 1)),
        *((f"small.{i}", numbered(torch.bfloat16, 7 + i, 3)) for i in range(5)),
        ("a leaf", numbered(half, leaf)),
        ("a leaf and one", numbered(half, leaf + 1)),
        ("a piece but one", numbered(half, piece - 1)),
        ("a piece and a leaf and one", numbered(half, piece + leaf + 1)),
        ("turned", numbered(torch.float32, 300, 700).t()),
        ("every other", numbered(torch.int64, 40_000)[::2]),
        ("expanded", numbered(torch.float32, 1, 5).expand(4, 5)),
        ("a part", numbered(torch.bfloat16, 1000)[3:700]),
        ('n\u00e4me "quoted"|', numbered(torch.float32, 2)),
        ("empty too", numbered(half, 0)),
    ]


GOLDEN = {
    "blake2b": "e1ab1f6482c1db71cfaec92bd7fedbed",
    "blake2b-tree": "952c1c27093466d4e42b29a80fffe9ad",
}


@pytest.mark.parametrize("threads", [1, 3, None])
@pytest.mark.parametrize("kind", GOLDEN)
def test_digests_stay_what_they_are(kind, threads):
    """Orbits hold them; `weights/digest.py` has their definitions, by which these were made."""
    assert hash_tensors(awkward(), kind, threads) == GOLDEN[kind]


@pytest.mark.parametrize("kind", GOLDEN)
def test_of_a_model_all_that_is_saved_counts_once(kind):
    model = Tied()
    model.register_buffer("kept", torch.ones(3))
    model.register_buffer("left_out", torch.ones(3), persistent=False)
    saved = model.state_dict()
    del saved["output.weight"]  # the embedding's
    expected = hash_tensors(list(saved.items()), kind)
    assert base_digest(model, kind) == expected
    tuned = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    assert ParameterSpace(model, digest_kind=kind).digest() == hash_tensors(tuned, kind)
    model.left_out += 1
    assert base_digest(model, kind) == expected
    model.kept += 1
    assert base_digest(model, kind) != expected
