"""The orbit file that follows a run's log; each is repaired from the other when a coordinator starts."""

import time
from collections.abc import Sequence
from pathlib import Path

from fedseed.errors import FedseedError
from fedseed.federation.messages import EVERYBODY, FRAME_BYTES, Message, MessageKind
from fedseed.federation.step_log import StepLog
from fedseed.orbit import NO_DIGEST, Header, OrbitWriter, Record

SYNC_SECONDS = 1.0  # of a step-by-step method's file; the log has every step at once


class OrbitCopy:
    """The orbit of a run whose steps are in a log.

    Args:
        path: the file; taken up if it is there.
        header: the run's.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self._there = path.exists()
        self._writer = OrbitWriter(path, header, resume=self._there)
        self._method = header.method
        self._held: Record | None = None  # the newest step, until its digest is known
        self._synced = time.monotonic()

    @property
    def cut(self) -> str | None:
        """What was cut off where an interrupted write had left something."""
        return self._writer.cut

    async def repair(self, log: StepLog, run: str, waits: bool) -> list[bytes]:
        """Bring log and file together: after a crash each may be behind the other.

        Args:
            log: the run's log.
            run: the run's name.
            waits: whether the log's last step, if it is new here, waits for its digest.

        Returns:
            All steps' payloads.

        Raises:
            FedseedError: they hold different steps.
        """
        logged = await log.payloads()
        written = [record.payload for record in self._writer.take().steps()] if self._there else []
        common = min(len(logged), len(written))
        if logged[:common] != written[:common]:
            raise FedseedError(f"{self._writer.path} and the server's run {run} hold different steps")
        for number, payload in enumerate(written[common:], start=common + 1):  # the server has lost some
            step = Message(MessageKind.STEP, self._method.code, number, EVERYBODY, payload).encode()
            await log.publish(number, step)
        self._add(logged[common:], common, log.marks, waits)
        return logged if len(logged) > len(written) else written

    def _add(self, payloads: Sequence[bytes], after: int, marks: dict[int, str], waits: bool) -> None:
        """Append steps that the file has not got yet."""
        last = after + len(payloads)
        for number, payload in enumerate(payloads, start=after + 1):
            record = Record(number, payload, marks.get(number, NO_DIGEST))
            if number == last and waits and number not in marks:
                self._held = record
            else:
                self._writer.append(record)

    def append(self, number: int, step: bytes, waits: bool) -> None:
        """Add a step that counts.

        Args:
            number: its number.
            step: the message.
            waits: until the clients have reported its digest (`confirm`).
        """
        record = Record(number, step[FRAME_BYTES:], NO_DIGEST)
        if waits:
            self._held = record
        else:
            self._writer.append(record, sync=False)

    def confirm(self, digest: str) -> None:
        """The digest of the weights after the newest step is known."""
        if self._held is not None:
            self._writer.append(Record(self._held.round, self._held.payload, digest))
            self._held = None

    @property
    def due(self) -> bool:
        """Whether it is time to bring the file to the disk."""
        return time.monotonic() > self._synced + SYNC_SECONDS

    def sync(self) -> None:
        """Bring everything to the disk."""
        self._writer.sync()
        self._synced = time.monotonic()

    def close(self) -> int:
        """The run is over; the file's size."""
        self._writer.close()
        return self._writer.path.stat().st_size

    def release(self) -> None:
        """Close the file as it is."""
        self._writer.release()
