"""Ends what a client's key may begin and must not: deliveries of a stream to others.

Whoever may read a stream may make consumers, and says where they deliver. A server checks neither the subject nor how
often a message is delivered again, so that one request fills the log, or everybody's lines, without end. The
coordinator may list them, and deletes those that deliver anywhere but into somebody's inbox.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.js.errors import APIError, NoStreamResponseError

from fedseed.transport.base import Working
from fedseed.transport.nats_log import REQUEST_SECONDS

LOOK_SECONDS = 0.25  # between looks, for each answer of the server that one takes
AT_ONCE = 256  # consumers in one answer of the server


class Warden(Working):
    """Looks at streams' consumers now and then.

    Args:
        connection: the coordinator's.
        streams: the streams that others may read.
        inboxes: what the subjects begin with where deliveries are in order.
        rejected: told of each consumer that was deleted.
    """

    def __init__(self, connection: Client, streams: Sequence[str], inboxes: str, rejected: Callable[[], None]) -> None:
        self._connection = connection
        self._stream = connection.jetstream(timeout=REQUEST_SECONDS)
        self._streams = streams
        self._inboxes = inboxes
        self._rejected = rejected

    def begin(self) -> None:
        """Begin to look."""
        self.work(self._keep_looking())

    async def _keep_looking(self) -> None:
        while True:
            seen = 0
            for stream in self._streams:
                try:
                    seen += await self.look(stream)
                except (TimeoutError, nats.errors.Error, APIError, NoStreamResponseError):
                    pass
                except Exception as error:  # of one look: nobody else would look
                    about = {"message": f"the consumers of {stream} can't be looked at", "exception": error}
                    asyncio.get_running_loop().call_exception_handler(about)
            await asyncio.sleep(LOOK_SECONDS * (1 + seen // AT_ONCE))

    async def look(self, stream: str) -> int:
        """Delete a stream's consumers that deliver elsewhere; how many others it has. Raises nats' errors."""
        offset = 0
        while True:
            found = await self._listed(stream, offset)
            gone = 0
            for info in found:
                subject = None if info is None else info["config"].get("deliver_subject")  # None: it is fetched
                if info is not None and subject is not None and not subject.startswith(self._inboxes):
                    with suppress(APIError):  # it is gone already; one that stays is passed over
                        gone += await self._delete(stream, info["name"])
            for _ in range(gone):
                self._rejected()
            offset += len(found) - gone
            if len(found) < AT_ONCE:
                return offset

    async def _listed(self, stream: str, offset: int) -> list[dict[str, Any] | None]:
        """What the server says of consumers, None of one that has gone meanwhile (nats-py can't read those)."""
        subject, asked = f"$JS.API.CONSUMER.LIST.{stream}", json.dumps({"offset": offset}).encode()
        answer = json.loads((await self._connection.request(subject, asked, timeout=REQUEST_SECONDS)).data)
        if "error" in answer:
            APIError.from_error(answer["error"])  # raises it
        consumers: list[dict[str, Any] | None] = answer.get("consumers") or []
        return consumers

    async def _delete(self, stream: str, name: str) -> bool:
        """Whether it will be gone; of a name that fits into no line of the protocol it will not."""
        try:
            await self._stream.delete_consumer(stream, name)
        except ValueError:  # no name at all
            return False
        except nats.errors.BadSubjectError:
            try:  # without a subject for the answer it is no longer than what made the consumer
                await self._connection.publish(f"$JS.API.CONSUMER.DELETE.{stream}.{name}")
            except nats.errors.BadSubjectError:
                return False
        return True
