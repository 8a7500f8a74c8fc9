"""tracking.json in a run's folder: each tracker's id of the run, so that it continues there."""

import json
from pathlib import Path

from fedseed.durable import write_whole

FILE = "tracking.json"


def read_identity(folder: Path | None, key: str) -> str | None:
    """Return the id that an earlier session of the run had; None: there was none.

    Args:
        folder: the run's; None: the run writes nothing.
        key: the tracker, and where it keeps runs.
    """
    if folder is None or not (folder / FILE).is_file():
        return None
    identity = json.loads((folder / FILE).read_text(encoding="utf-8")).get(key, {}).get("id")
    if identity is None:
        return None
    return str(identity)


def write_identity(folder: Path | None, key: str, identity: str) -> None:
    """Store the run's id. Arguments are those of `read_identity`."""
    if folder is None:
        return
    file = folder / FILE
    identities = {}
    if file.is_file():
        identities = json.loads(file.read_text(encoding="utf-8"))
    text = json.dumps({**identities, key: {"id": identity}}, indent=1)
    write_whole(file, f"{text}\n".encode())
