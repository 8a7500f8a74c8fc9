"""Hostile keys beside an honest federation: the run ends with the bits of one in which they do
nothing.

A client's key and the watcher's key do whatever the server lets them, and some of what it does not,
drawn from a seed: subjects, reply subjects and headers here, messages of
`support/hostile/saying.py`. The coordinator is the real `fedseed serve`, so that its memory is what
a user's is. `tests/transport/test_nats_hostile.py` has each trick by itself; in
`support/hostile/fuzzing.py` a coordinator hears damaged updates."""

import asyncio
import json
import os
import random
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import tomli_w

from fedseed.errors import NetworkError
from fedseed.transport import transport
from fedseed.transport.base import Access
from fedseed.transport.keys import permissions
from fedseed.transport.signatures import Signatures
from fedseed.transport.subjects import Subjects
from fedseed.weights.devices import limited
from support.hostile import saying
from support.hostile.wire import Wire
from support.network import Network, federation_of, keyed_server
from support.parts import part_of
from support.problem import METHODS, Problem
from support.tiers import mark

pytestmark = pytest.mark.long
ROUNDS = int(os.environ.get("FEDSEED_HOSTILE_ROUNDS", "8"))
NAMES, HOSTILE = [f"client-{number}" for number in range(5)], 3
# in metrics.jsonl
SAME = ("round", "clients", "bytes_up", "bytes_down", "weights_digest", "rounds")
MEMORY = 150 * 10**6  # bytes of the coordinator
SAID = 200_000  # characters on its terminal
FAR = 1 << 20  # rounds that never come
NOBODY = ("watcher", "a watcher", "somebody")  # the server's own words prove no author
# what is said of an honest client's answer that comes twice, or when its round is over
LATE = re.compile(
    r"has answered round|no round is open|expected round \d+, got round \d+|expected an "
    r"answer to round|round \d+ attempt \d+ is not open|attempt \d+ is open, but this update "
    r"answers|is being closed|it came after its round was over"
)
EVIL_HEADERS = (
    b"NATS/1.0 \xff\xfe\r\n\r\n",
    b"NATS/1.0\r\n\xff\xfe: x\r\n\r\n",
    b"NATS/1.0",
    b"NATS/1.0\r\n: \r\n\r\n",
    b"\xff" * 30,
    b"NATS/1.0\r\n" + b"a: b\r\n" * 5000 + b"\r\n",
    b"NATS/1.0 999999999\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0\r\nNats-Last-Consumer: x\r\n\r\n",
    b"NATS/1.0 100 FlowControl Request\r\n\r\n",
    b"NATS/1.0\r\nFedseed-Signature: \xff\r\n\r\n",
    b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n",
    b"NATS/1.0\r\nFedseed-Chunk: a.99999999999999999999.-1\r\n\r\n",
    b"NATS/1.0\r\nNats-Expected-Stream: x\r\n\r\n",
)


class Keys(saying.Liar):
    """A client's key and the watcher's, and what is done with them."""

    def __init__(self, server, hosted):
        super().__init__(
            random.Random(1), hosted.host, hosted.names, hosted.start, hosted.worker.method.code
        )
        self.subjects, self.done = Subjects("run"), 0
        ca = server.keys / "ca.pem"
        self.wire, self.watching = (
            Wire(server.url, self.subjects, name, server.keys / f"{name}.nk", ca)
            for name in (self.name, "watcher")
        )
        self.signatures = Signatures.from_key_file(server.keys / f"{self.name}.nk")
        self.publishes = permissions(self.subjects, [self.name])[0]
        api, honest = "$JS.API", self.honest
        self.targets = [
            *[self.subjects.log] * 8,
            self.subjects.entries,
            *[self.subjects.down] * 3,
            self.subjects.status,
            "x.y.z",
            "$SYS.REQ.SERVER.PING",
            "$SYS.REQ.ACCOUNT.PING",
            *(self.subjects.from_client(honest, what) for what in ("update", "hello", "report")),
            *(f"{self.subjects.inbox(name)}.x.y" for name in (honest, "coordinator", "watcher")),
            f"$O.{self.subjects.bucket()}.M.c3RlcC0x",
            f"$O.{self.subjects.bucket(honest)}.M.dXBkYXRl",
            *(
                f"{api}.STREAM.{act}.{self.subjects.stream}"
                for act in ("DELETE", "PURGE", "UPDATE", "MSG.DELETE")
            ),
            f"{api}.STREAM.DELETE.OBJ_{self.subjects.bucket()}",
            f"$JS.FC.{self.subjects.stream}.x.y",
        ]

    async def act(self):
        """One thing."""
        self.done += 1
        acts = [self.say] * 10 + [self.anything] * 10 + [self.ask] * 3 + [self.forbidden]
        await self.rng.choice(acts)()

    def signed(self, subject, data):
        lines = (
            f"{name}: {value}\r\n".encode()
            for name, value in self.signatures.headers(subject, data).items()
        )
        return b"NATS/1.0\r\n" + b"".join(lines) + b"\r\n"

    async def say(self):
        (act,) = self.rng.choices(list(saying.ACTS), list(saying.ACTS.values()))
        for what, data in act(self, FAR, 0):
            subject = self.subjects.from_client(self.name, what)
            await self.wire.publish(subject, data, headers=self.signed(subject, data))

    async def anything(self):
        """Anything, to whatever the key may publish to, with a reply subject of somebody else."""
        endings = ("x", "x.y", "M.eA==", "C.x", "update", "hello", "report", "a" * 200, "up", "log")
        subject = (
            self.rng.choice(self.publishes).replace(">", self.rng.choice(endings)).replace("*", "x")
        )
        if self.rng.random() < 0.2:  # bytes that are no text
            ending = self.rng.choice((b"\xff\xfe", b"b\xc3", b"\x01", b"=FF"))
            subject = self.subjects.from_client(self.name, "").encode() + ending
        data = self.rng.choice(
            [
                b"",
                b"{}",
                b'{"seq": 1}',
                b'{"last_by_subj": ">"}',
                b"T" + bytes(60),
                b"E",
                self.rng.randbytes(60),
                json.dumps(self.about("beat", 0)).encode(),
            ]
        )
        headers = self.rng.choice([None, *EVIL_HEADERS])
        if isinstance(subject, str) and self.rng.random() < 0.5:
            headers = self.signed(subject, data)
        await self.wire.publish(subject, data, self.rng.choice(self.targets), headers)

    async def ask(self):
        """For the status or the log's length, oddly or very often, as the watcher."""
        subject = self.rng.choice(
            [self.subjects.status, f"$JS.API.STREAM.INFO.{self.subjects.stream}"]
        )
        data = self.rng.choice([b"", b"{}", bytes(900_000), b'{"subjects_filter": ">"}'])
        reply = self.rng.choice([*self.targets, b"\xff\xff", b"a..b", b">"])
        for _ in range(self.rng.choice([1, 1, 100]) if len(data) < 100 else 1):
            await self.watching.publish(
                subject, data, reply, self.rng.choice([None, *EVIL_HEADERS[:4]])
            )

    async def forbidden(self):
        """The server ends a connection that goes on and on with this."""
        if self.done < 400:
            theirs = [
                self.subjects.log,
                self.subjects.down,
                f"$JS.API.CONSUMER.CREATE.{self.subjects.stream}.x",
            ]
            await self.wire.publish(self.rng.choice(theirs), b"T" + bytes(60))
            others = [f"{self.subjects.root}.>", f"{self.subjects.inbox(self.honest)}.>"]
            await self.wire.subscribe(self.rng.choice(others))


def kept(folder, digests):
    """What hostile keys must not change."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    # for one more reason perhaps
    skipped = [[one["client"] for one in line.get("skipped", [])] for line in lines]
    return digests, skipped, [{key: line.get(key) for key in SAME} for line in lines]


async def disturbed(server, net, folder):
    """Run the federation to its end.

    What the status says, the coordinator's largest memory, what the keys did.
    """
    keys, ca, log = server.keys, server.keys / "ca.pem", folder / "serve.log"
    (folder / "recipe.toml").write_text(tomli_w.dumps(net.recipe))
    words = [
        "serve",
        folder / "recipe.toml",
        "--run",
        "run",
        "--nats",
        server.url,
        "--key",
        keys / "coordinator.nk",
        "--ca",
        ca,
        "--out",
        net.out,
    ]
    with log.open("ab") as said:
        command = [
            sys.executable,
            "-c",
            "from fedseed.cli.app import main; main()",
            *map(str, words),
        ]
        serving = subprocess.Popen(
            command, stdout=said, stderr=said, env={**os.environ, "COLUMNS": "200"}
        )
    # rounds need all five: the last comes when the status was told three times
    hosts, waiting = [], [0, 1, 2, 3, 4]
    bad = Keys(server, part_of(federation_of(Problem(), net.recipe), [NAMES[HOSTILE]]))
    looking, memory, told = (
        await transport(Access(server.url, keys / "watcher.nk", ca), "run").watcher(),
        [],
        [],
    )
    try:
        while serving.poll() is None:
            while len(waiting) > 1 or (waiting and sum(answer is not None for answer in told) > 2):
                n = waiting.pop(0)
                hosts.append(
                    net.host(n, key=str(keys / f"{NAMES[n]}.nk"), slow=0.05, idle=[HOSTILE])
                )
            await bad.act()
            if bad.done % 20 == 0:
                memory += re.findall(
                    r"VmHWM:\s*(\d+)", Path(f"/proc/{serving.pid}/status").read_text()
                )
                with suppress(NetworkError):  # not there yet, or at its end
                    told.append(await looking.status(60.0))
            for host in hosts:
                assert not host.ended() or host.code == 0, (
                    f"an honest client ends: {host.said}{host.text}"
                )
            await asyncio.sleep(0.02)
        assert serving.returncode == 0, log.read_text(errors="replace")
        return (
            {await asyncio.to_thread(lambda host=host: host.digest) for host in hosts},
            memory,
            told,
            bad,
        )
    finally:
        serving.kill()
        serving.wait()
        for end in (bad.wire, bad.watching, looking):
            await end.close()


@pytest.mark.parametrize(
    "method", mark(["feedsign", "fedadam", "ferret"], lambda name: name != "feedsign")
)
def test_hostile_keys_change_nothing(method, tmp_path):
    patient = {
        "minimum": 5,
        "deadline": 3600.0,
        "dead_after": 3600.0,
        "joint": False,
        "per_round": 5,
    }
    recipe = {
        "seed": 3,
        "rounds": ROUNDS,
        "evaluation": {"every": 4},
        "method": METHODS[method],
        "federation": patient,
    }
    problem = Problem()
    problem.clients[HOSTILE] = []  # as that key's honest process
    with limited(1):
        alone = federation_of(problem, recipe, out=tmp_path / "alone").run()
    server = keyed_server(tmp_path / "nats", "run", NAMES)
    net = Network(server, tmp_path, recipe, run="run", ca=str(server.keys / "ca.pem"))
    try:
        digests, memory, told, bad = asyncio.run(disturbed(server, net, tmp_path))
    finally:
        net.stop()
        server.kill()
    assert kept(net.out, digests) == kept(tmp_path / "alone", {alone.summary["weights_digest"]})
    assert 1024 * max(map(int, memory)) < MEMORY and sum(answer is not None for answer in told) > 2
    said = (tmp_path / "serve.log").read_text(errors="replace")
    assert len(said) < SAID and "Traceback" not in said, said[-5000:]
    assert not set(said) & set("\x1b\x07\u202e"), "control characters"
    refusals = net.summary()["refusals"]
    others = {of: reasons for of, reasons in refusals.items() if of not in (bad.name, *NOBODY)}
    others = {
        of: reasons
        for of, reasons in others.items()
        if not of.startswith(("somebody at ", "somebody as "))
    }
    assert all(LATE.search(reason) for reasons in others.values() for reason in reasons), others
    assert bad.done > 40 and sum(refusals[bad.name].values()) > 20
    assert "Publish Violation" in (server.folder / "server.log").read_text(errors="replace")
