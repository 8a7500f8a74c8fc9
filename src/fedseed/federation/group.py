"""A run, or a client, that a group of processes computes together: `torchrun` starts them, and they
hold shards.

The first of them is all that others know: it reads plans, answers, writes files. What needs every
process' shards it tells the others before it does it, and they do the same.
"""

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial, reduce
from typing import Any, NoReturn

import torch

from fedseed.errors import FedseedError, RecipeError
from fedseed.federation.hosted import Hosted
from fedseed.processes import GROUP, alone
from fedseed.weights.codes import is_quantized
from fedseed.weights.space import ParameterSpace

# what needs every process, as a path from `Hosted`
TOLD = (
    "evaluate",
    *(
        f"worker.{name}"
        for name in (
            "train_all",
            "look",
            "apply",
            "apply_payload",
            "catch_up",
            "space.digest",
            "space.dense",
            "space.norm",
        )
    ),
)
_led: list[Hosted] = []  # what this process has a part of
_busy: list[str] = []  # what all do at the moment


def space_of(model: Any) -> type[ParameterSpace]:
    """Shards a model if this process is one of a group; return its space's class.

    Raises RecipeError: it can't be.
    """
    if GROUP == 1:
        return ParameterSpace
    from fedseed.weights.sharded import ShardedSpace, shard

    if _led:
        raise RecipeError(
            "a torchrun group holds one model at its base, once: start it again, for one run"
        )
    if hasattr(model, "peft_config"):
        alone("an adapter")
    if is_quantized(model):
        alone("a quantised base")
    shard(model, int(os.environ["LOCAL_RANK"]))
    return ShardedSpace


def gathered(hosted: Hosted) -> Hosted:
    """Return what a group's first process has; others do what it tells them, and end.

    Raises FedseedError.
    """
    if GROUP == 1:
        return hosted
    _led.append(hosted)
    if os.environ["RANK"] != "0":
        _follow(hosted)
    _say(hosted.start)
    atexit.register(lambda: None if _busy else _say(None))
    for path in TOLD:
        *places, name = path.split(".")
        owner = reduce(getattr, places, hosted)
        setattr(owner, name, partial(_told, path, getattr(owner, name)))
    return hosted


def _told(path: str, act: Callable[..., Any], *given: Any) -> Any:
    """Do what needs every process, and has the others do it."""
    if _busy:  # a part of what they do by themselves
        return act(*given)
    given = tuple(list(g) if isinstance(g, Iterator) else g for g in given)
    _say((path, () if path == "evaluate" else given))
    _busy.append(path)
    try:
        result = act(*given)
    except (
        FedseedError,
        ValueError,
    ):  # which the others see, too; of anything else this group is to end
        _busy.clear()
        raise
    _busy.clear()
    return result


def _follow(hosted: Hosted) -> NoReturn:
    """Do what the first process says, until that is over, and ends this one."""
    if _say() != hosted.start:
        raise FedseedError(
            "this process has loaded another base, or other settings, than the first of its group"
        )
    while (order := _say()) is not None:
        path, given = order
        with suppress(FedseedError, ValueError):
            act: Any = reduce(getattr, path.split("."), hosted)
            act(*((hosted.worker.space.model.eval(),) if path == "evaluate" else given))
    raise SystemExit(0)


def _say(order: Any = None) -> Any:
    """Say what the first process gives to the others; return it everywhere."""
    from torch.distributed import broadcast_object_list

    box = [order]
    broadcast_object_list(box, 0, device=torch.device("cpu"))
    return box[0]
