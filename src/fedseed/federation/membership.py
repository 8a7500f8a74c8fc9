"""Which processes take part in a run, whom they host, and who of them can be reached."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

from fedseed.federation.control import Report


@dataclass
class Host:
    """A process that hosts clients, named by the first of them."""

    heard: float  # when it was last heard
    at: int = 0  # the last step it has applied
    report: Report | None = None  # what it last reported
    fits: bool = False  # whether it has said hello, and what it has is what the run is about


@dataclass
class Roster:
    """The clients of a run, who of them is there, and how many examples each says it has."""

    dead_after: float  # seconds of silence after which a host counts as gone
    # in the order of their numbers; none: the first to come says
    names: list[str] = field(default_factory=list)
    open: bool = False  # whoever comes before the run begins is one
    now: Callable[[], float] = time.monotonic
    # is a host connected; None: its signs of life tell
    reached: Callable[[str], bool | None] = lambda name: None
    examples: dict[str, int] = field(default_factory=dict)
    # clients whose process has another base or layout than most
    outvoted: set[str] = field(default_factory=set)
    goes_without: bool = False  # whether the start waits for these no longer
    hosts: dict[str, Host] = field(default_factory=dict)
    _host_of: dict[str, str] = field(default_factory=dict)  # by client
    _hosted: dict[str, set[str]] = field(default_factory=dict)  # the clients of each host

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Return each client's number, by name."""
        return {name: number for number, name in enumerate(self.names)}

    def hello(self, name: str, at: int) -> bool:
        """Note that a host that fits is there; return whether that is new."""
        host = self.hosts.setdefault(name, Host(0.0))
        new = not host.fits
        host.heard, host.fits, host.at = self.now(), True, at
        return new

    def attach(self, client: str, host: str) -> None:
        """Note that a client is hosted there from now on."""
        self._hosted.get(self.host_of(client), set()).discard(client)
        self._hosted.setdefault(host, set()).add(client)
        self._host_of[client] = host

    @property
    def attached(self) -> int:
        """Return how many clients somebody has spoken for."""
        return len(self._host_of)

    def host_of(self, client: str) -> str:
        """Return the host of a client; a client that nobody has spoken for is its own."""
        return self._host_of.get(client, client)

    def alive(self) -> dict[str, Host]:
        """Return the hosts that can be reached."""
        return {
            name: host
            for name, host in self.hosts.items()
            if host.fits and self._reached(name, host)
        }

    def _reached(self, name: str, host: Host) -> bool:
        present = self.reached(name)
        return host.heard > self.now() - self.dead_after if present is None else present

    def clients(self) -> list[str]:
        """Return the clients that can be reached."""
        return [client for host in self.alive() for client in self._hosted.get(host, ())]

    def name(self, names: Iterable[str]) -> None:
        """Note who the clients are, which is known from now on."""
        self.names = list(names)
        self.__dict__.pop("numbers", None)
        self.open = False

    def enrol(self, host: str, names: Iterable[str]) -> None:
        """Take up the clients that a process speaks for.

        They are numbered by their names' order.
        """
        for name in names:
            at = bisect_left(self.names, name)
            if self.host_of(name) == host and self.names[at : at + 1] != [name]:
                self.names.insert(at, name)
                self.__dict__.pop("numbers", None)

    def present(self) -> frozenset[int]:
        """Return the numbers of the clients that can be reached."""
        return frozenset(self.numbers[name] for name in self.clients() if name in self.numbers)

    def wanted(self, start_with: int | None) -> int:
        """Return how many clients must be there before the first round.

        0 while that is not known.
        """
        wanted = start_with or len(self.names)
        if not self.goes_without or not self.names:
            return wanted
        return max(1, min(wanted, len(self.names) - len(self.outvoted)))

    def spoken_for(self) -> dict[str, int]:
        """Return how many clients each process that can be reached speaks for.

        All names count while none is known.
        """
        hosted = {host: self._hosted.get(host, set()) for host in self.alive()}
        counts = {
            host: len(mine & self.numbers.keys() if self.names else mine)
            for host, mine in hosted.items()
        }
        return {host: count for host, count in counts.items() if count}

    def work(self, clients: Iterable[int]) -> dict[int, int]:
        """Return of some clients, how many of them are in each one's process: it answers for all
        of those.
        """
        hosts = {client: self.host_of(self.names[client]) for client in clients}
        counts = Counter(hosts.values())
        return {client: counts[host] for client, host in hosts.items()}

    def outvote(self, host: str, out: bool) -> None:
        """Note that the clients of a process do not fit what most have, or that they do again."""
        theirs = self._hosted.get(host, set())
        if not out:
            self.outvoted -= theirs
            return
        self.outvoted |= theirs
        if host in self.hosts:
            self.hosts[host].fits = False

    def away(self) -> list[str]:
        """Return who can't be reached, or has not come yet."""
        here = self.present()
        return [name for number, name in enumerate(self.names) if number not in here]
