"""A base that is read from its safetensors files rebuilds the same bits as a copy in memory."""

import os

import pytest
import torch
from safetensors.torch import save_file

from fedseed import Basis, Federation
from fedseed.errors import FedseedError
from fedseed.models.stored import stored_weights
from fedseed.weights import space as spaces
from fedseed.weights import stored
from fedseed.weights.change import Add, Rebuild, Term
from fedseed.weights.space import ParameterSpace

ADDED = Rebuild([Term(Basis("hadamard", 3, 8), [0.5, -0.25, 0.0, 2.0])], scale=-0.01)


class Net(torch.nn.Module):
    """Tied embeddings, a strided matrix and a body with a prefix of its own."""

    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Embedding(40, 24), torch.nn.Linear(24, 24))
        self.lm_head = torch.nn.Linear(24, 40, bias=False)
        self.strided = torch.nn.Parameter(torch.randn(24, 6).T)
        self.lm_head.weight = self.model[0].weight
        self.to(dtype)


def base_in(folder, model, parts=1, **renamed):
    tensors = [
        (renamed.get(name, name), p.detach().contiguous().clone())
        for name, p in model.named_parameters()
    ]
    files = [folder / f"model-{number}.safetensors" for number in range(parts)]
    for number, file in enumerate(files):
        save_file(dict(tensors[number::parts]), file, metadata={"format": "pt"})
    return files


def moved(space):
    """Digests of the weights as they are rebuilt, put back and restored."""
    digests = []
    space.apply(ADDED)
    digests.append(space.digest())
    back = space.way_back()
    space.apply(Add([Term(Basis("rademacher", 5), [1.0])], 0.1))
    back()
    digests.append(space.digest())
    space.restore_base()
    return [*digests, space.digest()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("piece", [4 << 20, 64])
def test_a_base_in_files_has_the_bits_of_a_copy(tmp_path, monkeypatch, dtype, piece):
    monkeypatch.setattr(stored, "PIECE_BYTES", piece)
    copied, read = ParameterSpace(Net(dtype)), ParameterSpace(Net(dtype))
    copied.keep_base()
    read.keep_base(base_in(tmp_path, read.model, parts=2), least_bytes=0)
    assert read.base_bytes == 0 and copied.base_bytes == copied.layout.dense_bytes
    base = copied.digest()
    assert moved(read) == moved(copied)
    assert read.digest() == base


def test_a_base_of_more_precise_files_is_rounded_as_it_was_when_it_was_loaded(tmp_path):
    files = base_in(tmp_path, Net(torch.float32))
    copied, read = (ParameterSpace(Net(torch.bfloat16)) for _ in range(2))
    copied.keep_base()
    read.keep_base(files, least_bytes=0)
    assert read.base_bytes == 0
    assert moved(read) == moved(copied)


def test_names_in_files_may_lack_a_prefix_or_be_a_tied_tensors_other_name(tmp_path):
    space = ParameterSpace(Net(torch.float32))
    names = {
        "model.0.weight": "lm_head.weight",
        "model.1.weight": "1.weight",
        "model.1.bias": "roberta.model.1.bias",
    }
    space.keep_base(base_in(tmp_path, space.model, **names), least_bytes=0)
    assert space.base_bytes == 0
    base = space.digest()
    assert moved(space)[-1] == base


def test_copies_are_kept_of_what_no_file_has(tmp_path):
    space = ParameterSpace(Net(torch.float32))
    files = base_in(tmp_path, space.model)
    with torch.no_grad():  # a new head, say
        space.parameters[-1][0] += 1
    base = space.digest()
    space.keep_base(files, least_bytes=0)
    assert space.base_bytes == space.parameters[-1].nbytes
    assert moved(space)[-1] == base


def test_copies_are_kept_where_files_are_damaged_missing_or_anothers(tmp_path):
    space = ParameterSpace(Net(torch.float32))
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"\x05\0\0\0\0\0\0\0[1,2]")
    another = tmp_path / "another"
    another.mkdir()
    (other,) = base_in(another, torch.nn.Linear(3, 3))
    for files in ([damaged], [tmp_path / "none"], [other]):
        space.keep_base(files, least_bytes=0)
        assert space.base_bytes == space.layout.dense_bytes


def test_a_small_base_is_copied(tmp_path):
    space = ParameterSpace(Net(torch.float32))
    space.keep_base(base_in(tmp_path, space.model))
    assert space.base_bytes == space.layout.dense_bytes


def test_a_file_that_is_replaced_or_removed_is_read_all_the_same(tmp_path):
    space = ParameterSpace(Net(torch.float32))
    (file,) = base_in(tmp_path, space.model)
    space.keep_base([file], least_bytes=0)
    base = space.digest()
    (tmp_path / "new").write_bytes(bytes(file.stat().st_size))
    os.replace(tmp_path / "new", file)
    file.unlink()
    assert moved(space)[-1] == base


def test_a_file_that_is_overwritten_is_refused(tmp_path):
    space = ParameterSpace(Net(torch.float32))
    (file,) = base_in(tmp_path, space.model)
    space.keep_base([file], least_bytes=0)
    space.apply(ADDED)
    there = space.digest()
    with open(file, "r+b") as opened:
        opened.seek(-4, os.SEEK_END)
        opened.write(b"\1\2\3\4")
    # a clock's tick may be longer than this test has taken
    os.utime(file, ns=(0, 1))
    with pytest.raises(FedseedError, match=r"model-0.safetensors: .* overwritten"):
        space.apply(ADDED)
    assert space.digest() == there
    with pytest.raises(FedseedError, match="overwritten"):
        space.restore_base()


def test_a_sum_that_is_refused_changes_no_weight(tmp_path):
    space = ParameterSpace(Net(torch.float32))
    space.keep_base(base_in(tmp_path, space.model), least_bytes=0)
    space.apply(ADDED)
    there = space.digest()
    with pytest.raises(ValueError, match="NaN"):
        space.apply(Rebuild([Term(Basis("hadamard", 3, 8), [float("nan")])]))
    assert space.digest() == there


def test_the_files_of_a_model_are_found_by_its_index_or_name(tmp_path):
    model = Net(torch.float32)
    assert stored_weights(model) == []
    model.name_or_path = str(tmp_path)
    assert stored_weights(model) == []
    files = base_in(tmp_path, model, parts=2)
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "model-1.safetensors", "b": "model-0.safetensors"}}'
    )
    assert stored_weights(model) == files
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    assert stored_weights(model) == []
    model.name_or_path = "nobody/has-this"
    assert stored_weights(model) == []


def test_steps_from_the_base_are_taken_again_to_the_same_bits(tmp_path):
    basis = Basis("rademacher", 5)
    for dtype, rounding in (
        (torch.float32, None),
        (torch.bfloat16, None),
        (torch.bfloat16, (7, 1)),
    ):
        space = ParameterSpace(Net(dtype))
        files = base_in(tmp_path, space.model)
        assert not space.follow_steps(files) and space.way_back() is None  # small
        assert space.follow_steps(files, least_bytes=0) and space.base_bytes == 0
        base = space.digest()
        space.apply(Add((), 1.0))
        space.way_back()()
        assert space.digest() == base
        space.apply(Add([Term(basis, [1.0, 0.5])], 0.1))
        space.apply(Add([Term(basis, [1.0], 2)], 0.1, rounding))
        space.apply_adds([Add([Term(basis, [1.0], 3)], 0.1)])
        there, back = space.digest(), space.way_back()
        with torch.no_grad():
            for p in space.parameters:
                p.mul_(1.5)
        back()
        assert space.digest() == there
        # whatever is no step from the base can't be taken again
        space.restore(space.snapshot())
        assert space.way_back() is None
    other = ParameterSpace(Net(torch.float32))
    with torch.no_grad():
        other.parameters[0].add_(1)
    assert not other.follow_steps(files, least_bytes=0) and other.base_bytes == 0


STREAMING = [
    "method.streaming=true",
    "method.training.accumulation=1",
    "method.allocation=size",
    "method.put_back=steps",
]


@pytest.mark.parametrize(
    "recipe, settings",
    [
        ("small-fedkseed", ["method.steps=2"]),
        pytest.param(
            "small-fedkseed",
            ["method.steps=2", "method.small_steps=from-base"],
            marks=pytest.mark.long,
        ),
        pytest.param(
            "small-feedsign",
            ["method.small_steps=from-base", "method.basis=hadamard"],
            marks=pytest.mark.long,
        ),
        ("small-ferret", [*STREAMING, "method.training.steps=2", "method.directions=64"]),
    ],
)
def test_a_run_has_the_same_digest_with_and_without_a_copy(monkeypatch, recipe, settings):
    small = ["rounds=2", "task.clients=2", "task.examples=8", "federation.per_round=2"]
    small += ["task.families_per_client=1", "task.evaluation=1", "task.unseen=0"]
    small += ["evaluation.rouge=false", "evaluation.every=2", "method.batch=2"]
    if "ferret" in recipe:
        small[-1] = "method.training.batch=2"
    found = []
    for least in (spaces.LARGE_BYTES, 0):
        monkeypatch.setattr(spaces, "LARGE_BYTES", least)
        federation = Federation.from_file(recipe, [*small, "model.dtype=bfloat16", *settings])
        summary = federation.run().summary
        found.append((summary["weights_digest"], federation.worker.space.base_bytes))
    (with_copy, copied), (without, kept) = found
    assert with_copy == without and kept == 0
    assert ("ferret" in recipe) == (copied == 0)
