"""What a hostile client says: updates, hellos, attachments, beats and reports that nobody should
believe.

Each act draws messages: (kind, bytes). `tests/federation/test_hostile.py` sends them over NATS.
"""

import base64
import json
import struct
import zlib
from dataclasses import replace

from fedseed.federation.messages import EVERYBODY, Message, MessageKind
from fedseed.federation.protocol import silent_message
from fedseed.orbit.record import link
from support.hostile.damage import (
    ESCAPES,
    bomb,
    damaged,
    damaged_header,
    damaged_json,
    damaged_payload,
    evil,
)

NEVER = 10_000  # attempts after this one: the next may come, and then it counts
MOST = 900_000  # bytes of what it says: the server takes 1 MiB
# rounds after this one, which wait for it: what is for the next one may come in time, and count
LATER = 2
DIGITS = "9" * 4300
SPENT = (
    f'"counted": {DIGITS[:400]}',
    '"losses": 1e308, "counted": 1',
    '"losses": NaN, "counted": 1',
    '"x": 1',
    f'"forward_passes": {DIGITS}',
    '"forward_passes": -5',
    '"seconds": {"round": 1e308}',
    '"moved_weights": 1e9',
    '"seconds": ' + json.dumps({f"phase {i}": 1.0 for i in range(5000)}),
)
METRICS = (
    '{"seconds": 1}',
    '{"round": 1}',
    '{"epsilon": 0, "loss": -1}',
    '{"loss": 1e308}',
    '{"loss": NaN}',
    '{"loss": "x"}',
    '{"weights_digest": "ab", "clients": [1]}',
    "[]",
    "7",
    json.dumps({f"m{i}": 1.0 for i in range(3000)}),
    json.dumps({ESCAPES: 1.0}),
)


class Liar:
    """What somebody with a client's key knows of the run: it can say what is right.

    `start` is the orbit's header.
    """

    def __init__(self, rng, name, names, start, code):
        self.rng, self.name, self.names, self.start, self.code = rng, name, list(names), start, code
        self.number, self.honest = (
            self.names.index(name),
            next(other for other in names if other != name),
        )
        self.epoch, self.real = "", b"\1"  # the payload of an honest update

    def message(self, number, attempt):
        return Message(MessageKind.UPDATE, self.code, number, self.number, self.real, attempt)

    def about(self, what, number):
        """A hello, attachment, beat or report."""
        return {
            "hello": {
                "host": self.name,
                "header": base64.b64encode(self.start).decode(),
                "names": self.names,
                "at": 0,
                "bucket": True,
            },
            "attach": {"client": self.name, "host": self.name, "examples": 5},
            "beat": {"at": number, "epoch": self.epoch},
            "report": {
                "at": number,
                "epoch": self.epoch,
                "round": number,
                "digest": self.rng.randbytes(16).hex(),
                "spent": {},
                "ratio": None,
                "metrics": None,
            },
        }[what]


def as_json(table, **instead):
    """A table's JSON with these values in it, which are JSON already."""
    text = json.dumps({**table, **{key: f"@{key}@" for key in instead}})
    for key, value in instead.items():
        text = text.replace(f'"@{key}@"', value)
    return text.encode("utf-8", "surrogatepass")


def update(bad, number, attempt):
    """Not a message, not a payload, or of another round, client, kind or attempt."""
    right = bad.message(number, attempt)
    whole, later = right.encode(), struct.pack("<IH", number + LATER, attempt)
    others = [client for client in (0, 1, 4, 77, EVERYBODY) if client != bad.number]
    wrong = bad.rng.choice(
        [
            b"",
            b"F",
            b"FS",
            b"FN",
            b"FO",
            b"FN" + b"\xff" * 400,
            b"FO" + bytes(40) + b"../../x",
            b"garbage" * 10,
            bad.rng.randbytes(500),
            whole[:-1],
            whole + b"\0",
            whole[:20],
            b"\0" * 28,
            whole[:-1] + bytes([whole[-1] ^ 1]),
            b"FO" + b"\xff" * 36 + b"x" * 101,
            b"FN" + later + b"\x1b[2J",
            silent_message(number + LATER, 0, ESCAPES),
            *(
                replace(right, payload=payload).encode()
                for payload in (
                    bytes(100_001),
                    bad.real + b"\0",
                    bad.real[:-1],
                    bad.real * 2 + b"x",
                )
            ),
            replace(
                right, round=(number + bad.rng.choice([-1, LATER, 1000, 1 << 31])) & 0xFFFFFFFF
            ).encode(),
            *(
                replace(right, **{key: value}).encode()
                for key, value in (
                    ("client", bad.rng.choice(others)),
                    ("kind", MessageKind.STEP),
                    ("kind", MessageKind.PLAN),
                    ("attempt", attempt + NEVER),
                    ("method", right.method + 1),
                )
            ),
        ]
    )
    yield "update", wrong


def value(bad, number, attempt):
    """A number in the right place that is not finite or out of all proportion."""
    if len(bad.real) >= 4 and len(bad.real) % 4 == 0:
        first = len(bad.real) // 8 if len(bad.real) > 8 else 0  # behind lengths and indices
        at = 4 * bad.rng.randrange(first, len(bad.real) // 4)
        wrong = struct.pack("<f", bad.rng.choice([float("nan"), float("inf"), 3e38, -3e38, 1e30]))
        wrong = bad.real[:at] + wrong + bad.real[at + 4 :]
        yield "update", replace(bad.message(number, attempt), payload=wrong).encode()


def damage(bad, number, attempt):
    """Damaged, in a frame that is damaged, too, or for a round that never comes."""
    later = replace(
        bad.message(number, attempt + NEVER), payload=damaged_payload(bad.rng, bad.real)
    ).encode()
    yield "update", damaged(bad.rng, later) if bad.rng.random() < 0.5 else later


def hello(bad, number, attempt):
    """Another base, other names, in another's name, too large, not valid."""
    about, kind = bad.about("hello", number), bad.rng.randrange(8)

    def headed(packed):
        """An orbit's beginning with this instead of its JSON, and the right checksum."""
        head = bad.start[:12] + struct.pack("<I", len(packed)) + packed
        about["header"] = base64.b64encode(head + link(b"", head)).decode()

    if kind == 0:
        about["host"] = bad.honest
    elif kind == 1:  # a header that inflates
        headed(bomb(bad.rng.choice([10, 255, 1000]), bad.rng.choice([100, 3000, 60_000])))
    elif kind == 2:
        many = [f"c{i}" for i in range(20_000)]
        about["names"] = bad.rng.choice(
            [[], [bad.name], ["x"] * 3, [ESCAPES], bad.names[::-1], many, "client-0", [[]]]
        )
    elif kind == 3:  # another base, sent with the weights that nobody has asked for
        changed = json.loads(zlib.decompress(bad.start[16:-16]))
        changed[
            bad.rng.choice(["base_digest", "dtype", "seed", "layout", "method", "trainable"])
        ] = "ab" * 16
        headed(zlib.compress(json.dumps(changed).encode()))
        about["weights"] = base64.b64encode(bad.rng.randbytes(2000)).decode()
    elif kind == 4:
        about["weights"] = base64.b64encode(b"FO" + b"\xff" * 36 + b"base-weights").decode()
    elif kind == 5:
        about["header"] = base64.b64encode(damaged_header(bad.rng, bad.start)).decode()
    data = damaged_json(bad.rng, about) if kind == 7 else as_json(about)
    yield "hello", (damaged(bad.rng, data) if kind == 6 else data)[:MOST]


def attach(bad, number, attempt):
    """For others, to others' processes, with examples that nobody has."""
    about, kind = bad.about("attach", number), bad.rng.randrange(4)
    data = [
        as_json({**about, "client": bad.honest}),
        as_json({**about, "host": bad.honest}),
        damaged_json(bad.rng, about),
        as_json(about, examples=bad.rng.choice(['"x"', "-1", "1e999", "NaN", "null", "[]"])),
    ][kind]
    yield "attach", data[:MOST]


def beat(bad, number, attempt):
    """Signs of life from nowhere."""
    yield "beat", damaged_json(bad.rng, bad.about("beat", number))[:MOST]


def report(bad, number, attempt):
    """Figures that can't be, and such as would overwrite the run's own."""
    good = bad.about("report", number)
    changed = bad.rng.choice(["round", "ratio", "digest", "at", "seconds", "by_client"])
    data = bad.rng.choice(
        [
            as_json(good, spent="{" + bad.rng.choice(SPENT) + "}"),
            damaged_json(bad.rng, good),
            as_json({**good, "seconds": 1}, metrics=bad.rng.choice(METRICS)),
            as_json(good, **{changed: evil(bad.rng)}),
        ]
    )
    yield "report", data[:MOST]


def unknown(bad, number, attempt):
    """Kinds of message that there are not."""
    what = bad.rng.choice(["x", "updates", "status", "a" * 3000, "log", "HELLO", "=1B=5B2J"])
    yield what, bad.rng.choice([b"{}", evil(bad.rng).encode("utf-8", "surrogatepass")[:MOST]])


def several_at_once(bad, number, attempt):
    """The same thing a hundred times."""
    what, data = bad.rng.choice(
        [
            ("update", bad.message(number + LATER, attempt).encode()),
            ("nonsense", b"{}"),
            ("update", b"x"),
            ("beat", b'{"at": 0, "epoch": "another"}'),
            ("report", b"[]"),
            ("hello", as_json({**bad.about("hello", number), "host": bad.honest})),
        ]
    )
    for _ in range(100):
        yield what, data


ACTS = {
    update: 6,
    value: 3,
    damage: 1,
    hello: 3,
    attach: 2,
    beat: 2,
    report: 4,
    unknown: 1,
    several_at_once: 1,
}
