"""Somebody with the watcher's key: it may ask for the status and for the log's length, and asks a lot."""

import asyncio
import random
from collections import Counter

from fedseed.transport.subjects import Subjects
from support.hostile.targets import targets
from support.hostile.wire import Wire


class HostileWatcher:
    """Asks with reply subjects of others, in great numbers and sizes.

    Args:
        server: with keys.
        run: the run's name.
        honest: a client.
        seed: of what it draws.
        heavy: whether it asks 10,000 times at once, too.
    """

    def __init__(self, server, run, honest, seed, heavy=False):
        self.subjects, self.rng, self.heavy = Subjects(run), random.Random(f"{seed} watcher"), heavy
        self.wire = Wire(server.url, self.subjects, "watcher", server.keys / "watcher.nk", server.keys / "ca.pem")
        self.done = Counter()
        self.foreign = 0
        self._targets = [*targets(self.subjects, honest), f"{self.wire.inbox}.r"]

    async def act(self):
        """Do one thing."""
        act = self.rng.choice([self.ask, self.ask, self.log_info, self.odd, self.foreign_subject, self.many])
        self.done[act.__name__] += 1
        await act()
        await self.wire.flush()

    async def ask(self):
        """For the status, answered to somebody else."""
        data = self.rng.choice([b"", b"{}", bytes(900_000), self.rng.randbytes(50)])
        await self.wire.publish(self.subjects.status, data, self.rng.choice(self._targets))

    async def log_info(self):
        """The server's own answer about the log, to somebody else."""
        data = self.rng.choice([b"", b'{"subjects_filter": ">"}', b'{"deleted_details": true}', b"x"])
        await self.wire.publish(f"$JS.API.STREAM.INFO.{self.subjects.stream}", data, self.rng.choice(self._targets))

    async def odd(self):
        """With headers and reply subjects that are no text."""
        headers = self.rng.choice([b"NATS/1.0 \xff\xfe\r\n\r\n", b"NATS/1.0 100\r\n\r\n", b"NATS/1.0", None])
        reply = self.rng.choice([b"\xff\xff", b"a..b", b">", b"*", self.subjects.log])
        await self.wire.publish(self.subjects.status, b"{}", reply, headers)

    async def foreign_subject(self):
        """What its key does not allow."""
        if self.foreign < 20:
            self.foreign += 1
            await self.wire.publish(self.rng.choice([self.subjects.log, self.subjects.down]), b"E")
            await self.wire.subscribe(f"{self.subjects.root}.>")

    async def many(self):
        """Many questions at once."""
        mine = self.subjects.inbox("watcher")
        reply = self.rng.choice([f"{self.wire.inbox}.r", f"{self.wire.inbox}.%d", f"{mine}.%d.r", self.subjects.log])
        for number in range(10_000 if self.heavy and self.rng.random() < 0.2 else 100):
            await self.wire.publish(self.subjects.status, b"{}", reply.replace("%d", str(number)))

    async def keep_going(self, pause=0.05):
        """Until cancelled."""
        try:
            while True:
                await self.act()
                await asyncio.sleep(pause)
        finally:
            await self.wire.close()
