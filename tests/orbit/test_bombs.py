"""Somebody else's orbit: what it costs in memory is bounded by its length, whatever is in it."""

import json
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseed import FeedSign, Orbit, ParameterSpace
from fedseed.errors import OrbitError
from fedseed.orbit import Header, replay
from fedseed.orbit.file import begin, write_orbit
from fedseed.orbit.header import FORMAT, MAGIC
from fedseed.orbit.record import Record, link
from fedseed.randomness.stream import STREAM_VERSION
from fedseed.weights.digest import base_digest
from fedseed.weights.layout import Layout, TensorEntry
from support.memory import at_most

PER_BYTE, FREE = 700, 2 << 20  # bytes of memory
METHOD = FeedSign(batch=1)
LAYOUT = Layout((TensorEntry("w", (4,), "float32"),), (0, 4))
HEADER = Header("small", "00" * 16, "float32", LAYOUT, METHOD, 1)
TABLE = json.loads(zlib.decompress(HEADER.encode()[16:]))


def sealed(text):
    """An orbit of no steps with a description, its checksums right."""
    packed = zlib.compress(text, 9)
    start = struct.pack("<8sHHI", MAGIC, FORMAT, STREAM_VERSION, len(packed)) + packed
    return start + link(b"", start)


def random_letters(count):
    """Text that can't be compressed much: it pays for what stands beside it."""
    return np.random.default_rng(0).bytes(count * 3 // 4).hex()[:count]


VALUES = {
    "lists": b"[" + b",".join([b"[]"] * 1_000_000) + b"]",
    "objects": b"[" + b",".join([b"{}"] * 1_000_000) + b"]",
    "numbers": b"[" + b",".join(b"%d" % (i % 7) for i in range(1_500_000)) + b"]",
    "nested": b"[" * 1_000_000,
    "one text": b'"' + b"a" * 4_000_000 + b'"',
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("paid", [0, 60_000])
def test_a_header_that_inflates(kind, paid):
    text = b'{"paid": "%s", "x": %s}' % (random_letters(paid).encode(), VALUES[kind])
    data = sealed(text)
    with at_most(PER_BYTE * len(data) + FREE), pytest.raises(OrbitError, match="header") as caught:
        Orbit.parse(data)
    assert len(str(caught.value)) < 2000


def test_numbers_whose_products_take_hours():
    shape = [int("9" * 4000)] * 500
    for table in (
        {**TABLE, "layout": {"tensors": [["w", shape, "float32"]], "boundaries": [0, 4]}},
        {**TABLE, "layout": {"tensors": [["w", [1 << 62] * 65, "float32"]], "boundaries": [0, 4]}},
        {**TABLE, "layout": {"tensors": [["w", [4], "float32"]], "boundaries": [0, 1 << 63]}},
    ):
        data = sealed(json.dumps({**table, "paid": random_letters(60_000)}).encode())
        with (
            at_most(PER_BYTE * len(data) + FREE),
            pytest.raises(OrbitError, match="from 0 to 2"),
        ):
            Orbit.parse(data)


LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    LEAF,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
)


@given(
    key=st.sampled_from([*sorted(TABLE), "adapter", "classes", "digest_kind"]),
    value=JSON,
    times=st.integers(1, 3000),
)
@settings(deadline=None, max_examples=40)
def test_any_description_is_read_or_refused_in_bounded_memory(key, value, times):
    table = {**TABLE, key: [value] * times if times > 3 else value}
    data = sealed(json.dumps(table).encode())
    with at_most(PER_BYTE * len(data) + FREE):
        try:
            orbit = Orbit.parse(data)
            orbit.check_steps()
        except OrbitError as error:
            assert len(str(error)) < 2000


@pytest.mark.long
def test_a_bit_a_step_is_replayed_as_a_stream(tmp_path, monkeypatch):
    """2,048 steps in 256 bytes: neither they nor what becomes of them is in memory all at once."""
    net = fresh()
    layout = ParameterSpace(net, METHOD.blocks).layout
    path = tmp_path / "a.orbit"
    header = replace(HEADER, base_digest=base_digest(net), layout=layout)
    write_orbit(
        path, begin(header), [Record(1, np.random.default_rng(0).bytes(1 << 8), steps=1 << 11)]
    )
    with at_most(100 << 10):  # which a list of the steps alone exceeds
        orbit = Orbit.open(path)
    assert orbit.last == 1 << 11
    whole = orbit.replay(net, 1 << 11)
    monkeypatch.setattr(replay, "MAX_HELD_STEPS", 1 << 6)
    net = fresh()
    with at_most(1 << 19):
        assert orbit.replay(net) == whole


def fresh():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def test_a_large_models_header_is_far_from_the_bounds():
    names = [
        f"model.layers.{n}.mlp.experts.{e}.{p}_proj.weight"
        for n in range(30)
        for e in range(64)
        for p in "gud"
    ]
    tensors = tuple(TensorEntry(name, (2048, 7168), "bfloat16") for name in names)
    ends = tuple(2048 * 7168 * i for i in range(len(names) + 1))
    for boundaries in ((0, ends[-1]), ends):
        header = replace(HEADER, layout=Layout(tensors, boundaries))
        packed = header.encode()[16:]
        assert len(zlib.decompress(packed)) < 40 * len(packed) and Header.decode(packed) == header
