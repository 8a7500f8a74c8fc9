"""Records one by one: how many steps they may say they are, and which steps go into which
record.
"""

import tracemalloc

import pytest

from fedseed import FedKSeed, FeedSign, MeZO
from fedseed.durable import Appender
from fedseed.errors import MessageError
from fedseed.orbit import NO_DIGEST, record
from fedseed.orbit.record import MOST_PACKED, Record, Steps, ending, link, pack_records

VOTES, FLOATS = FeedSign(), MeZO()  # a bit a step; four bytes a step
END = "ab" * 16


@pytest.mark.parametrize(
    ("method", "steps", "payload", "text"),
    [
        (VOTES, 0, b"\0", "0 steps in 1 bytes"),
        (VOTES, 2, b"", "2 steps in 0 bytes"),
        (VOTES, MOST_PACKED + 1, bytes(MOST_PACKED // 8 + 1), "65537 steps in 8193 bytes"),
        (FLOATS, 2, bytes(MOST_PACKED + 2), "2 steps in 65538 bytes"),
        (FLOATS, 3, bytes(7), "7 bytes can't be 3 steps of equal length"),
        (VOTES, 2, b"\7", "a padding bit is set"),
    ],
)
def test_a_payload_that_can_not_be_so_many_steps(method, steps, payload, text):
    made = Record(1, payload, steps=steps)
    for act in (made.check, lambda method: list(made.unpack(method))):
        with pytest.raises(MessageError, match=text):
            act(method)


def test_as_many_steps_as_there_can_be_and_none():
    Record(1, bytes(MOST_PACKED // 8), steps=MOST_PACKED).check(VOTES)
    assert list(Record(1, b"", steps=0).unpack(VOTES)) == [] and list(ending([])) == [
        Record(1, b"", steps=0)
    ]


def test_the_digest_is_that_of_the_last_step_and_steps_end_where_asked():
    parts = [Record(1, b"\1", END), Record(2, b"\5", END, 3), Record(5, b"", END)]
    whole = [
        Record(1, b"\1", END),
        Record(2, b"\1"),
        Record(3, b"\0"),
        Record(4, b"\1", END),
        Record(5, b"", END),
    ]
    assert whole[1].digest == NO_DIGEST
    assert list(Steps(parts, VOTES)) == whole
    for upto in range(7):
        assert list(Steps(parts, VOTES, upto)) == whole[:upto]
    broken = [parts[0], Record(2, b"\xff", END, 3)]
    assert list(Steps(broken, VOTES, 1)) == whole[:1]  # what comes later is not looked at


def joined(method, *payloads):
    """(first, steps, payload) of each record that the steps become."""
    made = [
        Record(number, payload, f"{number:032x}")
        for number, payload in enumerate(payloads, start=1)
    ]
    found = list(pack_records(method, made))
    assert [int(each.digest, 16) for each in found] == [each.last for each in found]
    assert [r.payload for r in Steps(found, method)] == list(payloads)
    return [(each.round, each.steps, each.payload) for each in found]


def test_which_steps_share_a_record(monkeypatch):
    assert joined(VOTES) == []
    assert joined(VOTES, b"\1") == [(1, 1, b"\1")]
    assert joined(VOTES, b"\1", b"\0", b"\1") == [(1, 3, b"\5")]
    assert joined(VOTES, b"\1", b"\1", b"", b"", b"\1") == [
        (1, 2, b"\3"),
        (3, 1, b""),
        (4, 1, b""),
        (5, 1, b"\1"),
    ]
    assert joined(FLOATS, b"1234", b"5678", b"12345678") == [
        (1, 2, b"12345678"),
        (3, 1, b"12345678"),
    ]
    # not one step after the other
    assert joined(FedKSeed(), b"1234", b"5678") == [(1, 1, b"1234"), (2, 1, b"5678")]
    monkeypatch.setattr(record, "MOST_PACKED", 12)
    four = [b"1234", b"5678", b"9abc", b"defg"]
    assert joined(FLOATS, *four) == [(1, 3, b"123456789abc"), (4, 1, b"defg")]
    assert joined(FLOATS, *four[:2], *[b"12345"] * 3) == [
        (1, 2, b"12345678"),
        (3, 2, b"1234512345"),
        (5, 1, b"12345"),
    ]


def test_a_record_is_linked_and_written_without_a_copy_of_its_payload(tmp_path):
    one, payload = b"\1" * 16, bytes(range(256)) * 4096  # a megabyte, as of whole weights
    step = Record(1, payload, END)
    assert link(one, *step.encode_parts()) == link(one, step.encode()) == link(one + step.encode())
    file = Appender(tmp_path / "steps")
    tracemalloc.start()
    parts = step.encode_parts()
    file.append(*parts, link(one, *parts))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    file.close()
    assert peak < len(payload) / 10
    assert (tmp_path / "steps").read_bytes() == step.encode() + link(one, *parts)
