"""Decides on which devices a model is placed: `model.device` in a recipe, `--device` of a command.

"auto" is a GPU if there is one, and otherwise the CPU. "cuda" is the current GPU, and "cuda:1" a
particular one. "map" distributes layers over all GPUs, like `accelerate`, and places the rest on
the CPU, which computes them.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from fedseed.errors import RecipeError
from fedseed.weights.devices import devices_of


def find_device(name: str) -> torch.device | None:
    """Return the device with a name; None for "map".

    Raises RecipeError if this machine has no such device.
    """
    if name == "map":
        return None
    gpu_count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        if gpu_count:
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")
    if name == "cpu":
        return torch.device("cpu")
    kind, _, number = name.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()):
        raise RecipeError(f'device "{name}": choose auto, cpu, cuda, cuda:N or map')
    if not gpu_count:
        reason = "torch finds no GPU here"
        if torch.version.cuda is None:
            reason = (
                f"this torch ({torch.__version__}) is built without CUDA; pytorch.org says how "
                "to install one"
            )
        raise RecipeError(f'device "{name}": {reason}')
    if number and int(number) >= gpu_count:
        gpus = f"{gpu_count} GPUs" if gpu_count > 1 else "1 GPU"
        raise RecipeError(f'device "{name}": this machine has {gpus}, numbered from 0')
    return torch.device("cuda", int(number) if number else torch.cuda.current_device())


def deal_out(model: torch.nn.Module) -> dict[str, torch.device]:
    """Return a device for each module. Layers are not divided; they are distributed over the free
    memory of GPUs and CPU.

    Raises RecipeError if the model does not fit.
    """
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    whole = list(getattr(model, "_no_split_modules", None) or ())
    room = get_balanced_memory(model, no_split_module_classes=whole)
    places = infer_auto_device_map(model, max_memory=room, no_split_module_classes=whole)
    if "disk" in places.values():
        raise RecipeError(
            'device "map": the model does not fit into the memory of this machine and its GPUs'
        )
    return {
        name: torch.device("cuda", place) if isinstance(place, int) else torch.device(place)
        for name, place in places.items()
    }


def spread(model: Any, places: Mapping[str, torch.device]) -> Any:
    """Move modules to their devices. Tensors that pass between modules are moved as needed.

    Returns the model.

    Every module computes on its own device, including those on the CPU, so parameters never move.

    Args:
        model: a torch module.
        places: a device for each module, by name ("": the whole model). Together they cover the
            whole model.
    """
    from accelerate.utils import send_to_device

    # because a cache moves its own tensors
    skipped = getattr(model, "_skip_keys_device_placement", None)

    def bring(device: torch.device, module: Any, args: Any, kwargs: Any) -> Any:
        return send_to_device(args, device), send_to_device(kwargs, device, skip_keys=skipped)

    for name, device in places.items():
        part = model.get_submodule(name)
        if devices_of([*part.parameters(), *part.buffers()]) != (device,):
            part.to(device)
        if len(places) > 1:
            part.register_forward_pre_hook(partial(bring, device), with_kwargs=True)
    if len(places) > 1:
        first = next(model.parameters()).device
        model.register_forward_hook(
            lambda module, args, output: send_to_device(output, first, skip_keys=skipped)
        )
    return model
