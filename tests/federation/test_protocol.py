import random
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from fedseed.errors import MessageError
from fedseed.federation import protocol as wire
from fedseed.federation.control import Beginning, Question, read
from fedseed.federation.messages import Message, MessageKind

LINK = bytes(range(16))
MESSAGE = Message(MessageKind.STEP, 5, 7, 0xFFFFFFFF, b"\x01").encode()


def test_entries():
    entry, after = wire.step_entry(LINK, MESSAGE, MESSAGE)
    assert wire.read_step(wire.Entry.decode(entry.encode())) == (after, MESSAGE)
    assert wire.step_entry(after, MESSAGE, MESSAGE)[1] != after
    assert wire.read_mark(wire.Entry.decode(wire.mark_entry(9, "ab" * 16).encode())) == (9, "ab" * 16)
    about = Beginning(epoch="e", names=["ä"], rounds=3)
    assert about.encode() == b'{"epoch": "e", "names": ["\\u00e4"], "rounds": 3}'
    head = wire.header_entry(about, b"orbit" + LINK)
    assert wire.read_header(wire.Entry.decode(head.encode())) == (about, b"orbit" + LINK)


def test_plans():
    assert wire.read_plan(wire.plan_message([], True, MESSAGE)[1:]) == (None, MESSAGE)
    assert wire.read_plan(wire.plan_message([3, 9], False, MESSAGE)[1:]) == (frozenset({3, 9}), MESSAGE)
    assert wire.read_silent(wire.silent_message(8, 2, "loss is nan")) == (8, 2, "loss is nan")
    stored = wire.Stored("update-1-0-3", 10**9, MESSAGE[:28])
    assert wire.Stored.decode(stored.encode()) == stored


READERS = [
    wire.Entry.decode, wire.read_plan, wire.read_silent, wire.Stored.decode, partial(read, Question), Message.decode,
    lambda data: wire.read_header(wire.Entry.decode(b"H" + data)), lambda data: read(Question, b'{"round": ' + data),
]  # fmt: skip


def tried(reader, data):
    try:
        reader(data)
    except MessageError:
        return False
    return True


@given(st.binary(max_size=300), st.sampled_from(READERS))
@settings(max_examples=600)
def test_any_bytes_are_read_or_refused(data, reader):
    tried(reader, data)


def test_mutations_are_read_or_refused():
    """Bits flipped, pieces cut out, doubled and exchanged, in valid messages of every kind."""
    g = random.Random(7)
    entry, _ = wire.step_entry(LINK, MESSAGE, MESSAGE)
    valid = [
        MESSAGE, entry.encode(), wire.mark_entry(3, "ab" * 16).encode(), wire.plan_message([1, 2], False, MESSAGE)[1:],
        wire.silent_message(3, 0, "why"), wire.Stored("name", 5, MESSAGE[:28]).encode(),
        wire.header_entry(Beginning(epoch="x", names=["a"]), LINK).encode(), b'{"round": 3}',
    ]  # fmt: skip
    refused = 0
    for _ in range(20_000):
        data = bytearray(g.choice(valid))
        for _ in range(g.randint(1, 3)):
            at = g.randrange(len(data) + 1)
            act = g.randrange(4)
            if act == 0 and at < len(data):
                data[at] ^= 1 << g.randrange(8)
            elif act == 1:
                del data[at : at + g.randint(1, 8)]
            elif act == 2:
                data[at:at] = data[: g.randint(1, 8)]
            else:
                data[at:at] = g.choice(valid)[: g.randint(1, 40)]
        refused += sum(not tried(reader, bytes(data)) for reader in READERS)
        assert tried(Message.decode, bytes(data)) == (bytes(data) == MESSAGE)  # no damage is overlooked
    assert refused > 20_000
