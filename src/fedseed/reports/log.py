"""Keep a run's messages in log.txt of its folder: notes, warnings, and the start and end of its
sessions.
"""

import io
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path

from fedseed.durable import append_to
from fedseed.reports.progress import Progress
from fedseed.reports.results import RoundLine

NAME = "log.txt"


class LoggedProgress(Progress):
    """Passes messages on, and writes them to a file once it has a folder.

    A full disk does not stop the run.

    Args:
        shown: shows the run's progress.
    """

    def __init__(self, progress: Progress) -> None:
        self.shown = progress
        # lines from before the run's folder was known
        self._early: list[str] | None = []
        self._file: io.TextIOWrapper | None = None

    def open(self, folder: Path | None) -> None:
        """Write lines into a run's folder from now on; None: nowhere."""
        early, self._early = self._early or [], None
        if folder is None or self._file is not None:
            return
        with suppress(OSError):
            self._file = open(  # noqa: SIM115
                folder / NAME, "a", encoding="utf-8", opener=append_to
            )
        for line in early:
            self._put(line)

    def close(self) -> None:
        """Stop writing."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file = None

    def write(self, kind: str, text: str) -> None:
        """Write a line, without showing it."""
        self._put(f"{stamp()} {kind:<8}{' '.join(text.split())}\n")

    def running(self, name: str, rounds: int) -> AbstractContextManager[None]:
        return self.shown.running(name, rounds)

    def round(self, line: RoundLine) -> None:
        self.shown.round(line)  # metrics.jsonl has this line

    def advance(self, number: int) -> None:
        self.shown.advance(number)

    def note(self, text: str) -> None:
        self.shown.note(text)
        self.write("note", text)

    def warn(self, text: str) -> None:
        self.shown.warn(text)
        self.write("warning", text)

    def _put(self, line: str) -> None:
        if self._early is not None:
            self._early.append(line)
        elif self._file is not None:
            with suppress(OSError):
                self._file.write(line)
                self._file.flush()


def stamp() -> str:
    """Return the time in seconds, such as 2026-01-31T12:00:00Z."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def first_stamp(folder: Path | None) -> str | None:
    """Return the time at which the first session of a folder's run began, from its log.txt."""
    try:
        text = ""
        if folder is not None:
            text = (folder / NAME).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return next(
        (line.partition(" ")[0] for line in text.splitlines() if line[20:].startswith(" began")),
        None,
    )
