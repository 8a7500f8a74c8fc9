"""Simulated meshes: whatever the network does, nodes with the same steps have the same bits."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseed.decentralised.simulation import NetworkSettings, Partition, random_graph
from support.mesh import METHODS, Nodes
from support.tiers import SLOW

FULL = 10.0  # a degree that links every pair


def run(nodes, network, seed, degree=FULL, plan=None, seconds=2000.0):
    """Run a mesh to its end; check that all nodes end with one digest, that of the reference."""
    simulation = nodes.simulate(random_graph(nodes.names, degree, seed), network, seed)
    for name in nodes.names:
        if name not in (plan or {}):
            simulation.start(name)
    for name, moments in (plan or {}).items():
        for place, moment in enumerate(moments):
            (simulation.stop if place % 2 else simulation.start)(name, moment)
    assert simulation.run(seconds), "it does not end"
    digests = set(simulation.digests().values())
    history = next(iter(simulation.nodes.values())).history
    assert digests == {nodes.reference_digest(history)}
    return simulation


@pytest.mark.parametrize("kind", METHODS)
def test_without_faults_a_mesh_ends_as_the_federation_does(kind, quickly):
    nodes = Nodes(4, METHODS[kind], 9)
    simulation = run(nodes, NetworkSettings(), 1)
    assert set(simulation.digests().values()) == {nodes.federated_digest()}
    assert all(node.model.undone == 0 for node in simulation.nodes.values())


@given(
    count=st.integers(2, 6),
    seed=st.integers(0, 1 << 16),
    degree=st.floats(1, 5),
    loss=st.floats(0, 0.4),
    down=st.floats(0, 0.4),
    slowest=st.floats(0.06, 3.0),
    partition=st.tuples(st.floats(0, 8), st.floats(0, 20), st.integers(1, 31)),
    kind=st.sampled_from(["own", "votes", "shared"]),
    late=st.floats(0, 12),
)
@settings(max_examples=60 if SLOW else 12)
def test_all_nodes_end_with_the_digest_of_the_sorted_steps(
    count, seed, degree, loss, down, slowest, partition, kind, late
):
    """Random graphs, delays, losses, links down, a partition, one node that comes late."""
    begin, length, bits = partition
    nodes = Nodes(count, METHODS[kind], 6)
    side = frozenset(name for place, name in enumerate(nodes.names) if bits >> place & 1)
    network = NetworkSettings(
        delay_seconds=(0.001, 0.5),
        loss=loss,
        down=down,
        step_seconds=(0.05, slowest),
        partitions=[Partition(begin, begin + length, side)],
    )
    run(nodes, network, seed, degree, {nodes.names[-1]: [late]})


def test_a_partition_heals_and_both_sides_count(quickly):
    nodes = Nodes(5, METHODS["own"], 20)
    side = frozenset(nodes.names[:2])
    simulation = run(nodes, NetworkSettings(partitions=[Partition(0.5, 40.0, side)]), 3)
    for node in simulation.nodes.values():
        # both sides went on alone, so both had to take rounds back
        assert node.model.undone >= 10
        assert [log.last_round for log in node.history.logs] == [20] * 5


def test_who_comes_late_goes_on_with_the_others_and_who_leaves_is_not_waited_for(quickly):
    nodes = Nodes(5, METHODS["own"], 80)
    names = nodes.names
    simulation = nodes.simulate(random_graph(names, FULL, 1), NetworkSettings(), 1)
    for name in names[1:]:
        simulation.start(name)
    simulation.start(names[0], 6.5)
    simulation.schedule(7.5, lambda: simulation.nodes[names[1]].leave(7.5))
    assert simulation.run(2000.0)
    histories = [node.history for node in simulation.nodes.values()]
    for history in histories:
        late, left, *others = (log.last_round for log in history.logs)
        first_of_late = history.logs[0].entries[0].round
        assert 1 < first_of_late < 80 and late == 80
        assert history.logs[1].has_left and left < 80
        assert others == [80] * 3
    assert set(simulation.digests().values()) == {nodes.reference_digest(histories[0])}


def test_a_majority_does_not_jump_after_a_node_that_ran_alone(quickly):
    """The one that was cut off came to the end by itself; the others make all their steps."""
    nodes = Nodes(4, METHODS["votes"], 40)
    alone = frozenset(nodes.names[:1])
    network = NetworkSettings(step_seconds=(0.1, 0.2), partitions=[Partition(0.05, 11.0, alone)])
    simulation = nodes.simulate(random_graph(nodes.names, FULL, 1), network, 1)
    simulation.start(nodes.names[0])
    for name in nodes.names[1:]:
        simulation.start(name, 8.0)
    assert simulation.run(2000.0)
    history = simulation.nodes[nodes.names[1]].history
    assert history.counts == [40] * 4
    assert set(simulation.digests().values()) == {nodes.reference_digest(history)}


def test_killed_nodes_lose_nothing_that_they_have_said(tmp_path, quickly):
    nodes = Nodes(4, METHODS["own"], 30, tmp_path)
    first, second = nodes.names[:2]
    plan = {first: [0.0, 0.4, 1.0, 1.3, 9.0], second: [0.0, 0.7, 8.0]}
    simulation = run(nodes, NetworkSettings(loss=0.1), 2, plan=plan)
    for node in simulation.nodes.values():
        assert not node.history.forks and not node.refusals
    # the files hold what was said, as whoever starts again would read it
    again = nodes.make(first, nodes.names)
    assert again.history.counts == simulation.nodes[second].history.counts


def test_a_node_whose_disk_is_lost_takes_its_own_steps_from_its_neighbours(tmp_path, quickly):
    nodes = Nodes(3, METHODS["own"], 25, tmp_path)
    lost = nodes.names[0]
    simulation = nodes.simulate(random_graph(nodes.names, FULL, 1), NetworkSettings(), 1)
    for name in nodes.names:
        simulation.start(name)
    simulation.stop(lost, 1.0)

    def forget():
        for file in (tmp_path / lost / "logs").iterdir():
            file.unlink()

    simulation.schedule(1.1, forget)
    simulation.start(lost, 1.2)
    assert simulation.run(1000.0)
    for node in simulation.nodes.values():
        assert not node.history.forks
        assert node.history.counts == [25] * 3
    assert len(set(simulation.digests().values())) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["own", "votes"])
def test_25_nodes_with_a_fifth_of_the_links_down_and_a_partition_of_30_seconds(kind, quickly):
    nodes = Nodes(25, METHODS[kind], 60)
    side = frozenset(nodes.names[:12])
    network = NetworkSettings(
        down=0.2, step_seconds=(0.5, 1.0), partitions=[Partition(8.0, 38.0, side)]
    )
    simulation = run(nodes, network, 5, degree=4.0)
    assert all(node.model.undone for node in simulation.nodes.values())
