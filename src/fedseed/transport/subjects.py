"""The subjects and other names of a run on a NATS server.

fedseed.RUN.log                 the run's stream: durable entries in order
fedseed.RUN.entries             from the server, which repeats each stored entry
fedseed.RUN.down                coordinator to everybody, not stored
fedseed.RUN.up.CLIENT.KIND      from a client: only CLIENT may publish here
fedseed.RUN.status              questions for the status
fedseed.RUN.in.NAME.>           replies to NAME
fedseed.RUN.node.NODE.all       from a node of a mesh to all neighbours: only NODE may publish here
fedseed.RUN.node.NODE.to.OTHER  to one of them: the same
fedseed.RUN.in.watcher.all      the status, for all who ask; fedseed.RUN.in.coordinator.all for
                                another coordinator
"""

import hashlib
import unicodedata
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

RESERVED = ("coordinator", "watcher")
MOST_BYTES = 128  # most bytes of a client's name in UTF-8, as it is part of file names and subjects
_BETWEEN = "._-@+ "  # characters that a name may have besides letters and digits


def name_problem(name: str) -> str | None:
    """Return the reason why a text can't be a client's name; None if it can.

    A name has letters and digits of any script, and between them . _ - @ + and single spaces. So it
    is valid as a file's name and as one word in a configuration, and is no option, pattern or path.
    """
    if not name.strip() or name != name.strip():
        return "a name is a text without spaces around it"
    if name in RESERVED:
        return "this name is taken"
    if len(name.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        return f"a name has at most {MOST_BYTES} bytes"
    foreign = [
        letter
        for letter in name
        if letter not in _BETWEEN and unicodedata.category(letter)[0] not in "LMN"
    ]
    if foreign:
        return (
            f"a name has none of {foreign[0]!r}: letters, digits, and between them . _ - @ + or a "
            "space"
        )
    if unicodedata.category(name[0])[0] not in "LN" or "  " in name:
        return "a name begins with a letter or digit, and has single spaces only"
    return None


@lru_cache(4096)
def token(name: str) -> str:
    """Return a client's name as one part of a subject.

    Letters, digits, - and _ stay; other bytes become =XX.
    """
    return quote(name, safe="").replace("%", "=").replace(".", "=2E").replace("~", "=7E")


@lru_cache(4096)  # called for each message's subject
def name_of(part: str) -> str | None:
    """Return the inverse of `token`; None for a part that is not a token."""
    try:
        name = unquote_to_bytes(part.replace("=", "%")).decode()
    except UnicodeError:
        return None
    return name if token(name) == part else None


class Subjects:
    """The names of a run on a server."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.root = f"fedseed.{run}"  # the beginning of all subjects of the run
        self.stream = f"fedseed--{run}"
        self.log, self.entries = f"{self.root}.log", f"{self.root}.entries"
        self.down, self.status = f"{self.root}.down", f"{self.root}.status"

    def from_client(self, client: str, kind: str) -> str:
        """Return the subject of a client's messages of a kind."""
        return f"{self.root}.up.{token(client)}.{kind}"

    def from_node(self, node: str, receiver: str | None = None) -> str:
        """Return the subject of a mesh node's messages to one neighbour, or (None) to all."""
        if receiver is None:
            return f"{self.root}.node.{token(node)}.all"
        return f"{self.root}.node.{token(node)}.to.{token(receiver)}"

    def inbox(self, name: str) -> str:
        """Return the prefix of the subjects for replies to somebody."""
        return f"{self.root}.in.{token(name)}"

    def statuses(self, name: str) -> str:
        """Return the subject of statuses for all who ask as `name`, one of `RESERVED`."""
        return f"{self.inbox(name)}.all"

    def bucket(self, client: str | None = None) -> str:
        """Return the object store of a client, or (None) the coordinator's."""
        if client is None:
            return f"{self.stream}--down"
        plain = token(client)
        if "=" in plain:  # not allowed in a bucket's name
            plain = hashlib.blake2b(client.encode(), digest_size=12).hexdigest()
        return f"{self.stream}--up--{plain}"

    def chunks(self, owner: str | None, name: str) -> str:
        """Return the subject of an object's chunks."""
        return f"$O.{self.bucket(owner)}.C.{name}"
