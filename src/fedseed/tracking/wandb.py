"""Weights & Biases: a run of its own, online, or offline (WANDB_MODE=offline, then `wandb sync`).

A run that is resumed goes on in the same run there, whose id is kept in tracking.json in the run's
folder. No round is sent twice and none is missing: W&B is asked which rounds it has. Offline a
session leaves a folder under the run's folder, and nobody can be asked what an earlier session,
which may have been killed, has brought to the disk. So a session that goes on tells everything once
more and takes the earlier folder's place: `wandb sync` makes one run of it.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, ClassVar, Literal
from uuid import uuid4

from pydantic import PrivateAttr

from fedseed.durable import write_whole
from fedseed.tracking.base import MetricsLine, Start, Tracker, scalars, slashed

FILE = "tracking.json"
LARGEST = 100_000_000  # bytes of the largest file that is sent: whole weights may be gigabytes


class WandB(Tracker):
    """Curves over rounds, the recipe as configuration, the summary, and the run's files as an
    artefact.

    Args:
        project: what runs stand under there.
        upload: whether the run's files (recipe, orbit or weights, pictures, report) are sent when
            it is over.
        mode: "online", "offline" or "disabled"; by default WANDB_MODE, or online.
    """

    name: Literal["wandb"] = "wandb"
    about: ClassVar[str] = "Weights & Biases, online or offline (extra: wandb)"
    package: ClassVar[str | None] = "wandb"

    project: str = "fedseed"
    upload: bool = True
    mode: Literal["online", "offline", "disabled"] | None = None

    _run: Any = PrivateAttr(None)
    _last_round: int = PrivateAttr(-1)  # the last round that is there

    def start(self, run: Start) -> None:
        """Open the run with an id of our own choice, and send the earlier lines that W&B lacks."""
        import wandb

        file = None
        if run.folder is not None:
            file = run.folder / FILE
        stored = {}
        if file is not None and file.exists():
            stored = json.loads(file.read_text(encoding="utf-8"))
        key = f"{self.name}:{self.project}"
        run_id = stored.get(key, {}).get("id")
        identity = run_id or uuid4().hex[:8]
        self._run = wandb.init(
            project=self.project,
            name=os.environ.get("WANDB_NAME", run.title),
            id=identity,
            resume="allow",
            mode=self.mode,
            config=run.config,
            dir=None if run.folder is None or "WANDB_DIR" in os.environ else str(run.folder),
            reinit="create_new",
            settings=wandb.Settings(console="off"),  # what the terminal shows stays here
        )
        if self._run.settings.mode == "offline":
            # earlier sessions have left folders of the same run beside it
            session = Path(self._run.dir).parent
            for folder in session.parent.glob(f"offline-run-*-{identity}*"):
                # the name ends in -ID, or in -ID-1 for a second session in the same second
                if folder != session and folder.name.split("-")[3] == identity:
                    shutil.rmtree(folder)
        self._last_round = -1
        if self._run.resumed:
            self._last_round = self._run.step - 1
        if file is not None and run_id is None:
            write_whole(
                file, f"{json.dumps({**stored, key: {'id': identity}}, indent=1)}\n".encode()
            )
        for line in run.earlier:
            self.metrics(line)

    def metrics(self, line: MetricsLine) -> None:
        """Send the line's numbers, if its round is not there yet."""
        if line["round"] > self._last_round:
            self._last_round = line["round"]
            self._run.log(slashed(scalars({**line, "round": None})), step=self._last_round)

    def artefacts(self, files: Sequence[Path]) -> None:
        """Send one artefact with all files that are not too large.

        The same files again make no new version.
        """
        import wandb

        small = [file for file in files if file.stat().st_size <= LARGEST]
        if not self.upload or not small:
            return
        artifact = wandb.Artifact(f"run-{self._run.id}", type="fedseed-run")
        for file in small:
            artifact.add_file(str(file))
        with redirect_stdout(sys.stderr):  # what a package prints is not what the command prints
            self._run.log_artifact(artifact)

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
