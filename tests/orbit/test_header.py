"""A header's bounds to the last value, what is written down of it and what not, and how two of them are compared."""

import json
import zlib
from dataclasses import replace

import pytest

from fedseed import FedKSeed, FeedSign
from fedseed.errors import OrbitError
from fedseed.models.adapters import LoRA
from fedseed.orbit import Header
from fedseed.orbit import header as module
from fedseed.orbit.header import AdapterStart
from fedseed.weights.layout import Layout, TensorEntry

LAYOUT = Layout((TensorEntry("w", (4,), "float32"), TensorEntry("none", (0, 3), "float32")), (0, 4))
PLAIN = Header("small", "00" * 16, "float32", LAYOUT, FeedSign(batch=1), 1)
FULL = replace(
    PLAIN, trainable=("a.*",), classes=("cat", "dog"), adapter=AdapterStart(LoRA(rank=2), "11" * 16),
    digest_kind="blake2b-tree", base_folder="/somewhere",
)  # fmt: skip


def table(header):
    return json.loads(zlib.decompress(header.encode()[16:]))


def decoded(header, **changes):
    """What is read of a header whose table was changed."""
    return read({**table(header), **changes})


def read(data):
    return Header.decode(zlib.compress(json.dumps(data).encode(), 9))


def test_what_is_usual_is_not_written_down_and_all_else_comes_back():
    usual = {"base", "base_digest", "dtype", "layout", "method", "seed"}
    assert table(PLAIN).keys() == usual
    assert table(FULL).keys() == usual | {"adapter", "base_folder", "classes", "digest_kind", "trainable"}
    for header in (PLAIN, FULL):
        assert Header.decode(header.encode()[16:]) == header
    text = zlib.decompress(PLAIN.encode()[16:])
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")).encode()


def test_numbers_at_their_bounds():
    for seed in (0, (1 << 64) - 1):
        assert decoded(PLAIN, seed=seed).seed == seed
    last = replace(PLAIN, method=FedKSeed())
    for first in (1, 2, (1 << 32) - 1):
        assert decoded(last, first=first).first == first
    assert decoded(PLAIN, first=1) == PLAIN
    for header, wrong, text in (
        (PLAIN, {"seed": -1}, "seed -1"), (PLAIN, {"seed": 1 << 64}, "seed 18446744073709551616"),
        (last, {"first": 0}, "a first step of 0"), (last, {"first": 1 << 32}, "a first step of 4294967296"),
        (PLAIN, {"first": 2}, "feedsign needs all steps from 1"), (PLAIN, {"dtype": "int8"}, "a base of dtype int8"),
        (PLAIN, {"digest_kind": "md5"}, "digests of kind 'md5'"),
    ):  # fmt: skip
        with pytest.raises(OrbitError, match=text):
            decoded(header, **wrong)
        with pytest.raises(OrbitError, match=f"no orbit can be written: .*{text}"):
            replace(header, **wrong).encode()


def test_layouts_at_their_bounds():
    def shaped(shape, boundaries=(0, 4), dtype="float32"):
        tensors = [["w", [2, 2], "float32"], ["other", shape, dtype]]
        return {"layout": {"tensors": tensors, "boundaries": list(boundaries)}}

    for shape in ([0, (1 << 63) - 1], [0, *[1] * 63], [0]):
        assert decoded(PLAIN, **shaped(shape)).layout.tensors[1].shape == tuple(shape)
    for wrong in ([0, *[1] * 64], "4", [0.0], [False], [0, -1], [0, 1 << 63]):
        with pytest.raises(OrbitError, match="a tensor's shape: at most 64 numbers"):
            decoded(PLAIN, **shaped(wrong))
    with pytest.raises(OrbitError, match="block boundaries: numbers"):
        decoded(PLAIN, **shaped([0], [0, 4.0]))
    with pytest.raises(OrbitError, match="tensors of unknown dtype: int8"):
        decoded(PLAIN, **shaped([0], dtype="int8"))
    for shape in ((-4,), (4, -1)):
        with pytest.raises(ValueError, match="negative side"):
            replace(PLAIN, layout=Layout((TensorEntry("w", shape, "float32"),), LAYOUT.boundaries)).check()


def test_settings_at_their_bounds():
    """A compressed header has room for them; what is too long is refused before anything reads it."""
    data = table(FULL)
    for key in ("method", "adapter"):
        for more in (0, 1):
            long = {**data[key], "long": ""}
            long["long"] = "x" * (65_536 + more - len(json.dumps(long)))
            said = ""
            try:
                read({**data, key: long})
            except OrbitError as error:
                said = str(error)
            assert (f"{key}: more than 65,536 characters of settings" in said) == (more == 1)


def test_texts_and_values_at_their_bounds(monkeypatch):
    too_much = module._too_much
    packed = b"x" * 10
    most = (1 << 16) + 64 * 10
    assert too_much(packed, b"x" * most) is None
    assert too_much(packed, b"x" * (most + 1)) == f"{most + 1:,} bytes of text in 10 compressed ones"
    many = (1 << 12) + 4 * 10
    for kind in b",[{:":
        assert too_much(packed, bytes([kind]) * many) is None
        assert too_much(packed, bytes([kind]) * (many + 1)) == f"{many + 1:,} values in 10 compressed bytes"
    for name in ("_MOST_TEXT", "_MOST_VALUES"):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, 50)
            assert too_much(packed, b"," * 50) is None and too_much(packed, b"," * 51) is not None
    monkeypatch.setattr(module, "_MOST_WIDE", 50)
    for wide in ("é".encode(), rb"\u00e9"):
        assert too_much(packed, wide + b"x" * (50 - len(wide))) is None
        assert "characters beyond ASCII" in too_much(packed, wide + b"x" * (51 - len(wide)))
    assert too_much(packed, b"x" * 51) is None
    text = zlib.decompress(PLAIN.encode()[16:])
    monkeypatch.setattr(module, "_MOST_TEXT", len(text))
    assert Header.decode(PLAIN.encode()[16:]) == PLAIN
    monkeypatch.setattr(module, "_MOST_TEXT", len(text) - 1)
    with pytest.raises(OrbitError, match=f"{len(text):,} bytes of text"):
        PLAIN.encode()
    with pytest.raises(OrbitError, match=f"orbit header: .*{len(text):,} bytes of text"):
        Header.decode(zlib.compress(text, 9))


def test_differences_are_a_line_each():
    assert PLAIN.differences(PLAIN) == []
    elsewhere = replace(PLAIN, base="other", base_folder="/x", first=1)
    assert PLAIN.differences(elsewhere) == []  # the base counts by its digest
    assert PLAIN.differences(replace(PLAIN, base_digest="22" * 16)) == [f"base_digest: {'00' * 16}, {'22' * 16}"]
    other = replace(PLAIN, base_digest="22" * 16, digest_kind="blake2b-tree", dtype="float16", seed=9)
    assert PLAIN.differences(other) == [
        "digest_kind: blake2b, blake2b-tree", "dtype: float32, float16", "seed: 1, 9",
    ]  # fmt: skip
    smaller = Layout((TensorEntry("w", (4,), "float32"),), (0, 1, 4))
    assert PLAIN.differences(replace(PLAIN, layout=smaller)) == [
        "layout: 4 parameters in 2 tensors and 1 blocks, 4 parameters in 1 tensors and 2 blocks"
    ]
    assert PLAIN.differences(replace(PLAIN, method=FeedSign(batch=2))) == ["method.batch: 1, 2"]
    lines = PLAIN.differences(replace(PLAIN, method=FedKSeed(batch=1)))
    assert "method.name: feedsign, fedkseed" in lines and "method.candidates: not there, 4096" in lines
    assert "method.epsilon: None, not there" in lines and not any("method.batch" in line for line in lines)
