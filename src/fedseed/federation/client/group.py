"""A group of processes, started by `torchrun`, that computes one run or one client together.

Each process holds a shard of the model. The first process reads plans, answers them and writes
files. Before work that needs all shards, it broadcasts the order, and the other processes do the
same work.
"""

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial, reduce
from typing import Any, NoReturn

import torch

from fedseed.errors import FedseedError, RecipeError
from fedseed.federation.client.state import Hosted
from fedseed.processes import GROUP, refuse_torchrun
from fedseed.weights.codes import is_quantized
from fedseed.weights.space import ParameterSpace

# calls that need every process, as attribute paths from `Hosted`
COLLECTIVE_CALLS = (
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
_led: list[Hosted] = []  # the run of this process
_busy: list[str] = []  # the current collective call


def space_of(model: Any) -> type[ParameterSpace]:
    """Shard a model if this process is one of a group; return the class of its space.

    Raises RecipeError if the model can't be sharded.
    """
    if GROUP == 1:
        return ParameterSpace
    from fedseed.weights.sharded import ShardedSpace, shard

    if _led:
        raise RecipeError(
            "a torchrun group can load a base only once: start a new group for each run"
        )
    if hasattr(model, "peft_config"):
        refuse_torchrun("an adapter")
    if is_quantized(model):
        refuse_torchrun("a quantised base")
    shard(model, int(os.environ["LOCAL_RANK"]))
    return ShardedSpace


def lead_group(hosted: Hosted) -> Hosted:
    """Return `hosted`, whose collective calls now run in the whole group.

    Only the first process returns; the others follow its orders and then end.

    Raises FedseedError if the processes have loaded different bases or settings.
    """
    if GROUP == 1:
        return hosted
    _led.append(hosted)
    if os.environ["RANK"] != "0":
        _follow(hosted)
    _broadcast(hosted.start)
    atexit.register(lambda: None if _busy else _broadcast(None))
    for path in COLLECTIVE_CALLS:
        *places, name = path.split(".")
        owner = reduce(getattr, places, hosted)
        setattr(owner, name, partial(_run_everywhere, path, getattr(owner, name)))
    return hosted


def _run_everywhere(path: str, act: Callable[..., Any], *arguments: Any) -> Any:
    """Run a collective call in this and the other processes."""
    # inside another collective call the other processes make this call themselves
    if _busy:
        return act(*arguments)
    arguments = tuple(
        list(argument) if isinstance(argument, Iterator) else argument for argument in arguments
    )
    _broadcast((path, () if path == "evaluate" else arguments))
    _busy.append(path)
    try:
        result = act(*arguments)
    except (FedseedError, ValueError):
        # the other processes raise these errors too; any other error ends the group
        _busy.clear()
        raise
    _busy.clear()
    return result


def _follow(hosted: Hosted) -> NoReturn:
    """Follow the first process' orders until it ends, then end this process."""
    if _broadcast() != hosted.start:
        raise FedseedError(
            "this process has loaded a different base or different settings than the first "
            "process of its group"
        )
    while (order := _broadcast()) is not None:
        path, arguments = order
        with suppress(FedseedError, ValueError):
            act: Any = reduce(getattr, path.split("."), hosted)
            if path == "evaluate":
                arguments = (hosted.worker.space.model.eval(),)
            act(*arguments)
    raise SystemExit(0)


def _broadcast(order: Any = None) -> Any:
    """Send the first process's order to the others, and return it in every process."""
    from torch.distributed import broadcast_object_list

    box = [order]
    broadcast_object_list(box, 0, device=torch.device("cpu"))
    return box[0]
