"""A header's bounds to the last value, and what is written down of it and what not."""

import json
import runpy
import zlib
from contextlib import nullcontext as nothing
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import model_validator

from fedseed import FedKSeed, FeedSign, Ferret, MeZO
from fedseed.errors import OrbitError
from fedseed.methods import REGISTRY
from fedseed.models.adapters import LoRA
from fedseed.orbit import Header
from fedseed.orbit import header as module
from fedseed.orbit.header import AdapterStart, chosen_settings
from fedseed.weights.dense_digest import dense_digest
from fedseed.weights.layout import Layout, TensorEntry

# orbits leave out settings that are as by default: so a default stays what it was when there were
# orbits of it
MADE = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "make_reference.py"))
LAYOUT = Layout((TensorEntry("w", (4,), "float32"), TensorEntry("none", (0, 3), "float32")), (0, 4))
PLAIN = Header("small", "00" * 16, "float32", LAYOUT, FeedSign(batch=1), 1)
FULL = replace(
    PLAIN,
    trainable=("a.*",),
    classes=("cat", "dog"),
    adapter=AdapterStart(LoRA(rank=2), "11" * 16),
    digest_kind="blake2b-tree",
    base_folder="/somewhere",
)


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
    assert table(FULL).keys() == usual | {
        "adapter",
        "base_folder",
        "classes",
        "digest_kind",
        "trainable",
    }
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
        (PLAIN, {"seed": -1}, "seed -1"),
        (PLAIN, {"seed": 1 << 64}, "seed 18446744073709551616"),
        (last, {"first": 0}, "the first step is 0"),
        (last, {"first": 1 << 32}, "the first step is 4294967296"),
        (PLAIN, {"first": 2}, "feedsign needs all steps from 1"),
        (PLAIN, {"dtype": "int8"}, "the base has dtype int8"),
        (
            PLAIN,
            {"digest_kind": "md5"},
            "digests of kind 'md5'; this version of fedseed knows blake2b, blake2b-tree",
        ),
    ):
        with pytest.raises(OrbitError, match=text):
            decoded(header, **wrong)
        with pytest.raises(OrbitError, match=f"no orbit can be written: .*{text}"):
            replace(header, **wrong).encode()


def test_what_a_header_may_hold_to_the_last_byte(monkeypatch):
    """Whatever the bounds are: at them it is read, one below it is refused."""
    tables = [
        table(FULL),
        {**table(PLAIN), "base": "b\u00e9b\u00e9"},
        {**table(PLAIN), "base": "b\u00e9b\u00e9"},
    ]
    for data, ascii_only in zip(tables, (True, True, False), strict=True):
        text = json.dumps(data, ensure_ascii=ascii_only).encode()
        packed, wide = zlib.compress(text, 9), data is not tables[0]
        values = sum(text.count(mark) for mark in (b",", b"[", b"{", b":"))
        settings = max(len(json.dumps(data.get(key))) for key in ("method", "adapter"))
        for name, bound, refuses in (
            ("_FREE_TEXT", len(text) - 64 * len(packed), True),
            ("_MOST_TEXT", len(text), True),
            ("_FREE_VALUES", values - 4 * len(packed), True),
            ("_MOST_VALUES", values, True),
            ("_MOST_WIDE", len(text), wide),
            ("_MOST_SETTINGS", settings, True),
        ):
            monkeypatch.setattr(module, name, bound)
            assert Header.decode(packed).base == data["base"]
            monkeypatch.setattr(module, name, bound - 1)
            with pytest.raises(OrbitError) if refuses else nothing():
                Header.decode(packed)
            monkeypatch.undo()


def test_a_layout_that_is_none_and_a_method_that_is_unknown(monkeypatch):
    assert (
        decoded(
            PLAIN, layout={"tensors": [["w", [1] * 64, "float32"]], "boundaries": [0, 1]}
        ).layout.size
        == 1
    )
    for shape in ({}, [2.0], [True], [1 << 63], [1] * 65):
        with pytest.raises(OrbitError, match="a tensor's shape must have at most 64 numbers"):
            decoded(PLAIN, layout={"tensors": [["w", shape, "float32"]], "boundaries": [0, 4]})
    with pytest.raises(OrbitError, match="tensors of unknown dtype: int8"):
        decoded(PLAIN, layout={"tensors": [["w", [4], "int8"]], "boundaries": [0, 4]})
    monkeypatch.setattr(REGISTRY, "broken", lambda: {"lost": "why"})
    monkeypatch.setattr(REGISTRY, "unknown", lambda name: "its file is broken")
    for name, text in (
        ("x", r"'x' is unknown here \(.*feedsign.*--plugin"),
        ("lost", "is 'lost': its file is broken"),
    ):
        with pytest.raises(OrbitError, match=text):
            decoded(PLAIN, method={"name": name})


def test_format_2_called_a_learning_rate_rate(monkeypatch):
    def old(**method):
        return Header.decode(
            zlib.compress(json.dumps({**table(PLAIN), "method": method}).encode()), 2
        ).method

    assert old(name="feedsign", rate=0.5).learning_rate == 0.5
    assert old(name="ferret", training={"rate": 0.25}).training.learning_rate == 0.25
    with pytest.raises(OrbitError, match="rate"):
        decoded(PLAIN, method={"name": "feedsign", "rate": 0.5})
    monkeypatch.setattr(REGISTRY, "find", lambda name: Odd)  # of a plug-in
    assert (old(name="odd", rate=0.5).rate, Odd().rate) == (0.5, 1.0)


def test_what_tells_two_headers_apart():
    assert PLAIN.differences(replace(PLAIN, base="elsewhere", base_folder="/x", first=2)) == []
    tree = {
        "digest_kind": "blake2b-tree",
        "base_digest": "11" * 16,
        "dtype": "bfloat16",
        "classes": ("cat",),
    }
    other, kind = (
        replace(PLAIN, **tree, method=FeedSign(batch=2)),
        "digest_kind: blake2b, blake2b-tree",
    )
    apart = ["dtype: float32, bfloat16", "method.batch: 1, 2", "classes: (), ('cat',)"]
    assert PLAIN.differences(other) == [kind, *apart]
    base = f"base_digest: {'00' * 16}, {'11' * 16}"
    assert PLAIN.differences(replace(other, digest_kind="blake2b")) == [base, *apart]
    ferret = replace(PLAIN, method=Ferret(), layout=Layout(LAYOUT.tensors, (0, 1, 4)))
    found, back = PLAIN.differences(ferret), ferret.differences(PLAIN)
    assert (
        found[0]
        == "layout: 4 parameters in 2 tensors and 1 blocks, 4 parameters in 2 tensors and 2 blocks"
    )
    nothing_there = "method.training.schedule: "
    assert f"{nothing_there}not there, None" in found and f"{nothing_there}None, not there" in back
    assert ferret.start().layout is ferret.layout and ferret.start().seed == 1
    for header in (PLAIN, other):
        assert header.digest_of(bytes(16)) == dense_digest(LAYOUT, bytes(16), header.digest_kind)
    assert PLAIN.of_recipe(other.method, 5, "blake2b-tree") == replace(
        PLAIN, method=other.method, seed=5, digest_kind="blake2b-tree"
    )


class Odd(FeedSign):
    """Settings that are others if a default is not written down."""

    name: str = "odd"
    rate: float = 1.0

    @model_validator(mode="before")
    @classmethod
    def _other(cls, data):
        return {"rate": 2.0, **data} if "batch" in data else data


def test_settings_that_can_not_be_read_back_without_a_default_have_all():
    assert chosen_settings(Odd(batch=2, rate=1.0)) == Odd(batch=2, rate=1.0).model_dump()


def test_defaults_that_orbits_leave_out_are_what_they_were():
    changed = MADE["changed_defaults"]()
    assert not changed, "\n".join(changed)
    assert json.loads(MADE["DEFAULTS"].read_text()) == MADE["defaults"](), (
        "new settings: run scripts/make_reference.py"
    )


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        (Ferret(), {"name": "ferret"}),
        (MeZO(learning_rate=0.5, population=1), {"name": "mezo", "learning_rate": 0.5}),
        (
            Ferret(training={"steps": 3, "schedule": "cosine"}),
            {"name": "ferret", "training": {"steps": 3, "schedule": {"kind": "cosine"}}},
        ),
        (LoRA(), {"kind": "lora"}),
    ],
)
def test_what_is_as_by_default_is_not_written(settings, written):
    assert chosen_settings(settings) == written
    assert type(settings).model_validate(written) == settings
