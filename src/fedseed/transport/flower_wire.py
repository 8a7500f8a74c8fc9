"""What travels between a Flower ServerApp and its nodes: one `ConfigRecord` a message, which holds
a table.

A node speaks only when it is asked. So each message is half of an exchange: the ServerApp sends
what the node lacks, the node answers with all that it has to say.

    down  number     of the exchange with this node: one that is missing was lost
          since, entries, end, over     log entries after number `since`; the log's last number (-1:
          no log); is it over
          told       what was broadcast
          names, lacking, blobs         sizes of the coordinator's blobs by name (JSON), and those
          that the node lacks
          limit, kept                   bytes that the node may store (-1: any number), and what it
          stores, by name
          asked, answers                the node's questions that have been answered
    up    have       the number of the last log entry that the node holds
          heard      whether it could make use of what it was told
          waits      whether it waits for an answer, and is to be asked again at once
          client     the first of its clients, by whose name its blobs go
          said       messages: JSON (client, what, and the number of a question), and `data` of each
          stored, dropped               blobs, with `contents` of the stored ones
          problem    why there is nothing else
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, ValidationError

from fedseed.errors import MessageError
from fedseed.text import first_problem, shown

RECORD = "fedseed"
MOST_SAID = 250_000  # messages of a reply: two of each client of a large run
MOST_QUESTIONS = 100  # of these, those that wait for an answer
MOST_DATA = 1 << 20  # bytes of one message, as on a usual server; what is larger is a blob

Table = dict[str, Any]  # what a ConfigRecord holds: bytes, texts, numbers, and lists of them


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("no name")
    return name


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
Data = Annotated[bytes, Field(max_length=MOST_DATA)]


class Said(BaseModel):
    """What a message is, and whose; with the number of a question its answer is waited for."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    client: Name
    what: Annotated[str, Field(max_length=20)]
    question: Annotated[str, Field(max_length=300), AfterValidator(_printable)] | None = None


class Reply(BaseModel):
    """What a node says; whoever sends it may lie. The fields stand above."""

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
    def read(cls, message: Any) -> "tuple[Reply, list[tuple[Said, bytes]]]":
        """Return a node's reply, and the messages in it.

        Args:
            message: Flower's.

        Raises:
            MessageError: a field is missing, unknown, of another type or too large; or the node has
                a problem.
        """
        found = table(message)
        if "problem" in found:
            raise MessageError(shown(found["problem"], 1000))
        try:
            reply = cls.model_validate(found)
            said = [Said.model_validate_json(text) for text in reply.said]
        except ValidationError as error:
            raise MessageError(f"its reply: {first_problem(error)}") from None
        if len(said) != len(reply.data) or len(reply.stored) != len(reply.contents):
            raise MessageError("its reply: another number of messages or blobs than of their data")
        if sum(one.question is not None for one in said) > MOST_QUESTIONS:
            raise MessageError(f"its reply: more than {MOST_QUESTIONS} questions")
        return reply, list(zip(said, reply.data, strict=True))


def record(table: Mapping[str, Any]) -> Any:
    """Return a table as Flower's ConfigRecord.

    Empty lists, which Flower can't type, are left out.
    """
    from flwr.app import ConfigRecord

    return ConfigRecord({key: value for key, value in table.items() if value != []})


def content(table: Mapping[str, Any]) -> Any:
    """Return a message's content: a RecordDict with one ConfigRecord."""
    from flwr.app import RecordDict

    return RecordDict({RECORD: record(table)})


def table(message: Any) -> Table:
    """Return what a message holds.

    Raises:
        MessageError: not a message of fedseed's.
    """
    record = message.content.config_records.get(RECORD)
    if record is None:
        raise MessageError(
            "a message without fedseed's record: ServerApp and ClientApp are not of one app"
        )
    return dict(record)
