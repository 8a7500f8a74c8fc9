"""Files that every later version must read and replay, and write alike if they are of the newest
format.
"""

import json
import runpy
import zlib
from pathlib import Path

import pytest
import torch

from fedseed import Orbit
from fedseed.orbit import edit
from fedseed.orbit.header import FORMAT
from support.released import RELEASED
from support.tiers import mark, tiered

FOLDER = Path(__file__).with_name("golden")
MAKE = runpy.run_path(str(FOLDER / "make.py"))
DIGESTS = json.loads((FOLDER / "digests.json").read_text())


def test_every_released_method_with_an_orbit_has_one():
    methods = {Orbit.open(FOLDER / f"{name}.orbit").header.method.name for name in DIGESTS}
    assert methods == {
        m.model_fields["name"].default for m in RELEASED if not m().catch_up.replaces
    }
    assert set(DIGESTS) == {p.stem for p in FOLDER.glob("*.orbit")}


@pytest.mark.parametrize("name", DIGESTS)
def test_golden_orbits_are_read_and_replayed_to_their_digests(name):
    orbit = Orbit.open(FOLDER / f"{name}.orbit")
    orbit.check_steps()
    assert orbit.complete and len(orbit) == orbit.last == len(DIGESTS[name]) - 1
    for step, digest in enumerate(DIGESTS[name]):
        assert orbit.replay(MAKE["model"](MAKE["dtype_of"](name)), step) == digest
    assert orbit.replay(MAKE["model"](MAKE["dtype_of"](name)), check_all=True) == DIGESTS[name][-1]


@pytest.mark.parametrize("name", DIGESTS)
def test_the_writer_makes_the_same_bytes(name, tmp_path):
    golden = (FOLDER / f"{name}.orbit").read_bytes()
    start = Orbit.parse(golden).start
    assert MAKE["rewrite"](name, tmp_path / "a.orbit", start=start) == DIGESTS[name]
    assert (tmp_path / "a.orbit").read_bytes() == golden
    assert MAKE["rewrite"](name, tmp_path / "b.orbit") == DIGESTS[name]
    newest = int.from_bytes(golden[8:10], "little") == FORMAT
    # zlib-ng compresses in its own way: the header reads the same
    if newest and "ng" not in zlib.ZLIB_RUNTIME_VERSION:
        assert (tmp_path / "b.orbit").read_bytes() == golden
    old, new = Orbit.parse(golden), Orbit.open(tmp_path / "b.orbit")
    assert old.header == new.header and old.parts == new.parts and edit.differences(old, new) == []


@tiered({"name": DIGESTS, "dtype": ["float32", "bfloat16", "float16"]}, quick=3)
def test_the_reference_replays_to_the_same_bits(name, dtype, tmp_path, monkeypatch):
    digests = MAKE["rewrite"](name, tmp_path / "a.orbit", dtype)
    orbit = Orbit.open(tmp_path / "a.orbit")
    monkeypatch.setenv("FEDSEED_KERNELS", "reference")
    for step, digest in enumerate(digests):
        assert orbit.replay(MAKE["model"](getattr(torch, dtype)), step) == digest


@pytest.mark.long
@pytest.mark.parametrize("name", mark(DIGESTS, lambda name: name != "ferret-own"))
def test_triton_replays_to_the_same_bits(name, monkeypatch):
    """To the last step: the interpreter is slow."""
    pytest.importorskip("triton", reason="no triton for this platform")
    monkeypatch.setenv("FEDSEED_KERNELS", "triton")
    assert (
        Orbit.open(FOLDER / f"{name}.orbit").replay(MAKE["model"](MAKE["dtype_of"](name)))
        == DIGESTS[name][-1]
    )
