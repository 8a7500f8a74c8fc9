"""What travels between ServerApp and ClientApp: one `ConfigRecord` a message, and in it fedseed's own bytes.

    query      -> weights: bool                                     <- header, names, clients, examples, (weights)
    train      -> plans, plan_of, clients, numbers, and steps       <- at, updates, reasons, spent
    evaluate   -> evaluate, digest, and steps                       <- at, digest, metrics, by_client, seconds, (ratio)

A process of a ClientApp may end after each message, so every message says which steps it needs: `since`, the step that
the node holds as far as the server knows, `at`, the one that it is to have, and `steps`, what leads from one to the
other. A node that holds less answers `behind`, and is sent what it lacks. `problem` in a reply says why there is none.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any

from fedseed.errors import MessageError

RECORD = "fedseed"
_LENGTH = struct.Struct("<Q")

Table = dict[str, Any]  # what a ConfigRecord holds: bytes, texts, numbers, and lists of them


def pack(payloads: Iterable[bytes]) -> bytes:
    """Payloads as one piece: each behind its length."""
    return b"".join(_LENGTH.pack(len(payload)) + payload for payload in payloads)


def unpack(data: bytes) -> list[bytes]:
    """The inverse of `pack`.

    Raises:
        MessageError: cut short.
    """
    found, at = [], 0
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise MessageError(f"steps that are cut short at byte {at}")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            raise MessageError(f"a step of {length} bytes that is cut short at byte {at}")
        found.append(data[at : at + length])
        at += length
    return found


def content(table: Mapping[str, Any]) -> Any:
    """A message's content: a RecordDict with one ConfigRecord; empty lists, which Flower can't type, are left out."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({RECORD: ConfigRecord({key: value for key, value in table.items() if value != []})})


def table(message: Any) -> Table:
    """What a message holds.

    Raises:
        MessageError: not a message of fedseed's.
    """
    record = message.content.config_records.get(RECORD)
    if record is None:
        raise MessageError("a message without fedseed's record: ServerApp and ClientApp are not of one app")
    return dict(record)


def size(message: Any) -> int:
    """Bytes of a message as Flower serializes it: the message's object, and those of its content."""
    if not message.has_content():
        return len(message.deflate())
    records = message.content.config_records.values()
    return sum(len(part.deflate()) for part in (message, message.content, *records))
