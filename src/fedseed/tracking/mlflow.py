"""MLflow: a run in an experiment, at a tracking server or in a local store (MLFLOW_TRACKING_URI).

A run that is resumed goes on in the same run there, whose id is kept in tracking.json in the run's
folder. A round's numbers are sent in one request, and the store is asked which rounds it has: no
round is missing or stored twice.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import PrivateAttr

from fedseed.text import flat
from fedseed.tracking.base import MetricsLine, Start, Tracker, scalars
from fedseed.tracking.identity import read_identity, write_identity

LARGEST = 100_000_000  # bytes of the largest file that is sent
MOST_PARAMETERS = 100  # in one request
LONGEST_VALUE = 500  # characters of a parameter, also at older servers
ROUND = "round"  # the metric whose values are the rounds that are there


class MLflow(Tracker):
    """Metrics with the round as their step, the recipe as parameters, the summary as metrics and
    tags, and the run's files as artefacts.

    Args:
        project: the experiment.
        upload: whether the run's files are sent when it is over.
    """

    name: Literal["mlflow"] = "mlflow"
    about: ClassVar[str] = "MLflow, at a server or in a local store (extra: mlflow)"
    package: ClassVar[str | None] = "mlflow"

    project: str = "fedseed"
    upload: bool = True

    _client: Any = PrivateAttr(None)
    _id: str = PrivateAttr("")
    _last_round: int = PrivateAttr(-1)  # the last round that is there

    def start(self, run: Start) -> None:
        """Begin a run in the experiment, or go on with that of an earlier session."""
        with redirect_stdout(sys.stderr):
            from mlflow import MlflowClient

            self._client = MlflowClient()
            key = f"{self.name}:{self.project}"
            run_id = read_identity(run.folder, key)
            if run_id is None:
                self._id = self._create(run)
                write_identity(run.folder, key, self._id)
            else:
                self._id = run_id
                self._client.update_run(run_id, status="RUNNING")
                history = self._client.get_metric_history(run_id, ROUND)
                self._last_round = max((point.step for point in history), default=-1)
        for line in run.earlier:
            self.metrics(line)

    def _create(self, run: Start) -> str:
        """Create a run with the recipe as its parameters, and return its id."""
        from mlflow.entities import Param

        client = self._client
        existing = client.get_experiment_by_name(self.project)
        if existing is None:
            experiment = client.create_experiment(self.project)
        else:
            experiment = existing.experiment_id
        run_made = client.create_run(
            experiment, run_name=run.title, tags={"fedseed.method": run.method}
        )
        identity = str(run_made.info.run_id)
        settings = [
            Param(_allowed(key), str(value)[:LONGEST_VALUE])
            for key, value in flat(run.config).items()
        ]
        for first in range(0, len(settings), MOST_PARAMETERS):
            client.log_batch(identity, params=settings[first : first + MOST_PARAMETERS])
        return identity

    def metrics(self, line: MetricsLine) -> None:
        """Send the line's numbers, if its round is not there yet."""
        number = line["round"]
        if number > self._last_round:
            self._send({**scalars(line), ROUND: number}, number)
            self._last_round = number

    def _send(self, values: Mapping[str, float], step: int, tags: Sequence[Any] = ()) -> None:
        from mlflow.entities import Metric

        timestamp = int(time.time() * 1000)
        metrics = [
            Metric(_allowed(key), float(value), timestamp, step) for key, value in values.items()
        ]
        self._client.log_batch(self._id, metrics=metrics, tags=tags)

    def artefacts(self, files: Sequence[Path]) -> None:
        """Send the files that are not too large."""
        for file in files if self.upload else ():
            if file.stat().st_size <= LARGEST:
                self._client.log_artifact(self._id, str(file))

    def finish(self, summary: Mapping[str, Any]) -> None:
        from mlflow.entities import RunTag

        tags = [
            RunTag(f"summary.{key}", value)
            for key, value in summary.items()
            if isinstance(value, str)
        ]
        numbers = {f"summary.{key}": value for key, value in scalars(summary).items()}
        self._send(numbers, max(0, self._last_round), tags)
        self._client.set_terminated(self._id)
        self._client = None

    def close(self) -> None:
        """Mark a stopped run as killed, until it is resumed."""
        if self._client is not None and self._id:
            self._client.set_terminated(self._id, status="KILLED")
        self._client = None


def _allowed(key: str) -> str:
    """Return a name as MLflow allows it."""
    return "".join(sign if sign.isalnum() or sign in "_-./ " else "_" for sign in key)
