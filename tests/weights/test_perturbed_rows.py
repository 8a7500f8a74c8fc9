"""Rows of a batch at weights of their own: each row's loss is that of the whole model moved along
its direction.
"""

from contextlib import nullcontext as nothing

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedseed import Basis, ParameterSpace
from fedseed.randomness.kernels import load
from fedseed.randomness.stream import Domain
from fedseed.weights import row_products
from fedseed.weights.perturbed_rows import RowsError
from fedseed.weights.row_losses import row_losses
from weights.test_perturbation import MODELS, SIDES, Shared, model_of


def inputs_of(name, rows):
    """What a model is called with; texts of different lengths, padded."""
    g = torch.Generator().manual_seed(1)
    if name in SIDES:
        return {"pixel_values": torch.randn(rows, 3, SIDES[name], SIDES[name], generator=g)}
    ids = torch.randint(2, 61, (rows, 9), generator=g)
    mask = (torch.arange(9)[None] < torch.tensor([9, 4, 7, 9, 2])[:rows, None]).long()
    ids = ids * mask + (1 - mask)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        **({"decoder_input_ids": ids[:, :5]} if name == "t5" else {}),
    }


def losses_of(model):
    """One loss for each row: of classes, or of tokens."""

    def losses(items):
        x = {k: torch.stack([item[k] for item in items]) for k in items[0]}
        if "pixel_values" in x:
            x["pixel_values"] = x["pixel_values"].to(model.dtype)
        logits = model(**x).logits.float()
        if logits.dim() == 2:
            return cross_entropy(logits, torch.ones(len(items), dtype=torch.long), reduction="none")
        targets = torch.arange(logits.shape[1]).expand(logits.shape[:2]) % 3
        return cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(dim=1)

    return losses


DTYPES = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 4e-3}
MANY = [
    pytest.param(name, dtype, 1 + (i + j) % 2, marks=[pytest.mark.long] if j and i % 4 != j else [])
    for i, name in enumerate(MODELS)
    for j, dtype in enumerate(DTYPES)
]


@pytest.mark.parametrize(("name", "dtype", "rank"), MANY)
def test_losses_of_rows_are_those_of_the_model_moved_alone(name, dtype, rank):
    model = model_of(name).to(dtype).eval()
    space, basis = ParameterSpace(model, blocks=3), Basis("lowrank", 7, rank=rank)
    before, losses, inputs = space.digest(), losses_of(model), inputs_of(name, 5)
    items = [{k: v[i] for k, v in inputs.items()} for i in range(5)]
    directions, scales = [3, 8, 3, 0, 3], [0.05, -0.05, 0.05, 0.1, -0.02]  # rows 0 and 2 share one
    with torch.no_grad():
        plain = losses(items)
        alone = []
        for item, k, scale in zip(items, directions, scales, strict=True):
            with space.perturbed(basis, k, scale):
                alone.append(losses([item]))
    found = row_losses(space, losses, items, basis, directions, scales)
    assert space.rows.reason is None  # one pass: nothing fell back
    assert space.digest() == before
    torch.testing.assert_close(found, torch.cat(alone), rtol=0, atol=DTYPES[dtype])
    assert "forward" not in vars(model)
    assert float((found - plain).abs().max()) > DTYPES[dtype]


@pytest.mark.parametrize("basis", [Basis("lowrank", 3), Basis("rademacher", 3)])
def test_what_cant_be_mapped_takes_a_pass_for_each_direction(basis):
    """`.data`, which vmap refuses; a basis that has no factors."""
    torch.manual_seed(0)
    model, x, directions = Shared().eval(), torch.randn(4, 5, 8), [1, 2, 1, 3]
    space = ParameterSpace(model)
    alone = []
    with torch.no_grad():
        for i, k in enumerate(directions):
            with space.perturbed(basis, k, 0.1):
                alone.append(model(x[i : i + 1]).mean())
    losses = lambda items: model(torch.stack(list(items))).mean(dim=(1, 2))  # noqa: E731
    # known by then
    for said in (pytest.warns(UserWarning) if basis.name == "lowrank" else nothing(), nothing()):
        with said:
            found = row_losses(space, losses, list(x), basis, directions, 0.1)
        torch.testing.assert_close(found, torch.stack(alone))
    assert space.rows.problem(basis)
    with (
        pytest.raises(RowsError, match="weights of their own"),
        space.perturbed_rows(basis, directions, 0.1),
    ):
        pass


class Mixing(torch.nn.Module):
    """Batch norm over the batch as it is; a head that another function uses."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
        self.flat = torch.nn.Conv1d(6, 3, 1, bias=False)
        self.head = torch.nn.Parameter(torch.randn(3, 5))

    def forward(self, x):
        return torch.matmul(self.flat(self.up(x).flatten(2)).mean(-1), self.head)


@pytest.mark.parametrize(("rank", "short"), [(1, True), (2, True), (2, False)])
def test_convolutions_in_groups_and_products_written_by_hand(rank, short, monkeypatch):
    """`short`: without torch's own dispatch, and with it, as where another version has none of what
    that needs.
    """
    monkeypatch.setattr(row_products, "SHORT", short)
    torch.manual_seed(0)
    model, x, basis = Mixing(), torch.randn(3, 4, 6, 6), Basis("lowrank", 3, rank=rank)
    space = ParameterSpace(model)
    alone = []
    with torch.no_grad():
        for i in range(3):
            with space.perturbed(basis, i, 0.3):
                alone.append(model(x[i : i + 1]))
    with space.perturbed_rows(basis, range(3), 0.3) as rows:
        found = model(x)
    assert rows.reason is None
    torch.testing.assert_close(found, torch.cat(alone))


def test_a_parameter_used_outside_of_the_model_is_an_error_not_a_wrong_number():
    model, x = Mixing(), torch.randn(3, 4, 6, 6)
    space, basis = ParameterSpace(model), Basis("lowrank")
    with space.perturbed_rows(basis, range(3), 0.3), pytest.raises(RowsError, match="outside"):
        model.up(x)
    with space.perturbed_rows(basis, range(5), 0.3), pytest.raises(RowsError, match="5 rows"):
        model(x)
    with pytest.raises(ValueError, match="one direction and one scale is needed for every row"):
        space.perturbed_rows(basis, [1, 2], [0.1])


@pytest.mark.parametrize("name", ["cpu", "triton"])
def test_signs_are_the_references(name):
    if name == "triton":
        pytest.importorskip("triton")
    spec = Basis("lowrank", 1 << 40, rank=3).spec_on(ParameterSpace(Mixing()).layout.matrices)
    for domain in (Domain.LEFT, Domain.RIGHT, Domain.DIRECTION):
        expected = load("reference").signs(spec, [5, 0, 1 << 31], domain, 1001, 300)
        found = load(name).signs(spec, [5, 0, 1 << 31], domain, 1001, 300)
        np.testing.assert_array_equal(np.asarray(found), expected)
