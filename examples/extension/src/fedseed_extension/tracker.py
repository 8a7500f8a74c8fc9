"""A tracker that writes a file with one JSON object a line."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import PrivateAttr

from fedseed.tracking import Start, Tracker


class JSONLines(Tracker):
    """The tracker's settings.

    Args:
        path: the file; lines are added to it.
    """

    name: Literal["json-lines"] = "json-lines"
    about: ClassVar[str] = "a file with an object a line: start, metrics, finish"

    path: str = "tracked.jsonl"

    _path: Path = PrivateAttr()

    def start(self, run: Start) -> None:
        """Write a line about the run. A resumed run's earlier lines are already in the file."""
        self._path = Path(self.path) if run.folder is None else run.folder / self.path
        self._write(
            "start", {"method": run.method, "rounds": run.rounds, "earlier": len(run.earlier)}
        )

    def metrics(self, line: Mapping[str, Any]) -> None:
        """Write a line of metrics."""
        self._write("metrics", line)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the final metrics."""
        self._write("finish", {"final": summary["final"]})

    def _write(self, event: str, content: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **content}) + "\n")
