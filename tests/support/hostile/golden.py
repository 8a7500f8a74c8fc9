"""What the rooms of `fuzzing.py` share: golden payloads and headers, and damage to them whose checksums are right."""

import json
import runpy
import struct
import zlib
from pathlib import Path

from fedseed.errors import FedseedError
from fedseed.methods import FeedSign
from fedseed.orbit import Header
from fedseed.orbit.file import START
from fedseed.orbit.record import LINK_BYTES, link
from support.hostile.damage import bomb, damaged, damaged_json

TESTS = Path(__file__).parents[2]
GOLDEN = runpy.run_path(str(TESTS / "methods" / "golden" / "make.py"))
LAYOUT = GOLDEN["LAYOUT"]
CLIENTS = [f"client-{number}" for number in range(3)]


def tried(act, *errors):
    """Whether it goes well; of errors it may raise these (any of fedseed's, if none are given)."""
    expected = errors or (FedseedError,)

    def attempt():
        try:
            act()
        except expected:
            return False
        return True

    return attempt


def header_of(method=None):
    """A run's header."""
    return Header("small", "ab" * 16, "float32", LAYOUT, method or FeedSign(), GOLDEN["SEED"])


def damaged_payload(rng, real):
    if rng.random() < 0.05:
        return rng.randbytes(rng.choice([0, 1, 100, 100_000]))
    if rng.random() < 0.4 and len(real) >= 4:  # one number
        at = rng.randrange(len(real) // 4) * 4
        value = rng.choice([struct.pack("<f", rng.choice([3e38, -3e38, 1e30, 1e5, float("nan"), float("inf"), 1e-45])),
                            struct.pack("<I", rng.choice([0, 1, 1 << 31, (1 << 32) - 1]))])  # fmt: skip
        return real[:at] + value + real[at + 4 :]
    return damaged(rng, real)


def damaged_header(rng, start):
    """An orbit's beginning whose JSON is damaged, or its bytes; checksums are right more often than not."""
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
