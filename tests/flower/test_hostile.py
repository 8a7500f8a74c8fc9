"""Whatever one node of Flower replies: it is named with the reason, and the run goes on to its
bits, or ends.
"""

import json
import math

import pytest

from fedseed.errors import FedseedError
from fedseed.transport import flower
from fedseed.transport import flower_wire as wire
from support.flower import grid, run, written
from support.problem import Problem

FIRST = [{"client": "client-0"}, {"client": "client-[1234]"}]
UPDATE = '{"client": "client-0", "what": "update"}'
ASKS = '{"client": "client-0", "what": "hello", "question": "1"}'

pytestmark = pytest.mark.usefixtures("quickly")


def says(text, data=b""):
    return {"said": [text], "data": [data]}


# what stands in a reply in place of the honest fields (None: nothing), and what is said of it
POISON = [
    (
        {"client": "client-3"},
        "it has the name client-3, but node 12 already speaks for this client",
    ),
    *(
        ({field: None}, f"its reply: {field}: Field required")
        for field in ("have", "heard", "waits", "client")
    ),
    *(
        ({"have": value}, "its reply: have: ")
        for value in ("1", b"1", 1.5, math.nan, math.inf, -1, -(2**63), [1], [])
    ),
    *(
        ({field: "yes"}, f"its reply: {field}: Input should be a valid boolean")
        for field in ("heard", "waits")
    ),
    *(
        ({"client": value}, "its reply: client: ")
        for value in (b"client-0", 7, "", "x" * 201, "\x1b[31m", ["x"])
    ),
    *(
        ({field: "x"}, f"its reply: {field}: Input should be a valid list")
        for field in ("said", "data", "stored", "contents", "dropped")
    ),
    ({"said": [b"{}"], "data": [b""]}, "its reply: said: 0: Input should be a valid string"),
    ({"said": [UPDATE], "data": [10**12]}, "its reply: data: 0: Input should be a valid bytes"),
    (
        {"stored": ["x"], "contents": [10**12]},
        "its reply: contents: 0: Input should be a valid bytes",
    ),
    ({"said": [UPDATE, UPDATE], "data": [b""]}, "the numbers of messages or blobs"),
    ({"stored": ["x"]}, "the numbers of messages or blobs"),
    ({"stored": ["x"], "contents": [b"x"]}, "may store nothing"),
    ({"spent": b"\x00"}, "its reply: spent: Extra inputs"),
    (says("{"), "its reply: not valid JSON"),
    (says("[" * 1999), "its reply: not valid JSON"),
    (says("{" * 2001), "its reply: said: 0: String should have at most 2000"),
    (says("null"), "its reply: Input should be an object"),
    (says('{"client": 1, "what": "update"}'), "its reply: client: Input should be a valid string"),
    (
        says('{"client": "client-0", "what": "update", "question": "\\ud800"}'),
        "its reply: not valid JSON",
    ),
    (
        says(UPDATE, bytes((1 << 20) + 1)),
        "its reply: data: 0: Data should have at most 1048576 bytes",
    ),
    ({"said": [ASKS] * 101, "data": [b""] * 101}, "more than 100 questions"),
    ({"problem": b"\xff"}, "\\xff"),
    ({"problem": "x\x1b[2J" * 10_000}, "x\\x1b[2J"),
    ({"fedseed": None}, "belong to different apps"),
    (
        says('{"client": "client-3", "what": "update"}'),
        "node 11 speaks for it, but node 12 already does",
    ),
    (says('{"client": "client-0", "what": "shout"}'), "a message of unknown kind 'shout'"),
    (says('{"client": "client-0", "what": "hello"}', b"[]"), "Input should be an object"),
    (says('{"client": "client-0", "what": "report"}', b"\xff" * 99), "report: not valid JSON"),
    (says('{"client": "client-0", "what": "beat"}', b'{"at": -1, "epoch": ""}'), "at: "),
    (
        says(
            '{"client": "client-0", "what": "attach"}',
            b'{"client": "client-1", "host": "x", "examples": 1}',
        ),
        "it speaks for client client-1",
    ),
]


def put(table, poison):
    return {key: value for key, value in {**table, **poison}.items() if value is not None}


def test_a_reply_that_is_none_is_refused_and_the_node_named(
    problem, tmp_path, in_process, monkeypatch
):
    """One after the other from the first node, before it says what is honest.

    None comes to the others' ears.
    """
    monkeypatch.setattr(flower, "AGAIN_SECONDS", 1e-3)
    path, recipe = written(tmp_path, "ferret", rounds=2)
    expected = in_process(problem, recipe)
    over, left = grid(path, problem, recipe, tmp_path / "run", FIRST), list(POISON)

    over.nodes[11].there = False
    # once the other has spoken
    over.at = lambda node, message: setattr(over.nodes[11], "there", bool(over.answered))

    def changed(node, table):
        if node.number != 11 or not left:
            return table
        poison, _ = left.pop(0)
        return {} if "fedseed" in poison else put(table, {"said": [], "data": [], **poison})

    over.changed = changed
    result, _ = run(over, path)
    assert not left and result.summary["weights_digest"] == expected.summary["weights_digest"]
    assert result.summary["skipped"] == 0
    told = [
        (name, reason) for name, reasons in result.summary["refusals"].items() for reason in reasons
    ]
    assert {name for name, _ in told} <= {"node 11", "client-0", "client-3"}
    for _, text in POISON:
        assert any(text in reason for _, reason in told), text
    assert all(reason.isprintable() and len(reason) <= 200 for _, reason in told)


ALWAYS = {
    "is behind": ({"heard": False}, "it has requested another exchange 9 times in a row"),
    "waits": (
        {"waits": True, "said": None, "data": None},
        "it has requested another exchange 9 times in a row",
    ),
    "has a problem": ({"problem": "no disk"}, "no disk"),
    "says nothing": ({"have": None}, "have: Field required"),
}


@pytest.mark.parametrize("always", ALWAYS)
def test_nobody_is_asked_for_ever(always, tmp_path, monkeypatch):
    """The first of two nodes after a round; and one that is alone."""
    poison, why = ALWAYS[always]
    path, recipe = written(tmp_path, "ferret", rounds=3)
    over = grid(path, Problem(), recipe, tmp_path / "run", FIRST)
    over.changed = lambda node, table: (
        put(table, poison) if node.number == 11 and going(over) else table
    )
    result, _ = run(over, path)
    assert (
        result.summary["rounds"] == 3
        and len([number for number, _ in over.answered if number == 11]) < 30
    )
    monkeypatch.setattr(flower, "AGAIN_SECONDS", 1e-3)
    over = grid(path, Problem(), recipe, tmp_path / "alone", [{"client": "client-*"}])
    over.changed = lambda node, table: put(table, poison)
    with pytest.raises(
        FedseedError, match="every node has failed 3 times; the first node's reason: .*" + why
    ):
        run(over, path)


def going(over):
    """Whether there has been a round: the first node has header, session, digest and step of the
    log.
    """
    kept = over.nodes[11].context.state.get(wire.RECORD, {})
    return len(kept.get("log", ())) >= 4


def test_evaluations_that_are_all_nan_are_written_down(problem, tmp_path):
    path, recipe = written(tmp_path, "feedsign", rounds=4)
    over = grid(path, problem, recipe, tmp_path / "run")

    def changed(node, table):
        for at, text in enumerate(table.get("said", [])):
            if json.loads(text)["what"] == "report":
                about = json.loads(table["data"][at])
                if about.get("metrics"):
                    about["metrics"] = dict.fromkeys(about["metrics"], math.nan)
                table["data"][at] = json.dumps({**about, "ratio": math.nan}).encode()
        return table

    over.changed = changed
    result, _ = run(over, path)
    assert result.summary["rounds"] == 4 and math.isnan(result.summary["final"]["loss"])
