"""How a client's process makes itself known: it says hello until it is welcome, and gives signs of
life.
"""

import asyncio
import base64
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fedseed.errors import FedseedError, NetworkError
from fedseed.federation.control import Attach, Beat, Hello, Welcome, read
from fedseed.federation.large import carry
from fedseed.federation.messages import Message, MessageKind
from fedseed.federation.replica import Replica
from fedseed.transport.base import end_task

RETRY_SECONDS = 2.0
HELLO_SECONDS = 5.0  # for an answer to a hello


@dataclass
class Presence:
    """Keeps the process known to the coordinator."""

    replica: Replica
    failed: Callable[[Exception], None]  # told what ends the process
    welcome: bool = False
    incarnation: str = ""
    # the coordinator calls, or an interruption is over
    _call: asyncio.Event = field(default_factory=asyncio.Event)
    _beat_seconds: float = RETRY_SECONDS
    _bring_weights: bool = False
    _begins: str | None = None  # the digest of the weights that the coordinator may ask for
    _has_blobs: bool = False
    _told: str = ""
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end = self.replica.end
        self._wants_blobs = self.replica.replaces

    def begin(self) -> None:
        """Begin to say hello."""
        self._tasks = [
            asyncio.create_task(work) for work in (self._keep_hello(), self._keep_beating())
        ]

    async def stop(self) -> None:
        """Say nothing any more."""
        for task in self._tasks:
            await end_task(task)

    def again(self) -> None:
        """Say hello again once an interruption is over."""
        self._call.set()

    def called(self, incarnation: str) -> None:
        """Answer a coordinator that calls.

        One that this process does not know has to let it in first.
        """
        self.welcome &= incarnation == self.incarnation
        self._call.set()

    async def say(self, kind: type[Beat], **about: Any) -> None:
        """Send a sign of life, or a report."""
        said = kind(at=self.replica.at, epoch=self.incarnation, **about)
        await self.end.send(self.replica.hosted.host, kind.__name__.lower(), said.encode())

    async def ask_for_blobs(self) -> bool:
        """Let the coordinator make room for large messages of this process; whether there is."""
        if not self._has_blobs:
            self._wants_blobs = True
            await self._hello()
        return self._has_blobs

    async def greet(self) -> None:
        """Say hello if it is due, and again while an answer asks for more.

        Raises FedseedError if it does not fit.
        """
        due = not self.welcome or self._call.is_set()
        while due:
            self._call.clear()
            due = await self._hello() and self._call.is_set()

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._beat_seconds)
            with suppress(NetworkError):
                await self.say(Beat)

    async def _keep_hello(self) -> None:
        told = False
        try:
            while True:
                self._call.clear()
                answered = False
                with suppress(NetworkError):  # it is tried again
                    answered = await self._hello()
                if not answered and not told and not self.welcome:
                    told = True
                    self.replica.progress.note(
                        f"waiting for the coordinator of run {self.replica.run}"
                    )
                if not answered and not self.incarnation:
                    await self.replica.look()
                with suppress(TimeoutError):
                    await asyncio.wait_for(
                        self._call.wait(), None if self.welcome else RETRY_SECONDS
                    )
                await asyncio.sleep(0.05)
        except Exception as error:
            self.failed(error)

    async def _hello(self) -> bool:
        """Say hello once; whether it was answered.

        Raises FedseedError if this process does not fit.
        """
        hosted = self.replica.hosted
        private = hosted.worker.private  # how many examples there are is not told
        for name, items in hosted.items.items():
            attach = Attach(client=name, host=hosted.host, examples=0 if private else len(items))
            await self.end.send(name, "attach", attach.encode())
        about: dict[str, Any] = {
            "host": hosted.host,
            "header": base64.b64encode(hosted.start).decode(),
            "names": list(hosted.items if hosted.party else hosted.names),
            **({"names_matter": False} if hosted.party else {}),
            "at": self.replica.at,
            "bucket": self._wants_blobs,
        }
        if hosted.fingerprint is not None:
            about["fingerprint"] = hosted.fingerprint.to_json()
        if self.replica.replaces:
            if self._begins is None and not self.replica.at:  # those before the first step
                self._begins = await self.replica.thread.do(hosted.worker.space.digest)
            about["begins"] = self._begins
        if self._bring_weights:
            self._bring_weights = False
            await self.replica.unlearn()
            frame = Message(MessageKind.STEP, hosted.worker.method.code, 0, 0, b"").encode()
            weights = frame + await self.replica.thread.do(self.replica.hosted.worker.space.dense)
            about["weights"] = base64.b64encode(
                await carry(self.end, weights, "base-weights")
            ).decode()
        reply = await self.end.ask(hosted.host, "hello", Hello(**about).encode(), HELLO_SECONDS)
        if reply is None:
            return False
        await self._take_answer(read(Welcome, reply))
        return True

    async def _take_answer(self, answer: Welcome) -> None:
        host = self.replica.hosted.host
        if answer.refused is not None:
            raise FedseedError(f"the coordinator refuses {host}: {answer.refused}")
        progress, run = self.replica.progress, self.replica.run
        self._has_blobs = self._wants_blobs
        self._beat_seconds = answer.beat
        text = f"welcome to run {run}: {answer.clients} clients"
        if answer.waits is not None:
            text = f"the coordinator of run {run} waits for clients: {answer.waits[:500]}"
        if text != self._told:  # once each time it changes
            self._told = text
            progress.note(text)
        if answer.bring == "weights":
            self._bring_weights = True
            self._call.set()
        if answer.epoch and answer.epoch != self.incarnation:
            if self.incarnation and self.replica.at:
                progress.warn("the run has been put on the server again: begun from the base")
            self.incarnation = answer.epoch
            await self.replica.begin(answer.epoch)
        elif not answer.epoch:
            await self.replica.look_no_more()
        self.welcome = bool(answer.epoch)
        if self.welcome:
            await self.say(Beat)
