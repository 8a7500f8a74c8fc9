"""Rows through the `datasets` library: of a data set on the hub, of a folder in the hub's form, of a saved one."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from fedseed.errors import RecipeError, to_install
from fedseed.tasks.files import Record

SAVED = ("dataset_dict.json", "state.json")  # one of these is in every folder that `save_to_disk` writes


def is_saved(place: Path) -> bool:
    """Whether a folder is a data set that `save_to_disk` has written."""
    return any((place / name).is_file() for name in SAVED)


def is_hub_name(path: str) -> bool:
    """Whether a text has the form of a data set's name on the hub, "owner/name"."""
    owner, slash, rest = path.partition("/")
    return bool(slash) and "/" not in rest and owner not in ("", ".", "..", "~") and not Path(rest).suffix


def hub_rows(path: str, split: str, config: str | None, hint: str) -> list[Record]:
    """The rows of a data set on the hub, or of a folder in the hub's form (parquet).

    Args:
        path: as the recipe has it.
        split: what the part is called on the hub.
        config: the data set's configuration on the hub, if it has some; another is ignored.
        hint: what `path` may be, for messages.

    Raises:
        RecipeError: they can't be had or read.
    """
    wanted, is_folder = f'task.path = "{path}"', Path(path).expanduser().is_dir()
    if not is_folder and not is_hub_name(path):
        raise RecipeError(f"{wanted}: there is no such file or folder; {hint}")
    reason = "parquet files are read by" if is_folder else "no such file or folder here, and names on the hub need"
    datasets = _library(f"{wanted}: {reason}", hint)
    try:
        with nullcontext() if is_folder else _offline_where_unreachable(datasets):
            configs = datasets.get_dataset_config_names(path)
            found = datasets.load_dataset(path, config if config in configs else None, split=split)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        what = "the datasets library can't read it" if is_folder else "no such file or folder here, nor on the hub"
        raise RecipeError(f"{wanted}: {what} ({reason}); {hint}") from error
    return _records(f"{path} ({split})", found)


def saved_rows(folder: Path, split: str) -> list[Record]:
    """The rows of a data set that `save_to_disk` has written.

    Args:
        folder: where it is.
        split: which part, where it has several.

    Raises:
        RecipeError: it can't be read, or has no such part.
    """
    datasets = _library(f"{folder}: a saved data set is read by", "")
    try:
        found = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise RecipeError(f"{folder}: the datasets library can't read it ({error})") from error
    if not isinstance(found, datasets.DatasetDict):
        return _records(str(folder), found)
    if split not in found:
        raise RecipeError(f'{folder}: it has no part "{split}" (task.split), but {", ".join(found)}')
    return _records(f"{folder} ({split})", found[split])


@contextmanager
def _offline_where_unreachable(datasets: Any) -> Iterator[None]:
    """Look into the cache alone where the hub's name is not known: asking for it again and again takes half a minute.

    Args:
        datasets: the library.
    """
    from huggingface_hub import constants

    settings = [(datasets.config, "HF_HUB_OFFLINE"), (constants, "HF_HUB_OFFLINE")]
    before = [getattr(place, name) for place, name in settings]
    try:
        if not getproxies():  # a proxy may know what this machine does not
            socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError:
        for place, name in settings:
            setattr(place, name, True)
    try:
        yield
    finally:
        for (place, name), value in zip(settings, before, strict=True):
            setattr(place, name, value)


def _library(why: str, hint: str) -> Any:
    """The `datasets` library. Raises RecipeError where it is not installed."""
    try:
        import datasets
    except ImportError as error:
        raise RecipeError(f"{why} the datasets library ({to_install('hub')}){'; ' if hint else ''}{hint}") from error
    datasets.disable_progress_bars()
    return datasets


def _records(where: str, rows: Sequence[Any]) -> list[Record]:
    return [Record(f"{where} row {number}", dict(row)) for number, row in enumerate(rows, 1)]
