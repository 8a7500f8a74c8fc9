"""Digests: the same on every machine, with any number of threads, and as they have always been."""

import pytest
import torch

from fedseed.models import adapters
from fedseed.weights.digest import LEAF_BYTES, PIECE_BYTES, base_digest, hash_tensors

KINDS = ["blake2b", "blake2b-tree"]


def numbered(dtype, *shape):
    """A tensor whose bytes are known: element i comes of i alone."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) * 37 % 251 % 2 if dtype == torch.bool else torch.arange(count) * 37 % 251).to(
        dtype
    ).reshape(shape)  # fmt: skip


def awkward():
    """Tensors that end in a leaf, at its end, beyond a piece; of one element, of none, with elements out of order."""
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
        ("n\u00e4me \"quoted\"|", numbered(torch.float32, 2)),
        ("empty too", numbered(half, 0)),
    ]  # fmt: skip


GOLDEN = {
    "blake2b": "e1ab1f6482c1db71cfaec92bd7fedbed",
    "blake2b-tree": "952c1c27093466d4e42b29a80fffe9ad",
}


@pytest.mark.parametrize("threads", [1, 3, None])
@pytest.mark.parametrize("kind", KINDS)
def test_digests_stay_what_they_are(kind, threads):
    """Orbits hold them; `weights/digest.py` has their definitions, by which these were made."""
    assert hash_tensors(awkward(), kind, threads) == GOLDEN[kind]


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 4)
        self.second = torch.nn.Linear(6, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("kept", torch.ones(3))
        self.register_buffer("left_out", torch.ones(3), persistent=False)


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_model_all_that_is_saved_counts_once(kind):
    torch.manual_seed(0)
    model = Tied()
    named = [("first.weight", model.first.weight), ("first.bias", model.first.bias), ("kept", model.kept)]
    by_name = dict(named)
    order = [name for name in model.state_dict() if name in by_name]
    expected = hash_tensors([(name, by_name[name]) for name in order], kind)
    assert base_digest(model, kind) == expected
    model.left_out += 1
    assert base_digest(model, kind) == expected
    model.kept += 1
    assert base_digest(model, kind) != expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_base_inside_an_adapted_model_keeps_its_digest(kind, masked_base):
    from fedseed.models.loading import load_model

    model, _ = load_model(str(masked_base))
    before = base_digest(model, kind)
    adapted = adapters.install(model, adapters.LoRA(rank=2), 1)
    assert adapters.base_digest(adapted, kind) == before
