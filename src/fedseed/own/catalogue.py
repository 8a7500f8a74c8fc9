"""Find the orbits to serve, by the names that requests use, from the current files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedseed.errors import RecipeError
from fedseed.runs.folder import CHAT_TEMPLATE
from fedseed.runs.tuned import Source, find_source

ORBIT = "model.orbit"


class FileStamp(NamedTuple):
    """A stamp that changes when a file is written anew."""

    inode: int
    size: int
    nanoseconds: int


class Catalogue:
    """The files of orbits, which may appear, change or disappear at any time.

    Args:
        sources: orbits by name.
        folders: folders of runs and orbits; each orbit in them, now or later, is served.
    """

    def __init__(self, sources: Mapping[str, Source], folders: Sequence[Path] = ()) -> None:
        self._sources = dict(sources)
        self._folders = folders

    def sources(self) -> dict[str, Source]:
        """Return the orbits whose files are there now, by name."""
        sources = {name: one for name, one in self._sources.items() if is_there(one)}
        for folder in self._folders:
            for name, path in orbits_in(folder).items():
                if name not in self._sources:
                    sources.setdefault(name, _source_of(path))
        return sources


def is_there(source: Source) -> bool:
    """Return whether an orbit's file exists."""
    return source.orbit is not None and source.orbit.is_file()


def stamp_of(source: Source) -> tuple[FileStamp | None, FileStamp | None]:
    """Return a stamp that changes when an orbit, or its run's chat template, is written anew."""
    template = None
    if source.folder is not None:
        template = source.folder / CHAT_TEMPLATE
    return _stamp(source.orbit), _stamp(template)


def _stamp(path: Path | None) -> FileStamp | None:
    try:
        status = None
        if path is not None:
            status = path.stat()
    except OSError:
        return None
    return status and FileStamp(status.st_ino, status.st_size, status.st_mtime_ns)


def orbits_in(folder: Path) -> dict[str, Path]:
    """Return the orbits of a folder's runs, and the orbit files in it, by name, in the folder's
    order. A run takes precedence over an orbit file of the same name.
    """
    orbits: dict[str, Path] = {}
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return {}
    for entry in entries:
        if (entry / ORBIT).is_file():
            orbits[entry.name] = entry / ORBIT
        elif entry.suffix == ".orbit" and entry.is_file():
            orbits.setdefault(entry.stem, entry)
    return orbits


def _source_of(path: Path) -> Source:
    is_run = path.name == ORBIT
    return Source(str(path), orbit=path, folder=path.parent if is_run else None)


def is_folder_of_orbits(place: str) -> bool:
    """Return whether a place is a folder that holds runs or orbits, but is not a run itself."""
    folder = Path(place)
    return folder.is_dir() and not (folder / ORBIT).is_file() and bool(orbits_in(folder))


def name_sources(orbits: Sequence[str]) -> dict[str, Source]:
    """Return the places of orbits, by the names that requests use.

    Args:
        orbits: runs' folders and orbits' files; each has the name of its folder or file, or NAME if
            given as "NAME=PATH".

    Raises:
        RecipeError: there is no such orbit, or two have one name.
    """
    sources: dict[str, Source] = {}
    for text in orbits:
        name, name_given, place = ("", "", text) if Path(text).exists() else text.partition("=")
        source = find_source(place if name_given else text)
        if source.orbit is None:
            raise RecipeError(
                f"{text}: not an orbit: whole weights can't be swapped; export the model, and "
                "serve it alone"
            )
        path = source.orbit.resolve()
        name = name or (path.parent.name if path.stem == "model" else path.stem)
        if name in sources:
            raise RecipeError(
                f'{text}: another orbit has the name "{name}"; give this one a '
                f"name, as in mine={text}"
            )
        sources[name] = source
    return sources
