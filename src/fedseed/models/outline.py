"""A base's outline: the model that would be loaded, made from its configuration alone: no weights are read."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from fedseed.errors import RecipeError
from fedseed.models.architectures import LOADERS, Architecture, architecture_of
from fedseed.models.heads import Head
from fedseed.models.hub import reach
from fedseed.models.loading import locate

WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")


def has_weights(base: str) -> bool:
    """Whether a base has weights to load: a folder may hold none. Raises RecipeError if there is no such folder."""
    folder = Path(locate(base))
    return not folder.is_dir() or any(any(folder.glob(pattern)) for pattern in WEIGHT_FILES)


def outline(
    base: str,
    dtype: str = "float32",
    trust_remote_code: bool = False,
    architecture: Architecture | None = None,
    head: Head | None = None,
    attention: str | None = None,
    device: str | None = None,
) -> Any:
    """The model that `load_model` would load, with weights that are whatever the memory held.

    Under torch's `FakeTensorMode`, or on the device "meta", it takes no memory.

    Args:
        base: as `load_model` takes it; a folder needs a config.json and nothing else.
        dtype: as there.
        trust_remote_code: as there.
        architecture: as there.
        head: as there.
        attention: as there.
        device: where its tensors lie; None: torch's default.

    Raises:
        RecipeError: the configuration can't be had, or no model can be made from it.
    """
    place = reach(locate(base))
    options: dict[str, Any] = {} if head is None else head.options()
    options.pop("ignore_mismatched_sizes", None)
    attended = {} if attention is None else {"attn_implementation": attention}
    try:
        config = AutoConfig.from_pretrained(place, trust_remote_code=trust_remote_code, **options)
        wanted = architecture or architecture_of(config.to_dict(), head is not None)
        with nullcontext() if device is None else torch.device(device), torch.random.fork_rng(devices=[]):
            model = LOADERS[wanted].auto.from_config(
                config, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code, **attended
            )
    except (OSError, ValueError, ImportError, KeyError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RecipeError(f'model.base = "{base}": no model can be made from its configuration ({first})') from error
    model.eval()
    return model
