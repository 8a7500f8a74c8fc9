"""Examines a base's folder or hub name before loading anything."""

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig
from transformers.utils import logging

from fedseed.errors import RecipeError, closest
from fedseed.models import PACKAGED
from fedseed.models.foreign import check_regular
from fedseed.processes import COMMAND
from fedseed.text import clean, first_line

WEIGHT_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "pytorch_model.bin.index.json",
)
ADAPTER_CONFIG = "adapter_config.json"
# time limit for the hub's first answer: without it, the hub's client and the look-up of its name
# would each try for most of a minute
PATIENCE_SECONDS = 10.0
# the most layers in a configuration: more would fill the memory while the model is built
MOST_LAYERS = 4096


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint of a base."""

    name: str  # the base's name in the recipe
    # the folder or hub name that has the weights and config.json
    place: str
    config: Mapping[str, Any]  # content of config.json
    # the folder of a LoRA on top of the weights; None: there is none
    adapter: Path | None = None

    @property
    def classes(self) -> list[str]:
        """Return the names of the model classes in config.json."""
        return [str(name) for name in self.config.get("architectures") or ()]

    @property
    def description(self) -> str:
        """Return a description of the model for messages."""
        return ", ".join(self.classes) or f"of type {self.config.get('model_type')}"


def find_checkpoint(base: str) -> Checkpoint:
    """Find the checkpoint of a base's name, without running or loading anything.

    Args:
        base: "small", "words" or "digits" (which come with fedseed), a local folder, or a hub name.
            A folder with an adapter_config.json is an adapter on the base that it names, or on the
            weights in the same folder.

    Raises:
        RecipeError: the base or the adapter's base is not found.
    """
    place = reach(base)
    adapter = Path(place, ADAPTER_CONFIG)
    if not adapter.is_file():
        return Checkpoint(base, place, _read_config(base, place))
    if Path(place, "config.json").is_file() and whole_weights(Path(place)):
        return Checkpoint(base, place, _read_config(base, place), Path(place))
    base_place = _base_of_adapter(base, adapter)
    return Checkpoint(base, base_place, _read_config(base, base_place), Path(place))


def _base_of_adapter(base: str, path: Path) -> str:
    """Return the folder or hub name of the base that an adapter_config.json names."""
    try:
        base_name = json.loads(path.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise problem(base, f"{ADAPTER_CONFIG} can't be read ({first_line(error)})") from error
    remedy = (
        f'set its path in {ADAPTER_CONFIG} ("base_model_name_or_path"), or merge the adapter into '
        "it (merge_and_unload of peft) and use the merged folder"
    )
    if not base_name:
        raise problem(base, f"it is an adapter that does not name its base: {remedy}")
    beside = path.parent / str(base_name)
    if not Path(str(base_name)).is_absolute() and beside.is_dir():
        return str(beside)
    try:
        return reach(str(base_name))
    except RecipeError as error:
        raise problem(
            base, f"it is an adapter of {base_name}, which is not found here ({error}): {remedy}"
        ) from error


def whole_weights(folder: Path) -> list[Path]:
    """Return the files in a folder that have a whole model's weights, without an adapter's."""
    paths = chain.from_iterable(folder.glob(pattern) for pattern in WEIGHT_FILES)
    return [path for path in paths if not path.name.startswith("adapter_model")]


def problem(base: str, fault: str) -> RecipeError:
    """Return the error for a fault of a base."""
    return RecipeError(f'model.base = "{base}": {fault}')


def locate(base: str) -> str:
    """Return the folder of a packaged base, an existing folder unchanged, or a name for the hub.

    Raises RecipeError if it looks like a path but does not exist, or if a file in it is not a
    regular file.
    """
    if base in PACKAGED:
        return str(files("fedseed") / "base" / base)
    path = Path(base).expanduser()
    if path.is_dir():
        check_regular(base, path)
        return str(path)
    if base.startswith((".", "/", "~")) or base.count("/") > 1:
        raise _not_there(base)
    # looking for it on the hub could take a minute
    suggestion = closest(base, PACKAGED, 0.8) if "/" not in base else None
    if suggestion:
        raise problem(
            base,
            f"did you mean {suggestion}? There is no such folder, and names on the hub have "
            "the form OWNER/NAME",
        )
    return base


def reach(base: str) -> str:
    """Return a path or name from which `transformers` can load a base without a long wait for the
    hub.

    It is a folder; a name that the hub has, unchanged; or, if the hub can't be reached, the folder
    in its cache. Raises RecipeError if there is no such folder and the hub can't be reached or has
    no such model.
    """
    if COMMAND in os.environ:
        quiet()
    place = locate(base)
    if Path(place).is_dir():
        return place
    return _ask(place)


@lru_cache
def _ask(place: str) -> str:
    """Return the hub's answer. Each name is looked up only once."""
    # the HTTP library under the hub's client has changed before, so only the client's own errors
    # are named here; any other error counts as an unreachable hub
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    if COMMAND in os.environ:
        print(
            f"fedseed: {clean(str(place))} is not a local folder: looking for it on the hub, for "
            f"at most {PATIENCE_SECONDS:g} seconds",
            file=sys.stderr,
            flush=True,
        )
    hub = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        _call_within(PATIENCE_SECONDS, lambda: hub.model_info(place, timeout=PATIENCE_SECONDS))
        return place
    except HFValidationError as error:
        raise _not_there(place, ", and this is not a valid name on the hub") from error
    except RepositoryNotFoundError as error:
        raise _not_there(
            place, ", and the hub has no model of this name that you can access"
        ) from error
    except HfHubHTTPError:
        return place  # the hub answers, so loading will report what is wrong
    except Exception as error:
        config = try_to_load_from_cache(place, "config.json")
        if isinstance(config, str):
            return str(Path(config).parent)
        raise _not_there(place, f", and the hub can't be reached ({first_line(error)})") from error


def _call_within(seconds: float, act: Callable[[], object]) -> None:
    """Call a function in a thread, which is abandoned if it takes too long.

    Args:
        seconds: how long to wait.
        act: the function.

    Raises:
        TimeoutError: the function did not return in time.
        Exception: what the function raises.
    """
    outcome: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            act()
        except Exception as error:
            outcome.put(error)
        else:
            outcome.put(None)

    threading.Thread(target=run, daemon=True).start()
    try:
        error = outcome.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} seconds") from None
    if error is not None:
        raise error


def _not_there(place: str, reason: str = "") -> RecipeError:
    remedy = 'give "small", "words", "digits", an existing folder or a hub name'
    return problem(place, f"there is no such folder{reason}; {remedy}")


def has_weights(base: str) -> bool:
    """Return whether a base has weights to load. A folder may have none.

    Raises RecipeError if there is no folder.
    """
    folder = Path(locate(base))
    return not folder.is_dir() or bool(whole_weights(folder)) or (folder / ADAPTER_CONFIG).is_file()


def base_config(base: str) -> dict[str, Any]:
    """Return the config.json of a base, or of an adapter's base, without running or loading
    anything.

    Raises RecipeError if it can't be read.
    """
    return dict(find_checkpoint(base).config)


def _read_config(base: str, place: str) -> dict[str, Any]:
    """Return the config.json of a folder or hub name."""
    try:
        config: dict[str, Any] = PretrainedConfig.get_config_dict(place)[0]
    except (OSError, ValueError, RecursionError) as error:
        raise not_loadable(base, place, error) from error
    for key, value in config.items():
        if "layer" in key and isinstance(value, int) and value > MOST_LAYERS:
            limit = f"fedseed builds at most {MOST_LAYERS:,} layers; download the file again"
            raise problem(base, f"{key} = {value:,} in config.json: {limit}")
    return config


def not_loadable(base: str, place: str, error: Exception) -> RecipeError:
    """Return the error for a folder or hub name from which no model can be loaded."""
    folder_problem = "no model can be loaded from the folder"
    if Path(place).is_dir():
        place_problem = folder_problem
    else:
        place_problem = "it is not a local folder with a model, and can't be loaded from the hub"
    return problem(base, f"{place_problem} ({first_line(error)})")


def quiet() -> None:
    """Hide transformers' progress bars and advice."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
