"""Weights & Biases: a run of its own, online, or offline (WANDB_MODE=offline, then `wandb sync`).

Offline a session leaves a folder under the run's folder. Nobody can be asked then what an earlier session, which may
have been killed, has brought to the disk, so a session that goes on tells everything once more and takes the earlier
folder's place: there is one, it is complete, and `wandb sync` makes one run of it.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, ClassVar, Literal
from uuid import uuid4

from pydantic import PrivateAttr

from fedseed.tracking.base import Start, scalars, slashed
from fedseed.tracking.remote import RemoteTracker


class WandB(RemoteTracker):
    """Curves over rounds, the recipe as configuration, the summary, and the run's files as an artefact.

    Args (besides those of `RemoteTracker`):
        mode: "online", "offline" or "disabled"; by default WANDB_MODE, or online.
    """

    name: Literal["wandb"] = "wandb"
    about: ClassVar[str] = "Weights & Biases, online or offline (extra: wandb)"
    package: ClassVar[str | None] = "wandb"

    mode: Literal["online", "offline", "disabled"] | None = None

    _run: Any = PrivateAttr(None)

    def open(self, run: Start, known: str | None) -> tuple[str, int]:
        """Begin a run with an id of our own choice: whoever has the id goes on with it."""
        import wandb

        identity = known or uuid4().hex[:8]
        self._run = wandb.init(
            project=self.project,
            name=self.run_name or run.title,
            id=identity,
            resume="allow",
            mode=self.mode,
            config=run.config,
            dir=None if run.folder is None or "WANDB_DIR" in os.environ else str(run.folder),
            reinit="create_new",
            settings=wandb.Settings(console="off"),  # what the terminal shows stays here
        )
        if self._run.settings.mode == "offline":
            session = Path(self._run.dir).parent  # earlier sessions have left folders of the same run beside it
            for folder in session.parent.glob(f"offline-run-*-{identity}*"):
                if folder != session and folder.name.split("-")[3] == identity:  # ...-ID, and -1 in the same second
                    shutil.rmtree(folder)
        return identity, self._run.step - 1 if self._run.resumed else -1

    def send(self, number: int, values: dict[str, float]) -> None:
        self._run.log(slashed(values), step=number)

    def send_files(self, files: Sequence[Path]) -> None:
        """Send one artefact with all files; the same files again make no new version."""
        import wandb

        made = wandb.Artifact(f"run-{self._run_id}", type="fedseed-run")
        for file in files:
            made.add_file(str(file))
        with redirect_stdout(sys.stderr):  # what a package prints is not what the command prints
            self._run.log_artifact(made)

    def finish(self, summary: Mapping[str, Any]) -> None:
        texts = {key: value for key, value in summary.items() if isinstance(value, str)}
        self._run.summary.update(slashed({**scalars(summary), **texts}, "summary/"))
        self._run.finish()
        self._run = None

    def close(self) -> None:
        """End a run that was stopped: it counts as failed there, until it goes on."""
        if self._run is not None:
            self._run.finish(exit_code=1)
            self._run = None
