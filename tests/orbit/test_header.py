"""A header's bounds to the last value, and what is written down of it and what not."""

import json
import runpy
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from fedseed import FedKSeed, FeedSign, Ferret, MeZO
from fedseed.errors import OrbitError
from fedseed.models.adapters import LoRA
from fedseed.orbit import Header
from fedseed.orbit.header import AdapterStart, chosen
from fedseed.weights.layout import Layout, TensorEntry

# orbits leave out settings that are as by default: so a default stays what it was when there were orbits of it
MADE = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "make_reference.py"))
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


def test_defaults_that_orbits_leave_out_are_what_they_were():
    changed = MADE["changed_defaults"]()
    assert not changed, "\n".join(changed)
    assert json.loads(MADE["DEFAULTS"].read_text()) == MADE["defaults"](), "new settings: run scripts/make_reference.py"


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        (Ferret(), {"name": "ferret"}),
        (MeZO(learning_rate=0.5, population=1), {"name": "mezo", "learning_rate": 0.5}),
        (Ferret(training={"steps": 3, "schedule": "cosine"}),
         {"name": "ferret", "training": {"steps": 3, "schedule": {"kind": "cosine"}}}),
        (LoRA(), {"kind": "lora"}),
    ],
)  # fmt: skip
def test_what_is_as_by_default_is_not_written(settings, written):
    assert chosen(settings) == written
    assert type(settings).model_validate(written) == settings
