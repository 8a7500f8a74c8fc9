"""Logs a run to Trackio: in a local project (`trackio show`), at a server of one's own, or in a Space of a hub."""

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any, ClassVar, Literal
from uuid import uuid4

from fedseed.tracking.base import Start, parameters, scalars, slashed
from fedseed.tracking.remote import LoggingTracker


class Trackio(LoggingTracker):
    """Curves over rounds, the recipe as configuration, the summary, the run's files.

    Args (besides those of `RemoteTracker`):
        space: a Space to log to; by default TRACKIO_SPACE_ID, or the local project (TRACKIO_DIR).
        server: address of a Trackio server of one's own; by default TRACKIO_SERVER_URL.
    """

    name: Literal["trackio"] = "trackio"
    about: ClassVar[str] = "Trackio, on this machine or in a Space (extra: trackio)"
    package: ClassVar[str | None] = "trackio"

    space: str | None = None
    server: str | None = None

    def open(self, run: Start, known: str | None) -> tuple[str, int]:
        """Begins a run under a name that nobody else has, or goes on with a known one."""
        import trackio

        made = known or f"{self.run_name or run.title}-{uuid4().hex[:6]}"
        with redirect_stdout(sys.stderr):
            self._run = trackio.init(
                project=self.project,
                name=made,
                space_id=self.space,
                server_url=self.server,
                config=parameters(run.config),
                resume="never" if known is None else "allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        # when Trackio opens a run, it reads the last step there; it only tells with which step it goes on
        return made, getattr(self._run, "_next_step", 0) - 1

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._run.log(slashed(scalars(summary), "summary/"), step=max(0, self._told))
        self.close()

    def close(self) -> None:
        if self._run is not None:
            from trackio import context_vars

            with redirect_stdout(sys.stderr):
                self._run.finish()
            if context_vars.current_run.get() is self._run:  # or it would be ended once more when the process ends
                context_vars.current_run.set(None)
            self._run = None
