"""What the run is, before its log fixes it: what most clients say. Nobody decides it by coming first.

A process says in its hello which base, layout and first weights it has. Clients count, not processes. Once one opinion
has more than half of all clients, or more than half of those that the start waits for, it is the run's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedseed.federation.protocol import listed
from fedseed.orbit import Header


@dataclass(frozen=True)
class Claim:
    """What a process says.

    Args:
        header: the orbit's, as it would begin.
        weights: hex digest of the trained tensors before the first step; None: it does not say.
        names: all clients, where nobody else knows them; None: they are known.
    """

    header: Header
    weights: str | None = None
    names: tuple[str, ...] | None = None

    @property
    def opinion(self) -> tuple[bytes, str | None, tuple[str, ...] | None]:
        """What others must say, too; what a base is called there does not matter."""
        return replace(self.header, base="", base_folder="", first=1).encode(), self.weights, self.names

    def __str__(self) -> str:
        said = f"base {self.header.base_digest}, {self.header.layout.size:,} parameters that train"
        said += "" if self.weights is None else f" and begin as {self.weights}"
        return said + ("" if self.names is None else f", the clients {listed(self.names)}")


class Agreement:
    """Collects what processes say, until it is clear what the run is."""

    def __init__(self) -> None:
        self.claims: dict[str, Claim] = {}  # by process

    def say(self, host: str, claim: Claim) -> None:
        """A process says this; what it said before counts no longer."""
        self.claims[host] = claim

    def groups(self, clients: Mapping[str, int]) -> list[tuple[int, list[str]]]:
        """The processes of each opinion and how many clients it has, the largest first.

        Args:
            clients: of each process, how many it speaks for; others do not count.
        """
        found: dict[object, list[str]] = {}
        for host, claim in self.claims.items():
            if clients.get(host):
                found.setdefault(claim.opinion, []).append(host)
        return sorted(((sum(clients[h] for h in hosts), hosts) for hosts in found.values()), key=lambda one: -one[0])

    def decided(self, clients: Mapping[str, int], everybody: int, wanted: int) -> Claim | None:
        """What the run is; None: it can't be said yet.

        Args:
            clients: as for `groups`.
            everybody: how many clients there are; 0: not known.
            wanted: how many must be there for the start; 0: not known.
        """
        groups = self.groups(clients)
        if not groups:
            return None
        most, hosts = groups[0]
        first = self.claims[hosts[0]]
        if first.names is not None:  # as far as this opinion knows
            everybody, wanted = len(first.names), wanted or len(first.names)
        heard = sum(count for count, _ in groups)
        if 2 * most > everybody > 0 or (wanted and heard >= wanted and 2 * most > heard):
            return self._with_a_common_name(hosts)
        return None

    def _with_a_common_name(self, hosts: Sequence[str]) -> Claim:
        """The opinion of these, with the name for the base that most of them have."""
        claims = [self.claims[host] for host in hosts]
        called = [claim.header.base for claim in claims]
        return next(claim for claim in claims if called.count(claim.header.base) == max(map(called.count, called)))

    def describe(self, clients: Mapping[str, int]) -> str:
        """Who says what, for a person."""
        return "; ".join(f"{count} ({listed(hosts)}): {self.claims[hosts[0]]}" for count, hosts in self.groups(clients))
