"""Orbits in repositories of the Hugging Face hub: a tuned model of kilobytes beside its base of gigabytes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from fedseed.durable import write_whole
from fedseed.errors import FedseedError, OrbitError, RecipeError, to_install
from fedseed.orbit.card import Facts, card
from fedseed.orbit.file import Orbit, begin, write_orbit
from fedseed.orbit.record import NO_DIGEST, ending

if TYPE_CHECKING:
    from huggingface_hub import HfApi

NAME = "model.orbit"
PATIENCE_SECONDS = 10.0  # for the hub's first answer


def push(path: Path, repo: str, private: bool = False, name: str = NAME, revision: str | None = None) -> str:
    """Put an orbit into a repository, with a model card that says how it becomes a model; one commit.

    The orbit must be whole. Its signature goes along if there is one (`PATH.sig`); without one, the base's folder on
    this machine, which no other machine needs, is left out of the orbit's header.

    Args:
        path: the orbit.
        repo: "owner/name"; made if it is not there.
        private: make it a private one.
        name: the file's name there.
        revision: a branch; None: the main one.

    Returns:
        The commit's address.

    Raises:
        OrbitError: the orbit is damaged.
        FedseedError: the hub can't be reached, or refuses.
    """
    orbit = Orbit.open(path)
    signature = path.with_name(path.name + ".sig")
    last = orbit.parts[-1].digest if orbit.parts else NO_DIGEST
    with TemporaryDirectory() as made, _asking(repo) as api:
        part = Path(made)
        file = part / name
        if signature.is_file() or not orbit.header.base_folder:
            file.write_bytes(path.read_bytes())
        else:
            parts = ending(orbit.parts) if orbit.complete else iter(orbit.parts)
            write_orbit(file, begin(replace(orbit.header, base_folder="")), parts)
        if signature.is_file():
            (part / f"{name}.sig").write_bytes(signature.read_bytes())
        facts = Facts(orbit.last, last, orbit.last, name, file.stat().st_size, repo=repo)
        (part / "README.md").write_text(card(orbit.header, facts, "orbit"), encoding="utf-8")
        api.create_repo(repo, private=private or None, exist_ok=True)
        about = api.upload_folder(
            repo_id=repo, folder_path=part, revision=revision,
            commit_message=f"{orbit.last:,} steps of {orbit.header.method.name}",
        )  # fmt: skip
        return str(about.commit_url)


def pull(repo: str, out: Path, name: str = NAME, revision: str | None = None) -> Orbit:
    """Fetch an orbit from a repository, with its signature if it has one, and check it.

    Args:
        repo: "owner/name".
        out: the new file; must not exist.
        name: the file's name there.
        revision: a branch, tag or commit; None: the main branch.

    Raises:
        OrbitError: `out` exists, or what came is no whole orbit.
        FedseedError: the hub can't be reached, or has no such repository or file.
    """
    if out.exists():
        raise OrbitError(f"{out} exists: choose another file")
    with TemporaryDirectory() as made, _asking(repo) as api:
        files = api.model_info(repo, revision=revision, timeout=PATIENCE_SECONDS).siblings or []
        names = [file.rfilename for file in files]
        if name not in names:
            orbits = [found for found in names if found.endswith(".orbit")]
            raise FedseedError(f"{repo} has no {name}; it has {', '.join(orbits) or 'no orbit'} (--file)")
        wanted = [one for one in (name, f"{name}.sig") if one in names]
        fetched = [
            Path(api.hf_hub_download(repo, one, revision=revision, local_dir=made)).read_bytes() for one in wanted
        ]
    orbit = Orbit.parse(fetched[0], f"{repo}/{name}")
    out.parent.mkdir(parents=True, exist_ok=True)
    for data, place in zip(fetched, (out, out.with_name(out.name + ".sig")), strict=False):
        write_whole(place, data)
    return orbit


@contextmanager
def _asking(repo: str) -> "Iterator[HfApi]":
    """The hub's client; what goes wrong with it is said in one line."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
    except ImportError as error:
        raise FedseedError(f"this needs huggingface_hub: {to_install('train')}") from error

    def first_line(error: Exception) -> str:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]

    try:
        yield HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    except HFValidationError as error:
        raise RecipeError(f'{repo}: a repository of the hub is "OWNER/NAME" ({first_line(error)})') from error
    except RepositoryNotFoundError as error:
        raise FedseedError(f"{repo}: the hub has no such repository, or it is not open to you (HF_TOKEN)") from error
    except HfHubHTTPError as error:
        said = getattr(error, "server_message", None) or first_line(error)
        raise FedseedError(f"{repo}: the hub refuses: {said}") from error
    except (FedseedError, OSError):
        raise
    except Exception as error:  # a transport's own: what the client is built on has changed before
        raise FedseedError(f"{repo}: the hub can't be reached: {first_line(error)}") from error
