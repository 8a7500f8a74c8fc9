"""Damaged bytes and tables, drawn by a generator: the same seed, the same damage."""

import json
import struct
import zlib

from fedseed.orbit.file import START
from fedseed.orbit.record import LINK_BYTES, link

ESCAPES = "\x1b[2J\x1b]0;owned\x07\u202e[red]x[/red]\n\r\u0000"
NUMBERS = (
    "0",
    "-1",
    "1",
    "true",
    "false",
    "null",
    "NaN",
    "Infinity",
    "-Infinity",
    "1e308",
    "-1e308",
    "1e-320",
    "2147483648",
    "4294967295",
    "9223372036854775808",
    "18446744073709551616",
    "0.5",
    "1" * 400,
    "9" * 4400,
    "1e999",
    "-0.0",
)
TEXTS = (
    "",
    "x",
    "..",
    "../../x",
    "client-0",
    ">",
    "*",
    "a" * 5000,
    "\ud800",
    ESCAPES,
    "fedseed.log",
    "NaN",
    "1e5",
)
FLOATS = (float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e30, 1e-40, 0.0)


def evil(rng, depth=0):
    """The JSON text of a value that nobody expects."""
    kind = rng.randrange(9)
    if kind < 4:
        return rng.choice(NUMBERS)
    if kind < 6:
        return json.dumps(rng.choice(TEXTS))
    if kind == 6 or depth > 2:
        return rng.choice(
            ["[]", "{}", "[" * 2000, "[" * 500 + "]" * 500, '{"a":' * 300 + "1" + "}" * 300]
        )
    if kind == 7:
        return "[" + ",".join(evil(rng, depth + 1) for _ in range(rng.choice([1, 3, 200]))) + "]"
    keys = (
        json.dumps(rng.choice([*TEXTS, "round", "seconds", "loss", "link", str(i)]))
        for i in range(4)
    )
    return "{" + ",".join(f"{key}:{evil(rng, depth + 1)}" for key in keys) + "}"


def damaged_json(rng, table):
    """A table's JSON with one to three things that are wrong; now and then not even JSON."""
    marks = {}

    def mark():
        name = f"@{len(marks)}@"
        marks[json.dumps(name)] = evil(rng)
        return name

    copy = json.loads(json.dumps(table))
    for _ in range(rng.randint(1, 3)):
        place = copy
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(place[key], (dict, list)) and place[key] and rng.random() < 0.6:
                place = place[key]
                continue
            act = rng.randrange(4)
            if act == 0:
                del place[key]
            elif act == 1 and isinstance(place, dict):
                place[rng.choice(["x", "round", "epsilon", "seconds", *TEXTS])] = mark()
            else:
                place[key] = mark()
            break
    text = json.dumps(copy)
    for name, value in marks.items():
        text = text.replace(name, value)
    data = text.encode("utf-8", "surrogatepass")
    return damaged(rng, data) if rng.random() < 0.1 else data


def damaged(rng, data):
    """Bytes with a few that are others, missing, doubled or added."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(data) + 1)
        act = rng.randrange(7)
        if act == 0 and data:
            data[at - 1] ^= 1 << rng.randrange(8)
        elif act == 1:
            data[at:at] = rng.randbytes(rng.choice([1, 4, 28]))
        elif act == 2:
            del data[at : at + rng.choice([1, 4, 16, len(data)])]
        elif act == 3:
            data += data[at : at + 100]
        elif act == 4:
            data[at : at + 4] = struct.pack(
                "<I", rng.choice([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
            )
        elif act == 5:
            data[at : at + 4] = struct.pack("<f", rng.choice(FLOATS))
        else:
            data[at : at + 8] = struct.pack("<Q", rng.choice([1 << 40, 1 << 63, (1 << 64) - 1, 0]))
    return bytes(data)


def bomb(times=255, size=1 << 16):
    """Compressed bytes that inflate to so many times their length at most, of `size` bytes
    before.
    """
    text = b"[" + b"[]," * (times * size // 4) + b"[]]"
    return zlib.compress(text[: times * size], 9)


def damaged_payload(rng, real):
    """Other bytes, or one number that is another."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.choice([0, 1, 100, 100_000]))
    if rng.random() < 0.4 and len(real) >= 4:  # one number
        at = rng.randrange(len(real) // 4) * 4
        value = rng.choice(
            [
                struct.pack(
                    "<f", rng.choice([3e38, -3e38, 1e30, 1e5, float("nan"), float("inf"), 1e-45])
                ),
                struct.pack("<I", rng.choice([0, 1, 1 << 31, (1 << 32) - 1])),
            ]
        )
        return real[:at] + value + real[at + 4 :]
    return damaged(rng, real)


def damaged_header(rng, start):
    """An orbit's beginning whose JSON is damaged, or its bytes.

    Checksums are right more often than not.
    """
    packed = start[START.size : -LINK_BYTES]
    kind = rng.randrange(4)
    if kind == 0:
        return damaged(rng, start)
    if kind == 1:
        packed = damaged(rng, packed)
    elif kind == 2:
        packed = zlib.compress(damaged_json(rng, json.loads(zlib.decompress(packed))), 9)
    else:
        packed = bomb(rng.choice([10, 255]), rng.choice([1000, 50_000]))
    head = start[:12] + struct.pack("<I", len(packed)) + packed
    return head + link(b"", head)
