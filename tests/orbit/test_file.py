import os
import struct
import tracemalloc
import zlib
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseed import Ferret, Orbit, ParameterSpace
from fedseed.errors import OrbitError
from fedseed.methods.ferret import Coefficients, CoefficientStep
from fedseed.orbit import Header, OrbitWriter, Record
from fedseed.orbit.file import write_orbit
from fedseed.orbit.record import link
from fedseed.weights.digest import base_digest

METHOD = Ferret(
    directions=4, basis="hadamard", blocks=2, allocation="uniform", seeds="shared", global_rate=0.5
)


def model(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 2)).to(dtype)


def write(path, steps=3, dtype=torch.float32):
    net = model(dtype)
    space = ParameterSpace(net, METHOD.blocks)
    name = str(dtype).removeprefix("torch.")
    writer = OrbitWriter(path, Header("net", base_digest(net), name, space.layout, METHOD, seed=7))
    digests = [space.digest()]
    state = METHOD.start(space.layout, 7)
    for number in range(1, steps + 1):
        gammas = tuple(
            torch.randn(2, generator=torch.Generator().manual_seed(number)).numpy()
            for _ in range(2)
        )
        step = CoefficientStep((Coefficients(number, gammas),))
        space.apply(METHOD.change(state, step))
        digests.append(space.digest())
        writer.append(Record(number, step.encode(), space.digest()))
    writer.close()
    return digests


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The bytes of an orbit of three steps."""
    path = tmp_path_factory.mktemp("orbit") / "a.orbit"
    write(path)
    return path.read_bytes()


FRAME = 16 + 16 + 16
STEP = FRAME + (8 + 8 + 16)  # the seed, two counts, four coefficients


def test_every_changed_byte_is_found_and_the_step_named(data):
    """Exhaustive: each byte of a small orbit, each of its bits flipped.

    Nothing passes and nothing else is raised.
    """
    head = len(data) - 3 * STEP - FRAME
    for position in range(len(data)):
        for bit in range(8):
            changed = data[:position] + bytes([data[position] ^ (1 << bit)]) + data[position + 1 :]
            with pytest.raises(OrbitError) as found:
                Orbit.parse(changed)
            if position >= head:  # the end record counts as a fourth step
                assert f"step {(position - head) // STEP + 1} is damaged" in str(found.value)


def test_every_cut_is_found_and_only_a_torn_tail_is_cut_back(data, tmp_path):
    """Exhaustive; a cut between records leaves an orbit that says it is not complete."""
    header = Orbit.parse(data).header
    head = len(data) - 3 * STEP - FRAME
    path = tmp_path / "b.orbit"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        if length < head:
            for attempt in (
                lambda: Orbit.open(path),
                lambda: OrbitWriter(path, header, resume=True),
            ):
                text = "not an orbit file" if length < 16 else "header is damaged or cut short"
                with pytest.raises(OrbitError, match=text):
                    attempt()
            continue
        whole, rest = divmod(length - head, STEP)
        if rest:
            size = STEP if whole < 3 else FRAME
            missing = f": {size - rest} bytes are missing" if rest >= 16 else ", at byte"
            with pytest.raises(OrbitError, match=f"step {whole + 1} is cut short{missing}"):
                Orbit.open(path)
        else:
            assert len(Orbit.open(path)) == whole and not Orbit.open(path).complete
        writer = OrbitWriter(path, header, resume=True)
        assert (writer.cut is not None) == (rest > 0)
        if rest:
            assert (
                f"step {whole + 1} is cut short" in writer.cut
                and f"cut back to step {whole}" in writer.cut
            )
        assert len(writer.take()) == whole
        writer.release()
        assert path.read_bytes() == data[: head + whole * STEP]


def test_a_run_that_goes_on_ends_in_the_same_bytes(data, tmp_path):
    whole = Orbit.parse(data)
    head = len(data) - 3 * STEP - FRAME
    for length in [
        head,
        head + 7,
        head + STEP,
        head + 2 * STEP - 1,
        head + 3 * STEP,
        len(data) - 1,
        len(data),
    ]:
        for tail in (b"", b"\0" * 30, b"\0" * 300):  # zeros: what a power cut may leave
            path = tmp_path / "b.orbit"
            path.write_bytes(data[:length] + (b"" if length == len(data) else tail))
            if tail and (length - head) % STEP:
                continue  # not what a write leaves
            writer = OrbitWriter(path, whole.header, resume=True)
            assert writer.take().last == writer.last and writer.orbit is None  # handed out once
            for record in whole.steps():
                if record.round > writer.last:
                    writer.append(record)
            writer.close()
            assert path.read_bytes() == data


def test_damage_before_the_last_record_and_what_follows_the_end_are_never_cut_off(data, tmp_path):
    header = Orbit.parse(data).header
    second = len(data) - 2 * STEP - FRAME
    for position in range(second, second + STEP):
        changed = data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :]
        (tmp_path / "b.orbit").write_bytes(changed)
        with pytest.raises(
            OrbitError, match=r"b\.orbit: step 2 is damaged.*nothing is cut off.*rollback --to 1"
        ):
            OrbitWriter(tmp_path / "b.orbit", header, resume=True)
        assert (tmp_path / "b.orbit").read_bytes() == changed
    (tmp_path / "b.orbit").write_bytes(data + b"more")
    with pytest.raises(
        OrbitError, match=r"4 bytes after the end.*nothing is cut off.*rollback --to 3"
    ):
        OrbitWriter(tmp_path / "b.orbit", header, resume=True)
    assert (tmp_path / "b.orbit").read_bytes() == data + b"more"
    (tmp_path / "b.orbit").write_bytes(data)
    with pytest.raises(OrbitError, match=r"b\.orbit is the orbit of another run: seed"):
        OrbitWriter(tmp_path / "b.orbit", replace(header, seed=header.seed + 1), resume=True)
    assert (tmp_path / "b.orbit").read_bytes() == data


def test_a_swapped_record_is_told_from_a_damaged_one(data, tmp_path):
    head, rest = data[: -3 * STEP - FRAME], data[-3 * STEP - FRAME :]
    first, second, third, end = (rest[i * STEP : (i + 1) * STEP] for i in range(4))
    with pytest.raises(OrbitError, match="step 3 is in the place of step 2"):
        Orbit.parse(head + first + third + second + end)
    with pytest.raises(OrbitError, match="step 2 is in the place of step 1"):
        Orbit.parse(head + second + third + end)
    with pytest.raises(OrbitError, match="80 bytes after the end"):
        Orbit.parse(data + first)
    write(tmp_path / "other.orbit", dtype=torch.bfloat16)  # the same steps of another run
    foreign = (tmp_path / "other.orbit").read_bytes()[-2 * STEP - FRAME : -STEP - FRAME]
    with pytest.raises(OrbitError, match="step 2 is damaged, or was moved"):
        Orbit.parse(head + first + foreign + third + end)


def test_a_forged_length_asks_for_no_memory(data):
    head = data[: -3 * STEP - FRAME]
    tracemalloc.start()
    for size, steps in (
        (0xFFFFFFFF, 1),
        (0xFFFFFFF0, 0xFFFFFFFF),
        (2, 0xFFFFFFFF),
        (2, 17),
        (0, 2),
    ):
        forged = struct.pack("<III", size, 1, steps)
        forged += struct.pack("<I", zlib.crc32(forged)) + bytes(min(size, 50)) + bytes(16)
        forged += link(head[-16:], forged)
        with pytest.raises(OrbitError, match="step 1"):
            Orbit.parse(head + forged)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(draws=st.data())
def test_the_reader_only_ever_raises_orbit_errors(draws, data):
    """Arbitrary bytes, and files whose every checksum is right but whose steps are not (headers:
    test_bombs.py).
    """
    if draws.draw(st.booleans()):
        content = data[: draws.draw(st.sampled_from([0, 12]))] + draws.draw(st.binary(max_size=400))
    else:
        content = Orbit.parse(data).start
        for _ in range(draws.draw(st.integers(1, 3))):
            payload = draws.draw(st.binary(max_size=60))
            head = struct.pack(
                "<III", len(payload), draws.draw(st.integers(0, 4)), draws.draw(st.integers(0, 70))
            )
            record = head + struct.pack("<I", zlib.crc32(head)) + payload + bytes(16)
            content += record + link(content[-16:], record)
    try:
        orbit = Orbit.parse(bytes(content))
        orbit.check_steps()
        list(orbit.steps())
    except OrbitError:
        pass


def test_versions_are_refused_by_name(data, tmp_path):
    for wrong, text in (
        (data[:8] + b"\x09" + data[9:], "^orbit: orbit format 9; .* reads formats 2 and 3$"),
        (data[:10] + b"\x09" + data[11:], "random stream version 9"),
        (b"PK\3\4 something else", "not an orbit file"),
    ):
        with pytest.raises(OrbitError, match=text):
            Orbit.parse(wrong)
    with pytest.raises(OrbitError, match="can't be read"):
        Orbit.open(tmp_path / "missing.orbit")
    (tmp_path / "a.orbit").write_bytes(b"PK")
    with pytest.raises(OrbitError, match=r"a\.orbit: not an orbit file"):
        Orbit.open(tmp_path / "a.orbit")


def test_another_base_is_refused_and_left_alone(data):
    other = model()
    with torch.no_grad():
        other[0].bias[0] += 1
    before = base_digest(other)
    with pytest.raises(OrbitError, match="another base"):
        Orbit.parse(data).replay(other)
    assert base_digest(other) == before
    told, net = [], model()
    assert Orbit.parse(data).equip(net) is net
    Orbit.parse(data).replay(net, progress=told.append)
    assert told == [1, 2, 3]


def test_a_last_step_that_was_written_wrong_is_cut_back_and_one_that_is_none_is_named(
    data, tmp_path
):
    (tmp_path / "b.orbit").write_bytes(data[: -FRAME - 20] + b"x" + data[-FRAME - 19 : -FRAME])
    writer = OrbitWriter(tmp_path / "b.orbit", Orbit.parse(data).header, resume=True)
    orbit = Orbit.parse(data)
    write_orbit(tmp_path / "c.orbit", orbit.start, [orbit.parts[0], Record(2, b"too short")])
    with pytest.raises(OrbitError, match=r"^step 2: "):
        Orbit.open(tmp_path / "c.orbit").check_steps()
    assert (
        "step 3 is damaged" in writer.cut
        and "cut back to step 2" in writer.cut
        and len(writer.take()) == 2
    )
    writer.release()


def test_a_step_is_on_disk_before_it_is_heard_of_and_a_file_is_ended_once(
    data, tmp_path, monkeypatch
):
    synced, fsync, whole = [], os.fsync, Orbit.parse(data)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    writer = OrbitWriter(tmp_path / "b.orbit", whole.header)
    assert writer.cut is None and writer.orbit is None
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(handle), fsync(handle)))
    for record in whole.steps():
        writer.append(record, sync=record.round == 1)
        assert len(synced) == 1
    for number in (3, 5):
        with pytest.raises(OrbitError, match=f"step {number} can't follow step 3"):
            writer.append(Record(number, b""))
    writer.append(Record(4, b"", "11" * 16))
    assert len(synced) == 2
    writer.sync()
    assert len(synced) == 3
    writer.close()
    ended = (tmp_path / "b.orbit").read_bytes()
    assert len(synced) == 4 and Orbit.parse(ended).complete
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    writer.close()
    assert (tmp_path / "b.orbit").read_bytes() == ended and len(synced) == 4
    with pytest.raises(OrbitError, match="the orbit is complete, nothing can be added"):
        writer.append(Record(5, b""))
