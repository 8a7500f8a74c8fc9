"""What a plug-in calls: `fedseed.register_method(MyMethod)` and its like.

Each can be a decorator of a class, too.

Installed packages need none of this: they declare entry points (docs/extending.md). Every function
raises RecipeError if the thing can't be of its kind, or if its name is taken.
"""

import re
from dataclasses import replace
from typing import Any, TypeVar

from fedseed import aggregation, methods, tasks, tracking, transport
from fedseed.errors import RecipeError
from fedseed.metrics import Metric, declare
from fedseed.registry import Registry, name_of
from fedseed.tasks import metrics
from fedseed.tasks.metrics import Score

C = TypeVar("C", bound=type)

REGISTRIES: dict[str, Registry[Any]] = {
    "methods": methods.REGISTRY,
    "tasks": tasks.REGISTRY,
    "metrics": metrics.REGISTRY,
    "aggregation": aggregation.REGISTRY,
    "trackers": tracking.REGISTRY,
    "transports": transport.REGISTRY,
}


def register_method(method: C) -> C:
    """Let recipes say `method.name = ...` for a subclass of `fedseed.methods.Method`.

    Its code is from 128 to 255.
    """
    return _register("methods", method)


def register_task(task: C) -> C:
    """Let recipes say `task.name = ...` for a subclass of `fedseed.tasks.Task`."""
    return _register("tasks", task)


def register_aggregation(rule: C) -> C:
    """Let recipes say `aggregation.name = ...` for a subclass of
    `fedseed.aggregation.AggregationRule`.
    """
    return _register("aggregation", rule)


def register_tracker(tracker: C) -> C:
    """Let recipes have `[[tracking]]` with the name of a subclass of `fedseed.tracking.Tracker`."""
    return _register("trackers", tracker)


def register_transport(kind: C) -> C:
    """Let addresses of its `schemes`, such as "my://host", lead to a subclass of
    `fedseed.transport.base.Transport`.
    """
    return _register("transports", kind)


def register_metric(name: str, function: Score, declared: Metric | None = None) -> Score:
    """Let tasks and `evaluation.metrics` use a score of generated texts.

    Args:
        name: what lines of metrics call it.
        function: gives the score in percent of (generated texts, the right answers to each).
        declared: how it is called, compared and shown; by default by its name, and more is better.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise RecipeError(f"metric {name!r}: a name of small letters, digits and _ is expected")
    metrics.REGISTRY.add(name, function)
    if declared is not None:
        declare(replace(declared, name=name))
    return function


def _register(kind: str, thing: C) -> C:
    REGISTRIES[kind].add(name_of(thing) or str(getattr(thing, "__name__", thing)), thing)
    return thing
