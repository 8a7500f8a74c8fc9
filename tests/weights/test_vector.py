"""Tensors as one vector in blocks: where they meet, worked out by hand."""

import numpy as np
import pytest
import torch

from fedseed.randomness import kernels
from fedseed.weights.layout import Layout, TensorEntry
from fedseed.weights.vector import Vector


def vector(sizes, boundaries):
    parameters = [torch.nn.Parameter(torch.arange(float(size))) for size in sizes]
    entries = tuple(TensorEntry(f"t{at}", (size,), "float32") for at, size in enumerate(sizes))
    return Vector(parameters, Layout(entries, boundaries))


@pytest.mark.parametrize(
    ("boundaries", "blocks"),
    [((0, 5, 9, 12), [0, None, 2]), ((0, 4, 12), [0, 1, 1]), ((0, 4, 11, 12), [0, 1, None]), ((0, 12), [0, 0, 0])],
)
def test_the_only_block_of_a_tensor(boundaries, blocks):
    made = vector((4, 6, 2), boundaries)
    assert [made.only_block(parameter) for parameter in made.parameters] == blocks
    assert [made.start_of(parameter) for parameter in made.parameters] == [0, 4, 10]


def test_which_elements_lie_in_which_block():
    made = vector((4, 6, 2), (0, 5, 9, 12))
    assert list(made.overlaps(3, 8)) == [(0, 0, 2), (1, 2, 6), (2, 6, 8)]
    assert list(made.overlaps(0, 12)) == [(0, 0, 5), (1, 5, 9), (2, 9, 12)]
    assert list(made.overlaps(5, 2)) == [(1, 0, 2)] and list(made.overlaps(9, 3)) == [(2, 0, 3)]
    assert list(made.overlaps(5, 0)) == []
    assert list(vector((12,), (0, 5, 5, 12)).overlaps(3, 4)) == [(0, 0, 2), (2, 2, 4)]  # none in an empty block


def test_pieces_by_tensor_and_block():
    made = vector((4, 0, 6, 2), (0, 5, 9, 12))
    found = [piece[:4] + piece[5:] for piece in made.pieces(lambda kernel, block, length: (block, length))]
    assert found == [
        (0, 0, 4, 0, (0, 5)), (2, 0, 1, 4, (0, 5)), (2, 1, 5, 5, (1, 4)), (2, 5, 6, 9, (2, 3)), (3, 0, 2, 10, (2, 3)),
    ]  # fmt: skip


def test_one_array_of_several_that_is_wrong_is_enough():
    made = vector((4, 6, 2), (0, 5, 9, 12))
    one = np.ones(2)
    for bad, text in (
        ([one, one[None], one], "1-D, or one 1-D array per block"),
        ([one, one, np.array([1, np.nan])], "NaN or infinite"),
        ([one, one], "2 arrays of coefficients for 3 blocks"),
    ):
        with pytest.raises(ValueError, match=text):
            made.per_block(bad)
    for scale in (np.nan, np.inf):
        with pytest.raises(ValueError, match=f"scale = {scale}: a finite number is needed"):
            made.preparing([], scale)
    assert [part.tolist() for part in made.per_block([])] == [[]] * 3
    assert [part.tolist() for part in made.per_block([1.0, 2.0])] == [[1.0, 2.0]] * 3


def test_memory_is_used_again_while_it_fits():
    made, cpu = vector((4, 6), (0, 10)), kernels.current("cpu")
    there = made.scratch(torch.float32, 10)
    assert made.scratch(torch.float32, 10) is there is made.scratch(torch.float32, 3)
    assert len(made.scratch(torch.float32, 11)) == 11 and made.scratch(torch.int32, 2).dtype == torch.int32
    parameter = made.parameters[0]
    first = made.operand(cpu, parameter)
    assert made.operand(cpu, parameter) is first and first.tolist() == [0, 1, 2, 3]
    parameter.data = torch.full((4,), 7.0)
    assert made.operand(cpu, parameter).tolist() == [7.0] * 4
    assert made.devices == vector((), (0,)).devices == (torch.device("cpu"),)
