"""The processes that take part in a run, the clients they host, and which can be reached."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

from fedseed.federation.control import Report


@dataclass
class Host:
    """A process that hosts clients, named after the first of them."""

    last_heard: float  # time of its last message
    last_step: int = 0  # the last step it has applied
    report: Report | None = None  # its newest report
    fits: bool = False  # whether its hello had the run's base, layout and clients


@dataclass
class Roster:
    """The clients of a run, which of them can be reached, and their numbers of examples."""

    dead_after: float  # seconds of silence after which a host counts as dead
    # the clients' names in the order of their numbers; empty until known
    names: list[str] = field(default_factory=list)
    open: bool = False  # whether any client may enrol before the start
    now: Callable[[], float] = time.monotonic
    # returns whether a host is connected, or None if this is unknown; then its beats decide
    reached: Callable[[str], bool | None] = lambda name: None
    examples: dict[str, int] = field(default_factory=dict)
    # clients whose process has another base, layout or tokens than most
    outvoted: set[str] = field(default_factory=set)
    goes_without: bool = False  # whether the start no longer waits for outvoted clients
    hosts: dict[str, Host] = field(default_factory=dict)
    _host_of: dict[str, str] = field(default_factory=dict)  # host of each client
    _hosted: dict[str, set[str]] = field(default_factory=dict)  # the clients of each host

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Each client's number, by name."""
        return {name: number for number, name in enumerate(self.names)}

    def hello(self, name: str, last_step: int) -> bool:
        """Record a host that fits the run; return whether it is new."""
        host = self.hosts.setdefault(name, Host(0.0))
        is_new = not host.fits
        host.last_heard, host.fits, host.last_step = self.now(), True, last_step
        return is_new

    def attach(self, client: str, host: str) -> None:
        """Record that a process hosts a client from now on."""
        self._hosted.get(self.host_of(client), set()).discard(client)
        self._hosted.setdefault(host, set()).add(client)
        self._host_of[client] = host

    @property
    def attached(self) -> int:
        """The number of clients that have a process."""
        return len(self._host_of)

    def host_of(self, client: str) -> str:
        """Return the host of a client; a client without a host counts as its own."""
        return self._host_of.get(client, client)

    def alive(self) -> dict[str, Host]:
        """Return the hosts that can be reached."""
        return {
            name: host
            for name, host in self.hosts.items()
            if host.fits and self._reached(name, host)
        }

    def _reached(self, name: str, host: Host) -> bool:
        connected = self.reached(name)
        if connected is None:
            return host.last_heard > self.now() - self.dead_after
        return connected

    def clients(self) -> list[str]:
        """Return the clients that can be reached."""
        return [client for host in self.alive() for client in self._hosted.get(host, ())]

    def set_names(self, names: Iterable[str]) -> None:
        """Fix the run's clients. No client can enrol after this."""
        self.names = list(names)
        self.__dict__.pop("numbers", None)
        self.open = False

    def enrol(self, host: str, names: Iterable[str]) -> None:
        """Add the clients that a process speaks for.

        Clients are numbered in the order of their names.
        """
        for name in names:
            position = bisect_left(self.names, name)
            if self.host_of(name) == host and self.names[position : position + 1] != [name]:
                self.names.insert(position, name)
                self.__dict__.pop("numbers", None)

    def present(self) -> frozenset[int]:
        """Return the numbers of the clients that can be reached."""
        return frozenset(self.numbers[name] for name in self.clients() if name in self.numbers)

    def required_clients(self, start_with: int | None) -> int:
        """Return the number of clients that the first round waits for.

        0 if not known yet.
        """
        required = start_with or len(self.names)
        if not self.goes_without or not self.names:
            return required
        return max(1, min(required, len(self.names) - len(self.outvoted)))

    def spoken_for(self) -> dict[str, int]:
        """Return the number of clients that each reachable process speaks for.

        Before the run's clients are known, all names count.
        """
        hosted = {host: self._hosted.get(host, set()) for host in self.alive()}
        counts = {}
        for host, clients in hosted.items():
            count = len(clients & self.numbers.keys() if self.names else clients)
            if count:
                counts[host] = count
        return counts

    def work(self, clients: Iterable[int]) -> dict[int, int]:
        """Return for each of these clients how many of them its process hosts."""
        hosts = {client: self.host_of(self.names[client]) for client in clients}
        counts = Counter(hosts.values())
        return {client: counts[host] for client, host in hosts.items()}

    def outvote(self, host: str, is_outvoted: bool) -> None:
        """Record whether a process's clients differ from most clients. If they do, they do not take
        part.
        """
        clients = self._hosted.get(host, set())
        if not is_outvoted:
            self.outvoted -= clients
            return
        self.outvoted |= clients
        if host in self.hosts:
            self.hosts[host].fits = False

    def away(self) -> list[str]:
        """Return the clients that can't be reached, or have not come yet."""
        present = self.present()
        return [name for number, name in enumerate(self.names) if number not in present]
