"""Checks of a client's own data and tokens when it comes to a run's log, now or once more.

A client keeps a note of its data while a run goes on, beside what secure sums keep. Started again
with other data it says so, instead of going on as if nothing had happened. The note stays on the
client's machine.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from fedseed.durable import write_whole
from fedseed.errors import FedseedError, StorageError
from fedseed.federation.fingerprint import Fingerprint
from fedseed.federation.hosted import Hosted
from fedseed.tasks.record import DataRecord, describe_changes, record_from_json, record_to_json


def check_fingerprint(hosted: Hosted, said: Mapping[str, str] | None) -> None:
    """Raise FedseedError if texts become other tokens here than in the run.

    Args:
        hosted: what this process has.
        said: the run's fingerprint, as its log says it; None: it says none.
    """
    if said is None or hosted.fingerprint is None:
        return
    difference = hosted.fingerprint.difference_from(Fingerprint.from_json(said))
    if difference is not None:
        raise FedseedError(difference)


def check_data(hosted: Hosted, run: str, epoch: str) -> None:
    """Compare the hosted clients' data with those that they had when the run began, or note them.

    Args:
        hosted: what this process has.
        run: the run's name.
        epoch: the incarnation of its log: a run of the same name that begins anew has another.

    Raises:
        FedseedError: they have changed; names the part and the way out.
        StorageError: the note can't be written.
    """
    if hosted.data_notes is None or not hosted.data_record:
        return
    file = hosted.data_notes / f"{hosted.host}.json"
    before = _read_note(file, epoch)
    if before is not None:
        both = {name: part for name, part in before.items() if name in hosted.data_record}
        changes = describe_changes(both, {name: hosted.data_record[name] for name in both})
        if changes:
            raise FedseedError(
                f"the data changed while run {run} goes on: {', '.join(changes)}. Put them back as "
                f"they were, or delete {file} to go on with them as they are"
            )
    if before == hosted.data_record:
        return
    note = {"epoch": epoch, "data": record_to_json(hosted.data_record)}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{file.parent}: can't be written: {error.strerror}") from error
    write_whole(file, json.dumps(note, indent=1).encode())


def _read_note(file: Path, epoch: str) -> DataRecord | None:
    """Return the data that a note of this log has; None: there is no such note."""
    try:
        note = json.loads(file.read_text(encoding="utf-8"))
        return record_from_json(note["data"]) if note["epoch"] == epoch else None
    except (OSError, ValueError, LookupError, TypeError):
        return None  # none, or of a process that was interrupted: it is written anew
