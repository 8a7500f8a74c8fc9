"""Projections of a change, and its norms, block by block: in one piece or in many the same, and
what they should be.
"""

import itertools

import numpy as np
import pytest
import torch

from fedseed import Basis, ParameterSpace
from fedseed.weights import projection as module
from fedseed.weights.projection import Projection, change_norms, count_changed, project_change


def moved(dtype, blocks):
    """A space, its tensors as they were, and the change as a vector in double precision."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(9, 11), torch.nn.Linear(11, 3), torch.nn.Linear(3, 5)
    ).to(dtype)
    space = ParameterSpace(net, blocks)
    saved = space.snapshot()
    for number, p in enumerate(space.parameters):
        p.data.add_(torch.randn_like(p), alpha=0.1 * (number + 1))
    vector = torch.cat(
        [
            (s.float() - p.float()).detach().double().reshape(-1)
            for s, p in zip(saved, space.parameters, strict=True)
        ]
    )
    return space, saved, vector.numpy()


WAYS = [*itertools.product(["cpu"], [1 << 22, 7], ["one", "tensor", 4]), ("triton", 61, 4)]


@pytest.mark.parametrize("kernels, piece, blocks", WAYS)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "finer copies"])
def test_norms_and_products_of_a_change_whatever_its_pieces(
    kind, kernels, piece, blocks, monkeypatch
):
    """Finer copies may stand in the place of 16-bit weights.

    Triton's kernels take all pieces in one launch.
    """
    monkeypatch.setenv("FEDSEED_KERNELS", kernels)
    monkeypatch.setattr(module, "PIECE", piece)
    space, saved, change = moved(torch.float32 if kind == "float32" else torch.bfloat16, blocks)
    now = None
    if kind == "finer copies":
        now = [p.detach().float() + 2.0**-12 * (1 + n) for n, p in enumerate(space.parameters)]
        change = torch.cat(
            [(s.float() - w).double().reshape(-1) for s, w in zip(saved, now, strict=True)]
        ).numpy()
    bounds = list(itertools.pairwise(space.layout.boundaries))
    expected = [np.linalg.norm(change[a:b]) for a, b in bounds]
    np.testing.assert_allclose(change_norms(space.vector, saved, now), expected, rtol=1e-6)
    counts = [2 + b % 3 for b in range(len(bounds))]
    bases = Basis("truncated_normal", 5), Basis("lowrank", 5), Basis("hadamard", 5, size=8)
    for basis in bases[: 3 if kernels == "cpu" else 2]:  # the last takes an interpreter seconds
        nothing = Projection(space.vector, basis, counts)
        nothing.add(len(saved) - 1, torch.zeros(5), 0)  # to one block; to the others nothing at all
        assert [gamma.tolist() for gamma in nothing.finish()] == [[0] * count for count in counts]
        found = project_change(space.vector, saved, basis, counts, now)
        added = Projection(space.vector, basis, counts)
        for index, (s, w) in enumerate(zip(saved, now or space.parameters, strict=True)):
            added.add(index, s.float() - w.float(), 0)
        np.testing.assert_allclose(
            np.concatenate(added.finish()), np.concatenate(found), rtol=1e-5, atol=1e-6
        )
        for gamma, count, (a, b) in zip(found, counts, bounds, strict=True):
            v = np.stack(
                [basis.direction(k, a, b, b - a, space.layout.matrices) for k in range(count)]
            )
            np.testing.assert_allclose(
                gamma, v.astype(np.float64) @ change[a:b], rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("piece", [1 << 22, 4])
def test_how_many_16_bit_weights_have_moved(piece, monkeypatch):
    monkeypatch.setattr(module, "PIECE", piece)
    weights = [
        torch.ones(5),
        torch.ones(2, 5, dtype=torch.bfloat16),
        torch.ones(3, dtype=torch.float16),
    ]
    saved = [w.clone() for w in weights]
    assert count_changed(weights, saved) == (0, 13)
    weights[0] += 1  # float32: no part of it
    for at in (0, 3, 4, 9):
        weights[1].view(-1)[at] += 1
    weights[2] += 1
    assert count_changed(weights, saved) == (4 + 3, 13)
