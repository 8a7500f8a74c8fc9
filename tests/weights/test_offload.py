"""Copies that lie elsewhere: the same bits, however they are read, and chosen only where that suits."""

from itertools import pairwise

import pytest
import torch

from fedseed import Basis, ParameterSpace
from fedseed.weights import offload
from fedseed.weights.change import Rebuild, Term
from fedseed.weights.offload import InFile, InHostMemory, copies, offloaded, out_of_the_way

SHAPES = [(5, 1000), (3,), (0,), (70, 70), (1,), (2, 3, 5)]


def tensors(dtype):
    g = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=g).to(dtype) for shape in SHAPES]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [InFile, InHostMemory])
def test_what_is_read_back_is_what_was_kept(kind, dtype):
    there = tensors(dtype)
    kept = kind(there)
    expected = [t.clone() for t in there]
    for t in there:
        t.zero_()
    assert len(kept) == len(expected)
    for _ in range(2):  # again after all was given back
        for a, b in zip(kept, expected, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    kept.restore(there)
    assert all(torch.equal(a, b) for a, b in zip(there, expected, strict=True))


def test_mixed_dtypes_and_tensors_that_are_not_contiguous():
    there = [torch.randn(7, 3).bfloat16(), torch.randn(4, 6).t(), torch.randn(5).half()]
    expected = [t.clone() for t in there]
    kept = InFile(there)
    for t in there:
        t.zero_()
    kept.restore(there)
    assert all(torch.equal(a, b) for a, b in zip(there, expected, strict=True))
    assert len(InFile([torch.zeros(0)])) == 1 and list(InFile([])) == []


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 22])
def test_pieces_are_the_elements_in_order(monkeypatch, size):
    monkeypatch.setattr(offload, "PIECE", size)
    kept = InFile([torch.arange(3.0), torch.arange(10_000.0)])
    first, last = (3, 40) if size < 100 else (5, 9_999)
    parts = [(lo, hi, part.clone()) for lo, hi, part in kept.pieces(1, first, last)]
    assert parts[0][0] == first and parts[-1][1] == last
    assert all(a[1] == b[0] for a, b in pairwise(parts)) and all(hi - lo <= size for lo, hi, _ in parts)
    assert torch.equal(torch.cat([part for _, _, part in parts]), torch.arange(float(first), float(last)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("blocks", ["one", 3])
@pytest.mark.parametrize("basis", ["hadamard", "rademacher"])
def test_a_rebuild_from_a_file_has_the_bits_of_one_from_memory(monkeypatch, dtype, blocks, basis):
    """Whole tensors, in pieces, pieces that begin in the middle of a chunk, and a tensor that is not contiguous."""
    monkeypatch.setattr(offload, "PIECE", 9_973)
    ends = []
    for keep in (False, True):
        torch.manual_seed(3)
        made = [torch.randn(150, 300), torch.randn(50), torch.randn(210, 99).t(), torch.randn(11)]
        space = ParameterSpace(torch.nn.ParameterList([t.to(dtype) for t in made]), blocks)
        space.keep_base(keep)
        digests = []
        for scale in (0.3, -0.7):
            space.apply(Rebuild([Term(Basis(basis, 5, size=64), [0.5, -1.0, 2.0])], scale))
            digests.append(space.digest())
        space.restore_base()
        ends.append([*digests, space.digest()])
    assert ends[0] == ends[1] and len(set(ends[0])) == 3


def test_auto_takes_a_file_for_what_is_large_where_there_is_a_disk(monkeypatch):
    there = tensors(torch.float32)
    assert not out_of_the_way(there)  # not worth it
    monkeypatch.setattr(offload, "WORTH", 1000)
    monkeypatch.setattr(offload, "has_disk", lambda size: True)
    assert out_of_the_way(there) and out_of_the_way(there, often=True)
    assert isinstance(copies(there, "auto"), InFile)
    assert isinstance(copies(there, False), list) and isinstance(copies(there, True), InFile)
    monkeypatch.setattr(offload, "has_disk", lambda size: False)
    assert not out_of_the_way(there) and isinstance(copies(there, "auto"), list)


def test_a_disk_that_is_full_after_all(monkeypatch):
    def full(tensors):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(offload, "InFile", full)
    monkeypatch.setattr(offload, "out_of_the_way", lambda tensors, often: True)
    assert isinstance(copies(tensors(torch.float32), "auto"), list)
    with pytest.raises(OSError, match="No space left"):  # who asked for a file is told
        copies(tensors(torch.float32), True)


def test_a_gpus_copy_goes_to_its_host(monkeypatch):
    there = [torch.empty(10, device="meta")]  # what is on no CPU
    monkeypatch.setattr(offload, "WORTH", 1)
    assert out_of_the_way(there) and not out_of_the_way(there, often=True)
    monkeypatch.setattr(offload, "InHostMemory", lambda tensors: "host")
    assert offloaded(there) == "host"
