"""Full disks of each party: everybody says what to do, and that works.

A disk is a tmpfs of its own, so only root may fill one; others skip these tests.
"""

import pytest

from support.disks import SmallDisk, can_mount
from support.network import Server, both_servers, until
from support.problem import METHODS

pytestmark = pytest.mark.skipif(not can_mount(), reason="this user may not mount a tmpfs")

LONG = {"method": METHODS["feedsign"], "rounds": 60, "evaluation": {"every": 30}}
ALL_CLIENTS = (0, 1, 2, 3, 4)
MEBIBYTE = 1 << 20
REMEDY = "can't be written: No space left on device: make room there, then start this again"
SERVER_REMEDY = "make room on the server's disk and start nats-server again"


@pytest.fixture
def small_disk(tmp_path):
    """Makes small disks, and takes them away at the end."""
    disks = []

    def make(size):
        disks.append(SmallDisk(tmp_path / f"disk-{len(disks)}", size))
        return disks[-1]

    yield make
    for disk in disks:
        disk.remove()


@pytest.fixture
def server(tmp_path, request, small_disk):
    """A server whose store lies on a small disk, which is its `disk`."""
    disk = small_disk(256 * MEBIBYTE)
    made = Server(disk.folder / "nats", binary=str(request.param))
    made.disk = disk
    yield made
    made.kill()


@both_servers("server")
def test_a_server_whose_disk_is_full_is_named_by_those_who_wait(
    problem, network, server, in_process
):
    """It gives writers no answer, also with room again, until it is started again."""
    net = network(server, LONG)
    expected = in_process(problem, net.recipe)
    coordinator, host = net.coordinator(), net.host(*ALL_CLIENTS, slow=0.02)
    until(lambda: host.reached(3), 120, host.said)
    server.disk.fill()
    until(lambda: SERVER_REMEDY in coordinator.said, 120, coordinator.said)
    assert f"does not store what is written to the stream fedseed--{net.run}" in coordinator.said
    server.disk.make_room()
    server.kill()
    server.start()
    net.check(problem, coordinator, [host], expected.summary)
    assert "the server stores messages again" in coordinator.said


@both_servers("server")
def test_a_server_that_starts_on_a_full_disk_is_mended_by_what_serve_says(
    problem, network, server, in_process
):
    """Its limits come from the disk as it starts: room alone changes nothing."""
    net = network(server, LONG)
    expected = in_process(problem, net.recipe)
    server.kill()
    server.disk.fill()
    server.start()
    coordinator = net.coordinator()
    host = net.host(*ALL_CLIENTS)

    def has_said():
        return SERVER_REMEDY in coordinator.said + coordinator.text

    until(has_said, 120, coordinator.said + coordinator.text)
    server.disk.make_room()
    server.kill()
    server.start()
    if coordinator.code is not None:
        coordinator = net.coordinator()
    net.check(problem, coordinator, [host], expected.summary)


@both_servers("server")
def test_a_coordinator_whose_disk_is_full_goes_on_where_it_was(
    problem, network, server, small_disk, in_process
):
    net = network(server, LONG)
    expected = in_process(problem, net.recipe)
    disk = small_disk(8 * MEBIBYTE)
    net.out = disk.folder / "run"
    coordinator, host = net.coordinator(), net.host(*ALL_CLIENTS, slow=0.02)
    until(lambda: host.reached(3), 120, host.said)
    disk.fill()
    assert coordinator.wait() == 1
    assert coordinator.text.splitlines()[-1].endswith(REMEDY)
    disk.make_room()
    net.check(problem, net.coordinator(), [host], expected.summary)


@both_servers("server")
def test_a_client_whose_disk_is_full_writes_its_orbit_when_it_is_started_again(
    problem, network, server, small_disk, in_process
):
    net = network(server, LONG)
    expected = in_process(problem, net.recipe)
    disk = small_disk(MEBIBYTE)
    orbit = disk.folder / "model.orbit"
    disk.fill()
    coordinator, host = net.coordinator(), net.host(*ALL_CLIENTS, orbit=str(orbit))
    assert host.wait() == 1 and coordinator.wait() == 0
    assert host.text.splitlines()[-1].endswith(REMEDY)
    assert not orbit.exists()
    disk.make_room()
    again = net.host(*ALL_CLIENTS, orbit=str(orbit))
    net.check(problem, coordinator, [again], expected.summary)
    assert orbit.read_bytes() == (net.out / "model.orbit").read_bytes()
