"""Keeps a client's process known to the coordinator.

It sends hellos until the coordinator welcomes it, and then heartbeats ("beats").
"""

import asyncio
import base64
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fedseed.errors import FedseedError, NetworkError
from fedseed.federation.client.replica import Replica
from fedseed.federation.control import Attach, Beat, Hello, Welcome, parse_control
from fedseed.federation.large import carry
from fedseed.federation.messages import Message, MessageKind
from fedseed.transport.base import end_task

RETRY_SECONDS = 2.0
HELLO_SECONDS = 5.0  # how long to wait for an answer to a hello


@dataclass
class Presence:
    """Keeps this process known to the coordinator."""

    replica: Replica
    failed: Callable[[Exception], None]  # called with the error that ends the process
    welcome: bool = False
    incarnation: str = ""
    # set when the coordinator calls, or when an interruption is over
    _call: asyncio.Event = field(default_factory=asyncio.Event)
    _beat_seconds: float = RETRY_SECONDS
    _bring_weights: bool = False
    # digest of the weights before the first step, which the coordinator may ask for
    _begins: str | None = None
    _has_blobs: bool = False
    _last_note: str = ""
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end = self.replica.end
        self._wants_blobs = self.replica.replaces

    def begin(self) -> None:
        """Start to send hellos and beats."""
        self._tasks = [
            asyncio.create_task(work) for work in (self._keep_hello(), self._keep_beating())
        ]

    async def stop(self) -> None:
        """Stop sending hellos and beats."""
        for task in self._tasks:
            await end_task(task)

    def say_hello_again(self) -> None:
        """Send a hello again after an interruption."""
        self._call.set()

    def called(self, incarnation: str) -> None:
        """React to a coordinator's call.

        A coordinator with another incarnation has to welcome this process first.
        """
        self.welcome &= incarnation == self.incarnation
        self._call.set()

    async def say(self, kind: type[Beat], **fields: Any) -> None:
        """Send a beat or a report."""
        message = kind(at=self.replica.at, epoch=self.incarnation, **fields)
        await self.end.send(self.replica.hosted.host, kind.__name__.lower(), message.encode())

    async def ask_for_blobs(self) -> bool:
        """Ask the coordinator to store this process' large messages; return whether it does."""
        if not self._has_blobs:
            self._wants_blobs = True
            await self._hello()
        return self._has_blobs

    async def greet(self) -> None:
        """Send a hello if one is due, and again as long as the answer asks for more.

        Raises FedseedError if the coordinator refuses this process.
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
        noted = False
        try:
            while True:
                self._call.clear()
                is_answered = False
                with suppress(NetworkError):  # it will be tried again
                    is_answered = await self._hello()
                if not is_answered and not noted and not self.welcome:
                    noted = True
                    self.replica.progress.note(
                        f"waiting for the coordinator of run {self.replica.run}"
                    )
                if not is_answered and not self.incarnation:
                    await self.replica.look()
                with suppress(TimeoutError):
                    await asyncio.wait_for(
                        self._call.wait(), None if self.welcome else RETRY_SECONDS
                    )
                await asyncio.sleep(0.05)
        except Exception as error:
            self.failed(error)

    async def _hello(self) -> bool:
        """Send one hello; return whether the coordinator answered.

        Raises FedseedError if the coordinator refuses this process.
        """
        hosted = self.replica.hosted
        private = hosted.worker.private  # numbers of examples stay secret
        for name, items in hosted.items.items():
            attach = Attach(client=name, host=hosted.host, examples=0 if private else len(items))
            await self.end.send(name, "attach", attach.encode())
        fields: dict[str, Any] = {
            "host": hosted.host,
            "header": base64.b64encode(hosted.start).decode(),
            "names": list(hosted.items if hosted.party else hosted.names),
            "at": self.replica.at,
            "bucket": self._wants_blobs,
        }
        if hosted.party:
            fields["names_matter"] = False
        if hosted.fingerprint is not None:
            fields["fingerprint"] = hosted.fingerprint.to_json()
        if self.replica.replaces:
            # the digest of the weights before the first step
            if self._begins is None and not self.replica.at:
                self._begins = await self.replica.thread.run(hosted.worker.space.digest)
            fields["begins"] = self._begins
        if self._bring_weights:
            self._bring_weights = False
            await self.replica.return_to_base()
            frame = Message(MessageKind.STEP, hosted.worker.method.code, 0, 0, b"").encode()
            weights = frame + await self.replica.thread.run(self.replica.hosted.worker.space.dense)
            fields["weights"] = base64.b64encode(
                await carry(self.end, weights, "base-weights")
            ).decode()
        reply = await self.end.ask(hosted.host, "hello", Hello(**fields).encode(), HELLO_SECONDS)
        if reply is None:
            return False
        await self._take_answer(parse_control(Welcome, reply))
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
        if text != self._last_note:
            self._last_note = text
            progress.note(text)
        if answer.bring == "weights":
            self._bring_weights = True
            self._call.set()
        if answer.epoch and answer.epoch != self.incarnation:
            if self.incarnation and self.replica.at:
                progress.warn(
                    "the server has lost the run and got it again: replaying from the base"
                )
            self.incarnation = answer.epoch
            await self.replica.begin(answer.epoch)
        elif not answer.epoch:
            await self.replica.stop_looking()
        self.welcome = bool(answer.epoch)
        if self.welcome:
            await self.say(Beat)
