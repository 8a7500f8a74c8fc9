"""Projections of a change, and its norms, block by block: in one piece or in many the same, and what they should be."""

import itertools

import numpy as np
import pytest
import torch

from fedseed import Basis, ParameterSpace
from fedseed.weights import projection as module
from fedseed.weights.projection import Projection, change_norms, count_moved, project_change


def moved(dtype, blocks):
    """A space, its tensors as they were, and the change as a vector in double precision."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(9, 11), torch.nn.Linear(11, 3), torch.nn.Linear(3, 5)).to(dtype)
    space = ParameterSpace(net, blocks)
    saved = space.snapshot()
    for number, p in enumerate(space.parameters):
        p.data.add_(torch.randn_like(p), alpha=0.1 * (number + 1))
    vector = torch.cat(
        [(s.float() - p.float()).detach().double().reshape(-1) for s, p in zip(saved, space.parameters, strict=True)]
    )
    return space, saved, vector.numpy()


@pytest.mark.parametrize("piece", [1 << 22, 30, 7])
@pytest.mark.parametrize("blocks", ["one", "tensor", 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_and_products_of_a_change_whatever_its_pieces(dtype, blocks, piece, monkeypatch):
    monkeypatch.setattr(module, "PIECE", piece)
    space, saved, change = moved(dtype, blocks)
    bounds = list(itertools.pairwise(space.layout.boundaries))
    expected = [np.linalg.norm(change[a:b]) for a, b in bounds]
    np.testing.assert_allclose(change_norms(space.vector, saved), expected, rtol=1e-6)
    counts = [2 + b % 3 for b in range(len(bounds))]
    for basis in (Basis("normal", 5), Basis("hadamard", 5, size=8)):
        found = project_change(space.vector, saved, basis, counts)
        for gamma, count, (a, b) in zip(found, counts, bounds, strict=True):
            v = np.stack([basis.direction(k, a, b, b - a) for k in range(count)]).astype(np.float64)
            np.testing.assert_allclose(gamma, v @ change[a:b], rtol=1e-4, atol=1e-5)


def test_room_for_differences_is_bounded(monkeypatch):
    """What is held at a time is a piece, whatever the tensor's size."""
    monkeypatch.setattr(module, "PIECE", 10)
    seen = [(lo, hi, len(part), part.untyped_storage().nbytes())
            for lo, hi, part in module.differences(torch.ones(25), torch.zeros(25))]  # fmt: skip
    assert seen == [(0, 10, 10, 40), (10, 20, 10, 40), (20, 25, 5, 40)]


def test_parts_are_added_with_their_scales_and_a_block_that_got_nothing_has_zeros():
    space, _, change = moved(torch.float32, "tensor")
    basis = Basis("rademacher", 5)
    products = Projection(space.vector, basis, [3] * len(space.layout.block_sizes))
    first = torch.from_numpy(change[:99].astype(np.float32))
    products.add(0, first, scale=0.5)
    products.add(0, first[:40], 10, 50, scale=-2.0)
    expected = 0.5 * change[:99]
    expected[10:50] -= 2.0 * change[:40]
    gammas = products.finish()
    v = np.stack([basis.direction(k, 0, 99, 99) for k in range(3)]).astype(np.float64)
    np.testing.assert_allclose(gammas[0], v @ expected, rtol=1e-4, atol=1e-5)
    for gamma in gammas[1:]:
        np.testing.assert_array_equal(gamma, np.zeros(3, dtype=np.float32))


@pytest.mark.parametrize("blocks", ["one", "tensor", 4])
def test_finer_copies_stand_in_the_place_of_16_bit_weights(blocks):
    space, saved, _ = moved(torch.bfloat16, blocks)
    now = [p.detach().float() + 2.0**-12 * (1 + n) for n, p in enumerate(space.parameters)]
    change = torch.cat([(s.float() - w).double().reshape(-1) for s, w in zip(saved, now, strict=True)]).numpy()
    bounds = list(itertools.pairwise(space.layout.boundaries))
    expected = [np.linalg.norm(change[a:b]) for a, b in bounds]
    np.testing.assert_allclose(change_norms(space.vector, saved, now), expected, rtol=1e-6)
    basis = Basis("rademacher", 5)
    for gamma, (a, b) in zip(project_change(space.vector, saved, basis, [2] * len(bounds), now), bounds, strict=True):
        v = np.stack([basis.direction(k, a, b, b - a) for k in range(2)]).astype(np.float64)
        np.testing.assert_allclose(gamma, v @ change[a:b], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("piece", [1 << 22, 4])
def test_how_many_16_bit_weights_have_moved(piece, monkeypatch):
    monkeypatch.setattr(module, "PIECE", piece)
    weights = [torch.ones(5), torch.ones(2, 5, dtype=torch.bfloat16), torch.ones(3, dtype=torch.float16)]
    saved = [w.clone() for w in weights]
    assert count_moved(weights, saved) == (0, 13)
    weights[0] += 1  # float32: no part of it
    for at in (0, 3, 4, 9):
        weights[1].view(-1)[at] += 1
    weights[2] += 1
    assert count_moved(weights, saved) == (4 + 3, 13)
