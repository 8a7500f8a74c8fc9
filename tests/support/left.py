"""What a run leaves that must be the same, whoever computed it and however often it was
interrupted.
"""

import json

import pytest
from safetensors import deserialize, safe_open

UNLIKE = {
    "seconds",
    "seconds_per_client",
    "peak_memory_bytes",
    "started",
    "ended",
    "workers",
    "worker_peak_memory_bytes",
}


def without_seconds(lines, *keys):
    """Lines of metrics as tables, without what they took, their sums over all of it, and these
    keys.
    """
    return [{k: v for k, v in line.items() if k not in ("seconds", "sum", *keys)} for line in lines]


def left_by(folder):
    """A run's metrics and summary without what differs, its orbit's or weights' bytes, the names of
    its files.
    """
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = {
        k: v
        for k, v in json.loads((folder / "summary.json").read_text()).items()
        if k not in UNLIKE
    }
    if (folder / "model.orbit").exists():
        model = (folder / "model.orbit").read_bytes()
    else:  # its metadata come in any order
        with safe_open(folder / "model.safetensors", framework="np") as file:
            model = file.metadata(), dict(deserialize((folder / "model.safetensors").read_bytes()))
    names = sorted(path.name for path in folder.iterdir())
    return {"metrics": without_seconds(lines), "summary": summary, "model": model, "files": names}


class StoppedError(Exception):
    pass


def before(owner, name, act):
    """Do something whenever an object's method is called, with its arguments, before it does its
    work.
    """
    work = getattr(owner, name)

    def both(*arguments):
        act(*arguments)
        return work(*arguments)

    setattr(owner, name, both)


def stop_after(federation, rounds, resume=False):
    """Lets a run die when the round after these begins."""

    def opening(number, *_):
        if number > rounds:
            raise StoppedError

    before(federation.coordinator, "open", opening)
    with pytest.raises(StoppedError):
        federation.run(resume=resume)
