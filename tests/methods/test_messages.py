"""The bytes of every method's messages: golden, and read back to the same."""

import json
import runpy
from pathlib import Path

import pytest

from fedseed.errors import MessageError
from support.released import RELEASED

FOLDER = Path(__file__).with_name("golden")
MAKE = runpy.run_path(str(FOLDER / "make.py"))
GOLDEN = json.loads((FOLDER / "messages.json").read_text())


def readers(name):
    """What reads a plan, an update, a step, and the step of a round that nobody answered."""
    method = MAKE["CASES"][name][0]
    state = method.start(MAKE["LAYOUT"], MAKE["SEED"])
    return {
        "plan": lambda data: method.decode_plan(state, data),
        "update": lambda data: method.decode_update(state, MAKE["ROUND"], data),
        "step": lambda data: method.decode_step(state, data),
        "nobody": lambda data: method.decode_step(state, data),
    }


def test_every_released_method_has_golden_messages():
    assert set(GOLDEN) == set(MAKE["CASES"])
    assert {type(method) for method, *_ in MAKE["CASES"].values()} == set(RELEASED)


@pytest.mark.parametrize("name", GOLDEN)
def test_messages_have_the_golden_bytes_and_are_read_back(name):
    assert MAKE["messages"](name) == GOLDEN[name]
    types = dict(zip(("plan", "update", "step"), map(type, MAKE["CASES"][name][1:]), strict=True))
    for what, read in readers(name).items():
        payload = read(bytes.fromhex(GOLDEN[name][what]))
        assert payload.encode().hex() == GOLDEN[name][what]
        assert type(payload) is types.get(what, types["step"])


@pytest.mark.parametrize("name", GOLDEN)
def test_a_byte_more_or_less_is_refused(name):
    for what, read in readers(name).items():
        data = bytes.fromhex(GOLDEN[name][what])
        if what == "nobody" and not data:
            continue  # a byte may be a step that somebody answered
        for wrong in (data + b"\0", data[:-1]) if data else (b"\0",):
            if wrong or what != "step":  # no bytes at all: nobody answered
                with pytest.raises(MessageError):
                    read(wrong)
