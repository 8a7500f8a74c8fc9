"""Messages of neighbours that are damaged, forged or contradict each other, and what is refused."""

import secrets
from dataclasses import replace
from functools import cache

import nkeys
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedseed import FedAvg, FeedSign, ZOFedSGD
from fedseed.aggregation import Mean
from fedseed.decentralised.entry import HEAD, SIGNED, Entry, EntryKind
from fedseed.decentralised.fitting import find_obstacle
from fedseed.decentralised.messages import (
    LARGEST,
    Line,
    Summary,
    encode_entries,
    encode_forks,
    kind_of,
)
from fedseed.decentralised.simulation import NetworkSettings, random_graph
from fedseed.errors import FedseedError, MessageError, StorageError
from fedseed.methods import TopK
from fedseed.transport.signatures import Signatures, key_file
from support.mesh import METHODS, Nodes

ROUNDS = 8
UPDATE = b"\x05\x00\x00\x00\x00\x00\x80\x3f"  # index 5, projection 1.0


@pytest.fixture
def nodes():
    return Nodes(3, METHODS["own"], ROUNDS)


@pytest.fixture
def node(nodes):
    return nodes.make("client-0", ["client-1", "client-2"])


def step(node, author, number, payload=UPDATE, **changes):
    """The next entry that an author would make, as this node sees its log."""
    history = node.history
    has_previous = number <= history.counts[author] + 1
    previous = history.link_at(author, number - 1) if has_previous else b"x" * 16
    entry = Entry(author, number, number, payload, previous)
    return replace(entry, **changes)


def hear(node, *entries, sender="client-1"):
    node.receive(sender, encode_entries(entries), 0.0)


def reasons(node, sender="client-1"):
    return " ".join(node.refusals.get(sender, ()))


def test_good_entries_are_taken_once_and_passed_on(node):
    entry = step(node, 1, 1)
    hear(node, entry)
    hear(node, entry, sender="client-2")
    assert node.history.counts == [0, 1, 0] and not node.refusals
    assert [(out.receivers, out.data) for out in node.outbox] == [
        (["client-2"], encode_entries([entry]))
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"payload": UPDATE[:-1]}, "step 1 of client-1"),
        ({"payload": b""}, "step 1 of client-1"),
        ({"payload": b"\x05\x00\x00\x00\x00\x00\xc0\x7f"}, "step 1 of client-1"),  # NaN
        ({"payload": UPDATE * 9}, "step 1 of client-1"),
        ({"node": 9}, "there are 3 nodes"),
        ({"round": ROUNDS + 1}, "a step from 1 to 8 is expected"),
        ({"previous": b"y" * 16}, "of another run"),
    ],
)
def test_entries_that_can_not_be_are_refused_with_the_reason(node, changes, reason):
    hear(node, replace(step(node, 1, 1), **changes))
    assert reason in reasons(node)
    assert node.history.counts == [0, 0, 0] and not node.outbox


def test_a_gap_is_asked_about_and_rounds_ascend(node):
    second = step(node, 1, 2)
    hear(node, second)
    assert node.history.counts == [0, 0, 0]
    (asked,) = node.outbox
    assert asked.receivers == ["client-1"] and Summary.decode(asked.data).lines[1].count == 0
    hear(node, step(node, 1, 1, round=5))
    hear(node, step(node, 1, 2, round=5))
    assert "a step from 6 to 8 is expected" in reasons(node)
    assert node.history.counts == [0, 1, 0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"FN",
        b"FN\x01\x09",
        b"XX\x01\x01",
        b"FN\x02\x01" + bytes(60),
        b"FN\x01\x01" + bytes(10),
        b"FN\x01\x02" + bytes(10),
        b"FN\x01\x03" + bytes(200),
        bytes(LARGEST + 1),
    ],
)
def test_malformed_messages_are_refused_and_counted(node, data):
    node.receive("client-1", data, 0.0)
    assert sum(node.refusals["client-1"].values()) == 1 and not node.outbox
    node.receive("somebody", b"FN\x01\x02", 0.0)
    assert reasons(node, "somebody") == "not a neighbour"


@given(
    data=st.binary(max_size=400),
    kind=st.sampled_from([b"FN\x01\x01", b"FN\x01\x02", b"FN\x01\x03", b""]),
)
def test_no_bytes_break_a_node(data, kind):
    node = lasting_node()
    node.receive("client-1", kind + data, 0.0)
    assert node.history.counts == [0, 0, 0] and not node.history.forks
    assert len(node.refusals["client-1"]) <= 33


@cache
def lasting_node():
    """A node that all examples are handed to."""
    return Nodes(3, METHODS["own"], ROUNDS).make("client-0", ["client-1", "client-2"])


@given(place=st.integers(0, 57), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found(place, bit):
    data = bytearray(Entry(1, 1, 1, UPDATE, bytes(16)).encode())
    whole = Entry.read(bytes(data))
    data[place % len(data)] ^= 1 << bit
    try:
        read = Entry.read(bytes(data))
    except MessageError:
        return
    # with the flag for a signature, its end would be another's: too short, or refused by the keys
    assert read.signature and not whole.signature


def test_summaries_of_other_runs_and_bases_are_told_apart(node, nodes):
    other = Nodes(3, {**METHODS["own"], "learning_rate": 2e-2}, ROUNDS).make("client-1", [])
    other.neighbours = ["client-0"]
    other.tick(0.0)
    node.receive("client-1", other.outbox[0].data, 0.0)
    assert "another run: recipe, rounds" in reasons(node)
    mine = Summary(node.history.fingerprint, b"z" * 16, [Line(0, b"abcd", 0)] * 3)
    node.receive("client-1", mine.encode(), 0.0)
    assert "another base: its digest is 7a7a" in reasons(node)


def test_two_different_steps_of_one_number_name_their_author_and_count_no_more(node):
    first, other = step(node, 1, 1), step(node, 1, 1, payload=UPDATE[:4] + b"\x00\x00\x00\x40")
    hear(node, first, step(node, 2, 1))
    node.outbox.clear()
    hear(node, other, sender="client-2")
    assert "client-1 has made two different entries of number 1" in reasons(node, "client-2")
    assert node.history.counts == [0, 0, 1]
    # everybody is told, with the proof
    (told,) = node.outbox
    assert set(told.receivers) == {"client-1", "client-2"}
    assert told.data == encode_forks([(first, other)])
    hear(node, first)
    assert node.history.counts == [0, 0, 1]


def test_the_lowest_fork_counts_and_what_is_before_it_stays(node):
    for number in (1, 2, 3):
        hear(node, step(node, 1, number))
    history = node.history
    second, third = history.logs[1].entries[1:]
    double = UPDATE[:4] + b"\x00\x00\x00\x40"
    node.receive("client-2", encode_forks([(third, replace(third, payload=double))]), 0.0)
    assert history.counts == [0, 2, 0]
    node.receive("client-2", encode_forks([(second, replace(second, payload=double))]), 0.0)
    assert history.counts == [0, 1, 0] and history.is_closed(1)
    node.receive("client-2", encode_forks([(third, third)]), 0.0)
    assert "prove nothing" in reasons(node, "client-2")


def test_nodes_that_heard_different_branches_agree_on_what_counts(quickly):
    """One process more under a node's name: whoever hears both names it, and all end alike."""
    nodes = Nodes(4, METHODS["own"], 20)
    simulation = nodes.simulate(random_graph(nodes.names, 10.0, 1), NetworkSettings(), 1)
    for name in nodes.names[1:]:
        simulation.start(name)
    liar = nodes.names[0]
    double = UPDATE[:4] + b"\x00\x00\x00\x40"

    def lie():
        for name, payload in zip(nodes.names[1:], (UPDATE, UPDATE, double), strict=True):
            node = simulation.nodes[name]
            node.receive(liar, encode_entries([step(node, 0, 1, payload)]), simulation.now)

    simulation.schedule(0.2, lie)
    simulation._lives[liar] = 0  # it does not take part otherwise
    assert simulation.run(500.0)
    digests = set(simulation.digests().values())
    assert len(digests) == 1
    for node in simulation.nodes.values():
        assert list(node.history.forks) == [0] and node.history.counts == [0, 20, 20, 20]
        assert any("client-0 has made two" in note for note in node.fork_notes)


def test_a_node_whose_name_another_process_uses_stops(nodes):
    node = nodes.make("client-0", ["client-1"])
    node._append(1, UPDATE, EntryKind.STEP, 0.0)
    other = nodes.make("client-1", ["client-0"])
    with pytest.raises(FedseedError, match="Another process runs as client-0"):
        hear(node, step(other, 0, 1, UPDATE[:4] + b"\x00\x00\x00\x40"))


def keys_of(names, tmp_path):
    """Signatures of each node: its own key, and the public keys of all."""
    seeds = {
        name: nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER).decode()
        for name in names
    }
    public = [
        (name, nkeys.from_seed(seed.encode()).public_key.decode()) for name, seed in seeds.items()
    ]
    signatures = {}
    for name, seed in seeds.items():
        path = tmp_path / f"{name}.nk"
        path.write_text(key_file(seed, None, public))
        signatures[name] = Signatures.from_key_file(path)
    return signatures


def test_with_keys_nobody_writes_in_anothers_name(tmp_path, quickly):
    nodes = Nodes(3, METHODS["own"], ROUNDS)
    nodes.signatures = keys_of(nodes.names, tmp_path)
    node = nodes.make("client-0", ["client-1", "client-2"])
    forged = step(node, 2, 1)
    hear(node, forged)
    assert "entry 1 of client-2 is not signed by its key" in reasons(node)
    identity = nodes.make("client-1", []).history.identity
    hear(node, identity.sign(step(node, 2, 1)))  # signed by client-1 in client-2's name
    assert sum(node.refusals["client-1"].values()) == 2 and node.history.counts == [0, 0, 0]
    hear(node, identity.sign(step(node, 1, 1)))
    assert node.history.counts == [0, 1, 0]
    # a proof needs the author's own signatures
    pair = step(node, 2, 1), step(node, 2, 1, UPDATE[:4] + b"\x00\x00\x00\x40")
    node.receive("client-1", encode_forks([pair]), 0.0)
    assert not node.history.forks
    simulation = nodes.simulate(random_graph(nodes.names, 10.0, 1), NetworkSettings(), 1)
    for name in nodes.names:
        simulation.start(name)
    assert simulation.run(500.0) and len(set(simulation.digests().values())) == 1
    assert simulation.nodes["client-0"].history.logs[1].entries[0].signature


# -- files -----------------------------------------------------------------------------------------


def filled(folder, count=3):
    """A node with some entries of its own on disk; the file."""
    node = Nodes(2, METHODS["own"], ROUNDS, folder).make("client-0", ["client-1"])
    for number in range(1, count + 1):
        node._append(number, UPDATE, EntryKind.STEP, 0.0)
    node.history.close()
    return folder / "client-0" / "logs" / "client-0.log"


def reopened(folder):
    return Nodes(2, METHODS["own"], ROUNDS, folder).make("client-0", ["client-1"])


@pytest.mark.parametrize("lost", [1, 20, 57])
def test_an_unfinished_entry_is_cut_off_and_the_rest_stays(tmp_path, lost):
    file = filled(tmp_path)
    file.write_bytes(file.read_bytes()[:-lost])
    node = reopened(tmp_path)
    assert node.history.counts == [2, 0]
    assert "was cut off" in node.history.notes[0]
    node._append(3, UPDATE, EntryKind.STEP, 0.0)
    node.history.close()
    assert reopened(tmp_path).history.counts == [3, 0]


def test_zeros_of_an_unfinished_write_are_cut_off(tmp_path):
    file = filled(tmp_path)
    file.write_bytes(file.read_bytes() + bytes(100))
    assert reopened(tmp_path).history.counts == [3, 0]


def test_damage_in_the_middle_is_no_unfinished_write(tmp_path):
    file = filled(tmp_path)
    data = bytearray(file.read_bytes())
    data[24 + HEAD.size] ^= 1
    file.write_bytes(data)
    with pytest.raises(StorageError, match=r"client-0.log: damaged at byte 24"):
        reopened(tmp_path)


def test_a_folder_of_another_run_is_refused(tmp_path):
    filled(tmp_path)
    with pytest.raises(StorageError, match="the log of another run"):
        Nodes(2, {**METHODS["own"], "batch": 4}, ROUNDS, tmp_path).make("client-0", ["client-1"])


# -- what can't work -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (FedAvg(), "its steps are whole weights"),
        (FeedSign(epsilon=1.0), "method.epsilon: a private run draws"),
        (TopK(), "keeps at a client what it has yet to send"),
        (ZOFedSGD(weighting="examples"), 'set it to "equal"'),
    ],
)
def test_what_needs_a_coordinator_is_refused_with_the_reason(method, reason):
    assert reason in (find_obstacle(method, Mean()) or "")


@pytest.mark.parametrize("method", [ZOFedSGD(), ZOFedSGD(seeds="shared"), FeedSign()])
def test_what_is_a_function_of_a_rounds_updates_fits(method):
    assert find_obstacle(method, Mean()) is None


def test_kinds_and_flags_do_not_overlap():
    assert not any(kind & SIGNED for kind in EntryKind)
    assert kind_of(encode_entries([])) == 2
