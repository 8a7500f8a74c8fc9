"""Share an orbit: copy it to a folder or a repository of the Hugging Face hub, and back.

A place is a folder (a path that exists, or begins with ".", "/" or "~"), an address file:///..., or
OWNER/NAME, a model repository of the hub, at HF_ENDPOINT. The file there is called model.orbit. The
hub's client, huggingface_hub, comes with the extra `train`.
"""

import tempfile
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from fedseed.durable import make_folder, replacing, write_whole
from fedseed.errors import FedseedError, OrbitError, RecipeError, to_install
from fedseed.orbit.file import Orbit
from fedseed.text import first_line

NAME = "model.orbit"


def folder_of(place: str) -> Path | None:
    """Return the folder that a place names; None: it is a repository of the hub.

    Raises:
        RecipeError: it is neither.
    """
    if not place:
        raise RecipeError(
            'place "": it is empty; give a folder, file:///FOLDER, or OWNER/NAME of the hub'
        )
    parts = urlsplit(place)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise RecipeError(f"{place}: write file:///FOLDER, with three slashes")
        return Path(url2pathname(parts.path))
    path = Path(place).expanduser()
    if place.startswith((".", "/", "~")) or path.is_dir():
        return path
    if parts.scheme or place.count("/") != 1 or not all(place.split("/")):
        raise RecipeError(
            f"{place}: give a folder that exists (or begins with ./), file:///FOLDER, or "
            "OWNER/NAME of the hub"
        )
    return None


def push_orbit(path: Path, place: str, private: bool = False, force: bool = False) -> str:
    """Put an orbit into a folder or a repository.

    Args:
        path: the orbit's file; it must be whole.
        place: the folder or repository.
        private: whether a new repository of the hub is private.
        force: whether to replace another orbit in this place.

    Returns:
        The orbit's new path or address.

    Raises:
        OrbitError: the file is not an orbit, is damaged, or its run is not over.
        RecipeError: the place is not valid.
        FedseedError: the place has another orbit, or the hub refuses it.
    """
    orbit = Orbit.open(path)
    if not orbit.complete:
        raise OrbitError(
            f"{path}: its run is not over: share it afterwards, or write its steps so far to "
            "another file with `fedseed orbit rollback`"
        )
    data, folder = path.read_bytes(), folder_of(place)
    if folder is None:
        return _push_to_hub(data, place, private, force)
    destination = folder / NAME
    if destination.exists() and destination.read_bytes() != data and not force:
        raise FedseedError(f"{destination} is another orbit: choose another place, or give --force")
    make_folder(folder)
    write_whole(destination, data)
    return str(destination)


def _push_to_hub(data: bytes, place: str, private: bool, force: bool) -> str:
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError
    except ModuleNotFoundError as error:
        raise FedseedError(f"{place}: the hub needs huggingface_hub: {to_install('train')}") from (
            error
        )
    hub = HfApi()
    try:
        hub.create_repo(place, private=private, exist_ok=True)
        if not force and hub.file_exists(place, NAME) and _fetch(place) != data:
            raise FedseedError(
                f"{place} has another orbit: choose another name, or give --force (the hub keeps "
                "the old one in its history)"
            )
        commit = hub.upload_file(
            path_or_fileobj=data,
            path_in_repo=NAME,
            repo_id=place,
            commit_message="Add the orbit of a fedseed run",
        )
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise FedseedError(f"{place}: the hub refused the orbit: {first_line(error)}") from error
    return str(commit.commit_url)


def pull_orbit(place: str, destination: Path) -> Orbit:
    """Get an orbit from a folder or a repository. It is checked before the file is made.

    Args:
        place: the folder or repository.
        destination: the file to write; it must not exist.

    Raises:
        RecipeError: the place is not valid.
        OrbitError: the file there is not an orbit, or is damaged.
        FedseedError: the place has no orbit, or `destination` exists already.
    """
    if destination.exists():
        raise FedseedError(f"{destination} exists already: choose another name with --out")
    folder = folder_of(place)
    if folder is None:
        data = _fetch(place)
    else:
        source = folder / NAME
        if not source.is_file():
            raise FedseedError(f"{source}: there is no such file")
        data = source.read_bytes()
    make_folder(destination.parent)
    with replacing(destination) as temporary:
        temporary.write_bytes(data)
        try:
            return Orbit.open(temporary)
        except OrbitError as error:
            text = str(error).replace(str(temporary), place)
            raise OrbitError(text) from error


def _fetch(place: str) -> bytes:
    """Return the bytes of the orbit in a repository.

    Raises FedseedError: it can't be downloaded.
    """
    try:
        from huggingface_hub import hf_hub_download
    except ModuleNotFoundError as error:
        raise FedseedError(f"{place}: the hub needs huggingface_hub: {to_install('train')}") from (
            error
        )
    with tempfile.TemporaryDirectory() as folder:
        try:
            return Path(hf_hub_download(place, NAME, local_dir=folder)).read_bytes()
        # the classes of the hub client's errors have changed between versions
        except Exception as error:
            raise FedseedError(
                f"{place}: {NAME} can't be downloaded: {first_line(error)}"
            ) from error
