import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedseed.errors import MessageError
from fedseed.federation.messages import FRAME_BYTES, Message, MessageKind

numbers = st.integers(0, 2**32 - 1)
messages = st.builds(
    Message, st.sampled_from(MessageKind), st.integers(0, 255), numbers, numbers, st.binary(max_size=200)
)


@given(messages)
def test_round_trip(message):
    data = message.encode()
    assert len(data) == FRAME_BYTES + len(message.payload)
    assert Message.decode(data) == message


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
    ("expected", "text"),
    [
        ((MessageKind.PLAN, 1, 5), "a plan was expected"),
        ((MessageKind.STEP, 2, 5), "method code 2"),
        ((MessageKind.STEP, 1, 6), "round 6"),
    ],
)
def test_what_a_message_is_about_is_checked(expected, text):
    with pytest.raises(MessageError, match=text):
        Message(MessageKind.STEP, 1, 5, 0, b"").expect(*expected)
