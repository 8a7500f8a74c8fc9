"""Loading models: the project's small base, a local folder, or a hub name."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fedseed.errors import RecipeError

SMALL_BASE = "small"


def locate(base: str) -> str:
    """The folder of the small base, an existing folder as it is, or the name for the hub.

    Raises:
        RecipeError: it looks like a path and nothing is there.
    """
    if base == SMALL_BASE:
        return str(files("fedseed") / "base" / "small")
    looks_like_path = base.startswith((".", "/", "~")) or base.count("/") > 1
    path = Path(base).expanduser()
    if path.is_dir():
        return str(path)
    if looks_like_path:
        raise RecipeError(
            f'model.base = "{base}": there is no such folder; give "small", an existing folder or a hub name'
        )
    return base


def load_model(base: str, dtype: str = "float32", trust_remote_code: bool = False) -> tuple[Any, Any]:
    """A causal language model and its tokenizer.

    Args:
        base: "small" (the project's own), a local folder, or a hub name.
        dtype: "float32", "bfloat16" or "float16".
        trust_remote_code: run code that comes with the model.

    Raises:
        RecipeError: not found or not loadable.
    """
    place = locate(base)
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code)
        model = AutoModelForCausalLM.from_pretrained(
            place, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise RecipeError(
            f'model.base = "{base}": neither a local folder with a model nor to be had from the hub ({reason})'
        ) from error
    model.eval()
    return model, tokenizer


def find_base(place: str, dtype: str, digest: str) -> tuple[Any, Any]:
    """The base with a digest: at `place`, or in one of the folders in it.

    Args:
        place: as `load_model` takes it, or a folder that holds folders with models.
        dtype: the dtype to load it in; the digest depends on it.
        digest: what `fedseed.parameters.base_digest` must give.

    Raises:
        RecipeError: nothing there can be loaded, or no folder in it has this digest.
    """
    from fedseed.parameters import base_digest

    folder = Path(place).expanduser()
    if not folder.is_dir() or (folder / "config.json").exists():
        return load_model(place, dtype)  # the replay compares the digest
    found = sorted(path.parent for path in folder.glob("*/config.json"))
    for path in found:
        model, tokenizer = load_model(str(path), dtype)
        if base_digest(model) == digest:
            return model, tokenizer
    names = ", ".join(path.name for path in found) or "no folder with a model"
    raise RecipeError(f"{place}: no base with digest {digest} ({names} there)")


def quiet() -> None:
    """Keep transformers' own progress bars and advice off the screen."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def choose_trainable(model: torch.nn.Module, patterns: Sequence[str] | None) -> None:
    """Let only parameters train whose name matches a pattern such as "*.layers.3.*"; None: all.

    Raises:
        RecipeError: nothing matches.
    """
    if patterns is None:
        return
    matched = False
    for name, parameter in model.named_parameters():
        chosen = any(fnmatchcase(name, pattern) for pattern in patterns)
        parameter.requires_grad_(chosen)
        matched = matched or chosen
    if not matched:
        raise RecipeError(f"model.trainable = {list(patterns)}: no parameter has a name like this")
