"""What is too large for a message, in JetStream's object stores: one for each owner, an object in chunks.

An object is written as JetStream's tools read it. It is read without the entry that names its chunks, because others
can write there (see signatures.py): each chunk says which it is of which attempt to store the object, in a header, and
is signed with its place. Nothing leads from one object to another.
"""

import asyncio
import base64
import datetime
import hashlib
import json
import re
import secrets
import time
from contextlib import aclosing, suppress

import nats.errors
from nats.js import api
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from fedseed.errors import MessageError, NetworkError
from fedseed.transport.base import End, Interrupted
from fedseed.transport.nats_connection import Guarded
from fedseed.transport.nats_log import RETRY_SECONDS, Stored, stored
from fedseed.transport.signatures import Signatures
from fedseed.transport.subjects import Subjects

PLACE = "Fedseed-Chunk"  # header: in which attempt to store, which chunk it is, bytes of all together
CHUNK_BYTES = 128 * 1024
AT_ONCE = 8  # chunks on their way
CHUNK_SECONDS = 30.0  # for the receipt of one
PATIENCE_SECONDS = 3600.0  # through interruptions, as for the log
_PLACE = re.compile(r"([^.]*)\.(\d{1,15})\.(\d{1,15})")
UNAVAILABLE = 10008  # for now, in a cluster
NO_ROOM = 10077


class ObjectsEnd(End):
    """An end as far as it stores and fetches blobs.

    Args:
        connection: to NATS.
        subjects: the run's names there.
        owner: whose blobs are put here; None: the coordinator's.
        signatures: sign what is sent, and check what comes.
    """

    def __init__(self, connection: Guarded, subjects: Subjects, owner: str | None, signatures: Signatures) -> None:
        self.connection, self.subjects, self.signatures = connection, subjects, signatures
        self._owner = owner
        self._stream = connection.jetstream(timeout=CHUNK_SECONDS)
        self._stored: set[str] = set()  # names of what this process has stored

    async def put(self, name: str, data: bytes) -> None:
        """Store a blob, in place of one of the same name; again after an interruption."""
        self._stored.add(name)
        give_up = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                try:
                    await self._put(self._owner, name, data)
                except APIError as error:
                    if error.err_code != NO_ROOM or not await self._make_room(self._owner):
                        raise
                    await self._put(self._owner, name, data)
                return
            except (TimeoutError, nats.errors.Error, OSError) as error:
                gone = isinstance(error, NoStreamResponseError | NotFoundError | nats.errors.ConnectionClosedError)
                refused = isinstance(error, APIError) and error.err_code != UNAVAILABLE
                if gone or refused or time.monotonic() > give_up:
                    what = f"{len(data):,} bytes can't be stored on the server as {name}"
                    raise NetworkError(f"{what}: {error or type(error).__name__}") from error
            await asyncio.sleep(RETRY_SECONDS)

    async def _put(self, owner: str | None, name: str, data: bytes) -> None:
        bucket, chunks = self.subjects.bucket(owner), self.subjects.chunks(owner, name)
        await self._stream.purge_stream(f"OBJ_{bucket}", subject=chunks)
        attempt, digest = secrets.token_hex(8), hashlib.sha256()
        sending: list[asyncio.Task[api.PubAck]] = []
        starts = range(0, max(len(data), 1), CHUNK_BYTES)
        try:
            for number, start in enumerate(starts):
                chunk = data[start : start + CHUNK_BYTES]
                digest.update(chunk)
                place = f"{attempt}.{number}.{len(data)}"
                signed = self.signatures.headers(chunks, chunk, place.encode()) or {}
                headers = {PLACE: place, **signed}
                sending.append(asyncio.create_task(self._stream.publish(chunks, chunk, headers=headers)))
                if len(sending) == AT_ONCE:
                    await sending.pop(0)
            for task in sending:
                await task
        finally:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
        about = {
            "name": name, "bucket": bucket, "nuid": name, "size": len(data), "chunks": len(starts),
            "mtime": datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z"),
            "digest": "SHA-256=" + base64.urlsafe_b64encode(digest.digest()).decode(),
            "options": {"max_chunk_size": CHUNK_BYTES},
        }  # fmt: skip
        entry = self.subjects.object_entry(owner, name)
        await self._stream.publish(entry, json.dumps(about).encode(), headers={"Nats-Rollup": "sub"})

    async def _make_room(self, owner: str | None) -> bool:
        """Delete what others have written into this store, or an earlier process; whether there was any."""
        stream = f"OBJ_{self.subjects.bucket(owner)}"
        place = (self.subjects.chunks, self.subjects.object_entry)
        mine = {subject(owner, name) for subject in place for name in self._stored}
        found = (await self._stream.stream_info(stream, subjects_filter=">")).state.subjects or {}
        for subject in found.keys() - mine:
            await self._stream.purge_stream(stream, subject=subject)
        return bool(found.keys() - mine)

    async def drop(self, owner: str | None, name: str) -> None:
        stream = f"OBJ_{self.subjects.bucket(owner)}"
        with suppress(nats.errors.Error, TimeoutError):
            await self._stream.purge_stream(stream, subject=self.subjects.chunks(owner, name))
            await self._stream.purge_stream(stream, subject=self.subjects.object_entry(owner, name))

    async def get(self, owner: str | None, name: str, size: int) -> bytes:
        """Fetch a blob; an interruption is waited for."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    with suppress(Interrupted):
                        return await self.connection.unless_interrupted(self._get(owner, name, size))
                    await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError as error:
            raise MessageError(f"the object {name} can't be had: it does not come") from error

    async def _get(self, owner: str | None, name: str, size: int) -> bytes:
        stream, subject = f"OBJ_{self.subjects.bucket(owner)}", self.subjects.chunks(owner, name)
        attempt, chunks, there = "", dict[int, bytes](), 0
        why = f"the object {name} can't be had: it is not there"
        with suppress(NotFoundError):
            async with aclosing(stored(self.connection, stream, subject=subject)) as messages:
                async for message in messages:
                    place = _PLACE.fullmatch((message.headers or {}).get(PLACE, ""))
                    if place is None or not self._is_owners(owner, subject, message, place[0]):
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

    def _is_owners(self, owner: str | None, subject: str, chunk: Stored, place: str) -> bool:
        signed = subject, chunk.data, chunk.headers, place.encode()
        if owner is None:
            return self.signatures.of_coordinator(*signed)
        return self.signatures.of_client(owner, *signed)
