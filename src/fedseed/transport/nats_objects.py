"""Blobs in JetStream's object stores: one store for each owner, an object in chunks.

No record lists an object's chunks, because others could write it, too (see signatures.py). A header
of each chunk has its number and the attempt to store the object, and the chunk is signed with it.
Objects have no references to each other.
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
    STORED_AGAIN,
    UNSTORED,
    is_without_jetstream,
    read_stream,
    report_unstored,
    with_remedy,
)
from fedseed.transport.signatures import Signatures
from fedseed.transport.subjects import Subjects

# header of a chunk: the attempt to store, the chunk's number, bytes of the whole object
PLACE = "Fedseed-Chunk"
CHUNK_BYTES = 128 * 1024
AT_ONCE = 8  # most chunks that wait for a receipt
CHUNK_SECONDS = 30.0  # for a receipt
PATIENCE_SECONDS = 3600.0  # for interruptions, as for the log
_PLACE = re.compile(r"([^.]*)\.(\d{1,15})\.(\d{1,15})")
UNAVAILABLE = 10008  # temporary, in a cluster
NO_ROOM = 10077


@dataclass(eq=False)
class ObjectsEnd(End):
    """The part of an end that stores and fetches blobs."""

    connection: Guarded  # to NATS
    subjects: Subjects  # the run's names there
    owner: str | None  # the owner of blobs that are put here; None: the coordinator
    signatures: Signatures  # sign sent data, and check received data

    def __post_init__(self) -> None:
        self._stream = self.connection.jetstream(timeout=CHUNK_SECONDS)
        self._stored: set[str] = set()  # names of blobs that this process has stored

    async def put(self, name: str, data: bytes) -> None:
        """Store a blob, in place of one of the same name; repeat it after an interruption."""
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
                self.connection.troubles.end(UNSTORED, STORED_AGAIN)
                return
            except (TimeoutError, nats.errors.Error, OSError) as error:
                if time.monotonic() > give_up or not await self._may_pass(error):
                    stream = f"OBJ_{self.subjects.bucket(self.owner)}"
                    failure = f"{len(data):,} bytes can't be stored on the server as {name}"
                    raise NetworkError(f"{failure}: {with_remedy(error, stream)}") from error
            await asyncio.sleep(RETRY_SECONDS)

    async def _may_pass(self, error: BaseException) -> bool:
        """Return whether storing may succeed later, after an interruption or without JetStream for
        now.
        """
        stream = f"OBJ_{self.subjects.bucket(self.owner)}"
        if isinstance(error, TimeoutError):
            # the wait for a receipt was long enough
            report_unstored(self.connection, stream, patience=0.0)
        if isinstance(error, NoStreamResponseError):
            # distinguish a missing stream from missing JetStream
            try:
                await self._stream.stream_info(stream)
            except (TimeoutError, nats.errors.Error) as cause:
                error = cause
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
        """Delete data of others, or of an earlier process, in this store.

        Returns whether there was anything.
        """
        stream = f"OBJ_{self.subjects.bucket(self.owner)}"
        own_subjects = {self.subjects.chunks(self.owner, name) for name in self._stored}
        info = await self._stream.stream_info(stream, subjects_filter=">")
        present_subjects = info.state.subjects or {}
        for subject in present_subjects.keys() - own_subjects:
            await self._stream.purge_stream(stream, subject=subject)
        return bool(present_subjects.keys() - own_subjects)

    async def drop(self, owner: str | None, name: str) -> None:
        stream = f"OBJ_{self.subjects.bucket(owner)}"
        with suppress(nats.errors.Error, TimeoutError):
            await self._stream.purge_stream(stream, subject=self.subjects.chunks(owner, name))

    async def get(self, owner: str | None, name: str, size: int) -> bytes:
        """Fetch a blob; wait while the connection is interrupted."""
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
        attempt = ""
        chunks: dict[int, bytes] = {}
        received_bytes = 0
        problem = f"the object {name} can't be had: it is not there"
        checks = self.signatures
        is_owners: Callable[..., bool] = checks.of_coordinator
        if owner is not None:
            is_owners = partial(checks.of_client, owner)
        with suppress(NotFoundError):
            async with aclosing(read_stream(self.connection, stream, subject=subject)) as messages:
                async for message in messages:
                    place = _PLACE.fullmatch((message.headers or {}).get(PLACE, ""))
                    if place is None or not is_owners(
                        subject, message.data, message.headers, place[0].encode()
                    ):
                        continue
                    if int(place[3]) != size:
                        problem = f"an object of {int(place[3]):,} bytes, {size:,} were announced"
                        continue
                    if place[1] != attempt:  # another attempt begins with its first chunk
                        attempt, chunks, received_bytes = place[1], {}, 0
                    number = int(place[2])
                    if number in chunks or received_bytes + len(message.data) > size:
                        continue
                    chunks[number] = message.data
                    received_bytes += len(message.data)
                    if received_bytes == size:
                        return b"".join(chunks[number] for number in sorted(chunks))
        raise MessageError(problem)
