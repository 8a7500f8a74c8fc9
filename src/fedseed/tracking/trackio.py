"""Trackio: a run in a local project (`trackio show`), at a server of one's own, or in a Space of a hub."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal
from uuid import uuid4

from pydantic import PrivateAttr

from fedseed.tracking.base import Start, flat, scalars
from fedseed.tracking.remote import RemoteTracker


class Trackio(RemoteTracker):
    """Curves over rounds, the recipe as configuration, the summary, the run's files.

    Args (besides those of `RemoteTracker`):
        space: a Space to log to; by default TRACKIO_SPACE_ID, or the local project (TRACKIO_DIR).
        server: address of a Trackio server of one's own; by default TRACKIO_SERVER_URL.
    """

    name: Literal["trackio"] = "trackio"
    about: ClassVar[str] = "Trackio, on this machine or in a Space (extra: trackio)"
    package: ClassVar[str] = "trackio"

    space: str | None = None
    server: str | None = None

    _run: Any = PrivateAttr(None)

    def open(self, run: Start, known: str | None) -> tuple[str, int]:
        """A run by a name that nobody else has."""
        import trackio

        made = known or f"{self.run_name or run.title}-{uuid4().hex[:6]}"
        with _on_stderr():
            self._run = trackio.init(
                project=self.project,
                name=made,
                space_id=self.space,
                server_url=self.server,
                config=flat(run.config),
                resume="never" if known is None else "allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        # Trackio reads the last step that is there when it opens a run; where it goes on is all that it tells
        return made, getattr(self._run, "_next_step", 0) - 1

    def send(self, number: int, values: dict[str, float]) -> None:
        """A point on each curve; "seconds.local" stands under "seconds/local"."""
        self._run.log({key.replace(".", "/"): value for key, value in values.items()}, step=number)

    def send_files(self, files: Sequence[Path]) -> None:
        """One artefact with all files."""
        import trackio

        made = trackio.Artifact(f"run-{self._run_id}", type="fedseed-run")
        for file in files:
            made.add_file(str(file))
        with _on_stderr():
            self._run.log_artifact(made)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """What the run came to, beside its last round."""
        values = {f"summary/{key.replace('.', '/')}": value for key, value in scalars(summary).items()}
        self._run.log(values, step=max(0, self._told))
        self.close()

    def close(self) -> None:
        """Wait until everything has been sent."""
        if self._run is not None:
            from trackio import context_vars

            with _on_stderr():
                self._run.finish()
            if context_vars.current_run.get() is self._run:  # or it would be ended once more when the process ends
                context_vars.current_run.set(None)
            self._run = None


def _on_stderr() -> contextlib.redirect_stdout[Any]:
    """What Trackio prints is not what the command prints."""
    return contextlib.redirect_stdout(sys.stderr)
