"""Copies that lie elsewhere: the same bits, however they are read, and chosen only where that suits."""

import pytest
import torch

from fedseed import Basis, ParameterSpace
from fedseed.weights import offload
from fedseed.weights.change import Rebuild, Term
from fedseed.weights.offload import InFile, InHostMemory, copies, offloaded, out_of_the_way

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(5, 1000), (3,), (0,), (70, 70), (1,), (2, 3, 5)]


def tensors():
    """Of all dtypes, the last one not contiguous."""
    g = torch.Generator().manual_seed(1)
    made = [torch.randn(shape, generator=g).to(dtype) for shape, dtype in zip(SHAPES, DTYPES * 2, strict=True)]
    return [*made, torch.randn(4, 6, generator=g).t()]


@pytest.mark.parametrize("kind", [InFile, InHostMemory])
def test_what_is_read_back_is_what_was_kept(kind):
    there = tensors()
    kept = kind(there)
    expected = [t.clone() for t in there]
    for t in there:
        t.zero_()
    for _ in range(2):  # again after all was given back
        for a, b in zip(kept, expected, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


@pytest.mark.parametrize(
    ("dtype", "blocks", "basis"), [(torch.float32, 3, "rademacher"), (torch.bfloat16, "one", "hadamard")]
)
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
    there = tensors()
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
    assert isinstance(copies(tensors(), "auto"), list)
    with pytest.raises(OSError, match="No space left"):  # who asked for a file is told
        copies(tensors(), True)


def test_a_gpus_copy_goes_to_its_host(monkeypatch):
    there = [torch.empty(10, device="meta")]  # what is on no CPU
    monkeypatch.setattr(offload, "WORTH", 1)
    assert out_of_the_way(there) and not out_of_the_way(there, often=True)
    monkeypatch.setattr(offload, "InHostMemory", lambda tensors: "host")
    assert offloaded(there) == "host"
