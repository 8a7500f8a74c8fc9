"""Messages between a Flower ServerApp and its nodes: each is a `ConfigRecord` that holds a table.

A node sends only in reply. So each message is half of an exchange: the ServerApp sends what the
node lacks, and the reply has everything that the node has to send.

    down  number     of the exchange with this node: a missing number was lost
          since, entries, end, over     log entries after number `since`; the log's last number (-1:
                     no log); whether it is over
          told       broadcasts
          names, lacking, blobs         sizes of the coordinator's blobs by name (JSON), and those
                     that the node lacks
          limit, kept                   bytes that the node may store (-1: any number), and the
                     sizes of its blobs by name
          asked, answers                the node's questions that have been answered
    up    have       the number of the last log entry that the node holds
          heard      whether it could process the message
          waits      whether it waits for an answer, and needs another exchange at once
          client     the first of its clients, which owns its blobs
          said       messages: JSON (client, what, and the number of a question), and `data` of each
          stored, dropped               blobs, with `contents` of the stored ones
          problem    the reason why there is nothing else
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, ValidationError

from fedseed.errors import MessageError
from fedseed.text import first_problem, show_text

RECORD = "fedseed"
MOST_SAID = 250_000  # most messages of a reply: two for each client of a large run
MOST_QUESTIONS = 100  # most messages of a reply that wait for an answer
MOST_DATA = 1 << 20  # bytes of a message, as on a usual server; larger ones become blobs

Table = dict[str, Any]  # fields of a ConfigRecord: bytes, texts, numbers, and lists of them


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("no name")
    return name


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
Data = Annotated[bytes, Field(max_length=MOST_DATA)]


class Said(BaseModel):
    """The header of a message: its client and kind; the number of a question that is waited for."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    client: Name
    what: Annotated[str, Field(max_length=20)]
    question: Annotated[str, Field(max_length=300), AfterValidator(_printable)] | None = None


class NodeReply(BaseModel):
    """A node's reply; its sender may lie. The module's docstring explains the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    have: Annotated[int, Field(ge=0)]
    heard: bool
    waits: bool
    client: Name
    said: Annotated[
        list[Annotated[str, Field(max_length=2_000)]], Field(max_length=MOST_SAID), FailFast()
    ] = []
    data: Annotated[list[Data], Field(max_length=MOST_SAID), FailFast()] = []
    stored: list[Name] = []
    contents: list[bytes] = []
    dropped: list[Name] = []

    @classmethod
    def parse(cls, message: Any) -> "tuple[NodeReply, list[tuple[Said, bytes]]]":
        """Parse a node's reply; return it, and the messages in it.

        Args:
            message: Flower's message.

        Raises:
            MessageError: a field is missing, unknown, of another type or too large; or the node
                reports a problem.
        """
        fields = table(message)
        if "problem" in fields:
            raise MessageError(show_text(fields["problem"], 1000))
        try:
            reply = cls.model_validate(fields)
            messages = [Said.model_validate_json(text) for text in reply.said]
        except ValidationError as error:
            raise MessageError(f"its reply: {first_problem(error)}") from None
        if len(messages) != len(reply.data) or len(reply.stored) != len(reply.contents):
            raise MessageError(
                "its reply: the numbers of messages or blobs and of their data differ"
            )
        if sum(message.question is not None for message in messages) > MOST_QUESTIONS:
            raise MessageError(f"its reply: more than {MOST_QUESTIONS} questions")
        return reply, list(zip(messages, reply.data, strict=True))


def record(table: Mapping[str, Any]) -> Any:
    """Return a table as Flower's ConfigRecord, without empty lists, which have no type there."""
    from flwr.app import ConfigRecord

    return ConfigRecord({key: value for key, value in table.items() if value != []})


def content(table: Mapping[str, Any]) -> Any:
    """Return a message's content: a RecordDict with one ConfigRecord."""
    from flwr.app import RecordDict

    return RecordDict({RECORD: record(table)})


def table(message: Any) -> Table:
    """Return the table in a message.

    Raises:
        MessageError: the message is not fedseed's.
    """
    record = message.content.config_records.get(RECORD)
    if record is None:
        raise MessageError(
            "a message without fedseed's record: ServerApp and ClientApp belong to different apps"
        )
    return dict(record)
