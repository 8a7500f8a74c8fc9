"""Rollback, compaction, comparison, signatures; and the sizes that are promised."""

import os
import runpy
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedseed import FedKSeed, FeedSign, Orbit, ParameterSpace
from fedseed.errors import OrbitError
from fedseed.methods.fedkseed import Accumulated
from fedseed.methods.feedsign import Votes
from fedseed.orbit import NO_DIGEST, Header, OrbitWriter, Record, edit, signature
from fedseed.orbit.file import write_orbit
from fedseed.weights.digest import base_digest

FOLDER = Path(__file__).with_name("golden")
MAKE = runpy.run_path(str(FOLDER / "make.py"))
NAMES = sorted(path.stem for path in FOLDER.glob("*.orbit"))


@pytest.mark.parametrize("name", NAMES)
def test_rollback_to_any_step(name, tmp_path):
    source = FOLDER / f"{name}.orbit"
    before = source.read_bytes()
    whole = Orbit.open(source)
    whole.check_steps()
    for to in range(whole.last + 1):
        short = edit.rollback(source, to, tmp_path / f"{to}.orbit")
        assert (
            list(short.steps()) == list(whole.steps(to))
            and short.header == whole.header
            and not short.complete
        )
    assert source.read_bytes() == before
    with pytest.raises(OrbitError, match="exists: choose another file"):
        edit.rollback(source, 1, tmp_path / "1.orbit")
    with pytest.raises(OrbitError, match=f"steps 0 to {whole.last}"):
        edit.rollback(source, whole.last + 1, tmp_path / "x.orbit")
    assert not (tmp_path / "x.orbit").exists()


@pytest.mark.parametrize("name", NAMES)
def test_an_orbit_that_is_rolled_back_and_extended_is_the_one_it_was(name, tmp_path):
    whole = Orbit.open(FOLDER / f"{name}.orbit")
    edit.rollback(FOLDER / f"{name}.orbit", 2, tmp_path / "a.orbit")
    writer = OrbitWriter(tmp_path / "a.orbit", whole.header, resume=True)
    for record in whole.steps():
        if record.round > 2:
            writer.append(record)
    writer.close()
    assert (tmp_path / "a.orbit").read_bytes() == (FOLDER / f"{name}.orbit").read_bytes()
    writer = OrbitWriter(tmp_path / "a.orbit", whole.header, resume=True)
    with pytest.raises(OrbitError, match="complete, nothing can be added"):
        writer.append(Record(whole.last + 1, b""))
    writer.close()
    assert (tmp_path / "a.orbit").read_bytes() == (FOLDER / f"{name}.orbit").read_bytes()


def test_what_comes_before_damage_can_be_saved(tmp_path):
    data = bytearray((FOLDER / "fedkseed.orbit").read_bytes())
    data[-200] ^= 1  # in step 3
    (tmp_path / "a.orbit").write_bytes(data)
    with pytest.raises(OrbitError, match=r"step 3 is damaged.*; steps up to 2 can be saved"):
        edit.rollback(tmp_path / "a.orbit", 3, tmp_path / "b.orbit")
    assert edit.rollback(tmp_path / "a.orbit", 2, tmp_path / "b.orbit").last == 2


@pytest.mark.parametrize("name", ["fedkseed", "fedkseed-pro"])
def test_a_compacted_orbit_holds_the_final_model_only(name, tmp_path):
    whole = Orbit.open(FOLDER / f"{name}.orbit")
    small = edit.compact(FOLDER / f"{name}.orbit", tmp_path / "small.orbit")
    assert (
        small.complete and small.last == whole.last and len(small) == 1 and small.size < whole.size
    )
    base = MAKE["dtype_of"](name)
    assert small.replay(MAKE["model"](base)) == whole.replay(MAKE["model"](base))
    small.check_steps()
    for upto in (0, whole.last - 1):
        with pytest.raises(OrbitError, match=f"compacted, and its first step is {whole.last}"):
            small.replay(MAKE["model"](base), upto)
    data = (tmp_path / "small.orbit").read_bytes()
    for length in range(len(data)):  # here a cut between records is found, too
        with pytest.raises(OrbitError):
            Orbit.parse(data[:length])
    (only,) = small.parts
    for at, parts in (
        (0, [replace(only, steps=2)]),
        (1, [only, replace(only, round=only.last + 1)]),
    ):
        write_orbit(tmp_path / "small.orbit", small.start, parts)
        with pytest.raises(
            OrbitError, match=f"step {only.last + at}: a compacted orbit holds one step"
        ):
            Orbit.open(tmp_path / "small.orbit")
    (tmp_path / "small.orbit").write_bytes(small.start)
    with pytest.raises(
        OrbitError, match=f"step {whole.last} is cut off; an interrupted write can't be the cause"
    ):
        OrbitWriter(tmp_path / "small.orbit", small.header, resume=True)
    assert (tmp_path / "small.orbit").read_bytes() == small.start


def test_a_compacted_orbit_of_two_steps_is_one(tmp_path):
    edit.rollback(FOLDER / "fedkseed.orbit", 2, tmp_path / "two.orbit")
    small = edit.compact(tmp_path / "two.orbit", tmp_path / "small.orbit")
    assert small.header.first == small.last == 2
    with pytest.raises(
        OrbitError, match="step 0: this orbit is compacted, and its first step is 2"
    ):
        small.check_upto(0)
    (only,) = small.parts
    for parts, text in (
        ([], "step 2 is cut off"),
        ([replace(only, steps=2)], "step 2: a compacted orbit holds one step"),
    ):
        write_orbit(tmp_path / "small.orbit", small.start, parts)
        with pytest.raises(OrbitError, match=text):
            Orbit.open(tmp_path / "small.orbit")


def test_what_can_not_be_compacted(tmp_path):
    with pytest.raises(OrbitError, match="ferret needs all its steps"):
        edit.compact(FOLDER / "ferret-own.orbit", tmp_path / "a.orbit")
    edit.rollback(FOLDER / "fedkseed.orbit", 0, tmp_path / "empty.orbit")
    with pytest.raises(OrbitError, match="has no steps"):
        edit.compact(tmp_path / "empty.orbit", tmp_path / "a.orbit")


# -- sizes, on the small base
# --------------------------------------------------------------------------------------


def write(path, base, method, steps):
    """Writes an orbit as a run on this base does, and returns it."""
    header = Header(
        "small", base_digest(base), "float32", ParameterSpace(base, method.blocks).layout, method, 1
    )
    writer = OrbitWriter(path, header)
    for number, step in enumerate(steps, start=1):
        writer.append(Record(number, step.encode(), "12" * 16))
    writer.close()
    return Orbit.open(path)


def test_ten_thousand_feedsign_steps_take_2_kb(small, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    signs = np.random.default_rng(0).choice([-1, 1], 10_000).astype(np.int8)
    orbit = write(
        tmp_path / "a.orbit", small[0], FeedSign(), (Votes(signs[i : i + 1]) for i in range(10_000))
    )
    size = (tmp_path / "a.orbit").stat().st_size
    # header, one record, the end
    assert size == len(orbit.header.encode()) + 16 + (48 + 1250) + 48 <= 2000
    assert [r.payload for r in orbit.steps()] == [bytes([int(s > 0)]) for s in signs]


def test_the_final_model_of_fedkseed_takes_17_kb(small, tmp_path):
    numbers = np.random.default_rng(0).normal(size=4096).astype(np.float32)
    write(
        tmp_path / "a.orbit",
        small[0],
        FedKSeed(small_steps="stochastic"),
        [Accumulated(numbers)] * 40,
    )
    assert edit.compact(tmp_path / "a.orbit", tmp_path / "b.orbit").size <= 17_000


# -- signatures
# ------------------------------------------------------------------------------------------------


def test_signatures(tmp_path):
    orbit = tmp_path / "a.orbit"
    orbit.write_bytes((FOLDER / "mezo.orbit").read_bytes())
    public = signature.generate_key(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert public == tmp_path / "key.pub" and b"PUBLIC KEY" in public.read_bytes()
    with pytest.raises(OrbitError, match="never overwritten"):
        signature.generate_key(tmp_path / "key")
    assert signature.sign(orbit, tmp_path / "key") == tmp_path / "a.orbit.sig"
    assert (tmp_path / "a.orbit.sig").stat().st_size == 64
    signature.verify(orbit, public)
    signature.verify(orbit, public, (tmp_path / "a.orbit.sig").rename(tmp_path / "moved"))
    signature.sign(orbit, tmp_path / "key")
    other = signature.generate_key(tmp_path / "other")
    with pytest.raises(OrbitError, match="not a signature of this file by this key"):
        signature.verify(orbit, other)
    for wrong in (tmp_path / "key", orbit):
        with pytest.raises(OrbitError, match="not a public key"):
            signature.verify(orbit, wrong)
    with pytest.raises(OrbitError, match="not a private key"):
        signature.sign(orbit, public)
    with pytest.raises(OrbitError, match="can't be read"):
        signature.verify(orbit, public, tmp_path / "none")
    orbit.write_bytes((FOLDER / "feedsign.orbit").read_bytes())
    with pytest.raises(OrbitError, match="not a signature of this file by this key"):
        signature.verify(orbit, public)
    orbit.write_bytes(orbit.read_bytes()[:-1])
    with pytest.raises(OrbitError, match="cut short"):  # a damaged orbit is not signed
        signature.sign(orbit, tmp_path / "key")


def test_digests_that_the_run_did_not_have_are_found(tmp_path):
    header = Orbit.open(FOLDER / "fedkseed.orbit").header
    writer = OrbitWriter(tmp_path / "a.orbit", header)
    for record in Orbit.open(FOLDER / "fedkseed.orbit").steps():
        digest = {2: "77" * 16, 4: NO_DIGEST}.get(record.round, record.digest)
        writer.append(Record(record.round, record.payload, digest))
    writer.close()
    orbit = Orbit.open(tmp_path / "a.orbit")
    base = MAKE["dtype_of"]("fedkseed")
    orbit.replay(MAKE["model"](base))  # the last recorded digest is right
    with pytest.raises(OrbitError, match="after step 2"):
        orbit.replay(MAKE["model"](base), check_all=True)
