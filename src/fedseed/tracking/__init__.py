"""Sends a run's metrics elsewhere while it runs.

A new tracker is a file here, which is found by itself, and a test.
"""

from fedseed.registry import Registry, check_class, classes_in, name_of
from fedseed.tracking.base import Start, Tracker, Trackers
from fedseed.tracking.mlflow import MLflow
from fedseed.tracking.tensorboard import TensorBoard
from fedseed.tracking.trackio import Trackio
from fedseed.tracking.wandb import WandB

TRACKERS: tuple[type[Tracker], ...] = tuple(classes_in(__name__, Tracker))
REGISTRY: Registry[type[Tracker]] = Registry(
    "tracker",
    "fedseed.trackers",
    ((str(name_of(tracker)), tracker) for tracker in TRACKERS),
    lambda thing: check_class(thing, Tracker),
)

__all__ = [
    "REGISTRY",
    "TRACKERS",
    "MLflow",
    "Start",
    "TensorBoard",
    "Tracker",
    "Trackers",
    "Trackio",
    "WandB",
]
