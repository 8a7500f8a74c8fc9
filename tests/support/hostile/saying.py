"""What a hostile client says: updates, hellos, attachments, beats and reports that nobody should believe."""

import base64
import json
import struct
import zlib
from contextlib import suppress
from dataclasses import replace

from fedseed.errors import FedseedError
from fedseed.federation.messages import EVERYBODY, FRAME_BYTES, MessageKind
from fedseed.federation.protocol import Stored
from fedseed.orbit.record import link
from support.hostile.damage import ESCAPES, bomb, damaged, damaged_json, evil

NEVER = 10_000  # attempts after this one: the next may come, and then it counts
MOST = 900_000  # bytes of what it says: the server takes 1 MiB
LATER = 2  # rounds after this one, which wait for it: what is for the next one may come in time, and count
DIGITS = "9" * 4300
REPORTS = (
    f'"counted": {DIGITS[:400]}', '"losses": 1e308, "counted": 1', '"losses": NaN, "counted": 1', '"x": 1',
    f'"forward_passes": {DIGITS}', '"forward_passes": -5', '"seconds": {"round": 1e308}', '"moved_weights": 1e9',
    '"seconds": ' + json.dumps({f"phase {i}": 1.0 for i in range(5000)}),
)  # fmt: skip
METRICS = (
    '{"seconds": 1}', '{"round": 1}', '{"epsilon": 0, "loss": -1}', '{"loss": 1e308}', '{"loss": NaN}', '{"loss": "x"}',
    '{"weights_digest": "ab", "clients": [1]}', "[]", "7", json.dumps({f"m{i}": 1.0 for i in range(3000)}),
    json.dumps({ESCAPES: 1.0}),
)  # fmt: skip
VALUES = [struct.pack("<f", value) for value in (float("nan"), float("inf"), 3e38, -3e38, 1e30)]


# -- updates ------------------------------------------------------------------------------------


async def malformed_update(bad, number, attempt):
    """Not a message at all."""
    whole = bad.message(number, attempt).encode()
    wrong = bad.rng.choice([
        b"", b"F", b"FS", b"FN", b"FO", b"FN" + b"\xff" * 400, b"FO" + bytes(40) + b"../../x", b"garbage" * 10,
        bad.rng.randbytes(500), whole[:-1], whole + b"\0", whole[:20], b"\0" * 28, whole[:-1] + bytes([whole[-1] ^ 1]),
        b"FO" + b"\xff" * 36 + b"x" * 101, b"FN" + struct.pack("<IH", number + LATER, attempt) + b"\x1b[2J",
    ])  # fmt: skip
    await bad.send("update", wrong)


async def invalid_value(bad, number, attempt):
    """The right frame around what no client may send: not finite, out of all proportion, of another length."""
    real = b"" if bad.real is None else bad.real[FRAME_BYTES:]
    payload = bytearray(real)
    if len(payload) >= 4 and len(payload) % 4 == 0 and bad.rng.random() < 0.7:
        at = 4 * bad.rng.randrange(len(payload) // 4)
        if len(payload) > 8:
            at = max(at, len(payload) // 2 // 4 * 4)  # behind lengths and indices
        payload[at : at + 4] = bad.rng.choice(VALUES)
    else:
        payload = bad.rng.choice([payload + b"\0", payload[:-1], payload * 2 + b"x", bytearray(100_001)])
    if payload != real:
        await bad.send("update", bad.message(number, attempt, bytes(payload)).encode())


async def wrong_frame(bad, number, attempt):
    """For another round, of another client, of another kind; what it holds is damaged, too, now and then."""
    right = bad.message(number, attempt)
    others = [client for client in (0, 1, 4, 77, EVERYBODY) if client != bad.number]
    wrong = bad.rng.choice([
        replace(right, round=(number + bad.rng.choice([-1, LATER, 1000, 1 << 31])) & 0xFFFFFFFF),
        replace(right, client=bad.rng.choice(others)), replace(right, kind=MessageKind.STEP),
        replace(right, kind=MessageKind.PLAN), replace(right, attempt=attempt + NEVER),
        replace(right, method=right.method + 1),
    ])  # fmt: skip
    if bad.rng.random() < 0.3:
        wrong = replace(wrong, payload=damaged(bad.rng, wrong.payload))
    await bad.send("update", wrong.encode())


# -- what a process says of itself -------------------------------------------------------------------------------


def _headed(bad, packed):
    """An orbit's beginning with this instead of its JSON, and the right checksum."""
    head = bad.hosted.start[:12] + struct.pack("<I", len(packed)) + packed
    return base64.b64encode(head + link(b"", head)).decode()


async def hello(bad, number, attempt):
    """Another base, other names, in another's name, too large, not valid."""
    kind = bad.rng.randrange(7)
    about = bad.about_itself()
    if kind == 0:
        about["host"] = bad.honest
    elif kind == 1:  # a header that inflates
        about["header"] = _headed(bad, bomb(bad.rng.choice([10, 255, 1000]), bad.rng.choice([100, 3000, 60_000])))
    elif kind == 2:
        names, many = [*bad.hosted.names], [f"c{i}" for i in range(20_000)]
        about["names"] = bad.rng.choice([[], [bad.name], ["x"] * 3, [ESCAPES], names[::-1], many, "client-0", [[]]])
    elif kind == 3:  # another base, sent with the weights that nobody has asked for
        changed = json.loads(zlib.decompress(bad.hosted.start[16:-16]))
        changed[bad.rng.choice(["base_digest", "dtype", "seed", "layout", "method", "trainable"])] = "ab" * 16
        about["header"] = _headed(bad, zlib.compress(json.dumps(changed).encode()))
        about["weights"] = base64.b64encode(bad.rng.randbytes(2000)).decode()
    elif kind == 4:
        about["weights"] = base64.b64encode(b"FO" + b"\xff" * 36 + b"base-weights").decode()
    data = json.dumps(about).encode()
    if kind == 5:
        data = damaged(bad.rng, data)
    elif kind == 6:
        data = damaged_json(bad.rng, about)
    await bad.send("hello", data[:MOST], certain=kind in (0, 1, 2, 3))


async def attach(bad, number, attempt):
    """For others, to others' processes, with examples that nobody has."""
    about = {"client": bad.name, "host": bad.name, "examples": 5}
    kind = bad.rng.randrange(4)
    if kind == 0:
        data = json.dumps({**about, "client": bad.honest}).encode()
    elif kind == 1:
        data = json.dumps({**about, "host": bad.honest}).encode()
    elif kind == 2:
        wrong = bad.rng.choice(['"x"', "-1", "1e999", "NaN", "null", "[]"])
        data = json.dumps({**about, "examples": "@"}).replace('"@"', wrong).encode()
    else:
        data = damaged_json(bad.rng, about)
    await bad.send("attach", data[:MOST], certain=kind in (0, 2))


async def beat(bad, number, attempt):
    """Signs of life from nowhere."""
    data = damaged_json(bad.rng, {"at": number, "epoch": bad.epoch})
    await bad.send("beat", data[:MOST], certain=False)


async def report(bad, number, attempt):
    """Figures that can't be, and such as would overwrite the run's own."""
    good = bad.report(number)
    kind = bad.rng.randrange(4)
    if kind == 0:
        data = json.dumps({**good, "spent": "@"}).replace('"@"', "{" + bad.rng.choice(REPORTS) + "}").encode()
    elif kind == 1:
        data = json.dumps({**good, "metrics": "@", "seconds": 1}).replace('"@"', bad.rng.choice(METRICS)).encode()
    elif kind == 2:
        changed = {bad.rng.choice(["round", "ratio", "digest", "at", "seconds", "by_client"]): "@"}
        data = json.dumps({**good, **changed}).replace('"@"', evil(bad.rng)).encode("utf-8", "surrogatepass")
    else:
        data = damaged_json(bad.rng, good)
    await bad.send("report", data[:MOST], certain=False)


async def unknown(bad, number, attempt):
    """Kinds of message that there are not."""
    what = bad.rng.choice(["x", "updates", "status", "a" * 3000, "log", "HELLO", "=1B=5B2J"])
    await bad.send(what, b"{}")


# -- many and much ------------------------------------------------------------------------------------


async def several_at_once(bad, number, attempt):
    """The same thing a hundred times."""
    wrong = bad.message(number + LATER, attempt).encode()
    for _ in range(100):
        await bad.send("update", wrong)


async def flood(bad, number, attempt):
    """Up to 10,000 messages at once, of one kind."""
    what, data = bad.rng.choice([
        ("update", bad.message(number + LATER, attempt).encode()), ("nonsense", b"{}"), ("update", b"x"),
        ("beat", json.dumps({"at": 0, "epoch": "another"}).encode()), ("report", b"[]"),
        ("hello", json.dumps(bad.about_itself(host=bad.honest)).encode()),
    ])  # fmt: skip
    for _ in range(bad.rng.choice([1000, 3000, 10_000])):
        await bad.send(what, data, certain=what != "beat")


async def large(bad, number, attempt):
    """Megabytes: hellos, reports, and an object as large as it may be."""
    kind = bad.rng.randrange(3)
    if kind == 0:
        await bad.send("hello", json.dumps(bad.about_itself(x="a" * MOST)).encode(), certain=False)
    elif kind == 1:
        for _ in range(60):
            await bad.send("report", b'{"x": "' + b"\x1b" * MOST)
    else:
        frame = bad.message(number, attempt).encode()[:FRAME_BYTES]
        data = frame + bytes(8 << 20)
        with suppress(FedseedError):
            await bad.end.put("great", data)
        await bad.send("update", Stored("great", len(data), frame).encode())


ACTS = ((malformed_update, 3), (invalid_value, 3), (wrong_frame, 3), (hello, 3), (attach, 2), (beat, 2), (report, 4),
        (unknown, 1), (several_at_once, 1))  # fmt: skip
HEAVY = ((flood, 1), (large, 1))
