"""Writes curves for TensorBoard (`tensorboard --logdir runs`).

The package is imported only when a run uses it.

Event files are written with TensorBoard's own writer, so that a coordinator without torch has
curves, too.
"""

import time
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import PrivateAttr

from fedseed.errors import FedseedError
from fedseed.tracking.base import MetricsLine, Start, Tracker, scalars, slashed


class TensorBoard(Tracker):
    """Writes the numbers of each line of metrics as curves over rounds.

    Args:
        folder: where event files go: relative to the run's folder, "" for the folder itself.
    """

    name: Literal["tensorboard"] = "tensorboard"
    about: ClassVar[str] = "curves in TensorBoard (extra: tensorboard)"
    package: ClassVar[str | None] = "tensorboard"

    folder: str = "tensorboard"

    _writer: Any = PrivateAttr(None)

    def start(self, run: Start) -> None:
        """Open the event file.

        For a resumed run it writes all lines again, in place of those in earlier files.

        It is not known which file has a line that was written just before the interruption.
        """
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if run.folder is None and not Path(self.folder).is_absolute():
            raise FedseedError(
                "the run has no folder (out): give tracking.folder as an absolute path"
            )
        self._writer = EventFileWriter(
            str(Path(self.folder) if run.folder is None else run.folder / self.folder)
        )
        # this event makes readers drop their points of this step and later ones
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=0, session_log=start))
        for line in run.earlier:
            self.metrics(line)

    def metrics(self, line: MetricsLine) -> None:
        """Add a point to each curve; "seconds.local" stands under "seconds/local"."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        numbers = slashed(scalars({**line, "round": None}))
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._writer.add_event(
            Event(wall_time=time.time(), step=line["round"], summary=Summary(value=values))
        )
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
