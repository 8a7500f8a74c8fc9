"""Trackio: a run in a local project (TRACKIO_DIR, `trackio show`), or in a Space of the Hugging
Face hub (TRACKIO_SPACE_ID).

A run that is resumed goes on under the same name there, which is kept in tracking.json in the run's
folder. Trackio is asked which rounds it has: no round is missing or stored twice.
"""

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any, ClassVar, Literal
from uuid import uuid4

from pydantic import PrivateAttr

from fedseed.text import flat
from fedseed.tracking.base import MetricsLine, Start, Tracker, scalars, slashed
from fedseed.tracking.identity import read_identity, write_identity


class Trackio(Tracker):
    """Curves over rounds, the recipe as configuration, and the summary.

    Args:
        project: what runs stand under there.
    """

    name: Literal["trackio"] = "trackio"
    about: ClassVar[str] = "Trackio, on this machine or in a Space (extra: trackio)"
    package: ClassVar[str | None] = "trackio"

    project: str = "fedseed"

    _run: Any = PrivateAttr(None)
    _last_round: int = PrivateAttr(-1)  # the last round that is there

    def start(self, run: Start) -> None:
        """Begin a run under a name that nobody else has, or go on with a known one."""
        import trackio

        key = f"{self.name}:{self.project}"
        run_id = read_identity(run.folder, key)
        identity = run_id or f"{run.title}-{uuid4().hex[:6]}"
        settings = {
            name: value if isinstance(value, int | float | str | bool) else str(value)
            for name, value in flat(run.config).items()
        }
        with redirect_stdout(sys.stderr):
            self._run = trackio.init(
                project=self.project,
                name=identity,
                config=settings,
                resume="never" if run_id is None else "allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        if run_id is None:
            write_identity(run.folder, key, identity)
        # Trackio gives the next step of the run, and no other part of the stored data
        self._last_round = getattr(self._run, "_next_step", 0) - 1
        for line in run.earlier:
            self.metrics(line)

    def metrics(self, line: MetricsLine) -> None:
        """Send the line's numbers, if its round is not there yet."""
        if line["round"] > self._last_round:
            self._last_round = line["round"]
            self._run.log(slashed(scalars({**line, "round": None})), step=self._last_round)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._run.log(slashed(scalars(summary), "summary/"), step=max(0, self._last_round))
        self.close()

    def close(self) -> None:
        """End the run; later calls do nothing."""
        if self._run is not None:
            from trackio import context_vars

            with redirect_stdout(sys.stderr):
                self._run.finish()
            # otherwise Trackio would end the run again when the process ends
            if context_vars.current_run.get() is self._run:
                context_vars.current_run.set(None)
            self._run = None
