"""Which processes take part in a run, whom they host, and who of them can be reached."""

import time
from dataclasses import dataclass
from typing import Any


@dataclass
class Host:
    """A process that hosts clients, named by the first of them.

    Args:
        heard: when it was last heard.
        at: the last step it has applied.
        report: what it last reported.
        fits: whether it has said hello, and what it has is what the run is about.
    """

    heard: float
    at: int = 0
    report: dict[str, Any] | None = None
    fits: bool = False


class Attendance:
    """Hosts and their clients.

    Args:
        dead_after: seconds of silence after which a host counts as gone.
    """

    def __init__(self, dead_after: float) -> None:
        self.dead_after = dead_after
        self.hosts: dict[str, Host] = {}
        self._host_of: dict[str, str] = {}  # by client

    def hello(self, name: str, at: int) -> None:
        """A host that fits is there."""
        host = self.hosts.setdefault(name, Host(0.0))
        host.heard, host.fits, host.at = time.monotonic(), True, at

    def attach(self, client: str, host: str) -> None:
        """A client is hosted there from now on."""
        self._host_of[client] = host

    def host_of(self, client: str) -> str:
        """The host of a client; a client that nobody has spoken for is its own."""
        return self._host_of.get(client, client)

    def alive(self) -> dict[str, Host]:
        """The hosts that can be reached."""
        since = time.monotonic() - self.dead_after
        return {name: host for name, host in self.hosts.items() if host.fits and host.heard > since}

    def clients(self) -> list[str]:
        """The clients that can be reached."""
        alive = self.alive()
        return [client for client, host in self._host_of.items() if host in alive]
