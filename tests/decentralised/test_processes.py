"""Nodes as real processes over a real nats-server, killed at any moment."""

import signal

import pytest

from fedseed import Orbit
from fedseed.decentralised.entry import HEAD
from support.mesh import METHODS, Nodes
from support.mesh_process import MOMENTS, NodeProcess
from support.network import Server, free_port

START_BYTES, ENTRY_BYTES = 24, HEAD.size + 8 + 16 + 16
ROUNDS = 40


@pytest.fixture
def mesh(tmp_path):
    """Makes processes of nodes, and ends them."""
    made = []

    def make(server, count=3, neighbours=None, **order):
        names = [f"client-{number}" for number in range(count)]
        for place, name in enumerate(names):
            near = neighbours[place] if neighbours else [one for one in names if one != name]
            made.append(
                NodeProcess(
                    tmp_path,
                    name=name,
                    neighbours=near,
                    nodes=count,
                    **{"rounds": ROUNDS, "nats": server.url, **order},
                )
            )
        return made[-count:]

    yield make
    for node in made:
        if node.process is not None:
            node.kill()


def check(nodes, tmp_path, count=3, rounds=ROUNDS):
    """All have one digest, that of the sorted steps; every log is the same at all nodes."""
    digests = {node.digest() for node in nodes}
    plain = Nodes(count, METHODS["own"], rounds, tmp_path)
    again = plain.make(nodes[0].name, [nodes[1].name])
    assert not again.history.forks
    assert digests == {plain.reference_digest(again.history)}
    for author in nodes:
        assert {node.copy_of(author) for node in nodes} == {author.own_entries()}
    orbit = Orbit.open(nodes[0].folder / "model.orbit")
    assert {orbit.replay(plain.problem.model())} == digests
    return again.history


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_node_killed_at_any_moment_loses_nothing_that_it_has_said(
    moment, mesh, shared_server, tmp_path
):
    nodes = mesh(shared_server)
    victim, *others = nodes
    for node in others:
        node.start()
    said = b""
    for count in (3, 8):
        victim.start(moment=moment, count=count)
        victim.process.join(60 if moment == "undoing" else 240)
        victim.kill()
        # whatever others have heard by now, or will hear of it, was on its disk before
        held = victim.own_entries()
        for node in others:
            heard = node.copy_of(victim)
            assert held.startswith(heard) and heard.startswith(said[: len(heard)])
        said = held
    victim.start()
    history = check(nodes, tmp_path)
    assert victim.own_entries().startswith(said[: len(said) - len(said) % ENTRY_BYTES])
    assert history.logs[0].last_round == ROUNDS


def test_nodes_killed_from_outside_again_and_again_end_with_one_digest(
    mesh, shared_server, tmp_path
):
    nodes = mesh(shared_server)
    for node in nodes:
        node.start()
    for turn in range(6):
        victim = nodes[turn % 3]
        victim.reach(START_BYTES + ENTRY_BYTES * (4 + 4 * turn))
        victim.process.kill()
        victim.process.join()
        held = victim.own_entries()
        assert all(held.startswith(node.copy_of(victim)) for node in nodes)
        victim.start()
    check(nodes, tmp_path)


@pytest.mark.long
def test_servers_that_are_cut_apart_and_joined_again(mesh, tmp_path):
    """Each node has a nats-server of its own, and hears the others on theirs: no server is above
    others. One is stopped for longer than silence lasts: a partition that heals."""
    ports = [free_port() for _ in range(3)]
    servers = [
        Server(tmp_path / f"server-{number}", port=port) for number, port in enumerate(ports)
    ]
    try:
        urls = {f"client-{number}": server.url for number, server in enumerate(servers)}
        nodes = mesh(servers[0], servers=urls, rounds=120)
        for node, server in zip(nodes, servers, strict=True):
            own = {name: url for name, url in urls.items() if name != node.name}
            node.start(nats=server.url, servers=own)
        nodes[0].reach(START_BYTES + 5 * ENTRY_BYTES)
        servers[0].process.send_signal(signal.SIGSTOP)
        # both sides go on: nobody hears client-0, and it hears the others
        nodes[1].reach(START_BYTES + 40 * ENTRY_BYTES)
        servers[0].process.send_signal(signal.SIGCONT)
        check(nodes, tmp_path, rounds=120)
    finally:
        for server in servers:
            server.process.send_signal(signal.SIGCONT)
            server.kill()
