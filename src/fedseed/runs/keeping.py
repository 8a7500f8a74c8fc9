"""What a site keeps of a run that is over: the tuned model, the run's orbit, and a card, in one folder."""

from pathlib import Path

from fedseed.errors import FedseedError
from fedseed.federation.network_client import NetworkClient
from fedseed.orbit.card import Facts
from fedseed.orbit.export import check_free, export_model

ORBIT = "model.orbit"


def orbit_place(folder: Path) -> Path:
    """Where the orbit is written before the model is there; the folder is made.

    Raises:
        FedseedError: the folder holds a model or an orbit already, or can't be made.
    """
    check_free(folder)
    if (folder / ORBIT).exists():
        raise FedseedError(f"{folder} holds an orbit already: choose another folder with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{ORBIT}"
        part.unlink(missing_ok=True)  # of an earlier process that was interrupted
    except OSError as error:
        raise FedseedError(f"{folder}: can't be written: {error.strerror}") from error
    return part


def keep(client: NetworkClient, digest: str, folder: Path) -> None:
    """Write what a client's process has when its run is over.

    Args:
        client: the process; it has run, with `orbit_place` for its orbit.
        digest: of the weights.
        folder: where it goes; it holds no model.

    Raises:
        FedseedError: it can't be written.
    """
    replica = client.replica
    assert replica is not None
    part = folder / f".{ORBIT}"
    measured = [
        {name: value for name, value in line.items() if isinstance(value, float)} for line in client.evaluations
    ]
    first = measured[0] if measured and client.evaluations[0]["round"] == 0 else {}
    facts = Facts(
        steps=replica.at,
        digest=digest,
        orbit_name=ORBIT if part.exists() else "",
        orbit_bytes=part.stat().st_size if part.exists() else None,
        clients=len(replica.numbers),
        baseline=first,
        final=measured[-1] if measured else {},
    )
    hosted = replica.hosted
    export_model(folder, hosted.worker.space.model, hosted.processor, hosted.header, facts)
    if part.exists():
        part.replace(folder / ORBIT)
