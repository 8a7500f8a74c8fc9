"""What the nats-server itself refuses, read from its log: a wrong key, a foreign subject, a message that is too large.

The coordinator never hears of these otherwise. Works where the coordinator can read the server's log file.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedseed.errors import FedseedError

# [12] 2026/11/21 17:07:54.117465 [ERR] 127.0.0.1:47260 - cid:4 - "v2:python3:name" - what happened
# The server quotes the client's own words, line breaks and quotes in them too, so nobody can write lines of this form.
_LINE = re.compile(
    r"^\[\d+\] \S+ \S+ \[ERR\] (?P<address>\S+):\d+ - cid:(?P<connection>\d+) - "
    r'(?:"(?:[^"\\]|\\.)*" - )?(?P<what>.*)$'
)
_KEY = re.compile(r'Nkey "(?P<key>\w*)"')
_SUBJECT = re.compile(r'Subject "(?P<subject>[^"]*)"')
_KINDS = (
    ("Publish Violation", "it may not publish to"),
    ("Subscription Violation", "it may not subscribe to"),
    ("authentication error", "the server does not know its key"),
    ("maximum payload exceeded", "a message larger than the server takes, bytes:"),
    ("TLS handshake error", "no encrypted connection:"),
)
_MOST_CONNECTIONS = 10_000  # whose keys are remembered: whoever connects again and again is new each time
_AT_ONCE = 1 << 17  # bytes of new log that one call reads: somebody waits for the status meanwhile


@dataclass
class ServerLog:
    """Follows a nats-server's log file. Raises FedseedError if it can't be read."""

    path: Path  # what stands in the file already is passed over
    names: Mapping[str, str] = field(default_factory=dict)  # who has which public key, for telling who it was
    _keys: dict[str, str] = field(default_factory=dict)  # by connection

    def __post_init__(self) -> None:
        try:
            self._at = self.path.stat().st_size
            with open(self.path, "rb"):
                pass
        except OSError as error:
            raise FedseedError(f"--server-log {self.path}: can't be read: {error.strerror}") from error

    def new(self) -> Iterator[tuple[str, str]]:
        """Who was refused what since the last call; nothing while the file is away, as when logs are rotated."""
        try:
            with open(self.path, "rb") as file:
                if file.seek(0, 2) < self._at:  # another file is there, or it was emptied
                    self._at = 0
                    self._keys.clear()
                file.seek(self._at)
                data = file.read(_AT_ONCE)
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]  # the last line may be half written
        if not whole and len(data) == _AT_ONCE:
            whole = data
        self._at += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            told = self._told(line)
            if told is not None:
                yield told

    def _told(self, line: str) -> tuple[str, str] | None:
        match = _LINE.match(line)
        if match is None:
            return None
        what = match["what"]
        reason = next((text for start, text in _KINDS if what.startswith(start)), None)
        if reason is None:
            return None
        key = _KEY.search(what)
        if key is not None and not what.startswith("authentication"):
            self._keys[match["connection"]] = key["key"]  # the server has checked it
            if len(self._keys) > _MOST_CONNECTIONS:
                del self._keys[next(iter(self._keys))]  # the oldest
        known = self._keys.get(match["connection"])
        who = f"somebody at {match['address']}" if known is None else self.names.get(known, f"key {known}")
        subject = _SUBJECT.search(what)
        if subject is not None:
            return who, f"{reason} {subject['subject'][:200]}"
        rest = "" if key is not None else what.partition(": ")[2][:200]
        return who, f"{reason} {rest}".rstrip()


def key_names(folder: Path) -> dict[str, str]:
    """Names by public key, as `fedseed keys` writes them beside the keys; none if it did not."""
    try:
        found = json.loads((folder / "keys.json").read_text(encoding="utf-8"))
        return {str(key): str(name) for key, name in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}
