"""What travels between a Flower ServerApp and its nodes: one `ConfigRecord` a message, which holds a table.

A node speaks only when it is asked. So each message is half of an exchange: the ServerApp sends what the node lacks,
the node answers with all that it has to say.

    down  number     of the exchange with this node: one that is missing was lost
          since, entries, end, over     log entries after number `since`; the log's last number (-1: no log); is it over
          told       what was broadcast
          names, blobs, sizes           the coordinator's blobs by name, with those that the node lacks
          limits, kept                  bytes that the node may store (-1: any number), and what it stores, by name
          asked, answers                the node's questions that have been answered
    up    have       the number of the last log entry that the node holds
          heard      whether it could make use of what it was told
          waits      whether it waits for an answer
          resident   whether its process stays, and may have something to say at any time
          client     the first of its clients, by whose name its blobs go
          said       messages: JSON (client, what, and the number of a question), and `data` of each
          stored, dropped               blobs, with `contents` of the stored ones
          problem    why there is nothing else
"""

from collections.abc import Mapping
from typing import Any

from fedseed.errors import MessageError

RECORD = "fedseed"

Table = dict[str, Any]  # what a ConfigRecord holds: bytes, texts, numbers, and lists of them


def record(table: Mapping[str, Any]) -> Any:
    """A table as Flower's ConfigRecord; empty lists, which Flower can't type, are left out."""
    from flwr.app import ConfigRecord

    return ConfigRecord({key: value for key, value in table.items() if value != []})


def content(table: Mapping[str, Any]) -> Any:
    """A message's content: a RecordDict with one ConfigRecord."""
    from flwr.app import RecordDict

    return RecordDict({RECORD: record(table)})


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
