"""Sites behind a nats-server of their own, which is a leaf of the coordinator's: one connection
leaves the site.
"""

import signal

import pytest

from support.network import Server, free_port, reachable, until
from support.problem import METHODS

pytestmark = pytest.mark.slow
# the leaf has no JetStream of its own: what is asked of it goes to the hub's, by the name of its
# domain
HUB = """
host: 127.0.0.1
port: {port}
jetstream {{ store_dir: "{store}", domain: hub }}
leafnodes {{ host: 127.0.0.1, port: {leaves} }}
"""
LEAF = """
host: 127.0.0.1
port: {port}
leafnodes {{ remotes: [{{ url: "nats://127.0.0.1:{leaves}" }}] }}
mappings {{ "$JS.API.>": "$JS.hub.API.>" }}
"""


@pytest.fixture
def servers(tmp_path, server):
    """Starts a hub with its log, and a leaf without one; ends them."""
    server.kill()
    leaves, made = free_port(), []
    for name, text in (("hub", HUB), ("leaf", LEAF)):
        port, config = free_port(), tmp_path / f"{name}.conf"
        config.write_text(text.format(port=port, leaves=leaves, store=tmp_path / "store"))
        made.append(Server(tmp_path / name, config, port))
    yield made
    for one in made:
        one.kill()


def test_a_site_behind_a_leaf_takes_part_and_outlives_its_leaf(
    problem, network, servers, in_process
):
    hub, leaf = servers
    recipe = {"method": METHODS["feedsign"], "rounds": 40, "evaluation": {"every": 10}}
    net = network(hub, {**recipe, "federation": {"minimum": 5}})
    expected = in_process(problem, net.recipe)
    coordinator, near = net.coordinator(), net.host(0, 1, slow=0.03)
    behind = [net.host(2, 3, nats=leaf.url, slow=0.03), net.host(4, nats=leaf.url, slow=0.03)]
    until(lambda: behind[0].reached(7), 120, "nothing comes through the leaf")
    leaf.process.send_signal(signal.SIGKILL)
    leaf.process.wait()
    assert not reachable(leaf.port)
    leaf.start()
    net.check(problem, coordinator, [near, *behind], expected.summary)
