"""What is too large for a message, in JetStream's object stores: one for each owner, an object in
chunks.

Nothing names an object's chunks, because others could write that, too (see signatures.py): each
chunk says which it is of which attempt to store the object, in a header, and is signed with its
place. Nothing leads from one object to another.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial

import nats.errors
from nats.js import api
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from fedseed.errors import MessageError, NetworkError
from fedseed.transport.base import End, Interrupted
from fedseed.transport.nats_connection import RETRY_SECONDS, Guarded
from fedseed.transport.nats_log import (
    JETSTREAM,
    JETSTREAM_AGAIN,
    NO_JETSTREAM,
    is_without_jetstream,
    stored,
    with_remedy,
)
from fedseed.transport.signatures import Signatures
from fedseed.transport.subjects import Subjects

# header: in which attempt to store, which chunk it is, bytes of all together
PLACE = "Fedseed-Chunk"
CHUNK_BYTES = 128 * 1024
AT_ONCE = 8  # chunks on their way
CHUNK_SECONDS = 30.0  # for the receipt of one
PATIENCE_SECONDS = 3600.0  # through interruptions, as for the log
_PLACE = re.compile(r"([^.]*)\.(\d{1,15})\.(\d{1,15})")
UNAVAILABLE = 10008  # for now, in a cluster
NO_ROOM = 10077


@dataclass(eq=False)
class ObjectsEnd(End):
    """An end as far as it stores and fetches blobs."""

    connection: Guarded  # to NATS
    subjects: Subjects  # the run's names there
    owner: str | None  # whose blobs are put here; None: the coordinator's
    signatures: Signatures  # sign what is sent, and check what comes

    def __post_init__(self) -> None:
        self._stream = self.connection.jetstream(timeout=CHUNK_SECONDS)
        self._stored: set[str] = set()  # names of what this process has stored

    async def put(self, name: str, data: bytes) -> None:
        """Store a blob, in place of one of the same name; again after an interruption."""
        self._stored.add(name)
        give_up = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                try:
                    await self._put(name, data)
                except APIError as error:
                    if error.err_code != NO_ROOM or not await self._make_room():
                        raise
                    await self._put(name, data)
                self.connection.troubles.end(JETSTREAM, JETSTREAM_AGAIN)
                return
            except (TimeoutError, nats.errors.Error, OSError) as error:
                if time.monotonic() > give_up or not await self._may_pass(error):
                    stream = f"OBJ_{self.subjects.bucket(self.owner)}"
                    what = f"{len(data):,} bytes can't be stored on the server as {name}"
                    raise NetworkError(f"{what}: {with_remedy(error, stream)}") from error
            await asyncio.sleep(RETRY_SECONDS)

    async def _may_pass(self, error: BaseException) -> bool:
        """Return whether storing may do later: this is an interruption, or JetStream is away."""
        if isinstance(error, NoStreamResponseError):
            stream = f"OBJ_{self.subjects.bucket(self.owner)}"
            try:  # is the stream away, or JetStream as a whole?
                await self._stream.stream_info(stream)
            except (TimeoutError, nats.errors.Error) as why:
                error = why
        if is_without_jetstream(error):
            self.connection.troubles.report(JETSTREAM, NO_JETSTREAM)
            return True
        if isinstance(error, NotFoundError | nats.errors.ConnectionClosedError):
            return False
        return not isinstance(error, APIError) or error.err_code == UNAVAILABLE

    async def _put(self, name: str, data: bytes) -> None:
        chunks = self.subjects.chunks(self.owner, name)
        await self._stream.purge_stream(f"OBJ_{self.subjects.bucket(self.owner)}", subject=chunks)
        attempt = secrets.token_hex(8)
        sending: list[asyncio.Task[api.PubAck]] = []
        try:
            for number, start in enumerate(range(0, max(len(data), 1), CHUNK_BYTES)):
                chunk = data[start : start + CHUNK_BYTES]
                place = f"{attempt}.{number}.{len(data)}"
                signed = self.signatures.headers(chunks, chunk, place.encode()) or {}
                headers = {PLACE: place, **signed}
                sending.append(
                    asyncio.create_task(self._stream.publish(chunks, chunk, headers=headers))
                )
                if len(sending) == AT_ONCE:
                    await sending.pop(0)
            for task in sending:
                await task
        finally:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)

    async def _make_room(self) -> bool:
        """Delete what others have written into this store, or an earlier process.

        Returns whether there was any.
        """
        stream = f"OBJ_{self.subjects.bucket(self.owner)}"
        mine = {self.subjects.chunks(self.owner, name) for name in self._stored}
        found = (await self._stream.stream_info(stream, subjects_filter=">")).state.subjects or {}
        for subject in found.keys() - mine:
            await self._stream.purge_stream(stream, subject=subject)
        return bool(found.keys() - mine)

    async def drop(self, owner: str | None, name: str) -> None:
        stream = f"OBJ_{self.subjects.bucket(owner)}"
        with suppress(nats.errors.Error, TimeoutError):
            await self._stream.purge_stream(stream, subject=self.subjects.chunks(owner, name))

    async def get(self, owner: str | None, name: str, size: int) -> bytes:
        """Fetch a blob; an interruption is waited for."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    with suppress(Interrupted):
                        return await self.connection.unless_interrupted(
                            self._get(owner, name, size)
                        )
                    await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError as error:
            raise MessageError(f"the object {name} can't be had: it does not come") from error

    async def _get(self, owner: str | None, name: str, size: int) -> bytes:
        stream, subject = f"OBJ_{self.subjects.bucket(owner)}", self.subjects.chunks(owner, name)
        attempt, chunks, there = "", dict[int, bytes](), 0
        why = f"the object {name} can't be had: it is not there"
        checks = self.signatures
        is_owners: Callable[..., bool] = (
            checks.of_coordinator if owner is None else partial(checks.of_client, owner)
        )
        with suppress(NotFoundError):
            async with aclosing(stored(self.connection, stream, subject=subject)) as messages:
                async for message in messages:
                    place = _PLACE.fullmatch((message.headers or {}).get(PLACE, ""))
                    if place is None or not is_owners(
                        subject, message.data, message.headers, place[0].encode()
                    ):
                        continue
                    if int(place[3]) != size:
                        why = f"an object of {int(place[3]):,} bytes, {size:,} were announced"
                        continue
                    if place[1] != attempt:  # from the beginning, perhaps once more
                        attempt, chunks, there = place[1], {}, 0
                    if (number := int(place[2])) in chunks or there + len(message.data) > size:
                        continue
                    chunks[number] = message.data
                    there += len(message.data)
                    if there == size:
                        return b"".join(chunks[number] for number in sorted(chunks))
        raise MessageError(why)
