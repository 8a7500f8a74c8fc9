"""The files a base is loaded from; they remember its digest, so that gigabytes are not hashed at every start.

What is remembered lies in the user's cache (`remembered_in` says where), a small file for each base and way of loading
it. It is believed only if the base's files are what they were: the same names, sizes, inodes and times of change (to
the nanosecond; also that of the inode, which `touch` can't set back), the same bytes in samples from each of them,
loaded in the same way by the same versions to tensors of the same names and shapes. They are compared before and after
loading. Everything else is hashed: a model that was changed after loading or made in Python, one with code of its own;
and so it is where the cache is damaged or can't be read. FEDSEED_VERIFY_BASE=1 hashes in any case (and remembers);
`fedseed orbit verify` and `replay` always do.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fedseed.models.heads import Head
from fedseed.weights.digest import Named, dtype_name, hash_tensors, saved_tensors
from fedseed.weights.layout import DigestKind

SMALLEST_BYTES = 64 << 20  # a smaller base is hashed before anybody notices
SAMPLES = 32  # of a file, evenly spread from its first byte to its last
SAMPLE_BYTES = 64 << 10
_PACKAGES = ("fedseed", "torch", "transformers", "safetensors")


@dataclass(frozen=True)
class BaseFiles:
    """The files of a base as they were before it was loaded.

    Args:
        folder: where they are; None: nothing is remembered.
        files: what `look` saw there.
        loaded: how they are loaded: all that decides what the model's bits are.
        known: the digest of what is in them, if that is known already, though the model has other bits (`knowing`).
    """

    folder: Path | None
    files: list[list[Any]]
    loaded: Mapping[str, Any]
    known: str | None = None

    @classmethod
    def before(
        cls, base: str, dtype: str, trust_remote_code: bool, architecture: str | None, head: Head | None
    ) -> "BaseFiles":
        """Look at a base's files, to be called before `fedseed.models.loading.load_model` (it has the arguments).

        Raises:
            RecipeError: it looks like a path and nothing is there.
        """
        folder = None if trust_remote_code else _folder(base)  # what a model's own code does is not known
        loaded = {
            "dtype": dtype, "architecture": architecture, "head": None if head is None else asdict(head),
            "versions": {name: _version(name) for name in _PACKAGES},
        }  # fmt: skip
        files = None if folder is None else look(folder)
        return cls(None if files is None else folder, files or [], loaded)

    def knowing(
        self, outline: torch.nn.Module, load: Callable[[], torch.nn.Module], kind: DigestKind = "blake2b"
    ) -> "BaseFiles":
        """The files with their digest, for a model that is made of them and has other bits (quantised ones).

        Args:
            outline: the base without its weights.
            load: loads the base as it is, for when its digest is not remembered.
            kind: how it is hashed.
        """
        return replace(self, known=self.digest(outline, kind, load))

    def digest(
        self, model: torch.nn.Module, kind: DigestKind = "blake2b", load: Callable[[], torch.nn.Module] | None = None
    ) -> str:
        """The digest of the model that was loaded from the files: remembered, or hashed and then remembered.

        Args:
            model: as it was loaded, no bit changed.
            kind: how it is hashed.
            load: loads the model, where `model` is an outline of it.
        """
        if self.known is not None:
            return self.known
        named = saved_tensors(model)

        def hashed() -> str:
            return hash_tensors(named if load is None else saved_tensors(load()), kind)

        cache = remembered_in()
        if self.folder is None or cache is None or sum(tensor.nbytes for _, tensor in named) < SMALLEST_BYTES:
            return hashed()
        key = self._key(named, kind)
        path = cache / f"{_hash([key['folder'], key['loaded'], kind])}.json"
        if look(self.folder) != self.files:  # they were changed while they were loaded
            return hashed()
        found = None if os.environ.get("FEDSEED_VERIFY_BASE") == "1" else _recall(path, key)
        if found is None:
            found = hashed()
            _remember(path, key, found)
        return found

    def _key(self, named: Named, kind: DigestKind) -> dict[str, Any]:
        """Everything that the digest depends on, as JSON has it."""
        tensors = [[name, dtype_name(tensor), list(tensor.shape)] for name, tensor in named]
        key = {
            "folder": str(self.folder), "files": self.files, "loaded": self.loaded, "kind": kind,
            "tensors": _hash(tensors),
        }  # fmt: skip
        made: dict[str, Any] = json.loads(json.dumps(key))
        return made


def remembered_in() -> Path | None:
    """The folder of what is remembered, in FEDSEED_CACHE, XDG_CACHE_HOME/fedseed or ~/.cache/fedseed; None: nowhere."""
    try:
        own, users = os.environ.get("FEDSEED_CACHE"), os.environ.get("XDG_CACHE_HOME")
        cache = Path(own) if own else (Path(users) if users else Path.home() / ".cache") / "fedseed"
    except RuntimeError:  # this user has no home
        return None
    return cache / "base-digests"


def look(folder: Path) -> list[list[Any]] | None:
    """What tells a folder's files from others: name, size, times, inode and a hash of samples of each, sorted by name.

    None: they can't be read.
    """
    found = []
    try:
        for path in sorted(folder.iterdir()):
            if path.is_file():
                with path.open("rb", buffering=0) as file:
                    about = os.fstat(file.fileno())
                    size = about.st_size
                    found.append([
                        path.name, size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino,
                        _samples(file.fileno(), size),
                    ])  # fmt: skip
    except OSError:
        return None
    return found


def _samples(handle: int, size: int) -> str:
    digest = hashlib.blake2b(digest_size=16)
    starts = [0] if size <= SAMPLE_BYTES else [i * (size - SAMPLE_BYTES) // (SAMPLES - 1) for i in range(SAMPLES)]
    for start in starts:
        digest.update(os.pread(handle, SAMPLE_BYTES, start))
    return digest.hexdigest()


def _folder(base: str) -> Path | None:
    """Where all files of a base are; None if that can't be told."""
    from fedseed.models.loading import locate  # brings transformers; models without it do without

    folder = Path(locate(base))
    hub = not folder.is_dir()
    if hub:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            config = try_to_load_from_cache(base, "config.json")
        except HFValidationError:
            return None
        if not isinstance(config, str):
            return None  # it has to be downloaded first
        folder = Path(config).parent
        if not any(folder.glob("*.safetensors")):
            return None  # transformers may take a converted copy from elsewhere
    if (folder / "adapter_config.json").exists():
        return None  # it names another base
    return folder.resolve()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _hash(value: object) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def _recall(path: Path, key: Mapping[str, Any]) -> str | None:
    """The digest that was remembered for this very key; None if there is none, or the file is damaged."""
    try:
        found = json.loads(path.read_bytes())
        digest = found["digest"]
        whole = found["key"] == key and found["check"] == _hash([key, digest])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return digest if whole and re.fullmatch("[0-9a-f]{32}", digest) else None


def _remember(path: Path, key: Mapping[str, Any], digest: str) -> None:
    """Write it down in one go; other processes may do the same at the same time. Where it can't be, it is not."""
    text = json.dumps({"key": key, "digest": digest, "check": _hash([key, digest])})
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(suffix=".part", dir=path.parent)
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink()
            raise
