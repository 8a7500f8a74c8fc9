"""metrics.csv: a line per line of metrics.jsonl, for a spreadsheet."""

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PrivateAttr

from fedseed.durable import Appender, write_whole
from fedseed.errors import FedseedError
from fedseed.tracking.base import MetricsLine, Start, Tracker, scalars


class CSV(Tracker):
    """Numbers of each line of metrics in columns; of lists (clients, skipped) their length.

    Args:
        file: its name in the run's folder; it ends in .csv.
    """

    name: Literal["csv"] = "csv"
    about: ClassVar[str] = "metrics.csv in the run's folder, for a spreadsheet"

    file: Annotated[str, Field(pattern=r"^\w[\w .+-]*\.csv$")] = "metrics.csv"  # it is written anew, so no other file

    _columns: list[str] = PrivateAttr(default_factory=list)
    _rows: list[dict[str, float]] = PrivateAttr(default_factory=list)
    _appender: Appender | None = PrivateAttr(None)

    def start(self, run: Start) -> None:
        """Write what is known of an interrupted run anew, so that no line is missing or stands there twice."""
        if run.folder is None:
            raise FedseedError("the run has no folder (out) to write to")
        self._columns, self._rows = [], []
        path = run.folder / self.file
        path.unlink(missing_ok=True)
        self._appender = Appender(path)
        for line in run.earlier:
            self.metrics(line)

    def metrics(self, line: MetricsLine) -> None:
        """Append a row; a number that no row had before becomes a column, for which the file is written anew."""
        assert self._appender is not None
        row = scalars(line)
        self._rows.append(row)
        new = [name for name in row if name not in self._columns]
        if not new:
            self._appender.append(self._text([row]), sync=False)  # metrics.jsonl is the record, this a copy
            return
        self._columns += new
        path = self._appender.path
        self._appender.close()
        write_whole(path, self._text([dict(zip(self._columns, self._columns, strict=True)), *self._rows]))
        self._appender = Appender(path)

    def _text(self, rows: Iterable[Mapping[str, object]]) -> bytes:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([row.get(c, "") for c in self._columns] for row in rows)
        return text.getvalue().encode()

    def close(self) -> None:
        if self._appender is not None:
            self._appender.close()
