"""`fedseed mesh` and `fedseed keys --mesh`: simulated, and as nodes over a server with keys."""

import json

import pytest

from fedseed.cli.mesh import parse_partition
from fedseed.decentralised.pace import PaceSettings
from fedseed.decentralised.process import MeshProcess
from fedseed.errors import RecipeError
from fedseed.transport.base import Access
from fedseed.transport.keys import make_for_mesh
from fedseed.transport.mesh import MemoryMesh
from fedseed.transport.nats_mesh import NatsMesh
from fedseed.transport.signatures import Signatures
from support.command import fedseed, refused, well
from support.mesh import METHODS, Nodes
from support.network import Server, free_port

RECIPE = """
rounds = 4
[model]
base = "words"
[task]
name = "words"
clients = 3
examples = 30
evaluation = 20
validation = 10
[method]
name = "zo-fedsgd"
seeds = "own"
learning_rate = 1e-3
batch = 4
[evaluation]
every = 4
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE)
    return path


@pytest.mark.long
def test_a_simulated_mesh_ends_with_the_digest_of_the_federation(recipe, tmp_path):
    said = well("mesh", recipe, "--json", "--degree", "1", "--loss", "0.1", cwd=tmp_path)
    result = json.loads(said.stdout)
    federated = json.loads(well("run", recipe, "--json", cwd=tmp_path).stdout)
    assert set(result["digests"].values()) == {federated["weights_digest"]}
    assert "3 nodes, 2 links" in said.stderr and len(result["nodes"]) == 3
    orbit = tmp_path / "runs" / "mine-mesh" / "model.orbit"
    assert well("orbit", "verify", orbit, cwd=tmp_path).stdout
    assert len(list((tmp_path / "runs" / "mine-mesh").glob("*/logs/*.log"))) == 9


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--nats", "nats://here:4222"], "--nats: give this node's name with --node NAME"),
        (["--leave"], "--leave: give this node's name"),
        (["--partition", "5"], "--partition 5: write BEGIN:END"),
        (["--node", "client-0", "--down", "0.2"], "for a simulated mesh; leave out --node"),
        (["--node", "client-0"], "the server's address is missing"),
        (["--set", "method.weighting=examples"], 'set it to "equal"'),
        (["--set", "federation.per_round=2"], "federation.per_round, federation.fraction"),
        (["--set", "stopping.patience=3"], "[stopping]: nobody decides"),
        (
            [
                "--set",
                "method.name=fedavg",
                "--unset",
                "method.seeds",
                "--unset",
                "method.learning_rate",
                "--unset",
                "method.batch",
            ],
            "its steps are whole weights",
        ),
    ],
)
def test_what_is_no_mesh_is_refused_in_one_line(recipe, tmp_path, words, text):
    refused(2, text, "mesh", recipe, *words, cwd=tmp_path)


def test_times_of_a_partition():
    assert parse_partition("1.5:30") == (1.5, 30.0)
    for text in ("", "3:2", "a:b", "-1:4", "1:"):
        with pytest.raises(RecipeError, match="write BEGIN:END"):
            parse_partition(text)


PACE = PaceSettings(120.0, 5.0, 0.1, 60.0)


async def run_all(nodes, transport_of):
    """Run all nodes of a mesh in this process, each with a loop's task; their digests."""
    import asyncio
    import time

    processes = []
    for name in nodes.names:
        others = [one for one in nodes.names if one != name]
        node = nodes.make(name, others, time.monotonic())
        processes.append(MeshProcess(node, transport_of(name)))
    results = await asyncio.gather(*(process.work() for process in processes))
    return {result.digest for result in results}, processes


async def test_processes_meet_in_memory(quickly):
    nodes = Nodes(3, METHODS["votes"], 12, pace=PACE)
    mesh = MemoryMesh()
    digests, _ = await run_all(nodes, lambda name: mesh)
    assert digests == {nodes.federated_digest()}


@pytest.mark.long
async def test_nodes_with_keys_over_tls_sign_what_they_say(tmp_path, quickly):
    """On a server of `fedseed keys --mesh`; nobody writes under another's name."""
    nodes = Nodes(3, METHODS["own"], 12, pace=PACE)
    port, keys = free_port(), tmp_path / "keys"
    lines = make_for_mesh("mesh", keys, nodes.names, ["localhost", "127.0.0.1"], port)
    assert sum("fedseed mesh recipe.toml --run mesh --node" in line for line in lines) == 3
    server = Server(tmp_path, keys / "nats-server.conf", port)
    try:
        access = {
            name: Access(f"tls://127.0.0.1:{port}", keys / f"{name}.nk", keys / "ca.pem")
            for name in nodes.names
        }
        nodes.signatures = {name: Signatures.from_key_file(one.key) for name, one in access.items()}
        digests, processes = await run_all(nodes, lambda name: NatsMesh(access[name], "mesh"))
        assert digests == {nodes.federated_digest()}
        for process in processes:
            assert not process.node.refusals
            assert all(log.entries[-1].signature for log in process.node.history.logs)
        refusals = []
        end = await NatsMesh(access["client-0"], "mesh").node("client-1", [], events_into(refusals))
        await end.send(b"anything", ["client-2"])
        import asyncio

        for _ in range(200):
            if refusals:
                break
            await asyncio.sleep(0.05)
        await end.close()
        assert refusals and "permissions violation" in refusals[0].lower()
    finally:
        server.kill()


def events_into(refusals):
    from fedseed.transport.base import Events

    return Events(refused=refusals.append)


HUB = """
host: 127.0.0.1
port: {port}
leafnodes {{ host: 127.0.0.1, port: {leaves} }}
"""
LEAF = """
host: 127.0.0.1
port: {port}
leafnodes {{ remotes: [{{ url: "nats://127.0.0.1:{leaves}" }}] }}
"""


@pytest.mark.long
async def test_nodes_behind_leaf_nodes_hear_each_other(tmp_path, quickly):
    """Two servers are leaves of a third, which no node knows of; none has JetStream."""
    leaves, servers = free_port(), []
    try:
        for name, text in (("hub", HUB), ("left", LEAF), ("right", LEAF)):
            port, config = free_port(), tmp_path / f"{name}.conf"
            config.write_text(text.format(port=port, leaves=leaves))
            servers.append(Server(tmp_path / name, config, port))
        nodes = Nodes(4, METHODS["own"], 12, pace=PACE)

        def transport_of(name):
            return NatsMesh(Access(servers[1 + nodes.names.index(name) % 2].url), "mesh")

        digests, processes = await run_all(nodes, transport_of)
        assert digests == {nodes.reference_digest(processes[0].node.history)}
        assert all(process.node.history.counts == [12] * 4 for process in processes)
    finally:
        for server in servers:
            server.kill()


def test_keys_for_a_mesh_by_command(recipe, tmp_path):
    text = RECIPE.replace("[task]", '[federation]\nclients = ["north", "south"]\n[task]')
    text = text.replace('name = "words"\nclients = 3\nexamples = 30', 'name = "files"')
    text = text.replace("evaluation = 20\nvalidation = 10\n", "")
    recipe.write_text(text)
    said = well("keys", recipe, "--mesh", "--out", "keys", cwd=tmp_path).stdout
    assert "--node north" in said and "fedseed serve" not in said
    made = {path.name for path in (tmp_path / "keys").iterdir()}
    assert {"north.nk", "south.nk", "ca.pem", "nats-server.conf"} <= made
    assert "coordinator.nk" not in made
    assert fedseed("keys", recipe, "--mesh", "--out", "keys", cwd=tmp_path).returncode == 1
