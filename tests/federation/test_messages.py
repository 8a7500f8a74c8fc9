from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedseed.errors import MessageError
from fedseed.federation import protocol as wire
from fedseed.federation.control import Beginning
from fedseed.federation.large import Stored
from fedseed.federation.messages import FRAME_BYTES, Message, MessageKind
from fedseed.methods import FeedSign
from fedseed.orbit import Header
from fedseed.orbit.file import begin
from support.reception import LAYOUT

numbers = st.integers(0, 2**32 - 1)
messages = st.builds(
    Message,
    st.sampled_from(MessageKind),
    st.integers(0, 255),
    numbers,
    numbers,
    st.binary(max_size=200),
    st.integers(0, 255),
)


@given(messages)
def test_round_trip(message):
    data = message.encode()
    assert len(data) == FRAME_BYTES + len(message.payload)
    assert Message.decode(data) == message
    head, payload = Message.decode_view(data)
    assert payload.obj is data and replace(head, payload=bytes(payload)) == message


@given(messages, st.integers(0, 10_000), st.integers(1, 255))
def test_any_changed_byte_is_found(message, position, flip):
    data = bytearray(message.encode())
    data[position % len(data)] ^= flip
    with pytest.raises(MessageError):
        Message.decode(bytes(data))


def test_another_stream_version_is_refused_by_name():
    data = bytearray(Message(MessageKind.STEP, 1, 1, 0, b"").encode())
    data[3] = 9
    with pytest.raises(MessageError, match="random stream version 9"):
        Message.decode(bytes(data))


@pytest.mark.parametrize(
    ("about", "text"),
    [
        ((MessageKind.PLAN, 1, 5), "expected a plan"),
        ((MessageKind.STEP, 2, 5), "method code 2"),
        ((MessageKind.STEP, 1, 6), "round 6"),
    ],
)
def test_what_a_message_is_about_is_checked(about, text):
    with pytest.raises(MessageError, match=text):
        Message(MessageKind.STEP, 1, 5, 0, b"").expect(*about)


LINK = bytes(range(16))
MESSAGE = Message(MessageKind.STEP, 5, 7, 0xFFFFFFFF, b"\x01").encode()


def test_entries():
    entry, after = wire.step_entry(LINK, MESSAGE, MESSAGE)
    assert wire.read_step(wire.Entry.decode(entry.encode())) == (after, MESSAGE)
    assert wire.step_entry(after, MESSAGE, MESSAGE)[1] != after
    assert wire.read_mark(wire.Entry.decode(wire.mark_entry(9, "ab" * 16).encode())) == (
        9,
        "ab" * 16,
    )
    about = Beginning(epoch="e", names=["ä"], rounds=3)
    assert about.encode() == b'{"epoch": "e", "names": ["\\u00e4"], "rounds": 3}'
    header = Header("base", "ab" * 16, "float32", LAYOUT, FeedSign(), 0)
    head = wire.header_entry(about, begin(header))
    assert wire.read_header(wire.Entry.decode(head.encode())) == (
        about,
        header,
        begin(header)[-len(LINK) :],
    )
    log = [
        head,
        wire.Entry("S", bytes(8)),
        entry,
        wire.mark_entry(1, "ab" * 16),
        wire.Entry("E", b""),
    ]
    read_back = wire.LogContents.from_entries([one.encode() for one in log])
    assert read_back[3:] == ([(after, MESSAGE)], {1: "ab" * 16}, 1, True)


def test_plans():
    assert wire.read_plan(wire.plan_message([], True, MESSAGE)[1:]) == (None, MESSAGE)
    assert wire.read_plan(wire.plan_message([3, 9], False, MESSAGE)[1:]) == (
        frozenset({3, 9}),
        MESSAGE,
    )
    assert wire.read_silent(wire.silent_message(8, 2, "loss is nan")) == (8, 2, "loss is nan")
    stored = Stored("update-1-0-3", 10**9, MESSAGE[:28])
    assert Stored.decode(stored.encode()) == stored
