import struct

import pytest
import torch

from fedseed import FedAvg, Ferret, Orbit, ParameterSpace
from fedseed.errors import OrbitError
from fedseed.methods.ferret import Coefficients, FerretStep
from fedseed.orbit import Header, OrbitWriter, Record
from fedseed.parameters import base_digest

METHOD = Ferret(directions=4, basis="hadamard", blocks=2, allocation="uniform", seeds="shared", global_rate=0.5)


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
        gammas = tuple(torch.randn(2, generator=torch.Generator().manual_seed(number)).numpy() for _ in range(2))
        step = FerretStep((Coefficients(number, gammas),))
        METHOD.apply(state, step, space)
        digests.append(space.digest())
        writer.append(Record(number, step.encode(), space.digest()))
    writer.close()
    return digests


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_replay_to_any_step_gives_the_runs_bits(tmp_path, dtype):
    digests = write(tmp_path / "a.orbit", dtype=dtype)
    orbit = Orbit.open(tmp_path / "a.orbit")
    assert len(orbit) == 3 and orbit.header.method == METHOD and orbit.header.seed == 7
    for upto, expected in enumerate(digests):
        assert orbit.replay(model(dtype), upto) == expected
    seen = []
    assert orbit.replay(model(dtype), progress=seen.append) == digests[-1]
    assert seen == [1, 2, 3]


def test_every_changed_byte_is_found(tmp_path):
    """Exhaustive: each byte of a small orbit, one bit of it flipped; nothing passes and nothing else is raised."""
    write(tmp_path / "a.orbit")
    data = (tmp_path / "a.orbit").read_bytes()
    damaged = tmp_path / "b.orbit"
    for position in range(len(data)):
        damaged.write_bytes(data[:position] + bytes([data[position] ^ (1 << position % 8)]) + data[position + 1 :])
        with pytest.raises(OrbitError):
            Orbit.open(damaged)


def test_every_cut_is_found_but_between_records(tmp_path):
    write(tmp_path / "a.orbit")
    data = (tmp_path / "a.orbit").read_bytes()
    record = 12 + (8 + 8 + 16) + 16 + 16
    whole = {len(data) - i * record: 3 - i for i in range(4)}
    for length in range(len(data)):
        (tmp_path / "b.orbit").write_bytes(data[:length])
        if length in whole:  # a shorter orbit: what a run that stopped earlier has written
            assert len(Orbit.open(tmp_path / "b.orbit")) == whole[length]
        else:
            with pytest.raises(OrbitError):
                Orbit.open(tmp_path / "b.orbit")


def test_a_swapped_record_is_found_and_the_step_named(tmp_path):
    write(tmp_path / "a.orbit")
    data = (tmp_path / "a.orbit").read_bytes()
    record = 12 + (8 + 8 + 16) + 16 + 16
    head, first, second, third = (
        data[: -3 * record],
        data[-3 * record : -2 * record],
        data[-2 * record : -record],
        data[-record:],
    )
    (tmp_path / "b.orbit").write_bytes(head + first + third + second)
    with pytest.raises(OrbitError, match="step 2 is damaged or not in its place"):
        Orbit.open(tmp_path / "b.orbit")


def test_a_forged_length_asks_for_no_memory(tmp_path):
    write(tmp_path / "a.orbit", steps=0)
    data = (tmp_path / "a.orbit").read_bytes()
    (tmp_path / "b.orbit").write_bytes(data + struct.pack("<III", 0xFFFFFFFF, 1, 1) + b"\0" * 50)
    with pytest.raises(OrbitError, match="step 1 is cut short"):
        Orbit.open(tmp_path / "b.orbit")


def test_versions_are_refused_by_name(tmp_path):
    write(tmp_path / "a.orbit")
    data = bytearray((tmp_path / "a.orbit").read_bytes())
    for position, text in ((8, "orbit format 9"), (10, "random stream version 9")):
        changed = data.copy()
        changed[position] = 9
        (tmp_path / "b.orbit").write_bytes(changed)
        with pytest.raises(OrbitError, match=text):
            Orbit.open(tmp_path / "b.orbit")
    (tmp_path / "b.orbit").write_bytes(b"PK\3\4 something else")
    with pytest.raises(OrbitError, match="not an orbit file"):
        Orbit.open(tmp_path / "b.orbit")
    with pytest.raises(OrbitError, match="can't be read"):
        Orbit.open(tmp_path / "missing.orbit")


def test_another_base_is_refused_and_left_alone(tmp_path):
    write(tmp_path / "a.orbit")
    other = model()
    with torch.no_grad():
        other[0].bias[0] += 1
    before = base_digest(other)
    with pytest.raises(OrbitError, match="another base"):
        Orbit.open(tmp_path / "a.orbit").replay(other)
    assert base_digest(other) == before


def test_upto_out_of_range(tmp_path):
    write(tmp_path / "a.orbit")
    with pytest.raises(OrbitError, match="steps 0 to 3"):
        Orbit.open(tmp_path / "a.orbit").replay(model(), 4)


def test_a_digest_that_the_run_did_not_have_is_reported(tmp_path):
    net = model()
    space = ParameterSpace(net, METHOD.blocks)
    writer = OrbitWriter(tmp_path / "a.orbit", Header("net", base_digest(net), "float32", space.layout, METHOD, 7))
    writer.append(Record(1, b"", "11" * 16))
    writer.close()
    with pytest.raises(OrbitError, match="after step 1"):
        Orbit.open(tmp_path / "a.orbit").replay(model())


def test_an_orbit_is_never_overwritten(tmp_path):
    write(tmp_path / "a.orbit")
    before = (tmp_path / "a.orbit").read_bytes()
    with pytest.raises(OrbitError, match="can't be created"):
        write(tmp_path / "a.orbit")
    assert (tmp_path / "a.orbit").read_bytes() == before


def test_header_of_an_unknown_method(tmp_path, monkeypatch):
    import fedseed.orbit.file as file

    write(tmp_path / "a.orbit")
    monkeypatch.setattr(file, "METHODS", (FedAvg,))
    with pytest.raises(OrbitError, match="method 'ferret' is unknown"):
        Orbit.open(tmp_path / "a.orbit")
