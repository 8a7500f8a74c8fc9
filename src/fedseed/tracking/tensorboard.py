"""Curves in TensorBoard: `tensorboard --logdir runs`. The package is imported when a run uses it, and not before."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import PrivateAttr

from fedseed.errors import FedseedError, RecipeError, to_install
from fedseed.tracking.base import MetricsLine, Start, Tracker, scalars


class TensorBoard(Tracker):
    """The numbers of each line of metrics as curves over rounds, and the recipe as text.

    Args:
        folder: where event files go: relative to the run's folder, "" for the folder itself.
    """

    name: Literal["tensorboard"] = "tensorboard"
    about: ClassVar[str] = "curves in TensorBoard (extra: tensorboard)"

    folder: str = "tensorboard"

    _writer: Any = PrivateAttr(None)

    def check(self) -> None:
        """Whether the package tensorboard is there."""
        if find_spec("tensorboard") is None:
            raise RecipeError(
                f'tracking.name = "tensorboard" needs the package tensorboard: {to_install("tensorboard")}'
            )

    def start(self, run: Start) -> None:
        """Open the event file; what an interrupted run has shown beyond its last line of metrics is dropped."""
        from torch.utils.tensorboard import SummaryWriter

        if run.folder is None and not Path(self.folder).is_absolute():
            raise FedseedError("the run has no folder (out): give tracking.folder as an absolute path")
        where = Path(self.folder) if run.folder is None else run.folder / self.folder
        first = run.earlier[-1]["round"] + 1 if run.earlier else 0
        self._writer = SummaryWriter(str(where), purge_step=first)
        if run.recipe is not None and not run.earlier:
            self._writer.add_text("recipe", "\n".join(f"    {line}" for line in run.recipe.splitlines()))

    def metrics(self, line: MetricsLine) -> None:
        """A point on each curve; "seconds.local" stands under "seconds/local"."""
        for name, value in scalars(line).items():
            if name != "round":
                self._writer.add_scalar(name.replace(".", "/"), value, line["round"])
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
