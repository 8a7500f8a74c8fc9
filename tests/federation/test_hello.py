"""Hellos of somebody hostile: whatever they are, they are refused by name, in memory that their
size bounds.
"""

import asyncio
import base64
import json
import random
import tracemalloc
import zlib
from dataclasses import replace

import pytest

from fedseed.errors import MessageError
from fedseed.federation.control import Hello, parse_control
from fedseed.federation.coordinator.admission import read_start
from fedseed.methods import FeedSign
from fedseed.orbit import Header
from fedseed.orbit.file import begin
from fedseed.orbit.header import MAGIC, START
from fedseed.orbit.record import link
from fedseed.randomness.stream import STREAM_VERSION
from support.reception import LAYOUT, Talk

HEADER = Header("small", "ab" * 16, "float32", LAYOUT, FeedSign(), 0)
DATA = json.loads(zlib.decompress(HEADER.encode()[START.size :]))
MOST = 44 << 20  # bytes of Python's objects, whatever a hello is


def start(text, noise=None):
    """How an orbit begins whose header is this text, with so many bytes that do not shrink: it
    inflates 60 times.
    """
    noise = base64.b64encode(
        random.Random(3).randbytes(len(text) // 60 if noise is None else noise)
    )
    if noise:
        text = text[:1] + (b'"pad":"' if text[:1] == b"{" else b'"') + noise + b'",' + text[1:]
    packed = zlib.compress(text, 9)
    head = START.pack(MAGIC, 2, STREAM_VERSION, len(packed)) + packed
    return head + link(b"", head)


def headed(noise=None, **changes):
    return start(json.dumps({**DATA, **changes}).encode(), noise)


def layout(tensors, boundaries, noise=None):
    return headed(noise, layout={"tensors": tensors, "boundaries": boundaries})


FULL = 155_000  # bytes: so much is read at most
HUGE = int("9" * 4000)
BOMBS = {
    "lists in a list": lambda: start(b"[" + b"[]," * 6_000_000 + b"[]]"),
    "depth": lambda: start(b"[" * 400_000),
    "lists where texts belong": lambda: headed(FULL, trainable=[[]] * 60_000),
    "empty tensors": lambda: layout(
        [["", [0], "float32"]] * 8_000 + [["w", [1], "float32"]], [0, 1], FULL
    ),
    "long sides": lambda: layout([["w", [HUGE] * 500, "float32"]], [0, 1]),
    "settings": lambda: headed(method={"name": "feedsign", **{f"a{i}": 0 for i in range(8_000)}}),
    "a dtype": lambda: layout([["w", [1], "\x1b[2J" * 10_000]], [0, 1]),
}


def told(header, run=None, **changes):
    """What a coordinator says to a hello, and the most that Python's objects have taken meanwhile.

    Args:
        header: the hello's.
        run: that of the run, if it is known.
        changes: to the rest of the hello.
    """

    async def talk():
        one = await Talk().start()
        one.reception.header = run
        about = {"host": "a", "header": header, "names": ["a"], "at": 0, **changes}
        data = json.dumps(about).encode()
        del about
        tracemalloc.start()
        try:
            answer = await one.reception.hello("a", parse_control(Hello, data))
            return json.loads(answer), tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return asyncio.run(talk())


@pytest.mark.long
@pytest.mark.parametrize("name", BOMBS)
def test_a_header_that_inflates_is_refused_in_bounded_memory(name):
    packed = base64.b64encode(BOMBS[name]()).decode()
    answer, most = told(packed)
    print(f"{name}: {most:,} bytes: {str(answer)[:150]}")
    assert len(answer["refused"]) <= 1000 and "\x1b" not in answer["refused"]
    assert most < MOST


def test_once_the_run_is_known_a_header_far_from_its_is_not_decoded():
    bomb = base64.b64encode(BOMBS["empty tensors"]()).decode()
    answer, most = told(bomb, run=HEADER)
    assert "at most 8," in answer["refused"] and most < 2 << 20
    for mine in (HEADER, replace(HEADER, base="elsewhere/" * 300)):
        answer, _ = told(base64.b64encode(begin(mine)).decode(), run=HEADER)
        assert "refused" not in answer


def large(count=10_000):
    """A header of so many tensors, as of a mixture of many experts, in blocks of a tensor each."""
    tensors = [
        [
            f"model.layers.{i // 512}.mlp.experts.{i % 512}.down_proj.weight",
            [7168, 2048],
            "bfloat16",
        ]
        for i in range(count)
    ]
    return layout(tensors, [i * 7168 * 2048 for i in range(count + 1)])


@pytest.mark.long
def test_a_header_of_a_large_model_is_taken():
    answer, most = told(base64.b64encode(large()).decode())
    assert "refused" not in answer and most < MOST


def test_steps_behind_a_header_are_not_read():
    with pytest.raises(MessageError, match="its length is not the announced one"):
        read_start(begin(HEADER) + bytes(100))
    assert read_start(begin(HEADER)) == HEADER
    for nothing in ("", "!", "AAAA"):
        assert "its length is not the announced one" in told(nothing)[0]["refused"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"host": "b"}, "it speaks for client b"),
        ({"host": "\x1b[2J" * 9}, "host: not a valid client name"),
        ({"names": ["a"] * 200_000}, "names: .* at most 100000 items"),
        ({"names": ["a", "\x1b]0;x\x07"]}, "names: 1: not a valid client name"),
        ({"at": 10**400}, "at: "),
    ],
)
def test_a_hello_that_is_none_is_refused_by_name(changes, text):
    about = {"header": base64.b64encode(begin(HEADER)).decode(), **changes}
    with pytest.raises((MessageError, ValueError), match=text):
        told(**about)
