"""What a hostile client does to the server: objects, any subject its key allows, bytes that are no text."""

import asyncio
import base64
import json
import secrets
from contextlib import suppress

from fedseed.errors import FedseedError
from fedseed.federation.messages import FRAME_BYTES
from fedseed.federation.protocol import Stored
from support.hostile.damage import damaged_json

EVIL_HEADERS = (
    b"NATS/1.0 \xff\xfe\r\n\r\n", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\n\xff\xfe: x\r\n\r\n", b"NATS/1.0",
    b"NATS/1.0\r\n: \r\n\r\n", b"NATS/1.0 \r\n\r\n", b"\xff" * 30, b"NATS/1.0 100 \xff\xff\r\n\r\n",
    b"NATS/1.0\r\n" + b"a: b\r\n" * 5000 + b"\r\n", b"NATS/1.0\r\nx\r\n\r\n", b"NATS/1.0 999999999\r\n\r\n",
    b"NATS/1.0\r\nStatus: 100\r\n\r\n", b"NATS/1.0 503\r\n\r\n", b"NATS/1.0\r\nNats-Last-Consumer: x\r\n\r\n",
    b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 7\r\nNats-Consumer-Stalled: fedseed.run.log\r\n\r\n",
    b"NATS/1.0 100 FlowControl Request\r\n\r\n", b"NATS/1.0\r\nFedseed-Signature: \xff\r\n\r\n",
    b"NATS/1.0\r\nFedseed-Chunk: a.99999999999999999999.-1\r\n\r\n", b"NATS/1.0\r\nNats-Expected-Stream: x\r\n\r\n",
)  # fmt: skip
UNREADABLE = (b"\xff\xfe", b"b\xc3", b"\x01", b"\x7f", b"=FF", b"hello=1B")


def targets(subjects, honest):
    """Subjects that a hostile key would like somebody else to publish to.

    Args:
        subjects: the run's.
        honest: a client that is somebody else.
    """
    api, down = "$JS.API", f"OBJ_{subjects.bucket()}"
    theirs = subjects.bucket(honest)
    return [
        *[subjects.log] * 8, subjects.entries, *[subjects.down] * 3, subjects.status,
        subjects.up(honest, "update"), subjects.up(honest, "hello"), subjects.up(honest, "report"),
        f"{subjects.inbox(honest)}.x.y", f"{subjects.inbox('coordinator')}.x.y", f"{subjects.inbox('watcher')}.x.y",
        f"$O.{subjects.bucket()}.M.c3RlcC0x", f"$O.{subjects.bucket()}.C.x", f"$O.{theirs}.M.dXBkYXRl",
        f"{api}.STREAM.DELETE.{subjects.stream}", f"{api}.STREAM.PURGE.{subjects.stream}",
        f"{api}.STREAM.DELETE.{down}", f"{api}.STREAM.PURGE.{down}", f"{api}.STREAM.DELETE.OBJ_{theirs}",
        f"{api}.STREAM.UPDATE.{subjects.stream}", f"{api}.STREAM.MSG.DELETE.{subjects.stream}",
        f"{api}.CONSUMER.CREATE.{subjects.stream}", f"{api}.CONSUMER.CREATE.{subjects.stream}.x",
        f"{api}.STREAM.CREATE.x", f"{api}.INFO",
        f"$JS.FC.{subjects.stream}.x.y", "$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.PING", "fedseed", "x.y.z",
    ]  # fmt: skip


def filled(pattern, rng):
    """A subject that fits a pattern."""
    parts = []
    for part in pattern.split("."):
        if part == ">":
            parts += rng.choice([["x"], ["x", "y"], ["M", "eA=="], ["C", "x"], ["update"], ["hello"], ["report"],
                                 ["a" * 200], [f"n{rng.randrange(10**6)}"], ["up", "down", "log"]])  # fmt: skip
        else:
            parts.append("x" if part == "*" else part)
    return ".".join(parts)


async def reference(bad, number, attempt):
    """A large update that is not there, not what it says, or somebody else's."""
    frame = bad.message(number, attempt).encode()[:FRAME_BYTES]
    kind = bad.rng.randrange(4)
    if kind == 0:
        name = bad.rng.choice(["nothing", "update", "step-1", "base-weights", f"plan-{number}-0-0", "link"])
        size = bad.rng.choice([0, 1, 28, 1 << 20, 15 << 20, 17 << 20, 1 << 40, (1 << 64) - 1])
    elif kind == 1:
        name, size = "thing", bad.rng.choice([1, 29, 2000])
        with suppress(FedseedError):
            await bad.end.put(name, bad.rng.randbytes(size))
    elif kind == 2:  # a link, to itself or into a bucket of somebody else
        bucket = bad.subjects.bucket(bad.rng.choice([None, bad.honest, bad.name]))
        linked = {"bucket": bucket, "name": bad.rng.choice(["loop", "step-1", "update"])}
        name, size = "loop", 40
        await describe(bad, name, {"options": {"link": linked}})
    else:
        name, size = bad.rng.choice(["odd", f"update-{number}-{attempt}-{bad.number}"]), 40
        await describe(bad, name, {}, damage=True)
        await chunk(bad, name, size)
    await bad.send("update", Stored(name, size, frame).encode())


async def describe(bad, name, table, damage=False):
    """An object's description, written by hand."""
    bucket = bad.subjects.bucket(bad.name)
    about = {"name": name, "bucket": bucket, "nuid": name, "size": 40, "chunks": 1, "deleted": False,
             "mtime": "2026-01-01T00:00:00Z", "digest": "SHA-256=" + "A" * 43 + "=", **table}  # fmt: skip
    data = damaged_json(bad.rng, about) if damage else json.dumps(about).encode()
    place = base64.urlsafe_b64encode(name.encode()).decode()
    headers = b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"
    await bad.wire.publish(f"$O.{bucket}.M.{place}", data[:900_000], headers=headers)


async def chunk(bad, name, size):
    """Write a piece of an object by hand, with headers that nobody expects."""
    subject, data = f"$O.{bad.subjects.bucket(bad.name)}.C.{name}", bad.rng.randbytes(size)
    place = bad.rng.choice([f"{secrets.token_hex(4)}.0.{size}", f"x.{'9' * 14}.{size}", "x.0.0", "a.b.c"]).encode()
    lines = b"Fedseed-Chunk: " + place + b"\r\n" + bad.signature(subject, data, place)
    first = bad.rng.choice([b"NATS/1.0\r\n", b"NATS/1.0 100 Idle Heartbeat\r\n", b"NATS/1.0 \xff\xff\r\n"])
    await bad.wire.publish(subject, data, headers=bad.rng.choice([None, first + lines + b"\r\n", *EVIL_HEADERS[:8]]))


async def any_subject(bad, number, attempt):
    """Anything, to whatever its key may publish to, with a reply subject of somebody else; often a right hello."""
    subject, hello = bad.subjects.up(bad.name, "hello"), json.dumps(bad.about("hello", number)).encode()
    data, headers, usual = hello, None, bad.rng.random() < 0.3
    if not usual:
        subject = filled(bad.rng.choice(bad.publishes), bad.rng)
        data = bad.rng.choice([b"", b"{}", b"null", b'{"seq": 1}', b'{"last_by_subj": ">"}', b'{"filter": ">"}',
                               b"T" + bytes(60), b"E", bad.rng.randbytes(60), hello])  # fmt: skip
        headers = bad.rng.choice([None, b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n", *EVIL_HEADERS[11:]])
    if usual or bad.rng.random() < 0.5:
        headers = b"NATS/1.0\r\n" + bad.signature(subject, data) + b"\r\n"
    bad.sent += 1
    await bad.wire.publish(subject, data, bad.rng.choice(bad.targets), headers)


async def raw_bytes(bad, number, attempt):
    """Headers and subjects that are no text, on which a library's reader may break."""
    up = bad.subjects.up(bad.name, "beat")
    bad.sent += 1
    if bad.rng.random() < 0.6:
        await bad.wire.publish(up, b"{}", headers=bad.rng.choice(EVIL_HEADERS))
    else:
        subject = up.rpartition(".")[0].encode() + b"." + bad.rng.choice(UNREADABLE)
        await bad.wire.publish(subject, b"{}", bad.rng.choice([b"", b"\xff\xff"]))


async def foreign_subject(bad, number, attempt):
    """What its key does not allow."""
    if bad.foreign >= 40:  # the server ends a connection that goes on and on, and its log is read line by line
        return
    bad.foreign += 2
    theirs = bad.rng.choice([bad.subjects.log, bad.subjects.down, bad.subjects.up(bad.honest, "update"),
                             f"$O.{bad.subjects.bucket()}.M.x", f"$O.{bad.subjects.bucket(bad.honest)}.M.x",
                             f"$JS.API.STREAM.DELETE.{bad.subjects.stream}",
                             f"$JS.API.CONSUMER.CREATE.{bad.subjects.stream}.x"])  # fmt: skip
    await bad.wire.publish(theirs, b"T" + bytes(60))
    await bad.wire.subscribe(bad.rng.choice([f"{bad.subjects.root}.>", f"{bad.subjects.inbox(bad.honest)}.>"]))


async def too_large(bad, number, attempt):
    """More than the server takes, which ends the connection; or as much as a store takes."""
    if bad.rng.random() < 0.25:
        bad.foreign += 1
        await bad.wire.publish(bad.subjects.up(bad.name, "update"), bytes(1 << 21))
        await asyncio.sleep(0.1)
        await bad.wire.close()
        return
    frame = bad.message(number, attempt).encode()[:FRAME_BYTES]
    with suppress(FedseedError):
        await bad.end.put("great", frame + bytes(8 << 20))
    await bad.send("update", Stored("great", FRAME_BYTES + (8 << 20), frame).encode())


ACTS = {reference: 4, any_subject: 8, raw_bytes: 2, foreign_subject: 2}
HEAVY = {too_large: 1}
