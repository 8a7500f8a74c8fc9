"""metrics.csv: a line per line of metrics.jsonl, for a spreadsheet."""

import csv
import io
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PrivateAttr

from fedseed.durable import write_whole
from fedseed.errors import FedseedError
from fedseed.tracking.base import MetricsLine, Start, Tracker, scalars


class CSV(Tracker):
    """Writes the numbers of each line of metrics when a session ends; of lists (clients, skipped) their length.

    Args:
        file: its name in the run's folder; it ends in .csv.
    """

    name: Literal["csv"] = "csv"
    about: ClassVar[str] = "metrics.csv in the run's folder, for a spreadsheet"

    file: Annotated[str, Field(pattern=r"^\w[\w .+-]*\.csv$")] = "metrics.csv"  # it is written anew, so no other file

    _path: Path | None = PrivateAttr(None)
    _rows: list[dict[str, float]] = PrivateAttr(default_factory=list)

    def start(self, run: Start) -> None:
        """Takes what an interrupted run has measured, so that no line is missing."""
        if run.folder is None:
            raise FedseedError("the run has no folder (out) to write to")
        self._path = run.folder / self.file
        self._rows = [scalars(line) for line in run.earlier]

    def metrics(self, line: MetricsLine) -> None:
        self._rows.append(scalars(line))

    def close(self) -> None:
        """Writes all lines, with a column for each number that any of them has."""
        if self._path is not None:
            text = io.StringIO()
            columns = dict.fromkeys(name for row in self._rows for name in row)
            table = csv.DictWriter(text, list(columns), lineterminator="\n")
            table.writeheader()
            table.writerows(self._rows)
            write_whole(self._path, text.getvalue().encode())
