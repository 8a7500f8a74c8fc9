"""Checks a client's data and tokens when its process begins to follow a run's log, for the first
time or again.

A client keeps a note of its data during a run, in the same folder as the files of secure sums. If
it is restarted with other data, it stops with an error. The note stays on the client's machine.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from fedseed.durable import write_whole
from fedseed.errors import FedseedError, StorageError
from fedseed.federation.client.state import Hosted
from fedseed.federation.fingerprint import Fingerprint
from fedseed.tasks.record import DataRecord, describe_changes, record_from_json, record_to_json


def check_fingerprint(hosted: Hosted, run_fingerprint: Mapping[str, str] | None) -> None:
    """Raise FedseedError if texts have different tokens here than in the run.

    Args:
        hosted: this process' clients.
        run_fingerprint: the run's fingerprint from its log; None: the log has none.
    """
    if run_fingerprint is None or hosted.fingerprint is None:
        return
    difference = hosted.fingerprint.difference_from(Fingerprint.from_json(run_fingerprint))
    if difference is not None:
        raise FedseedError(difference)


def check_data(hosted: Hosted, run: str, epoch: str) -> None:
    """Compare the hosted clients' data with the note of this run, or write the note.

    Args:
        hosted: this process' clients.
        run: the run's name.
        epoch: the incarnation of its log; a run that begins again under the same name has a
            different one.

    Raises:
        FedseedError: the data have changed; the message names the part and the remedy.
        StorageError: the note can't be written.
    """
    if hosted.data_notes is None or not hosted.data_record:
        return
    file = hosted.data_notes / f"{hosted.host}.json"
    noted = _read_note(file, epoch)
    if noted is not None:
        noted_here = {name: part for name, part in noted.items() if name in hosted.data_record}
        changes = describe_changes(
            noted_here, {name: hosted.data_record[name] for name in noted_here}
        )
        if changes:
            raise FedseedError(
                f"the data changed during run {run}: {', '.join(changes)}. Restore the old data, "
                f"or delete {file} to continue with the new data"
            )
    if noted == hosted.data_record:
        return
    note = {"epoch": epoch, "data": record_to_json(hosted.data_record)}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{file.parent}: can't be written: {error.strerror}") from error
    write_whole(file, json.dumps(note, indent=1).encode())


def _read_note(file: Path, epoch: str) -> DataRecord | None:
    """Return the data in this log's note; None if there is no such note."""
    try:
        note = json.loads(file.read_text(encoding="utf-8"))
        return record_from_json(note["data"]) if note["epoch"] == epoch else None
    except (OSError, ValueError, LookupError, TypeError):
        # there is no note, or an interruption damaged it: it is written again
        return None
