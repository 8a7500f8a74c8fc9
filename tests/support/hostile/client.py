"""A client with a real key that does what the key allows, and an honest client's least: it answers that it has nothing.

Each round it hears of waits for it until it has done its worst; then it answers, in the way that clients have for it,
that it sends nothing. So the round's other answers decide, and a run with it must end with the bits of a run in which
it does nothing else. What it sends is drawn by a generator.
"""

import asyncio
import base64
import json
import random
import struct
import time
import zlib
from collections import Counter
from contextlib import suppress
from dataclasses import replace

from fedseed.errors import FedseedError
from fedseed.federation.messages import EVERYBODY, FRAME_BYTES, Message, MessageKind
from fedseed.federation.protocol import Stored, read_json, read_plan, silent_message
from fedseed.orbit.record import link
from fedseed.transport import transport
from fedseed.transport.base import Access
from fedseed.transport.keys import permissions
from fedseed.transport.subjects import Subjects
from support.hostile.damage import ESCAPES, bomb, damaged, damaged_json, evil
from support.hostile.targets import filled, targets
from support.hostile.wire import Wire

REPORTS = (
    '"counted": %s' % ("9" * 400), '"losses": 1e308, "counted": 1', '"losses": NaN, "counted": 1',
    '"forward_passes": %s' % ("9" * 4300), '"forward_passes": -5', '"seconds": {"round": 1e308}',
    '"seconds": %s' % json.dumps({f"phase {i}": 1.0 for i in range(5000)}), '"x": 1', '"moved_weights": 1e9',
)  # fmt: skip
METRICS = (
    '{"seconds": 1}', '{"round": 1}', '{"epsilon": 0, "loss": -1}', '{"loss": 1e308}', '{"loss": NaN}', '{"loss": "x"}',
    '{"weights_digest": "ab", "clients": [1]}', "[]", "7", json.dumps({f"m{i}": 1.0 for i in range(3000)}),
    json.dumps({ESCAPES: 1.0}),
)  # fmt: skip


class HostileClient:
    """See above.

    Args:
        server: with keys, as `federation.py` starts one.
        run: the run's name.
        hosted: what an honest process with this key would have.
        seed: of what it draws.
        acts: how many it does in each round, and at each question.
        heavy: whether it floods with up to 10,000 messages, too, and sends what takes megabytes.
    """

    def __init__(self, server, run, hosted, seed, acts, heavy=False):
        self.name, self.hosted, self.run, self.acts = hosted.host, hosted, run, acts
        self.number = list(hosted.names).index(self.name)
        self.honest = next(name for name in hosted.names if name != self.name)
        self.subjects = Subjects(run)
        self.rng = random.Random(f"{seed} {self.name}")
        key, ca = server.keys / f"{self.name}.nk", server.keys / "ca.pem"
        self._access = Access(server.url, key, ca)
        self.wire = Wire(server.url, self.subjects, self.name, key, ca)
        self.done = Counter()  # acts by name
        self.sent = 0  # messages that a coordinator may refuse
        self.certain = 0  # messages that it has to
        self.foreign = 0  # what the server has to refuse
        self.rounds = 0
        self.until = None  # time.monotonic() up to which each round is given its share; None: `acts` decides
        self.share = 0.0  # seconds a round
        self._epoch, self._welcome = "", False
        self._plan = self._question = None
        self._worst = set()  # rounds and questions at which it has done its worst
        self._real = None  # an update as an honest client would send it
        self._woken = asyncio.Event()
        self._publishes = permissions(self.subjects, [self.name])[0]
        self._targets = targets(self.subjects, self.honest)
        self._menu = [
            (self.malformed_update, 3), (self.invalid_value, 3), (self.wrong_frame, 3), (self.reference, 3),
            (self.metadata, 2), (self.hello, 3), (self.attach, 2), (self.beat, 2), (self.report, 4), (self.unknown, 1),
            (self.consumer, 3), (self.any_subject, 4), (self.raw_bytes, 2), (self.foreign_subject, 2),
            (self.several_at_once, 1),
        ]  # fmt: skip
        if heavy:
            self._menu += [(self.flood, 1), (self.large, 1), (self.too_large, 0.3)]

    # -- an honest client's least ------------------------------------------------------------------------------------

    async def live(self):
        """Take part, until cancelled."""
        self.end = await transport(self._access, self.run).client(self.name, lambda text: None, self._woken.set)
        try:
            await self.end.listen(self._take)
            while not await self._introduce():
                await asyncio.sleep(0.2)
            while True:
                self._woken.clear()
                plan, question = self._plan, self._question
                self._plan = self._question = None
                if plan is not None:
                    await self._answer(*plan)
                elif question is not None:
                    await self._report(question)
                else:
                    with suppress(TimeoutError, asyncio.TimeoutError):
                        await asyncio.wait_for(self._woken.wait(), 1)
        finally:
            await self.wire.close()
            await self.end.close()

    def _take(self, data):
        with suppress(FedseedError):
            if data[:1] == b"P":
                picked, carried = read_plan(data[1:])
                if picked is None or self.number in picked:
                    self._plan = (int.from_bytes(carried[8:12], "little"), int.from_bytes(carried[6:8], "little"), carried)
                    if carried[:2] == b"FO":
                        frame = Stored.decode(carried).frame
                        self._plan = (int.from_bytes(frame[8:12], "little"), int.from_bytes(frame[6:8], "little"), carried)
            elif data[:1] == b"A":
                self._question = read_json(data[1:])
            elif data[:1] == b"C" and not self._welcome:
                pass
            self._woken.set()

    def _about(self, **more):
        start = base64.b64encode(self.hosted.start).decode()
        about = {"host": self.name, "header": start, "names": list(self.hosted.names), "at": 0, "time": time.time(),
                 "bucket": True}  # fmt: skip
        return {**about, **more}

    async def _introduce(self):
        examples = len(self.hosted.items[self.name])
        attach = {"client": self.name, "host": self.name, "examples": examples}
        await self.end.send(self.name, "attach", json.dumps(attach).encode())
        reply = await self.end.ask(self.name, "hello", json.dumps(self._about()).encode(), 5)
        answer = {} if reply is None else read_json(reply)
        self._epoch = str(answer.get("epoch", ""))
        return "refused" not in answer and reply is not None

    async def _answer(self, number, attempt, carried):
        self.rounds = max(self.rounds, number)
        if ("round", number, attempt) not in self._worst:
            self._worst.add(("round", number, attempt))
            if self._real is None and carried[:2] == b"FS":
                plan = Message.decode(carried)
                items = self.hosted.items[self.name]
                self._real = self.hosted.worker.train(replace(plan, round=number).encode(), self.number, items).message
            await self._do_worst(number, attempt)
        await self.end.send(self.name, "update", silent_message(number, attempt, "hostile"))

    async def _report(self, question):
        number = question.get("round")
        if not self._epoch:
            await self._introduce()
        if ("question", number) not in self._worst:
            self._worst.add(("question", number))
            await self._do_worst(number, 0)
        about = {"at": number, "epoch": self._epoch, "round": number, "digest": self.rng.randbytes(16).hex(),
                 "spent": {}, "ratio": None, "metrics": None}  # fmt: skip
        await self.end.send(self.name, "report", json.dumps(about).encode())

    async def _do_worst(self, number, attempt):
        end = time.monotonic() + self.share
        left = self.acts
        while left > 0 or (self.until is not None and time.monotonic() < min(end, self.until)):
            left -= 1
            await self.act(number, attempt)
        await self.end.flush()
        await self.wire.flush()

    async def act(self, number, attempt):
        """Do one thing of the menu."""
        acts, weights = zip(*self._menu, strict=True)
        act = self.rng.choices(acts, weights)[0]
        self.done[act.__name__] += 1
        with suppress(FedseedError):
            await act(number, attempt)

    async def early(self, count):
        """Hellos and attachments that nobody should believe, before the run begins."""
        self.end = await transport(self._access, self.run).client(self.name, lambda text: None, lambda: None)
        try:
            for _ in range(count):
                await self.rng.choice([self.hello, self.attach, self.any_subject, self.consumer])(0, 0)
            await self.end.flush()
            await self.wire.flush()
        finally:
            await self.end.close()

    # -- updates ------------------------------------------------------------------------------------

    async def _send(self, what, data, certain=True):
        self.sent += 1
        self.certain += certain
        await self.end.send(self.name, what, data)

    def _message(self, number, attempt, payload=None, client=None, kind=MessageKind.UPDATE):
        if payload is None:
            payload = b"\x01" if self._real is None else self._real[FRAME_BYTES:]
        client = self.number if client is None else client
        return Message(kind, self.hosted.worker.method.code, number, client, payload, attempt)

    async def malformed_update(self, number, attempt):
        """Not a message at all."""
        whole = self._message(number, attempt).encode()
        wrong = self.rng.choice([
            b"", b"F", b"FS", b"FN", b"FO", b"FN" + b"\xff" * 400, b"FO" + bytes(40) + b"../../x", b"garbage" * 10,
            self.rng.randbytes(500), whole[:-1], whole + b"\0", whole[:20], b"\0" * 28, whole[:-1] + bytes([whole[-1] ^ 1]),
            b"FO" + b"\xff" * 36 + b"x" * 101, b"FN" + struct.pack("<IH", number + 1, attempt) + b"\x1b[2J",
        ])  # fmt: skip
        await self._send("update", wrong)

    async def invalid_value(self, number, attempt):
        """The right frame around what no client may send."""
        payload = bytearray(b"" if self._real is None else self._real[FRAME_BYTES:])
        if len(payload) >= 4 and len(payload) % 4 == 0 and self.rng.random() < 0.7:
            at = 4 * self.rng.randrange(len(payload) // 4)
            if len(payload) > 8:
                at = max(at, len(payload) // 2 // 4 * 4)  # behind lengths and indices
            payload[at : at + 4] = struct.pack("<f", self.rng.choice([float("nan"), float("inf"), 3e38, -3e38, 1e30]))
        else:
            payload = self.rng.choice([payload + b"\0", payload[:-1], payload * 2 + b"x", bytearray(100_001)])
        if bytes(payload) != (self._real or b"")[FRAME_BYTES:]:
            await self._send("update", self._message(number, attempt, bytes(payload)).encode())

    async def wrong_frame(self, number, attempt):
        """For another round, of another client, of another kind; what it holds is damaged, too, now and then."""
        method = self.hosted.worker.method.code
        wrong = self.rng.choice([
            self._message(number + self.rng.choice([-1, 1, 1000, 1 << 31]) & 0xFFFFFFFF, attempt),
            self._message(number, attempt, client=self.rng.choice([0, 1, 4, EVERYBODY, 77]) + (self.number == 0)),
            self._message(number, attempt, kind=MessageKind.STEP), self._message(number, attempt, kind=MessageKind.PLAN),
            self._message(number, attempt + 1), replace(self._message(number, attempt), method=method + 1),
        ])  # fmt: skip
        if wrong.client == self.number and wrong == self._message(number, attempt):
            return
        if self.rng.random() < 0.3:
            wrong = replace(wrong, payload=damaged(self.rng, wrong.payload))
        await self._send("update", wrong.encode())

    # -- objects ------------------------------------------------------------------------------------

    async def reference(self, number, attempt):
        """A large update that is not there, not what it says, or somebody else's."""
        frame = self._message(number, attempt).encode()[:FRAME_BYTES]
        kind = self.rng.randrange(4)
        name = self.rng.choice(["nothing", "update", "step-1", "base-weights", f"plan-{number}-0-0", "loop", "link"])
        if kind == 0:
            size = self.rng.choice([0, 1, 28, 1 << 20, 15 << 20, 17 << 20, 1 << 40, (1 << 64) - 1])
            await self._send("update", Stored(name, size, frame).encode())
        elif kind == 1:
            data = self.rng.randbytes(self.rng.choice([1, 29, 2000]))
            with suppress(FedseedError):
                await self.end.put("thing", data)
            await self._send("update", Stored("thing", len(data), frame).encode())
        elif kind == 2:  # a link, to itself or into a bucket of somebody else
            bucket = self.rng.choice([self.subjects.bucket(), self.subjects.bucket(self.honest),
                                      self.subjects.bucket(self.name)])  # fmt: skip
            linked = {"bucket": bucket, "name": self.rng.choice(["loop", "step-1", "update"])}
            await self._write_metadata("loop", {"options": {"link": linked}, "size": 40})
            await self._send("update", Stored("loop", 40, frame).encode())
        else:
            await self._write_metadata("odd", json.loads(json.dumps({"size": 40})), damage=True)
            await self._send("update", Stored("odd", 40, frame).encode())

    async def _write_metadata(self, name, table, damage=False):
        bucket = self.subjects.bucket(self.name)
        about = {"name": name, "bucket": bucket, "nuid": "x", "size": 40, "chunks": 1, "mtime": "2026-01-01T00:00:00Z",
                 "digest": "SHA-256=" + "A" * 43 + "=", "deleted": False, **table}  # fmt: skip
        data = damaged_json(self.rng, about) if damage else json.dumps(about).encode()
        place = base64.urlsafe_b64encode(name.encode()).decode()
        await self.wire.publish(f"$O.{bucket}.M.{place}", data[: 900_000], headers=b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n")

    async def metadata(self, number, attempt):
        """An object's description and pieces, by hand, of names that an honest client uses, too."""
        bucket = self.subjects.bucket(self.name)
        await self._write_metadata(f"update-{number}-{attempt}-{self.number}", {}, damage=True)
        await self.wire.publish(f"$O.{bucket}.C.{self.rng.choice(['x', 'y', '>'])}", self.rng.randbytes(100))

    # -- what a process says of itself -------------------------------------------------------------------------------

    async def hello(self, number, attempt):
        """Another base, other names, in another's name, too large, not valid."""
        start = self.hosted.start
        kind = self.rng.randrange(7)
        if kind == 0:
            about = self._about(host=self.honest)
        elif kind == 1:  # a header that inflates
            packed = bomb(self.rng.choice([10, 255, 1000]), self.rng.choice([100, 3000, 60_000]))
            head = start[:12] + struct.pack("<I", len(packed)) + packed
            about = self._about(header=base64.b64encode(head + link(b"", head)).decode())
        elif kind == 2:
            about = self._about(names=self.rng.choice([[], [self.name], ["x"] * 3, [ESCAPES], [*self.hosted.names][::-1],
                                                       [f"c{i}" for i in range(20_000)], "client-0", [[]]]))  # fmt: skip
        elif kind == 3:  # another base, sent with the weights that nobody has asked for
            changed = json.loads(zlib.decompress(start[16:-16]))
            changed[self.rng.choice(["base_digest", "dtype", "seed", "layout", "method", "trainable"])] = "ab" * 16
            packed = zlib.compress(json.dumps(changed).encode())
            head = start[:12] + struct.pack("<I", len(packed)) + packed
            weights = base64.b64encode(self.rng.randbytes(2000)).decode()
            about = self._about(header=base64.b64encode(head + link(b"", head)).decode(), weights=weights)
        elif kind == 4:
            about = self._about(weights=base64.b64encode(b"FO" + b"\xff" * 36 + b"base-weights").decode())
        elif kind == 5:
            await self._send("hello", damaged(self.rng, json.dumps(self._about()).encode()), certain=False)
            return
        else:
            await self._send("hello", damaged_json(self.rng, self._about())[:900_000], certain=False)
            return
        data = json.dumps(about).encode()[:900_000]
        await self._send("hello", data, certain=kind in (0, 1, 2, 3))

    async def attach(self, number, attempt):
        """For others, to others' processes, with examples that nobody has."""
        about = {"client": self.name, "host": self.name, "examples": 5}
        kind = self.rng.randrange(4)
        if kind == 0:
            await self._send("attach", json.dumps({**about, "client": self.honest}).encode())
        elif kind == 1:
            await self._send("attach", json.dumps({**about, "host": self.honest}).encode(), certain=False)
        elif kind == 2:
            wrong = self.rng.choice(['"x"', "-1", "1e999", "NaN", "null", "[]"])
            data = json.dumps({**about, "examples": "@"}).replace('"@"', wrong)
            await self._send("attach", data.encode())
        else:
            await self._send("attach", damaged_json(self.rng, about)[:900_000], certain=False)

    async def beat(self, number, attempt):
        """Signs of life from nowhere."""
        about = {"at": number, "epoch": self._epoch}
        await self._send("beat", damaged_json(self.rng, about)[:900_000], certain=False)

    async def report(self, number, attempt):
        """Figures that can't be, and such as would overwrite the run's own."""
        good = {"at": number, "epoch": self._epoch, "round": number, "digest": "ab" * 16, "spent": {}, "ratio": None,
                "metrics": None}  # fmt: skip
        kind = self.rng.randrange(4)
        if kind == 0:
            data = json.dumps({**good, "spent": "@"}).replace('"@"', "{" + self.rng.choice(REPORTS) + "}").encode()
        elif kind == 1:
            metrics = self.rng.choice(METRICS)
            data = json.dumps({**good, "metrics": "@", "seconds": 1}).replace('"@"', metrics).encode()
        elif kind == 2:
            changed = {self.rng.choice(["round", "ratio", "digest", "at", "seconds", "by_client"]): "@"}
            data = json.dumps({**good, **changed}).replace('"@"', evil(self.rng)).encode("utf-8", "surrogatepass")
        else:
            data = damaged_json(self.rng, good)
        # one that could pass for a report on these weights is followed by a right one before the question is over
        await self._send("report", data[:900_000], certain=False)

    async def unknown(self, number, attempt):
        """Kinds of message that there are not."""
        what = self.rng.choice(["x", "updates", "status", "a" * 3000, "log", "HELLO", "=1B=5B2J"])
        await self._send(what, b"{}")

    # -- the server ------------------------------------------------------------------------------------

    async def consumer(self, number, attempt):
        """Let the server deliver the log, or its own words, where they do harm."""
        stream = self.rng.choice([self.subjects.stream, f"OBJ_{self.subjects.bucket()}"])
        mine = [self.subjects.up(self.name, what) for what in ("update", "hello", "report")]
        config = {"deliver_subject": self.rng.choice([*self._targets, *mine]), "ack_policy": "none", "mem_storage": True,
                  "deliver_policy": self.rng.choice(["all", "last", "new"]),
                  "inactive_threshold": 2_000_000_000}  # fmt: skip
        if self.rng.random() < 0.5:
            config.update(flow_control=True, idle_heartbeat=100_000_000)
        if self.rng.random() < 0.3:
            config.update(ack_policy="explicit", ack_wait=100_000_000, headers_only=self.rng.random() < 0.5)
        reply = self.rng.choice([f"{self.wire.inbox}.r", *self._targets])
        request = {"stream_name": stream, "config": config}
        await self.wire.publish(f"$JS.API.CONSUMER.CREATE.{stream}", json.dumps(request).encode(), reply)

    async def any_subject(self, number, attempt):
        """Anything, to whatever its key may publish to, with a reply subject of somebody else."""
        subject = filled(self.rng.choice(self._publishes), self.rng)
        data = self.rng.choice([b"", b"{}", b"null", b'{"seq": 1}', b'{"last_by_subj": ">"}', b'{"filter": ">"}',
                                b"T" + bytes(60), b"E", self.rng.randbytes(60), json.dumps(self._about()).encode()])  # fmt: skip
        headers = self.rng.choice([None, None, b"NATS/1.0\r\nStatus: 100\r\n\r\n", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n",
                                   b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n", b"NATS/1.0 503\r\n\r\n",
                                   b"NATS/1.0\r\nNats-Expected-Stream: x\r\n\r\n"])  # fmt: skip
        self.sent += 1
        await self.wire.publish(subject, data, self.rng.choice(self._targets), headers)

    async def raw_bytes(self, number, attempt):
        """Headers and subjects that are no text, on which a library's reader may break."""
        up = self.subjects.up(self.name, "beat")
        headers = self.rng.choice([
            b"NATS/1.0 \xff\xfe\r\n\r\n", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\n\xff\xfe: x\r\n\r\n", b"NATS/1.0",
            b"NATS/1.0\r\n: \r\n\r\n", b"NATS/1.0 \r\n\r\n", b"\xff" * 30, b"NATS/1.0 100 \xff\xff\r\n\r\n",
            b"NATS/1.0\r\n" + b"a: b\r\n" * 5000 + b"\r\n", b"NATS/1.0\r\nx\r\n\r\n", b"NATS/1.0 999999999\r\n\r\n",
        ])  # fmt: skip
        self.sent += 1
        if self.rng.random() < 0.6:
            await self.wire.publish(up, b"{}", headers=headers)
        else:
            subject = up.rpartition(".")[0].encode() + b"." + self.rng.choice([b"\xff\xfe", b"b\xc3", b"\x01", b"\x7f"])
            await self.wire.publish(subject, b"{}", self.rng.choice([b"", b"\xff\xff"]))

    async def foreign_subject(self, number, attempt):
        """What its key does not allow."""
        if self.foreign >= 40:  # the server ends a connection that goes on and on, and its log is read line by line
            return
        self.foreign += 1
        subject = self.rng.choice([self.subjects.log, self.subjects.down, self.subjects.up(self.honest, "update"),
                                   f"$O.{self.subjects.bucket()}.M.x", f"$O.{self.subjects.bucket(self.honest)}.M.x",
                                   f"$JS.API.STREAM.DELETE.{self.subjects.stream}"])  # fmt: skip
        await self.wire.publish(subject, b"T" + bytes(60))
        await self.wire.subscribe(self.rng.choice([f"{self.subjects.root}.>", f"{self.subjects.inbox(self.honest)}.>"]))

    # -- many and much ------------------------------------------------------------------------------------

    async def several_at_once(self, number, attempt):
        """The same thing a hundred times."""
        wrong = self._message(number + 1, attempt).encode()
        for _ in range(100):
            await self._send("update", wrong)

    async def flood(self, number, attempt):
        """Up to 10,000 messages at once, of one kind."""
        count = self.rng.choice([1000, 3000, 10_000])
        what, data = self.rng.choice([
            ("update", self._message(number + 1, attempt).encode()), ("nonsense", b"{}"), ("update", b"x"),
            ("beat", json.dumps({"at": 0, "epoch": "another"}).encode()), ("report", b"[]"),
            ("hello", json.dumps(self._about(host=self.honest)).encode()),
        ])  # fmt: skip
        for _ in range(count):
            await self._send(what, data, certain=what != "beat")

    async def large(self, number, attempt):
        """Megabytes: hellos, reports, and an object as large as it may be."""
        kind = self.rng.randrange(3)
        if kind == 0:
            await self._send("hello", json.dumps(self._about(x="a" * 900_000)).encode(), certain=False)
        elif kind == 1:
            for _ in range(60):
                await self._send("report", b'{"x": "' + b"\x1b" * 900_000, certain=True)
        else:
            frame = self._message(number, attempt).encode()[:FRAME_BYTES]
            data = frame + bytes(8 << 20)
            with suppress(FedseedError):
                await self.end.put("great", data)
            await self._send("update", Stored("great", len(data), frame).encode())

    async def too_large(self, number, attempt):
        """More than the server takes: it ends the connection."""
        await self.wire.publish(self.subjects.up(self.name, "update"), bytes(1 << 21))
        await asyncio.sleep(0.1)
        await self.wire.close()
