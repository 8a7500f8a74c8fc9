import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedseed.weights.layout import Layout, TensorEntry, cut
from fedseed.weights.vector import Vector


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20).filter(any), st.integers(1, 30))
def test_blocks_cover_the_vector_once(sizes, count):
    total = sum(sizes)
    for rule in ("one", "tensor", "packed", min(count, total)):
        bounds = cut(sizes, rule)
        assert bounds[0] == 0 and bounds[-1] == total
        assert all(a < b for a, b in itertools.pairwise(bounds))
    lengths = [b - a for a, b in itertools.pairwise(bounds)]
    assert len(lengths) == min(count, total) and max(lengths) - min(lengths) <= 1


def test_tensor_rule_is_one_block_a_tensor():
    assert cut([3, 5, 2], "tensor") == (0, 3, 8, 10)


def test_packed_rule_gives_the_published_number_of_blocks():
    """DataJuicer-1.3B is a 24-layer LLaMA: the paper counts L = 194."""
    hidden, inner, vocabulary = 2048, 5504, 32000
    layer = [hidden * hidden] * 4 + [hidden * inner] * 3 + [hidden] * 2
    sizes = [vocabulary * hidden, *layer * 24, hidden, vocabulary * hidden]
    assert len(cut(sizes, "packed")) - 1 == 194


@pytest.mark.parametrize(
    ("bounds", "blocks"), [((0, 5, 9, 12), [0, None, 2]), ((0, 4, 11, 12), [0, 1, None])]
)
def test_the_only_block_of_a_tensor(bounds, blocks):
    """What reaches into a second block, with one element even, is of no single one."""
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in (4, 6, 2)]
    entries = tuple(TensorEntry(f"t{p.numel()}", (p.numel(),), "float32") for p in parameters)
    vector = Vector(parameters, Layout(entries, bounds))
    assert [vector.only_block(parameter) for parameter in parameters] == blocks
    assert parameters[2] in vector and parameters[2].data not in vector
    prepared = []  # once for each block
    for _ in vector.pieces(lambda _, block, length: prepared.append((block, length))):
        pass
    assert prepared == list(enumerate(vector.layout.block_sizes))
    one, bad = np.ones(1, dtype=np.float32), np.float32([1, np.nan])
    with pytest.raises(ValueError, match="NaN or infinite"):  # one of several is enough
        vector.per_block([one, one, bad])


def test_what_is_kept_for_the_next_time_is_what_it_was_kept_for():
    (tensor,) = parameters = [torch.nn.Parameter(torch.zeros(4))]
    vector = Vector(parameters, Layout((TensorEntry("t", (4,), "float32"),), (0, 4)))
    cpu, gpu = SimpleNamespace(TENSORS=False), SimpleNamespace(TENSORS=True)
    first = vector.operand(cpu, tensor)
    assert vector.operand(cpu, tensor) is first
    tensor.data = tensor.data + 1  # in other memory
    assert vector.operand(cpu, tensor).tolist() == [1] * 4
    assert torch.is_tensor(vector.operand(gpu, tensor))
    room = vector.scratch(5)
    assert (
        vector.scratch(5) is vector.scratch(3) is room
        and len(room) == 5
        and len(vector.scratch(6)) == 6
    )


@pytest.mark.parametrize("rule", [0, 11, "layers", True])
def test_wrong_rules_are_named(rule):
    with pytest.raises(ValueError, match="blocks = "):
        cut([4, 6], rule)


def test_layout_survives_json_and_refuses_wrong_boundaries():
    layout = Layout(
        (TensorEntry("a", (2, 3), "float32"), TensorEntry("b", (4,), "bfloat16")), (0, 7, 10)
    )
    data = json.loads(json.dumps(layout.to_json()))
    assert Layout.from_json(data) == layout
    assert layout.block_sizes == (7, 3) and layout.dense_bytes == 6 * 4 + 4 * 2
    for wrong in ([0, 7, 11], [0, 7, 7, 10], [1, 10], [0]):
        with pytest.raises(ValueError, match="boundaries"):
            Layout.from_json({**data, "boundaries": wrong})
