"""Records which data a run has, so that a resumed run can detect changes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from fedseed.tasks.data import ClientData, TaskData

DIGEST_BYTES = 16
# fields of examples that are not content: where they were read, and what was noticed
ASIDE = frozenset(("place", "remarks"))


@dataclass(frozen=True)
class DataPart:
    """The record of one client's examples, or of one evaluation set."""

    examples: int  # number of examples
    # hash of their content and order, in hex; "": examples of a kind that can't be hashed
    digest: str

    @classmethod
    def from_examples(cls, examples: Sequence[Any]) -> "DataPart":
        """Return the record of some examples."""
        return cls(len(examples), digest_of(examples))


DataRecord = Mapping[str, DataPart]  # by the part's name in messages


def record_of(data: TaskData) -> DataRecord:
    """Return the record of clients' examples, held-out sets and validation examples."""
    return {**clients_record(data.clients), **held_out_record(data.evaluation, data.validation)}


def clients_record(clients: Iterable[ClientData]) -> DataRecord:
    """Return the record of clients' examples."""
    return {f"client {client.name}": DataPart.from_examples(client.examples) for client in clients}


def held_out_record(
    sets: Mapping[str, Sequence[Any]], validation: Sequence[Any] = (), whose: str = ""
) -> DataRecord:
    """Return the record of evaluation sets and validation examples.

    Args:
        sets: evaluation sets, by prefix of the metrics' names.
        validation: examples for choosing settings.
        whose: the client that holds them; "": they are shared by all clients.
    """
    of_client = ""
    if whose:
        of_client = f" of {whose}"
    record = {}
    for prefix, examples in sets.items():
        name = ""
        if prefix:
            name = f' "{prefix.rstrip("_")}"'
        record[f"the held-out examples{name}{of_client}"] = DataPart.from_examples(examples)
    if validation:
        record[f"the validation examples{of_client}"] = DataPart.from_examples(validation)
    return record


def record_to_json(record: DataRecord) -> dict[str, Any]:
    """Return a record as JSON values."""
    return {name: [part.examples, part.digest] for name, part in record.items()}


def record_from_json(table: Any) -> DataRecord:
    """Return the record from JSON values, the inverse of `record_to_json`.

    Raises:
        ValueError: the value is not a record.
    """
    try:
        return {
            str(name): DataPart(int(examples), str(digest))
            for name, (examples, digest) in table.items()
        }
    except (AttributeError, TypeError) as error:
        raise ValueError("not a record of data") from error


def describe_changes(earlier: DataRecord, current: DataRecord) -> list[str]:
    """Return the differences between two records, one text for each part that differs.

    For parts that can't be hashed, only the number of examples is compared.
    """
    changes = []
    for name in dict.fromkeys([*earlier, *current]):
        old, new = earlier.get(name), current.get(name)
        if old is None or new is None:
            changes.append(f"{name} ({'new' if old is None else 'no longer there'})")
        elif old.examples != new.examples:
            changes.append(f"{name} ({old.examples:,} examples then, {new.examples:,} now)")
        elif old.digest and new.digest and old.digest != new.digest:
            changes.append(
                f"{name} (the same number of examples, {new.examples:,}, with different content)"
            )
    return changes


def digest_of(examples: Sequence[Any]) -> str:
    """Return a hash of examples' content and order, in hex.

    Returns:
        The hash; "" if the examples are of a kind that can't be hashed.
    """
    hashed = blake2b(digest_size=DIGEST_BYTES)
    try:
        for example in examples:
            _feed(hashed, example)
    except TypeError:
        return ""
    return hashed.hexdigest()


def _feed(hashed: Any, value: Any) -> None:
    """Hash a value with its type and length, so that different sequences of values can't have the
    same bytes.
    """
    if value is None or isinstance(value, bool | int | float | str):
        text = f"{type(value).__name__} {value!r}".encode()
        hashed.update(len(text).to_bytes(8, "little") + text)
    elif is_dataclass(value) and not isinstance(value, type):
        parts = [(one.name, getattr(value, one.name)) for one in fields(value)]
        _feed(hashed, type(value).__name__)
        _feed(hashed, {name: part for name, part in parts if name not in ASIDE})
    elif isinstance(value, Mapping):
        _feed(hashed, f"object of {len(value)}")
        for name, part in value.items():
            _feed(hashed, str(name))
            _feed(hashed, part)
    elif isinstance(value, list | tuple):
        _feed(hashed, f"list of {len(value)}")
        for part in value:
            _feed(hashed, part)
    else:
        array = value
        if not isinstance(value, np.ndarray):
            array = _as_array(value)
        _feed(hashed, f"array {array.dtype} {array.shape}")
        hashed.update(np.ascontiguousarray(array).tobytes())


def _as_array(value: Any) -> Any:
    """Return a torch tensor as an array, without importing torch here.

    Raises:
        TypeError: the value is not a tensor.
    """
    if not hasattr(value, "detach"):
        raise TypeError(f"a {type(value).__name__} can't be hashed")
    return value.detach().cpu().numpy()
