"""Checks of a client's own data and tokens when it comes to a run's log, now or once more.

A client keeps a note of its data while a run goes on, beside the files of secure sums. If it is
started again with other data, it stops with an error instead of going on. The note stays on the
client's machine.
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
    """Raise FedseedError if texts become other tokens here than in the run.

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
        epoch: the incarnation of its log; a run that begins anew under the same name has another.

    Raises:
        FedseedError: the data have changed; the text names the part and the remedy.
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
                f"the data changed while run {run} goes on: {', '.join(changes)}. Put them back as "
                f"they were, or delete {file} to go on with them as they are"
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
    """Return the data in the note of this log; None: there is no such note."""
    try:
        note = json.loads(file.read_text(encoding="utf-8"))
        return record_from_json(note["data"]) if note["epoch"] == epoch else None
    except (OSError, ValueError, LookupError, TypeError):
        # no note, or a damaged one after an interruption: it is written anew
        return None
