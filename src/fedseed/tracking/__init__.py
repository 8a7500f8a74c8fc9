"""Where else a run's metrics go while it runs. A new tracker is a file, a line here and a test."""

from fedseed.registry import Registry, check_class, name_of
from fedseed.tracking.base import Start, Tracker, Trackers
from fedseed.tracking.csv import CSV
from fedseed.tracking.tensorboard import TensorBoard

TRACKERS: tuple[type[Tracker], ...] = (CSV, TensorBoard)
REGISTRY: Registry[type[Tracker]] = Registry(
    "tracker",
    "fedseed.trackers",
    ((str(name_of(tracker)), tracker) for tracker in TRACKERS),
    lambda thing: check_class(thing, Tracker),
)

__all__ = ["CSV", "REGISTRY", "TRACKERS", "Start", "TensorBoard", "Tracker", "Trackers"]
