"""What a run returns: its summary, its metrics, its tuned model."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedseed.errors import FedseedError


@dataclass(frozen=True)
class RunResult:
    """What a run returns.

    Args:
        summary: what summary.json holds.
        metrics: what metrics.jsonl holds, a line a round, round 0 first.
        folder: where the files are, None if the run wrote none.
        tuned: returns the tuned model where it is in memory; None: it is made of the files.
    """

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    folder: Path | None
    tuned: Callable[[], Any] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def model(self) -> Any:
        """The tuned model: the one that was trained, with its adapter if it has one; or made of the run's files.

        Raises:
            FedseedError: no file of the run can be made a model of.
        """
        if self.tuned is not None:
            return self.tuned()
        if self.folder is None:
            raise FedseedError("the run wrote no files, and its model is not in this process")
        from fedseed.runs.tuned import find_source, open_tuned  # torch's side

        return open_tuned(find_source(str(self.folder))).model
