"""What a plug-in calls: `fedseed.register_method(MyMethod)` and its like. Each can be a decorator of a class, too.

Installed packages need none of this: they declare entry points (docs/extending.md).
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

from fedseed import aggregation, methods, tasks, tracking, transport
from fedseed.errors import RecipeError
from fedseed.registry import Registry, name_of
from fedseed.tasks import metrics, rewards
from fedseed.tasks.metrics import Score
from fedseed.tasks.rewards import Reward

C = TypeVar("C", bound=type)

REGISTRIES: dict[str, Registry[Any]] = {
    "methods": methods.REGISTRY,
    "tasks": tasks.REGISTRY,
    "metrics": metrics.REGISTRY,
    "rewards": rewards.REGISTRY,
    "aggregation": aggregation.REGISTRY,
    "trackers": tracking.REGISTRY,
    "transports": transport.REGISTRY,
}


def register_method(method: C) -> C:
    """Let recipes say `method.name = ...` for a subclass of `fedseed.methods.Method`; its code is from 128 to 255.

    Raises:
        RecipeError: it is no method, or its name or code is taken.
    """
    return _register(methods.REGISTRY, method)


def register_task(task: C) -> C:
    """Let recipes say `task.name = ...` for a subclass of `fedseed.tasks.Task`. Raises RecipeError."""
    return _register(tasks.REGISTRY, task)


def register_metric(name: str, function: Score) -> Score:
    """Let tasks and `evaluation.metrics` use a score of generated texts.

    Args:
        name: what lines of metrics call it.
        function: gives the score in percent of (generated texts, the right answers to each).

    Raises:
        RecipeError: it is no function, or the name is taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise RecipeError(f"metric {name!r}: a name of small letters, digits and _ is expected")
    metrics.REGISTRY.add(name, function)
    return function


def register_reward(name: str, function: Reward) -> Reward:
    """Let recipes say `reward.name = ...` for a function of your own.

    Args:
        name: what recipes call it.
        function: gives the reward of (prompt, generated answer, example); the more, the better.

    Raises:
        RecipeError: it is no function, or the name is taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise RecipeError(f"reward {name!r}: a name of small letters, digits, - and _ is expected")
    rewards.REGISTRY.add(name, function)
    return function


def register_aggregation(rule: C) -> C:
    """Let recipes say `aggregation.name = ...` for a subclass of `fedseed.aggregation.AggregationRule`.

    Raises:
        RecipeError: it is no rule, or its name is taken.
    """
    return _register(aggregation.REGISTRY, rule)


def register_tracker(tracker: C) -> C:
    """Let recipes have `[[tracking]]` with the name of a subclass of `fedseed.tracking.Tracker`. Raises RecipeError."""
    return _register(tracking.REGISTRY, tracker)


def register_transport(scheme: str, factory: Callable[..., Any]) -> Callable[..., Any]:
    """Let addresses begin with `scheme://`.

    Args:
        scheme: what stands before "://".
        factory: makes the transport (`fedseed.transport`).

    Raises:
        RecipeError: it is no function, or the scheme is taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme):
        raise RecipeError(f"transport {scheme!r}: a scheme is small letters, digits, +, . and -, without ://")
    transport.REGISTRY.add(scheme, factory)
    return factory


def _register(registry: Registry[Any], thing: C) -> C:
    registry.add(name_of(thing) or str(getattr(thing, "__name__", thing)), thing)
    return thing
