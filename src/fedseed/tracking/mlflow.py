"""Logs a run to MLflow: in an experiment, at a tracking server or in a local store (MLFLOW_TRACKING_URI)."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from fedseed.text import flat
from fedseed.tracking.base import Start, scalars
from fedseed.tracking.remote import RemoteTracker

MOST_PARAMETERS = 100  # in one request
LONGEST_VALUE = 500  # characters, also at older servers


class MLflow(RemoteTracker):
    """Metrics with the round as their step, the recipe as parameters, the summary as metrics and tags, the run's files.

    Args (besides those of `RemoteTracker`):
        uri: of the tracking server or store; by default MLFLOW_TRACKING_URI, or MLflow's own choice.
        tags: the run's tags.
    """

    name: Literal["mlflow"] = "mlflow"
    about: ClassVar[str] = "MLflow, at a server or in a local store (extra: mlflow)"
    package: ClassVar[str | None] = "mlflow"

    uri: str | None = None
    tags: dict[str, str] = Field(default_factory=dict)

    _client: Any = PrivateAttr(None)

    def open(self, run: Start, known: str | None) -> tuple[str, int]:
        """Begins a new run in the experiment, or goes on with the one that an earlier session began."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        client = self._client = MlflowClient(tracking_uri=self.uri)
        if known is not None:
            self._run_id = known
            client.update_run(known, status="RUNNING")
            return known, max((point.step for point in client.get_metric_history(known, "round")), default=-1)
        there = client.get_experiment_by_name(self.project)
        experiment = client.create_experiment(self.project) if there is None else there.experiment_id
        tags = {"fedseed.method": run.method, **self.tags}
        made = client.create_run(experiment, run_name=self.run_name or run.title, tags=tags).info.run_id
        chosen = [Param(_name(key), str(v)[:LONGEST_VALUE]) for key, v in flat(run.config).items()]
        for first in range(0, len(chosen), MOST_PARAMETERS):
            client.log_batch(made, params=chosen[first : first + MOST_PARAMETERS])
        return made, -1

    def send(self, number: int, values: dict[str, float]) -> None:
        """Sends all numbers in one request, which a store keeps as a whole or not at all."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_name(key), float(v), now, number) for key, v in values.items()]
        self._client.log_batch(self._run_id, metrics=[*metrics, Metric("round", float(number), now, number)])

    def send_files(self, files: Sequence[Path]) -> None:
        for file in files:
            self._client.log_artifact(self._run_id, str(file))

    def finish(self, summary: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric, RunTag

        now = int(time.time() * 1000)
        metrics = [Metric(f"summary.{_name(key)}", float(v), now, 0) for key, v in scalars(summary).items()]
        tags = [RunTag(f"summary.{key}", value) for key, value in summary.items() if isinstance(value, str)]
        self._client.log_batch(self._run_id, metrics=metrics, tags=tags)
        self._client.set_terminated(self._run_id)
        self._client = None

    def close(self) -> None:
        """Gives a run that was stopped the status KILLED, until it goes on."""
        if self._client is not None and self._run_id:
            self._client.set_terminated(self._run_id, status="KILLED")
        self._client = None


def _name(key: str) -> str:
    """Returns a name as MLflow allows it."""
    return "".join(c if c.isalnum() or c in "_-./ " else "_" for c in key)
