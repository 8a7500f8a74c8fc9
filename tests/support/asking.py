"""A coordinator that asks whatever it likes, and a client in a process of its own that may be
killed at any moment.
"""

import asyncio
import os
import secrets
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedseed.errors import FedseedError, NetworkError
from fedseed.federation.client.accounts import limits_of
from fedseed.federation.client.network import NetworkClient
from fedseed.federation.client.state import Hosted
from fedseed.federation.client.worker import Worker
from fedseed.federation.control import Beginning, Welcome
from fedseed.federation.messages import EVERYBODY, Message, MessageKind
from fedseed.federation.protocol import Entry, header_entry, plan_message, step_entry
from fedseed.methods.fedmezo import Rate, Trace, Traces
from fedseed.privacy.account_file import FileAccount
from fedseed.recipe.settings import Recipe
from fedseed.transport import transport
from fedseed.transport.base import Access
from fedseed.transport.nats import NatsClient
from support.forked import start
from support.network import federation_of
from support.problem import Problem

STEPS = 2  # local ones of a turn: so many noisy vectors
EXAMPLES = 60
DATA = "/srv/north.jsonl"  # what lies there is not looked at
# up to which one a client lives: about as many as there are until it has answered a few times
MOMENTS = {"training": 6, "writing": 100, "sending": 8}


def recipe_of(rounds=3, budget=None, seed=3, noise=2.0, sampling="none"):
    """A recipe of one client at example level, whose plans have numbers in them."""
    method = {"name": "fedmezo", "steps": STEPS, "personal": "random", "learning_rate": 1e-3}
    privacy = {"level": "example", "clip": 0.01, "noise": noise, "sampling": sampling}
    if sampling == "poisson":
        privacy["examples"] = EXAMPLES
    if budget is not None:
        privacy["budget"] = budget
    return {
        "seed": seed,
        "rounds": rounds,
        "method": {**method, "batch": 8, "basis": "rademacher"},
        "privacy": privacy,
    }


def hosted_of(recipe, name, accounts=None) -> Hosted:
    """The first client's part of the small problem, under a name."""
    whole = federation_of(Problem(), recipe).hosted
    items = {name: next(iter(whole.items.values()))}
    return replace(whole, items=items, names=[name], party=True, accounts=accounts or {})


def account_of(folder, recipe, name):
    checked = Recipe.model_validate(recipe)
    limits = limits_of(checked.privacy, checked.rounds)
    return FileAccount(Path(folder) / f"{name}.jsonl", name, limits, DATA)


class Moments:
    """Kills the process at the chosen one of the moments around what may be interrupted."""

    def __init__(self, kind, number):
        self.kind, self.number, self.seen = kind, number, Counter()

    def reach(self, kind):
        self.seen[kind] += 1
        if kind == self.kind and self.seen[kind] == self.number:
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self):
        for name in ("fsync", "ftruncate", "replace", "open"):
            self.around(os, name, "writing")
        self.around(Worker, "train_all", "training")
        pwrite, send = os.pwrite, NatsClient.send

        def torn(handle, data, position):
            done = 0
            for size in (len(data) // 3, len(data)):  # a death in the middle leaves a third of it
                self.reach("writing")
                done += pwrite(handle, data[done:size], position + done)
            return done

        async def sending(end, client, what, data):
            if what != "update":
                return await send(end, client, what, data)
            self.reach("sending")
            await send(end, client, what, data)
            self.reach("sending")
            return None

        os.pwrite, NatsClient.send = torn, sending

    def around(self, owner, name, kind):
        original = getattr(owner, name)

        def wrapped(*arguments, **more):
            self.reach(kind)
            result = original(*arguments, **more)
            self.reach(kind)
            return result

        setattr(owner, name, wrapped)


def live(log, url, run, recipe, name, folder, kill):
    """A client's process, in which `kill` says when it dies: a kind of moment, and a number."""
    torch.set_num_threads(1)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    code = 1
    try:
        if kill is not None:
            Moments(*kill).install()
        accounts = {name: account_of(folder, recipe, name)}
        way = transport(Access(url), run)
        NetworkClient(way, run, lambda: hosted_of(recipe, name, accounts), 3).run()
        code = 0
    except FedseedError as error:
        print(f"{type(error).__name__}: {error}")
    except BaseException:
        traceback.print_exc()
        code = 2
    finally:
        sys.stdout.flush()
        os._exit(code)


class Client:
    """A client's process."""

    def __init__(self, folder, server, run, recipe, name="north", kill=None):
        self.recipe, self.name, self.run = recipe, name, run
        self.log = Path(folder) / f"{secrets.token_hex(8)}.log"
        arguments = (server.url, run, recipe, name, str(Path(folder) / "accounts"), kill)
        self.process = start(live, str(self.log), *arguments)

    @property
    def code(self):
        return self.process.exitcode

    @property
    def text(self):
        return self.log.read_text() if self.log.exists() else ""

    def kill(self):
        self.process.kill()
        self.process.join()


class Asker:
    """A coordinator of its own mind, at real streams of a server."""

    def __init__(self, server):
        self.server = server
        self.received = []  # run, client, message
        self.epoch = self.run = self.link = self.writer = None
        self.welcomed = 0  # hellos that were answered
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._end = None

    def _do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def begin(self, run, start_bytes, names, link):
        """A new log at a run's name, whatever was there.

        Args:
            run: its name.
            start_bytes: how the orbit begins.
            names: the clients', by number.
            link: what the first step follows.
        """
        self._do(self._begin(run, start_bytes, names))
        self.link = link

    async def _begin(self, run, start_bytes, names):
        if self._end is not None:
            await self._end.close()
        self.run = run
        self._end = await transport(Access(self.server.url), run).coordinator()
        if await self._end.log() is not None:
            await self._end.delete()
            self._end = await transport(Access(self.server.url), run).coordinator()
        self.epoch = secrets.token_hex(8)
        self.writer = await self._end.writer(None)
        about = Beginning(epoch=self.epoch, names=names)
        await self.writer.append(header_entry(about, start_bytes).encode())
        await self.writer.append(Entry("S", secrets.token_bytes(8)).encode())
        await self._end.listen(self._receive, lambda: b"{}", lambda *_: None)
        await self._end.broadcast(b"C" + self.epoch.encode())

    async def _receive(self, sender, kind, data):
        if kind == "update" and data[:2] == b"FS":
            self.received.append((self.run, sender, Message.decode(data)))
        if kind != "hello":
            return None
        self.welcomed += 1
        return Welcome(epoch=self.epoch, beat=0.5, clients=1).encode()

    def is_connected(self):
        """Whether the server answers; what was on its way has come then."""
        try:
            return self._do(self._end.log()) is not None
        except NetworkError:
            return False

    def call(self):
        """Ask whoever is there to say hello."""
        self._do(self._end.broadcast(b"C" + self.epoch.encode()))

    def ask(self, method, number, rate, attempt=0):
        """Broadcast a plan."""
        payload = Rate(rate).encode()
        plan = Message(MessageKind.PLAN, method.code, number, EVERYBODY, payload, attempt)
        self._do(self._end.broadcast(plan_message([], True, plan.encode())))

    def add_step(self, method, number, scalars):
        """Append a step of anybody's making; returns its payload."""
        trace = Trace(np.array(scalars, dtype=np.float32), client=0, weight=1.0)
        payload = Traces((trace,)).encode()
        message = Message(MessageKind.STEP, method.code, number, EVERYBODY, payload).encode()
        entry, self.link = step_entry(self.link, message, message)
        self._do(self.writer.append(entry.encode()))
        return payload

    def close(self):
        if self._end is not None:
            with suppress(NetworkError, OSError):
                self._do(self._end.close())
        self._do(self._end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_tasks(self):
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=5)


def waited(true, seconds=60):
    """Whether something becomes true in time."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True
